// libnvidia-ml.so.1, second part: what a device is and does.
//
// Mimics: NVML API reference, "Device Queries".
// - Utilisation: share of the last sample period in which a kernel ran (the reference: between 1/6 s and 1 s, by product; here
//   gm_shared.util_window_ms, settable). The memory controller's share is not imitated and always 0.
// - A checkpointed process has released its device and is not listed. Processes outside the asker's PID namespace have no
//   pid there and are not listed either, but their memory counts as used.
// - usedGpuMemory is NVML_VALUE_NOT_AVAILABLE ("N/A") while the fault no-memory-figures is set.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "faults.h"
#include "nvml_library.h"

enum { MOCK_PCI_DEVICE_ID = 0x000010DE };  // NVIDIA's vendor id, and device 0: no product has that

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    if (found != NVML_SUCCESS)
        return found;
    if (!index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    return found == NVML_SUCCESS ? nvml_copy(name, length, at->name) : found;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    return found == NVML_SUCCESS ? nvml_copy(uuid, length, at->uuid_text) : found;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    if (found != NVML_SUCCESS)
        return found;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    pci->domain = at->pci_domain;
    pci->bus = at->pci_bus;
    pci->device = at->pci_device;
    pci->pciDeviceId = MOCK_PCI_DEVICE_ID;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", at->pci_domain, at->pci_bus & 0xFF, at->pci_device & 0xFF);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", at->pci_domain & 0xFFFF, at->pci_bus & 0xFF,
             at->pci_device & 0xFF);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    if (found != NVML_SUCCESS)
        return found;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t used = gm_device_used(gm, nvml_number(gm, at));
    if (used > at->memory_bytes)  // an extent was moved while the sum was taken
        used = at->memory_bytes;
    memory->total = at->memory_bytes;
    memory->used = used;
    memory->free = at->memory_bytes - used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t found = nvmlDeviceGetMemoryInfo(device, &plain);
    if (found != NVML_SUCCESS)
        return found;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    if (found != NVML_SUCCESS)
        return found;
    if (!utilization)
        return NVML_ERROR_INVALID_ARGUMENT;
    utilization->gpu = gm_utilization(gm, nvml_number(gm, at));
    utilization->memory = 0;
    return NVML_SUCCESS;
}
