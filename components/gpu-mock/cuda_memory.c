// Allocation, copies, memset.
// Mimics: CUDA driver API reference, "Memory Management", "API synchronization behavior" (a pageable source is staged before the call
// returns, a pageable destination is filled before it returns, pinned memory is copied asynchronously).
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_memory.h"
#include "faults.h"
#include "host_memory.h"
#include "journal.h"
#include "streams.h"
#include "variants.h"

// ---- allocation

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    CUcontext context;
    struct gm_fault fault;
    TRY(gate_enter(&context));
    if (!pointer || !size) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    if (gm_fault_strikes(process.gm, GM_FAULT_FAIL, GM_OP_ALLOC, process.slot, GM_SIDE_TARGET, GM_BEFORE, &fault))
        return gate_leave((CUresult)fault.code);
    return gate_leave(memory_allocate(context->ordinal, context, size, pointer));
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!pointer || !pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    size_t rounded = (width + 511) / 512 * 512, size;
    if (rounded < width || __builtin_mul_overflow(rounded, height, &size)) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = memory_allocate(context->ordinal, context, size, pointer);
    if (!result) *pitch = rounded;
    return gate_leave(result);
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!free_bytes || !total) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t used = gm_device_used(process.gm, process.physical[context->ordinal]);
    *total = device_of(context->ordinal)->memory_bytes;
    *free_bytes = used < *total ? *total - used : 0;
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    TRY(gate_enter(NULL));
    return gate_leave(memory_find(pointer, base, size, NULL) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

// ---- copies

enum place { HOST, DEVICE, EITHER };

struct copy {
    CUdeviceptr to, from;
    size_t size;
    enum place to_place, from_place;  // staged contents follow
};

enum { SHOWN_WHEN_BEGUN = 256 * 1024 };  // shorter copies are journalled at their end only: they take microseconds

static enum place settle(enum place place, CUdeviceptr at, size_t size) {
    if (place == HOST) return HOST;
    if (host_memory_at(at, size)) return HOST;
    return place == DEVICE || memory_is_device_pointer(at) ? DEVICE : HOST;
}

static CUresult perform(CUcontext context, uint32_t stream_id, struct copy *copy) {
    enum place to = settle(copy->to_place, copy->to, copy->size), from = settle(copy->from_place, copy->from, copy->size);
    struct journal_record record = journal_new(process.gm, process.slot, JOURNAL_COPY);
    CUcontext owner = context;
    if (to == DEVICE) memory_find(copy->to, NULL, NULL, &owner); else if (from == DEVICE) memory_find(copy->from, NULL, NULL, &owner);
    record.device = (int32_t)process.physical[owner->ordinal];
    record.stream = stream_id;
    record.bytes = copy->size;
    record.address = to == DEVICE ? copy->to : copy->from;
    snprintf(record.name, sizeof record.name, "%s2%s", from == DEVICE ? "d" : "h", to == DEVICE ? "d" : "h");
    bool touches = to == DEVICE || from == DEVICE;
    if (touches && copy->size >= SHOWN_WHEN_BEGUN) journal_write(process.gm, &record);
    CUresult result = CUDA_SUCCESS;
    if (to == DEVICE && from == DEVICE) result = memory_copy(copy->to, copy->from, copy->size);
    else if (to == DEVICE) result = memory_write(copy->to, (void *)(uintptr_t)copy->from, copy->size);
    else if (from == DEVICE) result = memory_read(copy->from, (void *)(uintptr_t)copy->to, copy->size);
    else memmove((void *)(uintptr_t)copy->to, (void *)(uintptr_t)copy->from, copy->size);
    record.result = result;
    if (touches) journal_end(process.gm, &record);
    return result;
}

static CUresult perform_queued(CUcontext context, uint32_t stream_id, void *argument) {
    return perform(context, stream_id, argument);
}

static CUresult copy_now(struct copy what, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!what.size) return gate_leave(CUDA_SUCCESS);
    if (!what.to || !what.from) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_wait_default(context, per_thread);
    if (!result) result = perform(context, 0, &what);
    return gate_leave(result);
}

