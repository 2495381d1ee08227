// Mimics: CUDA driver API reference, "Stream Management", "Event Management", "Stream synchronization behavior" (legacy and per-thread
// default stream); programming guide, "Asynchronous concurrent execution".
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "streams.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "variants.h"

struct place {  // "until this stream has finished that much"
    struct CUstream_st *stream;
    uint64_t number;
};

struct work {
    struct work *next;
    uint64_t number;
    work_function *run;
    void *argument;
    struct CUevent_st *event;  // to be stamped afterwards
    struct place *after;
    size_t after_count;
};

struct CUstream_st {
    struct CUstream_st *next;
    CUcontext context;
    unsigned flags, id;
    int priority;
    bool is_legacy, is_destroyed, has_worker;
    unsigned references;  // the registry, the worker, works and events that point at it
    struct work *head, **tail;
    uint64_t submitted, finished;
    pthread_cond_t wake;
    struct place *after;  // what the next work waits for (cuStreamWaitEvent)
    size_t after_count;
};

struct CUevent_st {
    struct CUevent_st *next;
    CUcontext context;
    unsigned flags;
    bool is_destroyed;
    unsigned references;
    struct place at;    // stream NULL: never recorded
    uint64_t stamp_ns;  // when the newest record was reached
};

// One lock for all: work is coarse. `progress` is signalled with each piece of work that ends.
static pthread_mutex_t engine = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static struct CUevent_st *events;
static unsigned last_id;
static _Atomic uint64_t outstanding;
static __thread unsigned own_stream_ids[GM_MAX_DEVICES];  // per-thread default streams, one for each ordinal

bool stream_all_idle(void) { return outstanding == 0; }

// ---- references

static void drop_stream(struct CUstream_st *stream) {
    if (!stream || --stream->references) return;
    for (size_t i = 0; i < stream->after_count; i++) drop_stream(stream->after[i].stream);
    free(stream->after);
    pthread_cond_destroy(&stream->wake);
    free(stream);
}

static void drop_event(struct CUevent_st *event) {
    if (!event || --event->references) return;
    drop_stream(event->at.stream);
    free(event);
}

static bool add_place(struct place **list, size_t *count, struct CUstream_st *stream, uint64_t number) {
    if (stream->finished >= number) return true;
    struct place *more = realloc(*list, (*count + 1) * sizeof *more);
    if (!more) return false;
    *list = more;
    more[(*count)++] = (struct place){stream, number};
    stream->references++;
    return true;
}

// ---- the registry

static struct CUstream_st *new_stream(CUcontext context, unsigned flags, bool is_legacy) {
    struct CUstream_st *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->context = context;
    made->flags = flags;
    made->is_legacy = is_legacy;
    made->id = ++last_id;
    made->references = 1;
    made->tail = &made->head;
    pthread_cond_init(&made->wake, NULL);
    made->next = streams;
    streams = made;
    return made;
}

static struct CUstream_st *legacy_of(CUcontext context) {
    for (struct CUstream_st *at = streams; at; at = at->next)
        if (at->context == context && at->is_legacy) return at;
    return new_stream(context, 0, true);
}

// The stream that a handle means, or NULL.
static struct CUstream_st *resolve(CUcontext context, CUstream handle, bool per_thread) {
    if (handle == CU_STREAM_LEGACY || (!handle && !per_thread)) return legacy_of(context);
    bool is_own = handle == CU_STREAM_PER_THREAD || !handle;
    unsigned own_id = own_stream_ids[context->ordinal];
    for (struct CUstream_st *at = streams; at; at = at->next)
        if (is_own ? at->id == own_id && at->context == context : at == handle) return at;
    if (!is_own) return NULL;
    struct CUstream_st *made = new_stream(context, 0, false);
    if (made) own_stream_ids[context->ordinal] = made->id;
    return made;
}

