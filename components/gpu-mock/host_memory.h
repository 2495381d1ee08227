// Host memory that a device may touch (pinned, registered, managed), and access by either kind of pointer.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_HOST_MEMORY_H
#define GPU_MOCK_HOST_MEMORY_H

#include "process.h"

// The address if all of it is host memory that the device may touch, else NULL.
void *host_memory_at(CUdeviceptr at, size_t size);
CUresult any_read(CUdeviceptr from, void *to, size_t size);
CUresult any_write(CUdeviceptr to, const void *from, size_t size);

#endif
