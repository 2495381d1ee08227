// Streams: queues of work, in order, each with a worker thread; events; and the rules of the legacy default stream.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_STREAMS_H
#define GPU_MOCK_STREAMS_H

#include "process.h"

// One piece of work. `run` is called by the stream's worker without locks; `argument` is freed with free() afterwards.
typedef CUresult work_function(CUcontext context, uint32_t stream_id, void *argument);

// Queues it (takes the argument over, also when it fails). `per_thread`: what stream 0 means.
CUresult stream_submit(CUcontext context, CUstream stream, bool per_thread, work_function *run, void *argument);
// Queues it and waits for it.
CUresult stream_submit_and_wait(CUcontext context, CUstream stream, bool per_thread, work_function *run, void *argument);
// Waits until what a synchronous call on the default stream has to wait for is done.
CUresult stream_wait_default(CUcontext context, bool per_thread);
CUresult stream_wait_context(CUcontext context);
// Waits for its work, then forgets its streams and events.
void stream_forget_context(CUcontext context);
// CUDA_SUCCESS if it is an event that was made for other processes.
CUresult event_is_interprocess(CUevent event);
// Is no work queued or running in this process?
bool stream_all_idle(void);

#endif
