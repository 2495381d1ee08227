// Streams and events from inside: for streams.c (queues, workers, waits) and stream_calls.c (the calls); nothing for others.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_STREAMS_PARTS_H
#define GPU_MOCK_STREAMS_PARTS_H

#include "streams.h"

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

// One lock for all: work is coarse. Everything below is called with it held.
extern pthread_mutex_t engine;

struct CUstream_st *new_stream(CUcontext context, unsigned flags, bool is_legacy);
// The stream that a handle means, or NULL.
struct CUstream_st *resolve_stream(CUcontext context, CUstream handle, bool per_thread);
void unlink_stream(struct CUstream_st *stream);  // destroyed: no handle any more; its work goes on
void drop_stream(struct CUstream_st *stream);    // one reference less
void add_event(struct CUevent_st *event);
bool is_event(CUevent handle);
void unlink_event(struct CUevent_st *event);
// Adds "until the stream has finished that much" to a list. False: no memory.
bool add_place(struct place **list, size_t *count, struct CUstream_st *stream, uint64_t number);
// Queues work (run may be NULL: empty work) and takes the argument over.
CUresult queue_work(struct CUstream_st *stream, work_function *run, void *argument, struct CUevent_st *event);
// Waits (giving the lock away meanwhile) until the stream has finished that much.
CUresult wait_for_stream(struct CUstream_st *stream, uint64_t number);

#endif
