// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

#include <string.h>

enum phase { FREE = 0, CLAIMED = 1, POSTED = 2, RUNNING = 3 };
enum { NOBODY = 511, CHECK_NS = 20 * 1000 * 1000, ANSWERS = 8 };

enum { LOST_ANSWER = 999 };  // CUDA_ERROR_UNKNOWN: eight later requests were answered before this caller looked

// phase: bits 0-2, caller's slot: bits 3-11, nonce: the rest.
static uint32_t make_word(enum phase phase, uint32_t caller, uint32_t nonce) { return (uint32_t)phase | caller << 3 | nonce << 12; }
static enum phase phase_of(uint32_t word) { return (enum phase)(word & 7); }
static uint32_t caller_of(uint32_t word) { return (word >> 3) & 511; }
static uint32_t in_phase(uint32_t word, enum phase phase) { return (word & ~7u) | (uint32_t)phase; }

static bool is_same_process(struct gm *gm, unsigned slot, uint32_t generation) {
    return gm->shared->processes[slot].generation == generation && gm_alive(gm, slot);
}

static bool is_caller_dead(struct gm *gm, uint32_t word) {
    return caller_of(word) == NOBODY || (caller_of(word) < GM_MAX_PROCESSES && !gm_alive(gm, caller_of(word)));
}

static bool fetch_answer(const struct gm_mailbox *mailbox, uint32_t who, uint32_t *result, uint32_t *answer) {
    for (int i = 0; i < ANSWERS; i++) {
        if (mailbox->answers[i].who != who) continue;
        *result = mailbox->answers[i].result;
        *answer = mailbox->answers[i].answer;
        return mailbox->answers[i].who == who;  // not overwritten meanwhile
    }
    return false;
}

bool mailbox_call(struct gm *gm, unsigned own_slot, unsigned target, uint32_t generation, bool is_query,
                  const struct mailbox_request *request, uint32_t *result, uint32_t *answer) {
    static _Atomic uint32_t last_nonce;
    struct gm_process *process = &gm->shared->processes[target];
    struct gm_mailbox *mailbox = is_query ? &process->queries : &process->operations;
    const uint32_t nonce = ++last_nonce & 0xfffff;
    const uint32_t claimed = make_word(CLAIMED, own_slot, nonce);

    for (;;) {
        uint32_t word = FREE;
        if (!is_same_process(gm, target, generation)) return false;
        if (atomic_compare_exchange_strong(&mailbox->word, &word, claimed)) break;
        gm_futex_wait(&mailbox->word, word, CHECK_NS);
        if (mailbox->word == word && phase_of(word) == CLAIMED && is_caller_dead(gm, word))
            atomic_compare_exchange_strong(&mailbox->word, &word, FREE);
    }
    // The slot may have got a new owner between the question above and the claim; the request is not for that one.
    if (!is_same_process(gm, target, generation)) {
        uint32_t mine = claimed;
        atomic_compare_exchange_strong(&mailbox->word, &mine, FREE);
        return false;
    }
    for (int i = 0; i < ANSWERS; i++) {  // an earlier process in our slot may have asked under the same name
        uint32_t stale = claimed;
        atomic_compare_exchange_strong(&mailbox->answers[i].who, &stale, 0);
    }
    mailbox->op = request->op;
    mailbox->timeout_ms = request->timeout_ms;
    mailbox->pair_count = request->pair_count;
    memcpy(mailbox->pairs, request->pairs, sizeof mailbox->pairs);
    uint32_t expected = claimed;
    // Fails only if the slot got a new owner since, whose join emptied the mailbox.
    if (!atomic_compare_exchange_strong(&mailbox->word, &expected, in_phase(claimed, POSTED))) return false;
    gm_futex_wake(&mailbox->word);
    for (;;) {
        uint32_t word = mailbox->word;
        bool is_over = in_phase(word, CLAIMED) != claimed;  // the answer was there before the word changed
        if (fetch_answer(mailbox, claimed, result, answer)) return true;
        if (!is_same_process(gm, target, generation)) return false;
        if (is_over) {
            *result = LOST_ANSWER;
            return true;
        }
        gm_futex_wait(&mailbox->word, word, CHECK_NS);
    }
}

void mailbox_serve(struct gm_mailbox *mailbox, mailbox_handler *handler, void *context, uint64_t timeout_ns) {
    uint32_t word = mailbox->word;
    if (phase_of(word) != POSTED) {
        gm_futex_wait(&mailbox->word, word, timeout_ns);
        return;
    }
    if (!atomic_compare_exchange_strong(&mailbox->word, &word, in_phase(word, RUNNING))) return;
    struct mailbox_request request = {.op = mailbox->op, .timeout_ms = mailbox->timeout_ms, .pair_count = mailbox->pair_count};
    if (request.pair_count > GM_MAX_DEVICES) request.pair_count = GM_MAX_DEVICES;
    memcpy(request.pairs, mailbox->pairs, sizeof request.pairs);
    uint32_t answer = 0, result = handler(context, &request, &answer);
    word = mailbox->word;  // the caller in it may have become nobody
    uint32_t place = mailbox->served++ % ANSWERS;
    mailbox->answers[place].who = 0;
    mailbox->answers[place].result = result;
    mailbox->answers[place].answer = answer;
    mailbox->answers[place].who = in_phase(word, CLAIMED);
    mailbox->word = FREE;
    gm_futex_wake(&mailbox->word);
}

void mailbox_forget_caller(struct gm *gm, unsigned slot) {
    for (unsigned i = 0; i < GM_MAX_PROCESSES; i++) {
        struct gm_mailbox *both[] = {&gm->shared->processes[i].operations, &gm->shared->processes[i].queries};
        for (int k = 0; k < 2; k++) {
            uint32_t word = both[k]->word;
            while (phase_of(word) != FREE && caller_of(word) == slot) {
                enum phase phase = phase_of(word);
                uint32_t next = phase == CLAIMED ? FREE : make_word(phase, NOBODY, word >> 12);
                if (atomic_compare_exchange_weak(&both[k]->word, &word, next)) {
                    gm_futex_wake(&both[k]->word);
                    break;
                }
            }
        }
    }
}
