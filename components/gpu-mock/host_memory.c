// Pinned, registered and managed host memory, and what is known of a pointer.
// Mimics: CUDA driver API reference, "Memory Management" (cuMemAllocHost, cuMemHostAlloc, cuMemHostRegister, cuMemAllocManaged) and
// "Unified Addressing" (cuPointerGetAttribute). Managed memory lies in host memory; that its use makes a checkpoint fail is
// documented for the driver's checkpoint support ("does not support UVM or IPC memory", github.com/NVIDIA/cuda-checkpoint).
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "host_memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device_memory.h"
#include "streams.h"

enum host_kind { PINNED, REGISTERED, MANAGED };

struct host_range {
    struct host_range *next;
    unsigned char *begin;
    size_t size;
    enum host_kind kind;
    unsigned flags;
    CUcontext context;
};

static pthread_mutex_t host = PTHREAD_MUTEX_INITIALIZER;
static struct host_range *ranges;

static struct host_range *range_with(const void *at, size_t size) {
    for (struct host_range *range = ranges; range; range = range->next)
        if ((const unsigned char *)at >= range->begin && (const unsigned char *)at < range->begin + range->size &&
            size <= range->size - (size_t)((const unsigned char *)at - range->begin))
            return range;
    return NULL;
}

void *host_memory_at(CUdeviceptr at, size_t size) {
    pthread_mutex_lock(&host);
    bool known = range_with((void *)(uintptr_t)at, size) != NULL;
    pthread_mutex_unlock(&host);
    return known ? (void *)(uintptr_t)at : NULL;
}

CUresult any_read(CUdeviceptr from, void *to, size_t size) {
    const void *at = host_memory_at(from, size);
    if (!at) return memory_read(from, to, size);
    memcpy(to, at, size);
    return CUDA_SUCCESS;
}

CUresult any_write(CUdeviceptr to, const void *from, size_t size) {
    void *at = host_memory_at(to, size);
    if (!at) return memory_write(to, from, size);
    memcpy(at, from, size);
    return CUDA_SUCCESS;
}

static CUresult add(void *begin, size_t size, enum host_kind kind, unsigned flags, CUcontext context) {
    struct host_range *made = malloc(sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct host_range){.begin = begin, .size = size, .kind = kind, .flags = flags, .context = context};
    pthread_mutex_lock(&host);
    made->next = ranges;
    ranges = made;
    pthread_mutex_unlock(&host);
    return CUDA_SUCCESS;
}

// Takes the range that begins there out of the list. The caller frees it.
static struct host_range *take_out(const void *begin, enum host_kind kind) {
    struct host_range *found = NULL;
    pthread_mutex_lock(&host);
    for (struct host_range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->begin == begin && (*at)->kind == kind) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&host);
    return found;
}

static CUresult allocate(void **out, size_t size, enum host_kind kind, unsigned flags) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!out || !size) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = add(at, size, kind, flags, context);
    if (result) munmap(at, size); else *out = at;
    if (!result && kind == MANAGED) own_slot()->unsaveable++;
    return gate_leave(result);
}

API CUresult cuMemAllocHost_v2(void **out, size_t size) { return allocate(out, size, PINNED, 0); }

API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    return flags > 7 ? CUDA_ERROR_INVALID_VALUE : allocate(out, size, PINNED, flags);
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
    void *at = NULL;
    if (!out || (flags != 1 && flags != 2)) return CUDA_ERROR_INVALID_VALUE;  // ATTACH_GLOBAL, ATTACH_HOST
    CUresult result = allocate(&at, size, MANAGED, flags);
    if (!result) *out = (CUdeviceptr)(uintptr_t)at;
    return result;
}

API CUresult cuMemFreeHost(void *at) {
    TRY(gate_enter(NULL));
    struct host_range *range = take_out(at, PINNED);
    if (!range) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    munmap(range->begin, range->size);
    free(range);
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    TRY(gate_enter(NULL));
    if (!pointer) return gate_leave(CUDA_SUCCESS);
    // Work that was queued before may still use it: freeing waits for the owner's context, as the driver's does.
    CUcontext owner;
    if (memory_find(pointer, NULL, NULL, &owner)) stream_wait_context(owner);
    struct host_range *range = take_out((void *)(uintptr_t)pointer, MANAGED);
    if (!range) return gate_leave(memory_free(pointer, false));
    own_slot()->unsaveable--;
    munmap(range->begin, range->size);
    free(range);
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!at || !size || flags > 15) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    if (host_memory_at((CUdeviceptr)(uintptr_t)at, 1)) return gate_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    return gate_leave(add(at, size, REGISTERED, flags, context));
}

API CUresult cuMemHostUnregister(void *at) {
    TRY(gate_enter(NULL));
    struct host_range *range = take_out(at, REGISTERED);
    free(range);
    return gate_leave(range ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags) {
    TRY(gate_enter(NULL));
    if (!out || flags || !host_memory_at((CUdeviceptr)(uintptr_t)at, 1)) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    *out = (CUdeviceptr)(uintptr_t)at;
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *at) {
    TRY(gate_enter(NULL));
    pthread_mutex_lock(&host);
    const struct host_range *range = range_with(at, 1);
    if (range && flags) *flags = range->flags;
    pthread_mutex_unlock(&host);
    return gate_leave(range && flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr pointer) {
    TRY(check_initialised());
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr base = 0;
    size_t size = 0;
    CUcontext context = NULL;
    bool is_managed = false;
    const bool is_device_memory = memory_find(pointer, &base, &size, &context);
    if (!is_device_memory) {
        pthread_mutex_lock(&host);
        const struct host_range *range = range_with((void *)(uintptr_t)pointer, 1);
        if (range) {
            base = (CUdeviceptr)(uintptr_t)range->begin;
            size = range->size;
            context = range->context;
            is_managed = range->kind == MANAGED;
        }
        pthread_mutex_unlock(&host);
        if (!range) return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
        case 1: *(CUcontext *)out = context; break;
        case 2: *(unsigned *)out = is_device_memory || is_managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
        case 3: *(CUdeviceptr *)out = pointer; break;
        case 4:
            if (is_device_memory) return CUDA_ERROR_INVALID_VALUE;
            *(void **)out = (void *)(uintptr_t)pointer;
            break;
        case 8: *(unsigned *)out = is_managed; break;
        case 9: *(int *)out = context->ordinal; break;
        case 11: *(CUdeviceptr *)out = base; break;
        case 12: *(size_t *)out = size; break;
        case 13: *(int *)out = 1; break;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
