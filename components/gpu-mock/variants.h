// Calls that take a stream exist twice: stream 0 is the legacy default stream, or, with the suffix, the thread's own
// (CUDA driver API reference, "Stream synchronization behavior").
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_VARIANTS_H
#define GPU_MOCK_VARIANTS_H

// In ARGUMENTS, PER_THREAD stands for the difference.
#define STREAM_VARIANTS(NAME, PARAMETERS, IMPLEMENTATION, ARGUMENTS) TWO_VARIANTS(NAME, NAME##_ptsz, PARAMETERS, IMPLEMENTATION, ARGUMENTS)
#define SYNC_VARIANTS(NAME, PARAMETERS, IMPLEMENTATION, ARGUMENTS) TWO_VARIANTS(NAME, NAME##_ptds, PARAMETERS, IMPLEMENTATION, ARGUMENTS)
#define TWO_VARIANTS(PLAIN, SUFFIXED, PARAMETERS, IMPLEMENTATION, ARGUMENTS) \
    API CUresult PLAIN PARAMETERS {                                         \
        const bool PER_THREAD = false;                                      \
        return IMPLEMENTATION ARGUMENTS;                                    \
    }                                                                       \
    API CUresult SUFFIXED PARAMETERS {                                      \
        const bool PER_THREAD = true;                                       \
        return IMPLEMENTATION ARGUMENTS;                                    \
    }

#endif
