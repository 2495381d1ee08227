// Mimics: CUDA driver API reference, "Stream Management", "Event Management", "Stream synchronization behavior" (legacy and per-thread
// default stream); programming guide, "Asynchronous concurrent execution".
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "streams_parts.h"

// `progress` is signalled with each piece of work that ends.
pthread_mutex_t engine = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static struct CUevent_st *events;
static unsigned last_id;
static _Atomic uint64_t outstanding;
static __thread unsigned own_stream_ids[GM_MAX_DEVICES];  // per-thread default streams, one for each ordinal

bool stream_all_idle(void) { return outstanding == 0; }

// ---- references

void drop_stream(struct CUstream_st *stream) {
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

bool add_place(struct place **list, size_t *count, struct CUstream_st *stream, uint64_t number) {
    if (stream->finished >= number) return true;
    struct place *more = realloc(*list, (*count + 1) * sizeof *more);
    if (!more) return false;
    *list = more;
    more[(*count)++] = (struct place){stream, number};
    stream->references++;
    return true;
}

// ---- the registry

struct CUstream_st *new_stream(CUcontext context, unsigned flags, bool is_legacy) {
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
        if (at->context == context && at->is_legacy && !at->is_destroyed) return at;
    return new_stream(context, 0, true);
}

// The stream that a handle means, or NULL.
struct CUstream_st *resolve_stream(CUcontext context, CUstream handle, bool per_thread) {
    if (handle == CU_STREAM_LEGACY || (!handle && !per_thread)) return legacy_of(context);
    bool is_own = handle == CU_STREAM_PER_THREAD || !handle;
    unsigned own_id = own_stream_ids[context->ordinal];
    for (struct CUstream_st *at = streams; at; at = at->next)
        if (!at->is_destroyed && (is_own ? at->id == own_id && at->context == context : at == handle)) return at;
    if (!is_own) return NULL;
    struct CUstream_st *made = new_stream(context, 0, false);
    if (made) own_stream_ids[context->ordinal] = made->id;
    return made;
}

static void forget_stream(struct CUstream_st *stream) {
    for (struct CUstream_st **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    drop_stream(stream);
}

void unlink_stream(struct CUstream_st *stream) {
    if (stream->is_destroyed) return;
    stream->is_destroyed = true;
    if (!stream->has_worker) forget_stream(stream);
    else pthread_cond_signal(&stream->wake);  // it stays in the list, to be waited for, until its worker has done its work
}

void unlink_event(struct CUevent_st *event) {
    for (struct CUevent_st **at = &events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    event->is_destroyed = true;
    drop_event(event);
}

void add_event(struct CUevent_st *event) {
    event->next = events;
    events = event;
}

bool is_event(CUevent handle) {
    for (struct CUevent_st *at = events; at; at = at->next)
        if (at == handle) return true;
    return false;
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
    forget_stream(stream);
    drop_stream(stream);
    pthread_mutex_unlock(&engine);
    return NULL;
}

static bool start_worker(struct CUstream_st *stream) {
    if (stream->has_worker) return true;
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    block_for_helper(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are for its own threads
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
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
CUresult queue_work(struct CUstream_st *stream, work_function *run, void *argument, struct CUevent_st *event) {
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

CUresult wait_for_stream(struct CUstream_st *stream, uint64_t number) {
    stream->references++;
    while (stream->finished < number) pthread_cond_wait(&progress, &engine);
    CUresult result = (CUresult)stream->context->broken;
    drop_stream(stream);
    return result;
}

CUresult stream_submit(CUcontext context, CUstream handle, bool per_thread, work_function *run, void *argument) {
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, handle, per_thread);
    if (!stream) free(argument);
    CUresult result = stream ? queue_work(stream, run, argument, NULL) : CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_unlock(&engine);
    return result;
}

CUresult stream_submit_and_wait(CUcontext context, CUstream handle, bool per_thread, work_function *run, void *argument) {
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, handle, per_thread);
    if (!stream) free(argument);
    CUresult result = stream ? queue_work(stream, run, argument, NULL) : CUDA_ERROR_INVALID_HANDLE;
    if (!result) result = wait_for_stream(stream, stream->submitted);
    pthread_mutex_unlock(&engine);
    return result;
}

CUresult stream_wait_default(CUcontext context, bool per_thread) {
    pthread_mutex_lock(&engine);
    struct CUstream_st *stream = resolve_stream(context, NULL, per_thread);
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
