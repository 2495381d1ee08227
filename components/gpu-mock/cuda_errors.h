// Names and sentences of CUresult.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_CUDA_ERRORS_H
#define GPU_MOCK_CUDA_ERRORS_H

#include <stdbool.h>
#include <stdint.h>

const char *cuda_error_name(uint32_t code);  // NULL: no such code
const char *cuda_error_text(uint32_t code);
bool cuda_error_by_name(const char *name, uint32_t *code);

#endif
