// libnvidia-ml.so.1, first part: initialisation, versions, handles.
//
// Mimics: NVML API reference, "Initialization and Cleanup", "System Queries" and the handle calls of "Device Queries". The
// library only reads the shared state and takes none of its locks, so a process that is stopped or killed in the middle of
// a driver call cannot make it wait. nvmlInit may be called again and is counted; a forked child goes on with what it has.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml_library.h"

enum { NVML_INIT_FLAG_NO_GPUS = 1, NVML_INIT_FLAG_NO_ATTACH = 2 };

static _Atomic unsigned init_count;
static _Atomic(struct gm *) opened;
static struct nvmlDevice_st handles[GM_MAX_DEVICES];

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    if (flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct gm *gm = gm_open(NULL);
    if (!gm)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    atomic_store(&opened, gm);
    atomic_fetch_add(&init_count, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    unsigned count = atomic_load(&init_count);
    do {
        if (count == 0)
            return NVML_ERROR_UNINITIALIZED;
    } while (!atomic_compare_exchange_weak(&init_count, &count, count - 1));
    return NVML_SUCCESS;
}

struct gm *nvml_state(void)
{
    return atomic_load(&init_count) ? atomic_load(&opened) : NULL;
}

nvmlReturn_t nvml_find(nvmlDevice_t handle, struct gm **gm, struct gm_device **device)
{
    *gm = nvml_state();
    if (!*gm)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned index = 0; index < (*gm)->granted_count; index++) {
        if (handle == &handles[index]) {
            *device = &(*gm)->shared->devices[(*gm)->granted[index]];
            return atomic_load(&(*device)->lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

unsigned nvml_number(const struct gm *gm, const struct gm_device *device)
{
    return (unsigned)(device - gm->shared->devices);
}

nvmlReturn_t nvml_handle(unsigned index, nvmlDevice_t *handle)
{
    handles[index].index = index;
    *handle = &handles[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_copy(char *to, unsigned length, const char *text)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    struct gm *gm = nvml_state();
    return gm ? nvml_copy(version, length, gm->shared->driver_version) : NVML_ERROR_UNINITIALIZED;
}

// NVML's own version is the CUDA major version and the driver's version, as "13.580.82.07".
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    struct gm *gm = nvml_state();
    if (!gm)
        return NVML_ERROR_UNINITIALIZED;
    char text[64];
    snprintf(text, sizeof text, "%u.%s", atomic_load(&gm->shared->cuda_version) / 1000, gm->shared->driver_version);
    return nvml_copy(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct gm *gm = nvml_state();
    if (!gm)
        return NVML_ERROR_UNINITIALIZED;
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)atomic_load(&gm->shared->cuda_version);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    struct gm *gm = nvml_state();
    if (!gm)
        return NVML_ERROR_UNINITIALIZED;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = gm->granted_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    struct gm *gm = nvml_state();
    if (!gm)
        return NVML_ERROR_UNINITIALIZED;
    if (!device || index >= gm->granted_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvml_handle(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct gm *gm = nvml_state();
    if (!gm)
        return NVML_ERROR_UNINITIALIZED;
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned index = 0; index < gm->granted_count; index++)
        if (strcasecmp(uuid, gm->shared->devices[gm->granted[index]].uuid_text) == 0)
            return nvml_handle(index, device);
    return NVML_ERROR_NOT_FOUND;
}

// "domain:bus:device.function" or "bus:device.function", hexadecimal, the domain with four or eight digits.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    struct gm *gm = nvml_state();
    if (!gm)
        return NVML_ERROR_UNINITIALIZED;
    if (!bus_id || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    if (sscanf(bus_id, "%8x:%2x:%2x.%1x", &domain, &bus, &slot, &function) != 4) {
        domain = 0;
        if (sscanf(bus_id, "%2x:%2x.%1x", &bus, &slot, &function) != 3)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned index = 0; index < gm->granted_count; index++) {
        const struct gm_device *at = &gm->shared->devices[gm->granted[index]];
        if (at->pci_domain == domain && at->pci_bus == bus && at->pci_device == slot && function == 0)
            return nvml_handle(index, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
