// The calls about streams, events and host functions.
// Mimics: CUDA driver API reference, "Stream Management", "Event Management", cuLaunchHostFunc.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <stdlib.h>

#include "streams_parts.h"
#include "variants.h"

// ---- streams

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!stream || flags > CU_STREAM_NON_BLOCKING) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&engine);
    struct CUstream_st *made = new_stream(context, flags, false);
    if (made) made->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    pthread_mutex_unlock(&engine);
    *stream = made;
    return gate_leave(made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

API CUresult cuStreamDestroy_v2(CUstream handle) {
    CUcontext context;
    TRY(gate_enter(&context));
    pthread_mutex_lock(&engine);
    bool is_default = !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    struct CUstream_st *stream = is_default ? NULL : resolve_stream(context, handle, false);
    if (stream) unlink_stream(stream);
    pthread_mutex_unlock(&engine);
    return gate_leave(stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult stream_synchronize(CUstream handle, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, handle, per_thread);
    // Work of a blocking stream before a wait on the legacy stream is waited for, as the legacy stream would.
    CUresult result = stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (stream && stream->is_legacy) {
        pthread_mutex_unlock(&engine);
        return gate_leave(stream_wait_default(context, false));
    }
    if (stream) result = wait_for_stream(stream, stream->submitted);
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}
STREAM_VARIANTS(cuStreamSynchronize, (CUstream stream), stream_synchronize, (stream, PER_THREAD))

static CUresult stream_query(CUstream handle, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, handle, per_thread);
    CUresult result = !stream ? CUDA_ERROR_INVALID_HANDLE : stream->finished < stream->submitted ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    if (!result) result = (CUresult)context->broken;
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}
STREAM_VARIANTS(cuStreamQuery, (CUstream stream), stream_query, (stream, PER_THREAD))

enum stream_field { FIELD_FLAGS, FIELD_PRIORITY, FIELD_ID, FIELD_CONTEXT, FIELD_DEVICE };

static CUresult stream_get(CUstream handle, bool per_thread, enum stream_field field, void *out) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!out) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, handle, per_thread);
    if (stream) switch (field) {
        case FIELD_FLAGS: *(unsigned *)out = stream->flags; break;
        case FIELD_PRIORITY: *(int *)out = stream->priority; break;
        case FIELD_ID: *(unsigned long long *)out = stream->id; break;
        case FIELD_CONTEXT: *(CUcontext *)out = stream->context; break;
        case FIELD_DEVICE: *(CUdevice *)out = stream->context->ordinal; break;
    }
    pthread_mutex_unlock(&engine);
    return gate_leave(stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}
STREAM_VARIANTS(cuStreamGetFlags, (CUstream stream, unsigned *flags), stream_get, (stream, PER_THREAD, FIELD_FLAGS, flags))
STREAM_VARIANTS(cuStreamGetPriority, (CUstream stream, int *priority), stream_get, (stream, PER_THREAD, FIELD_PRIORITY, priority))
STREAM_VARIANTS(cuStreamGetId, (CUstream stream, unsigned long long *id), stream_get, (stream, PER_THREAD, FIELD_ID, id))
STREAM_VARIANTS(cuStreamGetCtx, (CUstream stream, CUcontext *context), stream_get, (stream, PER_THREAD, FIELD_CONTEXT, context))

static CUresult stream_get_context(CUstream stream, CUcontext *context, void **green_context, bool per_thread) {
    if (green_context) *green_context = NULL;  // there are none here
    return stream_get(stream, per_thread, FIELD_CONTEXT, context);
}
STREAM_VARIANTS(cuStreamGetCtx_v2, (CUstream stream, CUcontext *context, void **green_context), stream_get_context,
                   (stream, context, green_context, PER_THREAD))
STREAM_VARIANTS(cuStreamGetDevice, (CUstream stream, CUdevice *device), stream_get, (stream, PER_THREAD, FIELD_DEVICE, device))

// ---- events

CUresult event_is_interprocess(CUevent handle) {
    pthread_mutex_lock(&engine);
    CUresult result = !is_event(handle) ? CUDA_ERROR_INVALID_HANDLE
                      : handle->flags & CU_EVENT_INTERPROCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&engine);
    return result;
}

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!event || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    struct CUevent_st *made = calloc(1, sizeof *made);
    if (!made) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    made->context = context;
    made->flags = flags;
    made->references = 1;
    pthread_mutex_lock(&engine);
    add_event(made);
    pthread_mutex_unlock(&engine);
    *event = made;
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuEventDestroy_v2(CUevent event) {
    TRY(gate_enter(NULL));
    pthread_mutex_lock(&engine);
    bool known = is_event(event);
    if (known) unlink_event(event);
    pthread_mutex_unlock(&engine);
    return gate_leave(known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult event_record(CUevent event, CUstream handle, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, handle, per_thread);
    if (stream && is_event(event)) {
        if (event->context != stream->context) {
            result = CUDA_ERROR_INVALID_HANDLE;
        } else {
            result = queue_work(stream, NULL, NULL, event);
            stream->references++;
            drop_stream(event->at.stream);
            event->at = (struct place){stream, stream->submitted};
        }
    }
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}
STREAM_VARIANTS(cuEventRecord, (CUevent event, CUstream stream), event_record, (event, stream, PER_THREAD))

static CUresult event_record_with_flags(CUevent event, CUstream stream, unsigned flags, bool per_thread) {
    return flags ? CUDA_ERROR_NOT_SUPPORTED : event_record(event, stream, per_thread);
}
STREAM_VARIANTS(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), event_record_with_flags,
                (event, stream, flags, PER_THREAD))

static bool is_done(const struct CUevent_st *event) { return !event->at.stream || event->at.stream->finished >= event->at.number; }

API CUresult cuEventQuery(CUevent event) {
    TRY(gate_enter(NULL));
    pthread_mutex_lock(&engine);
    CUresult result = !is_event(event) ? CUDA_ERROR_INVALID_HANDLE : is_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    if (!result) result = (CUresult)event->context->broken;
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}

API CUresult cuEventSynchronize(CUevent event) {
    TRY(gate_enter(NULL));
    pthread_mutex_lock(&engine);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (is_event(event)) result = event->at.stream ? wait_for_stream(event->at.stream, event->at.number) : CUDA_SUCCESS;
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    TRY(gate_enter(NULL));
    pthread_mutex_lock(&engine);
    CUresult result = CUDA_SUCCESS;
    if (!milliseconds) result = CUDA_ERROR_INVALID_VALUE;
    else if (!is_event(start) || !is_event(end) || !start->at.stream || !end->at.stream) result = CUDA_ERROR_INVALID_HANDLE;
    else if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) result = CUDA_ERROR_INVALID_HANDLE;
    else if (!is_done(start) || !is_done(end)) result = CUDA_ERROR_NOT_READY;
    else *milliseconds = (float)((double)((int64_t)end->stamp_ns - (int64_t)start->stamp_ns) / 1e6);
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}
API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) { return cuEventElapsedTime(milliseconds, start, end); }

static CUresult stream_wait_event(CUstream handle, CUevent event, unsigned flags, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (flags) return gate_leave(CUDA_ERROR_NOT_SUPPORTED);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, handle, per_thread);
    if (stream && is_event(event)) {
        bool fine = !event->at.stream || add_place(&stream->after, &stream->after_count, event->at.stream, event->at.number);
        // Queued as empty work, so that the wait stands in order and counts as outstanding.
        result = fine ? queue_work(stream, NULL, NULL, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}
STREAM_VARIANTS(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), stream_wait_event, (stream, event, flags, PER_THREAD))

// ---- host functions

struct host_call {
    void (*function)(void *);
    void (*callback)(CUstream, CUresult, void *);
    CUstream stream;
    void *data;
};

static CUresult call_host(CUcontext context, uint32_t stream_id, void *argument) {
    struct host_call *call = argument;
    (void)stream_id;
    if (call->function) call->function(call->data); else call->callback(call->stream, (CUresult)context->broken, call->data);
    return CUDA_SUCCESS;
}

static CUresult submit_host_call(CUstream stream, struct host_call what, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    struct host_call *call = malloc(sizeof *call);
    if (!call) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *call = what;
    return gate_leave(stream_submit(context, stream, per_thread, call_host, call));
}

static CUresult launch_host(CUstream stream, void (*function)(void *), void *data, bool per_thread) {
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    return submit_host_call(stream, (struct host_call){.function = function, .data = data}, per_thread);
}
STREAM_VARIANTS(cuLaunchHostFunc, (CUstream stream, void (*function)(void *), void *data), launch_host, (stream, function, data, PER_THREAD))

static CUresult add_callback(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags, bool per_thread) {
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    return submit_host_call(stream, (struct host_call){.callback = callback, .stream = stream, .data = data}, per_thread);
}
STREAM_VARIANTS(cuStreamAddCallback, (CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags), add_callback,
                (stream, callback, data, flags, PER_THREAD))
