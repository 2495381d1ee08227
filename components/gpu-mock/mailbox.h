// Requests from any process to the helper threads of another one, in shared memory.
//
// The word of a mailbox goes FREE -> CLAIMED (the caller writes its request) -> POSTED -> RUNNING (the helper works) -> FREE. It names
// the caller, so that a word left behind by a dead caller is freed by the next one; a request that is POSTED or RUNNING goes on
// without its caller, as in the driver. Answers lie beside it: a caller that is stopped keeps nobody waiting.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_MAILBOX_H
#define GPU_MOCK_MAILBOX_H

#include "state.h"

struct mailbox_request {
    uint32_t op, timeout_ms, pair_count;
    struct { uint8_t from[16], to[16]; } pairs[GM_MAX_DEVICES];
};

// Sends it to the process in `target` and waits for the answer. False: the target died (or its slot has another owner now).
bool mailbox_call(struct gm *gm, unsigned own_slot, unsigned target, uint32_t generation, bool is_query,
                  const struct mailbox_request *request, uint32_t *result, uint32_t *answer);

// In the target: serves one request if there is one, else waits for at most timeout_ns.
typedef uint32_t mailbox_handler(void *context, const struct mailbox_request *request, uint32_t *answer);
void mailbox_serve(struct gm_mailbox *mailbox, mailbox_handler *handler, void *context, uint64_t timeout_ns);

// Under the lock, before the slot gets a new owner: words of its last owner name nobody any more.
void mailbox_forget_caller(struct gm *gm, unsigned slot);

#endif
