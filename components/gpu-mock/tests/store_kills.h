// Kills this process right before its n-th store to the shared state, so that every state that a kill can leave is tried, one
// after the other, and not only those that a kill at a random moment happens to hit.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_STORE_KILLS_H
#define GPU_MOCK_STORE_KILLS_H

// From now on stores are counted; 0: count only.
void store_kills_begin(unsigned kill_before);
unsigned store_kills_counted(void);

#endif