static void unlink_stream(struct CUstream_st *stream) {
    for (struct CUstream_st **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    stream->is_destroyed = true;
    pthread_cond_signal(&stream->wake);  // its worker ends when its work is done
    drop_stream(stream);
}

static void unlink_event(struct CUevent_st *event) {
    for (struct CUevent_st **at = &events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    event->is_destroyed = true;
    drop_event(event);
}

static bool is_event(CUevent handle) {
    for (struct CUevent_st *at = events; at; at = at->next)
        if (at == handle) return true;
    return false;
}

CUresult event_is_interprocess(CUevent handle) {
    pthread_mutex_lock(&engine);
    CUresult result = !is_event(handle) ? CUDA_ERROR_INVALID_HANDLE
                      : handle->flags & CU_EVENT_INTERPROCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&engine);
    return result;
}

// ---- workers

static bool is_reached(const struct work *work) {
    for (size_t i = 0; i < work->after_count; i++)
        if (work->after[i].stream->finished < work->after[i].number) return false;
    return true;
}

static void *serve_stream(void *argument) {
    struct CUstream_st *stream = argument;
    pthread_mutex_lock(&engine);
    for (;;) {
        while (!stream->head && !stream->is_destroyed) pthread_cond_wait(&stream->wake, &engine);
        struct work *work = stream->head;
        if (!work) break;
        while (!is_reached(work)) pthread_cond_wait(&progress, &engine);
        CUcontext context = stream->context;
        pthread_mutex_unlock(&engine);
        CUresult result = CUDA_SUCCESS;
        if (work->run && !context->broken) result = work->run(context, stream->id, work->argument);
        uint64_t now = gm_now_ns();
        pthread_mutex_lock(&engine);
        if (result) context->broken = result;
        if (work->event && work->event->at.stream == stream && work->event->at.number == work->number) work->event->stamp_ns = now;
        stream->head = work->next;
        if (!stream->head) stream->tail = &stream->head;
        stream->finished = work->number;
        outstanding--;
        for (size_t i = 0; i < work->after_count; i++) drop_stream(work->after[i].stream);
        drop_event(work->event);
        free(work->after);
        free(work->argument);
        free(work);
        pthread_cond_broadcast(&progress);
        pthread_mutex_unlock(&engine);
        gate_poke();
        pthread_mutex_lock(&engine);
    }
    drop_stream(stream);
    pthread_mutex_unlock(&engine);
    return NULL;
}

static bool start_worker(struct CUstream_st *stream) {
    if (stream->has_worker) return true;
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are for its own threads
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 256 * 1024);
    stream->has_worker = pthread_create(&thread, &detached, serve_stream, stream) == 0;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (stream->has_worker) stream->references++;
    return stream->has_worker;
}

// What the default-stream rules make work in this stream wait for.
static bool add_order(struct CUstream_st *stream, struct place **list, size_t *count) {
    if (stream->flags & CU_STREAM_NON_BLOCKING) return true;
    for (struct CUstream_st *at = streams; at; at = at->next) {
        if (at == stream || at->context != stream->context || (at->flags & CU_STREAM_NON_BLOCKING)) continue;
        if (stream->is_legacy || at->is_legacy)
            if (!add_place(list, count, at, at->submitted)) return false;
    }
    return true;
}

