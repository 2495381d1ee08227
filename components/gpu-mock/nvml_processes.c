// libnvidia-ml.so.1, third part: the processes on a device. See nvml_device.c for what is listed.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#include "faults.h"
#include "nvml_library.h"

struct listed {
    unsigned count;
    nvmlProcessInfo_v2_t infos[GM_MAX_PROCESSES];
};

static bool on_device(const struct gm_process *process, unsigned index)
{
    if (!atomic_load(&process->used))
        return false;
    if (atomic_load(&process->used_bytes[index]))
        return true;
    uint32_t state = atomic_load(&process->state);
    bool has_device = state == GM_RUNNING || state == GM_LOCKED;
    return has_device && (atomic_load(&process->contexts) & (1u << index));
}

static void list(struct gm *gm, unsigned index, struct listed *out)
{
    struct gm_fault fault;
    out->count = 0;
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++) {
        const struct gm_process *process = &gm->shared->processes[slot];
        if (!on_device(process, index))
            continue;
        int32_t pid = gm_visible_pid(gm, slot);
        if (pid <= 0 || gm_fault_strikes(gm, GM_FAULT_HIDE_PROCESS, 0, slot, GM_SIDE_CALLER, GM_BEFORE, &fault))
            continue;
        bool no_figures = gm_fault_strikes(gm, GM_FAULT_NO_MEMORY_FIGURES, 0, slot, GM_SIDE_CALLER, GM_BEFORE, &fault);
        out->infos[out->count++] = (nvmlProcessInfo_v2_t){
            .pid = (unsigned)pid,
            .usedGpuMemory = no_figures ? NVML_VALUE_NOT_AVAILABLE : atomic_load(&process->used_bytes[index]),
            .gpuInstanceId = 0xFFFFFFFFu,
            .computeInstanceId = 0xFFFFFFFFu,
        };
    }
}

// What all versions do: with too small an array, the number that is needed and INSUFFICIENT_SIZE.
static nvmlReturn_t list_into(nvmlDevice_t device, unsigned int *count, const void *infos, struct listed *out)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    if (found != NVML_SUCCESS)
        return found;
    if (!count || (*count > 0 && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    list(gm, nvml_number(gm, at), out);
    unsigned room = *count;
    *count = out->count;
    return out->count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    struct listed found;
    nvmlReturn_t result = list_into(device, count, infos, &found);
    if (result == NVML_SUCCESS)
        for (unsigned i = 0; i < found.count; i++)
            infos[i] = found.infos[i];
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    struct listed found;
    nvmlReturn_t result = list_into(device, count, infos, &found);
    if (result == NVML_SUCCESS)
        for (unsigned i = 0; i < found.count; i++)
            infos[i] = (nvmlProcessInfo_v1_t){.pid = found.infos[i].pid, .usedGpuMemory = found.infos[i].usedGpuMemory};
    return result;
}
