// Device memory of this process: which pointers exist, and where their contents are now.
//
// A device pointer is a number in a reserved, inaccessible range of the address space, so it is unique, keeps its value over a save
// and restore, and faults when the host touches it. Contents are in the device's file, or in private memory while they are saved.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_DEVICE_MEMORY_H
#define GPU_MOCK_DEVICE_MEMORY_H

#include "process.h"

// Without a context: a handle of cuMemCreate, which takes memory and has no contents that can be reached.
CUresult memory_allocate(CUdevice ordinal, CUcontext context, size_t size, CUdeviceptr *pointer);
CUresult memory_free(CUdeviceptr pointer, bool is_handle);
bool memory_is_handle(CUdeviceptr handle);
void memory_free_context(CUcontext context);
// False: no such allocation.
bool memory_find(CUdeviceptr inside, CUdeviceptr *base, size_t *size, CUcontext *context);
bool memory_is_device_pointer(CUdeviceptr pointer);  // in a reserved range, allocated or not

// Contents. ILLEGAL_ADDRESS (and a line in the journal) if not all bytes lie in one allocation that is on the device.
CUresult memory_read(CUdeviceptr from, void *to, size_t size);
CUresult memory_write(CUdeviceptr to, const void *from, size_t size);
CUresult memory_copy(CUdeviceptr to, CUdeviceptr from, size_t size);
CUresult memory_fill(CUdeviceptr to, const void *pattern, size_t pattern_size, size_t count);
CUresult memory_check(CUdeviceptr at, size_t size);

// Save all to private memory and free the device; put it back. Called with the gate closed.
// `before_freeing` is called when all is copied and nothing is freed.
CUresult memory_save(void (*before_freeing)(void *), void *context);
CUresult memory_restore(bool corrupt, uint64_t seed);
void memory_sums(uint64_t per_device[GM_MAX_DEVICES]);  // bytes per physical device, saved or not

#endif
