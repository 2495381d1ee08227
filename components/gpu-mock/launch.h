// Modules and kernels.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_LAUNCH_H
#define GPU_MOCK_LAUNCH_H

#include "process.h"

void modules_forget_context(CUcontext context);

#endif
