// What the sources of libnvidia-ml.so.1 share: the library's hold on the state, and its device handles.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_NVML_LIBRARY_H
#define GPU_MOCK_NVML_LIBRARY_H

#include "nvml_abi.h"
#include "state.h"

struct nvmlDevice_st {
    unsigned index;
};

// The state of an initialised library; NULL: nvmlInit was not called, or nvmlShutdown was.
struct gm *nvml_state(void);
// The device behind a handle, in *device and *gm. Anything but NVML_SUCCESS is what the call must return.
nvmlReturn_t nvml_find(nvmlDevice_t handle, struct gm **gm, struct gm_device **device);
// Which one of the machine's devices that is; handle->index counts those that the process has.
unsigned nvml_number(const struct gm *gm, const struct gm_device *device);
nvmlReturn_t nvml_handle(unsigned index, nvmlDevice_t *handle);
// Copies the text, or NVML_ERROR_INSUFFICIENT_SIZE.
nvmlReturn_t nvml_copy(char *to, unsigned length, const char *text);

#endif