static CUresult copy_queued(struct copy what, CUstream stream, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!what.size) return gate_leave(CUDA_SUCCESS);
    if (!what.to || !what.from) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    enum place to = settle(what.to_place, what.to, what.size), from = settle(what.from_place, what.from, what.size);
    // Wrong device ranges are told by the call itself, as a driver that knows its pointers does.
    if (to == DEVICE) { CUresult bad = memory_check(what.to, what.size); if (bad) return gate_leave(bad); }
    if (from == DEVICE) { CUresult bad = memory_check(what.from, what.size); if (bad) return gate_leave(bad); }
    bool is_pageable_source = from == HOST && !host_memory_at(what.from, what.size);
    bool is_pageable_target = to == HOST && !host_memory_at(what.to, what.size);
    bool is_staged = is_pageable_source && to == DEVICE;
    struct copy *copy = malloc(sizeof *copy + (is_staged ? what.size : 0));
    if (!copy) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *copy = what;
    if (is_staged) {
        memcpy(copy + 1, (void *)(uintptr_t)what.from, what.size);
        copy->from = (CUdeviceptr)(uintptr_t)(copy + 1);
    }
    copy->from_place = from;
    copy->to_place = to;
    if (is_pageable_target) return gate_leave(stream_submit_and_wait(context, stream, per_thread, perform_queued, copy));
    return gate_leave(stream_submit(context, stream, per_thread, perform_queued, copy));
}

static CUresult host_to_device(CUdeviceptr to, const void *from, size_t size, bool per_thread) {
    return copy_now((struct copy){.to = to, .from = (CUdeviceptr)(uintptr_t)from, .size = size, .to_place = DEVICE, .from_place = HOST}, per_thread);
}
SYNC_VARIANTS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size), host_to_device, (to, from, size, PER_THREAD))

static CUresult device_to_host(void *to, CUdeviceptr from, size_t size, bool per_thread) {
    return copy_now((struct copy){.to = (CUdeviceptr)(uintptr_t)to, .from = from, .size = size, .to_place = HOST, .from_place = DEVICE}, per_thread);
}
SYNC_VARIANTS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size), device_to_host, (to, from, size, PER_THREAD))

static CUresult device_to_device(CUdeviceptr to, CUdeviceptr from, size_t size, bool per_thread) {
    return copy_now((struct copy){.to = to, .from = from, .size = size, .to_place = DEVICE, .from_place = DEVICE}, per_thread);
}
SYNC_VARIANTS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t size), device_to_device, (to, from, size, PER_THREAD))

static CUresult any_to_any(CUdeviceptr to, CUdeviceptr from, size_t size, bool per_thread) {
    return copy_now((struct copy){.to = to, .from = from, .size = size, .to_place = EITHER, .from_place = EITHER}, per_thread);
}
SYNC_VARIANTS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t size), any_to_any, (to, from, size, PER_THREAD))

static CUresult peer_to_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size, bool per_thread) {
    (void)to_context, (void)from_context;  // addresses are unified
    return device_to_device(to, from, size, per_thread);
}
SYNC_VARIANTS(cuMemcpyPeer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size), peer_to_peer,
              (to, to_context, from, from_context, size, PER_THREAD))

static CUresult host_to_device_queued(CUdeviceptr to, const void *from, size_t size, CUstream stream, bool per_thread) {
    return copy_queued((struct copy){.to = to, .from = (CUdeviceptr)(uintptr_t)from, .size = size, .to_place = DEVICE, .from_place = HOST},
                       stream, per_thread);
}
STREAM_VARIANTS(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream), host_to_device_queued,
                (to, from, size, stream, PER_THREAD))

