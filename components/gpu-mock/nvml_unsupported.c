// libnvidia-ml.so.1, last part: calls that every driver has and the mock does not imitate. They say so; none makes up a figure.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#include "nvml_library.h"

static nvmlReturn_t not_supported(nvmlDevice_t device)
{
    struct gm *gm;
    struct gm_device *at;
    nvmlReturn_t found = nvml_find(device, &gm, &at);
    return found == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : found;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius)
{
    (void)sensor, (void)celsius;
    return not_supported(device);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    (void)milliwatts;
    return not_supported(device);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz)
{
    (void)type, (void)mhz;
    return not_supported(device);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    (void)current, (void)pending;
    return not_supported(device);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    (void)count, (void)infos;
    return not_supported(device);
}
