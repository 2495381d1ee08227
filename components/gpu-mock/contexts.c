// Error names, version, devices, contexts.
// Mimics: CUDA driver API reference, "Error Handling", "Version Management", "Device Management", "Primary Context Management", "Context Management".
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_errors.h"
#include "device_memory.h"
#include "journal.h"
#include "launch.h"
#include "process.h"
#include "streams.h"

// ---- errors, version, devices: these ask no gate

API CUresult cuGetErrorName(CUresult error, const char **name) {
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = cuda_error_name(error);
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    *text = cuda_error_text(error);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDriverGetVersion(int *version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    struct gm *gm = gm_open(NULL);
    *version = gm ? (int)gm->shared->cuda_version : 13000;
    return CUDA_SUCCESS;
}

static CUresult check_device(const void *out, CUdevice device) {
    TRY(check_initialised());
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    TRY(check_device(device, ordinal));
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
    TRY(check_initialised());
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (int)process.visible_count;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    TRY(check_device(name, device));
    if (length < 1) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", device_of(device)->name);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    TRY(check_device(uuid, device));
    memcpy(uuid->bytes, device_of(device)->uuid, 16);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    TRY(check_device(bytes, device));
    *bytes = device_of(device)->memory_bytes;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    TRY(check_device(id, device));
    if (length < 1) return CUDA_ERROR_INVALID_VALUE;
    const struct gm_device *which = device_of(device);
    snprintf(id, (size_t)length, "%04X:%02X:%02X.0", which->pci_domain, which->pci_bus, which->pci_device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    TRY(check_initialised());
    unsigned domain, bus, slot;
    if (!device || !id) return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(id, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (CUdevice i = 0; is_device(i); i++)
        if (device_of(i)->pci_domain == domain && device_of(i)->pci_bus == bus && device_of(i)->pci_device == slot) {
            *device = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    TRY(check_device(major && minor ? major : NULL, device));
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

// The attributes that programs ask for; the figures are those of an H100 (CUDA C++ Programming Guide, "Compute Capabilities").
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    TRY(check_device(value, device));
    const struct gm_device *which = device_of(device);
    switch (attribute) {
        case 1: *value = 1024; break;           // MAX_THREADS_PER_BLOCK
        case 2: case 3: *value = 1024; break;   // MAX_BLOCK_DIM_X, Y
        case 4: *value = 64; break;             // MAX_BLOCK_DIM_Z
        case 5: *value = 2147483647; break;     // MAX_GRID_DIM_X
        case 6: case 7: *value = 65535; break;  // MAX_GRID_DIM_Y, Z
        case 8: *value = 49152; break;          // MAX_SHARED_MEMORY_PER_BLOCK
        case 9: *value = 65536; break;          // TOTAL_CONSTANT_MEMORY
        case 10: *value = 32; break;            // WARP_SIZE
        case 12: *value = 65536; break;         // MAX_REGISTERS_PER_BLOCK
        case 13: *value = 1980000; break;       // CLOCK_RATE
        case 16: *value = 132; break;           // MULTIPROCESSOR_COUNT
        case 17: case 18: *value = 0; break;    // KERNEL_EXEC_TIMEOUT, INTEGRATED
        case 19: *value = 1; break;             // CAN_MAP_HOST_MEMORY
        case 20: *value = 0; break;             // COMPUTE_MODE: default
        case 31: *value = 1; break;             // CONCURRENT_KERNELS
        case 32: *value = 1; break;             // ECC_ENABLED
        case 33: *value = (int)which->pci_bus; break;
        case 34: *value = (int)which->pci_device; break;
        case 35: *value = 0; break;             // TCC_DRIVER
        case 39: *value = 2048; break;          // MAX_THREADS_PER_MULTIPROCESSOR
        case 40: *value = 3; break;             // ASYNC_ENGINE_COUNT
        case 41: *value = 1; break;             // UNIFIED_ADDRESSING
        case 50: *value = (int)which->pci_domain; break;
        case 75: *value = 9; break;             // COMPUTE_CAPABILITY_MAJOR
        case 76: *value = 0; break;             // COMPUTE_CAPABILITY_MINOR
        case 78: *value = 1; break;             // STREAM_PRIORITIES_SUPPORTED
        case 83: *value = 1; break;             // MANAGED_MEMORY
        case 84: *value = 0; break;             // MULTI_GPU_BOARD
        case 88: case 89: *value = 0; break;    // PAGEABLE_MEMORY_ACCESS, CONCURRENT_MANAGED_ACCESS
        case 90: *value = 1; break;             // COMPUTE_PREEMPTION_SUPPORTED
        case 99: *value = 1; break;             // HOST_REGISTER_SUPPORTED
        case 102: *value = 1; break;            // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        case 103: *value = 1; break;            // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        case 115: *value = 0; break;            // MEMORY_POOLS_SUPPORTED
        default: return attribute < 1 || attribute > 200 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    TRY(check_device(can, device));
    TRY(check_device(can, peer));
    *can = 0;
    return CUDA_SUCCESS;
}

// ---- contexts

enum { MAX_STACK = 64 };
static __thread struct { CUcontext contexts[MAX_STACK]; int depth; } stack;

static pthread_mutex_t contexts_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st *contexts;
static struct { unsigned references, flags; CUcontext context; } primary[GM_MAX_DEVICES];
static unsigned last_context_id;

CUcontext current_context(void) { return stack.depth ? stack.contexts[stack.depth - 1] : NULL; }

static bool is_known(CUcontext context) {
    for (struct CUctx_st *at = contexts; at; at = at->next)
        if (at == context) return true;
    return false;
}

bool is_context(CUcontext context) {
    pthread_mutex_lock(&contexts_mutex);
    bool known = is_known(context);
    pthread_mutex_unlock(&contexts_mutex);
    return known;
}

// Under the contexts' mutex: says in the slot on which devices there are contexts.
static void show_contexts(void) {
    uint32_t bits = 0;
    for (struct CUctx_st *at = contexts; at; at = at->next) bits |= 1u << process.physical[at->ordinal];
    own_slot()->contexts = bits;
}

void contexts_moved(void) {
    pthread_mutex_lock(&contexts_mutex);
    show_contexts();
    pthread_mutex_unlock(&contexts_mutex);
}

uint32_t contexts_on(void) {  // bits of physical devices with a context
    uint32_t bits = 0;
    pthread_mutex_lock(&contexts_mutex);
    for (struct CUctx_st *at = contexts; at; at = at->next) bits |= 1u << process.physical[at->ordinal];
    pthread_mutex_unlock(&contexts_mutex);
    return bits;
}

static void note_context(CUdevice ordinal, uint32_t appeared) {
    struct journal_record record = journal_new(process.gm, process.slot, JOURNAL_CONTEXT);
    record.device = (int32_t)process.physical[ordinal];
    record.result = appeared;
    record.end_ns = record.begin_ns;
    journal_write(process.gm, &record);
}

static CUcontext new_context(CUdevice ordinal, unsigned flags, bool is_primary) {
    struct CUctx_st *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->ordinal = ordinal;
    made->flags = flags;
    made->is_primary = is_primary;
    made->id = ++last_context_id;
    made->next = contexts;
    contexts = made;
    show_contexts();
    note_context(ordinal, 1);
    return made;
}

// Everything that belongs to it goes first; its work is waited for.
static void end_context(CUcontext context) {
    stream_forget_context(context);
    modules_forget_context(context);
    memory_free_context(context);
    pthread_mutex_lock(&contexts_mutex);
    for (struct CUctx_st **at = &contexts; *at; at = &(*at)->next)
        if (*at == context) {
            *at = context->next;
            break;
        }
    show_contexts();
    note_context(context->ordinal, 0);
    pthread_mutex_unlock(&contexts_mutex);
    free(context);
}

static CUresult lost(CUdevice device) { return (CUresult)device_of(device)->lost; }

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    TRY(check_device(context, device));
    TRY(gate_enter(NULL));
    if (lost(device)) return gate_leave(lost(device));
    pthread_mutex_lock(&contexts_mutex);
    if (!primary[device].context) primary[device].context = new_context(device, primary[device].flags, true);
    *context = primary[device].context;
    if (*context) primary[device].references++;
    pthread_mutex_unlock(&contexts_mutex);
    return gate_leave(*context ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUcontext primary_context(CUdevice ordinal) { return primary[ordinal].context; }

static CUresult drop_primary(CUdevice device, bool all) {
    TRY(check_device(&device, device));
    TRY(gate_enter(NULL));
    pthread_mutex_lock(&contexts_mutex);
    CUcontext ended = NULL;
    CUresult result = CUDA_SUCCESS;
    if (!primary[device].context) {
        result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else if (all || --primary[device].references == 0) {
        ended = primary[device].context;
        primary[device].context = NULL;
        primary[device].references = 0;
    }
    pthread_mutex_unlock(&contexts_mutex);
    if (ended) end_context(ended);
    return gate_leave(result);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return drop_primary(device, false); }
API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return drop_primary(device, false); }
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return drop_primary(device, true); }
API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return drop_primary(device, true); }

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    TRY(check_device(&device, device));
    pthread_mutex_lock(&contexts_mutex);
    primary[device].flags = flags;
    if (primary[device].context) primary[device].context->flags = flags;
    pthread_mutex_unlock(&contexts_mutex);
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return cuDevicePrimaryCtxSetFlags_v2(device, flags); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    TRY(check_device(flags && active ? flags : NULL, device));
    pthread_mutex_lock(&contexts_mutex);
    *flags = primary[device].flags;
    *active = primary[device].context != NULL;
    pthread_mutex_unlock(&contexts_mutex);
    return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    TRY(check_device(context, device));
    TRY(gate_enter(NULL));
    if (lost(device)) return gate_leave(lost(device));
    if (stack.depth == MAX_STACK) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&contexts_mutex);
    *context = new_context(device, flags, false);
    pthread_mutex_unlock(&contexts_mutex);
    if (*context) stack.contexts[stack.depth++] = *context;
    return gate_leave(*context ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int affinity_count, unsigned flags, CUdevice device) {
    return affinity || affinity_count ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    return parameters ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}

API CUresult cuCtxDestroy_v2(CUcontext context) {
    TRY(gate_enter(NULL));
    if (!is_context(context) || context->is_primary) return gate_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (current_context() == context) stack.depth--;
    end_context(context);
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    TRY(gate_enter(NULL));
    if (!is_context(context)) return gate_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (stack.depth == MAX_STACK) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    stack.contexts[stack.depth++] = context;
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    TRY(gate_enter(NULL));
    if (!stack.depth) return gate_leave(CUDA_ERROR_INVALID_CONTEXT);
    CUcontext popped = stack.contexts[--stack.depth];
    if (context) *context = popped;
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    TRY(gate_enter(NULL));
    if (context && !is_context(context)) return gate_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!context) {
        if (stack.depth) stack.depth--;
    } else {
        if (!stack.depth) stack.depth = 1;
        stack.contexts[stack.depth - 1] = context;
    }
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    TRY(check_initialised());
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = current_context();
    return CUDA_SUCCESS;
}

static CUresult chosen_context(CUcontext *context) {  // NULL means the current one
    TRY(check_initialised());
    if (!*context) *context = current_context();
    return *context && is_context(*context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    TRY(chosen_context(&context));
    *device = context->ordinal;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) { return cuCtxGetDevice_v2(device, NULL); }

API CUresult cuCtxGetFlags(unsigned *flags) {
    CUcontext context = NULL;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    TRY(chosen_context(&context));
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    TRY(chosen_context(&context));
    *id = context->id;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    TRY(chosen_context(&context));
    *version = 3020;  // what the driver has answered since that version
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext context = NULL;
    TRY(chosen_context(&context));
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize_v2(CUcontext which) {
    CUcontext context;
    TRY(gate_enter(which ? NULL : &context));
    if (which) {
        if (!is_context(which)) return gate_leave(CUDA_ERROR_INVALID_CONTEXT);
        context = which;
    }
    return gate_leave(stream_wait_context(context));
}
API CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }
