// What the modules of the shared state have in common; nothing for others.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_STATE_PARTS_H
#define GPU_MOCK_STATE_PARTS_H

#include "state.h"

// Opens a file of the folder, close-on-exec; a new one gets exactly that mode, whatever the umask.
int gm_open_in(const char *dir, const char *name, int flags, mode_t mode);
// Under the lock: empties the slot of a dead process.
void gm_bury(struct gm *gm, unsigned slot);

#endif
