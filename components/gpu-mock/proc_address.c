// cuGetProcAddress: from a base name and a version to the function.
// Mimics: CUDA driver API reference, "Driver Entry Point Access": the newest variant not above the asked version; a version above the
// driver's own is INVALID_VALUE; with the per-thread flag the variant for the per-thread default stream. A name that the driver
// lacks is SYMBOL_NOT_FOUND, one newer than the asked version VERSION_NOT_SUFFICIENT, both CUDA_SUCCESS with a NULL pointer.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <string.h>

#include "cuda_abi.h"
#include "state.h"

typedef void entry_point(void);

API CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, CUdriverProcAddressQueryResult *status);

#define X(BASE, VERSION, SYMBOL) entry_point SYMBOL;
#define Y(BASE, VERSION, SYMBOL, SUFFIXED) entry_point SYMBOL, SUFFIXED;
#define N(BASE, VERSION)
#include "cuda_names.inc"
#undef X
#undef Y
#undef N

enum { FIRST_PER_THREAD = 7000 };  // the suffixed variants came with CUDA 7

// Any call: it takes its arguments from registers and leaves them alone.
static CUresult not_supported(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static const struct entry {
    const char *name;
    int version;
    entry_point *plain, *per_thread;
} entries[] = {
    {"cuGetProcAddress", 11030, (entry_point *)cuGetProcAddress, NULL},
    {"cuGetProcAddress", 12000, (entry_point *)cuGetProcAddress_v2, NULL},
#define X(BASE, VERSION, SYMBOL) {#BASE, VERSION, SYMBOL, NULL},
#define Y(BASE, VERSION, SYMBOL, SUFFIXED) {#BASE, VERSION, SYMBOL, SUFFIXED},
#define N(BASE, VERSION) {#BASE, VERSION, (entry_point *)not_supported, NULL},
#include "cuda_names.inc"
};

API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, CUdriverProcAddressQueryResult *status) {
    if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    struct gm *gm = gm_open(NULL);
    const int driver = gm ? (int)gm->shared->cuda_version : 13000;
    const struct entry *found = NULL;
    bool is_known = false;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct entry *entry = &entries[i];
        if (strcmp(entry->name, symbol) || entry->version > driver) continue;
        is_known = true;
        if (entry->version <= version && (!found || entry->version > found->version)) found = entry;
    }
    if (version > driver) found = NULL;
    *function = NULL;
    if (status)
        *status = found ? CU_GET_PROC_ADDRESS_SUCCESS
                  : is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (version > driver) return CUDA_ERROR_INVALID_VALUE;
    if (!found) return CUDA_SUCCESS;
    const bool own = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && found->per_thread && version >= FIRST_PER_THREAD;
    entry_point *chosen = own ? found->per_thread : found->plain;
    memcpy(function, &chosen, sizeof chosen);
    return CUDA_SUCCESS;
}

API CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    CUresult result = cuGetProcAddress_v2(symbol, function, version, flags, NULL);
    return !result && !*function ? CUDA_ERROR_NOT_FOUND : result;  // the first form of the call has no status to tell it in
}