// Under the engine's lock.
static CUresult queue(struct CUstream_st *stream, work_function *run, void *argument, struct CUevent_st *event) {
    struct work *work = calloc(1, sizeof *work);
    if (!work || !start_worker(stream)) {
        free(work);
        free(argument);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    work->run = run;
    work->argument = argument;
    work->event = event;
    if (event) event->references++;
    work->after = stream->after;
    work->after_count = stream->after_count;
    stream->after = NULL;
    stream->after_count = 0;
    bool fine = add_order(stream, &work->after, &work->after_count);
    work->number = ++stream->submitted;
    *stream->tail = work;
    stream->tail = &work->next;
    outstanding++;
    pthread_cond_signal(&stream->wake);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult wait_for(struct CUstream_st *stream, uint64_t number) {
    stream->references++;
    while (stream->finished < number) pthread_cond_wait(&progress, &engine);
    CUresult result = (CUresult)stream->context->broken;
    drop_stream(stream);
    return result;
}

CUresult stream_submit(CUcontext context, CUstream handle, bool per_thread, work_function *run, void *argument) {
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve(context, handle, per_thread);
    if (!stream) free(argument);
    CUresult result = stream ? queue(stream, run, argument, NULL) : CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_unlock(&engine);
    return result;
}

CUresult stream_submit_and_wait(CUcontext context, CUstream handle, bool per_thread, work_function *run, void *argument) {
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve(context, handle, per_thread);
    if (!stream) free(argument);
    CUresult result = stream ? queue(stream, run, argument, NULL) : CUDA_ERROR_INVALID_HANDLE;
    if (!result) result = wait_for(stream, stream->submitted);
    pthread_mutex_unlock(&engine);
    return result;
}

CUresult stream_wait_default(CUcontext context, bool per_thread) {
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve(context, NULL, per_thread);
    struct place *after = NULL;
    size_t count = 0;
    bool fine = stream && add_place(&after, &count, stream, stream->submitted) && add_order(stream, &after, &count);
    for (size_t i = 0; i < count; i++) {
        while (fine && after[i].stream->finished < after[i].number) pthread_cond_wait(&progress, &engine);
        drop_stream(after[i].stream);
    }
    free(after);
    pthread_mutex_unlock(&engine);
    return fine ? (CUresult)context->broken : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_wait_context(CUcontext context) {
    pthread_mutex_lock(&engine);
    struct place *after = NULL;
    size_t count = 0;
    bool fine = true;
    for (struct CUstream_st *at = streams; at; at = at->next)
        if (at->context == context) fine = add_place(&after, &count, at, at->submitted) && fine;
    for (size_t i = 0; i < count; i++) {
        while (after[i].stream->finished < after[i].number) pthread_cond_wait(&progress, &engine);
        drop_stream(after[i].stream);
    }
    free(after);
    pthread_mutex_unlock(&engine);
    return fine ? (CUresult)context->broken : CUDA_ERROR_OUT_OF_MEMORY;
}

void stream_forget_context(CUcontext context) {
    stream_wait_context(context);
    pthread_mutex_lock(&engine);
    for (struct CUstream_st *at = streams, *next; at; at = next) {
        next = at->next;
        if (at->context == context) unlink_stream(at);
    }
    for (struct CUevent_st *at = events, *next; at; at = next) {
        next = at->next;
        if (at->context == context) unlink_event(at);
    }
    pthread_mutex_unlock(&engine);
}

// ---- API: streams

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
    struct CUstream_st *stream = is_default ? NULL : resolve(context, handle, false);
    if (stream) unlink_stream(stream);
    pthread_mutex_unlock(&engine);
    return gate_leave(stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult stream_synchronize(CUstream handle, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve(context, handle, per_thread);
    // Work of a blocking stream before a wait on the legacy stream is waited for, as the legacy stream would.
    CUresult result = stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (stream && stream->is_legacy) {
        pthread_mutex_unlock(&engine);
        return gate_leave(stream_wait_default(context, false));
    }
    if (stream) result = wait_for(stream, stream->submitted);
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}
STREAM_VARIANTS(cuStreamSynchronize, (CUstream stream), stream_synchronize, (stream, PER_THREAD))

static CUresult stream_query(CUstream handle, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve(context, handle, per_thread);
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
    struct CUstream_st *stream = resolve(context, handle, per_thread);
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
STREAM_VARIANTS(cuStreamGetDevice, (CUstream stream, CUdevice *device), stream_get, (stream, PER_THREAD, FIELD_DEVICE, device))

// ---- API: events

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
    made->next = events;
    events = made;
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
    struct CUstream_st *stream = resolve(context, handle, per_thread);
    if (stream && is_event(event)) {
        if (event->context != stream->context) {
            result = CUDA_ERROR_INVALID_HANDLE;
        } else {
            result = queue(stream, NULL, NULL, event);
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
    if (is_event(event)) result = event->at.stream ? wait_for(event->at.stream, event->at.number) : CUDA_SUCCESS;
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
    struct CUstream_st *stream = resolve(context, handle, per_thread);
    if (stream && is_event(event)) {
        bool fine = !event->at.stream || add_place(&stream->after, &stream->after_count, event->at.stream, event->at.number);
        // Queued as empty work, so that the wait stands in order and counts as outstanding.
        result = fine ? queue(stream, NULL, NULL, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&engine);
    return gate_leave(result);
}
STREAM_VARIANTS(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), stream_wait_event, (stream, event, flags, PER_THREAD))

// ---- API: host functions

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
