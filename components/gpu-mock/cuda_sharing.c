// Memory that is shared between processes. The calls that make it shareable exist, and make the process unsaveable: Checkpoint is
// then NOT_SUPPORTED. Opening another process's memory, and mapping what cuMemCreate made, are not built (NOT_SUPPORTED).
// Mimics: CUDA driver API reference, "Memory Management" (cuIpc*), "Virtual Memory Management"; that a checkpoint does not take IPC
// memory is documented in github.com/NVIDIA/cuda-checkpoint.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device_memory.h"
#include "streams.h"

enum { HANDLE_BYTES = 64, GRANULARITY = 2 << 20 };

typedef struct {
    int type;                  // 1: pinned
    int requestedHandleTypes;  // 1: POSIX file descriptor
    struct { int type, id; } location;  // 1: device
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
} CUmemAllocationProp;

static void make_handle(void *out, const void *what) {
    memset(out, 0, HANDLE_BYTES);
    memcpy(out, &what, sizeof what);
    memcpy((char *)out + 8, &process.gm->start_time, sizeof process.gm->start_time);
    own_slot()->unsaveable++;
}

API CUresult cuIpcGetMemHandle(void *handle, CUdeviceptr pointer) {
    TRY(gate_enter(NULL));
    if (!handle || !memory_find(pointer, NULL, NULL, NULL)) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    make_handle(handle, (void *)(uintptr_t)pointer);
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuIpcGetEventHandle(void *handle, CUevent event) {
    TRY(gate_enter(NULL));
    if (!handle) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult result = event_is_interprocess(event);
    if (!result) make_handle(handle, event);
    return gate_leave(result);
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option) {
    TRY(check_initialised());
    if (!granularity || !prop || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(unsigned long long *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    TRY(gate_enter(NULL));
    if (!handle || !prop || flags || !size || size % GRANULARITY) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    if (prop->type != 1 || prop->location.type != 1) return gate_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!is_device(prop->location.id)) return gate_leave(CUDA_ERROR_INVALID_DEVICE);
    if (device_of(prop->location.id)->lost) return gate_leave((CUresult)device_of(prop->location.id)->lost);
    CUdeviceptr made = 0;
    CUresult result = memory_allocate(prop->location.id, NULL, size, &made);
    if (!result) *handle = made;
    return gate_leave(result);
}

API CUresult cuMemRelease(unsigned long long handle) {
    TRY(gate_enter(NULL));
    return gate_leave(memory_free(handle, true));
}

API CUresult cuMemExportToShareableHandle(void *out, unsigned long long handle, int type, unsigned long long flags) {
    TRY(gate_enter(NULL));
    if (!out || flags || !memory_is_handle(handle)) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    if (type != 1) return gate_leave(CUDA_ERROR_NOT_SUPPORTED);
    int fd = (int)syscall(SYS_memfd_create, "gpu-mock-export", MFD_CLOEXEC);  // a function of the library since 2.27 only
    if (fd < 0) return gate_leave(CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(out, &fd, sizeof fd);
    own_slot()->unsaveable++;
    return gate_leave(CUDA_SUCCESS);
}