static CUresult device_to_host_queued(void *to, CUdeviceptr from, size_t size, CUstream stream, bool per_thread) {
    return copy_queued((struct copy){.to = (CUdeviceptr)(uintptr_t)to, .from = from, .size = size, .to_place = HOST, .from_place = DEVICE},
                       stream, per_thread);
}
STREAM_VARIANTS(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream), device_to_host_queued,
                (to, from, size, stream, PER_THREAD))

static CUresult device_to_device_queued(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream, bool per_thread) {
    return copy_queued((struct copy){.to = to, .from = from, .size = size, .to_place = DEVICE, .from_place = DEVICE}, stream, per_thread);
}
STREAM_VARIANTS(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), device_to_device_queued,
                (to, from, size, stream, PER_THREAD))

static CUresult any_to_any_queued(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream, bool per_thread) {
    return copy_queued((struct copy){.to = to, .from = from, .size = size, .to_place = EITHER, .from_place = EITHER}, stream, per_thread);
}
STREAM_VARIANTS(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), any_to_any_queued,
                (to, from, size, stream, PER_THREAD))

// ---- memset

struct fill {
    CUdeviceptr to;
    uint32_t value;
    size_t width, count;  // bytes of one element; elements
};

static CUresult perform_fill(CUcontext context, uint32_t stream_id, void *argument) {
    struct fill *fill = argument;
    struct journal_record record = journal_new(process.gm, process.slot, JOURNAL_MEMSET);
    size_t size = fill->width * fill->count;
    record.device = (int32_t)process.physical[context->ordinal];
    record.stream = stream_id;
    record.bytes = size;
    record.address = fill->to;
    snprintf(record.name, sizeof record.name, "d%zu", fill->width * 8);
    if (size >= SHOWN_WHEN_BEGUN) journal_write(process.gm, &record);
    unsigned char *on_host = host_memory_at(fill->to, size);
    CUresult result = CUDA_SUCCESS;
    if (on_host) for (size_t i = 0; i < fill->count; i++) memcpy(on_host + i * fill->width, &fill->value, fill->width);
    else result = memory_fill(fill->to, &fill->value, fill->width, fill->count);
    record.result = result;
    journal_end(process.gm, &record);
    return result;
}

static CUresult check_fill(const struct fill *fill) {
    size_t size;
    if (!fill->to || fill->to % fill->width) return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(fill->width, fill->count, &size)) return CUDA_ERROR_INVALID_VALUE;
    return host_memory_at(fill->to, size) ? CUDA_SUCCESS : memory_check(fill->to, size);
}

static CUresult fill_now(struct fill fill, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    CUresult result = fill.count ? check_fill(&fill) : CUDA_SUCCESS;
    if (!result) result = stream_wait_default(context, per_thread);
    if (!result && fill.count) result = perform_fill(context, 0, &fill);
    return gate_leave(result);
}

static CUresult fill_queued(struct fill what, CUstream stream, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!what.count) return gate_leave(CUDA_SUCCESS);
    CUresult result = check_fill(&what);
    if (result) return gate_leave(result);
    struct fill *fill = malloc(sizeof *fill);
    if (!fill) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *fill = what;
    return gate_leave(stream_submit(context, stream, per_thread, perform_fill, fill));
}

#define FILL(WIDTH) ((struct fill){.to = to, .value = value, .width = WIDTH, .count = count})
SYNC_VARIANTS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), fill_now, (FILL(1), PER_THREAD))
SYNC_VARIANTS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count), fill_now, (FILL(2), PER_THREAD))
SYNC_VARIANTS(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count), fill_now, (FILL(4), PER_THREAD))
STREAM_VARIANTS(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), fill_queued, (FILL(1), stream, PER_THREAD))
STREAM_VARIANTS(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream), fill_queued, (FILL(2), stream, PER_THREAD))
STREAM_VARIANTS(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream), fill_queued, (FILL(4), stream, PER_THREAD))
