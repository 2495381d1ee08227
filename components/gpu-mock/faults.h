// Faults that tests inject, kept in the shared state.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_FAULTS_H
#define GPU_MOCK_FAULTS_H

#include "state.h"

// Does an active fault of this kind strike `op` (0 for the NVML kinds) of the process in `slot`?
// Throws the dice and counts the strike; NULL: no. A copy is returned in *out, since faults may vanish meanwhile.
bool gm_fault_strikes(struct gm *gm, enum gm_fault_kind kind, uint32_t op, unsigned slot, enum gm_fault_side side,
                      enum gm_fault_when when, struct gm_fault *out);
// Waits as a GM_FAULT_HANG says: for its duration, or until it is removed or the target is gone.
void gm_fault_hang(struct gm *gm, const struct gm_fault *fault, unsigned slot, uint32_t generation);
// "fail op=lock code=3 p=0.05 seed=7": adds one fault, or changes a setting. Returns its id, 0 for a setting, -1: *why.
int gm_inject(struct gm *gm, int argc, char *const argv[], char *why, size_t why_size);
// id 0: all.
bool gm_fault_remove(struct gm *gm, uint32_t id);
// One line, the words that gm_inject takes.
void gm_fault_describe(const struct gm_fault *fault, char *out, size_t size);

#endif
