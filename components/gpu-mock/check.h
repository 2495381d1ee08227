// Is the shared state consistent? For tests, after kills.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_CHECK_H
#define GPU_MOCK_CHECK_H

#include <stdio.h>

#include "state.h"

// Takes the lock, frees what the dead left, and prints a line for each thing that is wrong. Returns their number.
unsigned gm_check(struct gm *gm, FILE *out);

#endif
