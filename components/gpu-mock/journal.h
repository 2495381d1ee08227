// Ground truth: what ran on which device when, as the mock itself saw it.
//
// Records of 128 bytes are appended with one write each, at multiples of 128, so none crosses a page and a kill leaves it out
// whole or has it whole; the reader ignores what has no valid check. Work that lasts writes a record when it begins and one
// with the same number when it ends: work that a kill cut off is seen as begun and never ended.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_JOURNAL_H
#define GPU_MOCK_JOURNAL_H

#include <stdio.h>

#include "state.h"

enum { JOURNAL_MAGIC = 0x4a4d4754 };

enum journal_kind {
    JOURNAL_JOIN = 1,     // cuInit
    JOURNAL_GONE,         // the process died, and somebody noticed: time is that of noticing
    JOURNAL_CONTEXT,      // a context appeared (result 1) or went (0)
    JOURNAL_ALLOC,
    JOURNAL_FREE,
    JOURNAL_COPY,         // name: h2d, d2h, d2d, peer
    JOURNAL_MEMSET,
    JOURNAL_KERNEL,       // name: the kernel
    JOURNAL_LOCK,         // state changes; result: CUresult, state: the state afterwards
    JOURNAL_CHECKPOINT,
    JOURNAL_RESTORE,
    JOURNAL_UNLOCK,
    JOURNAL_ILLEGAL,      // access to a freed, saved or unknown range
    JOURNAL_FAULT,        // an injected fault struck; name: its kind
    JOURNAL_CALL,         // name: lock, checkpoint, ...: the same as its caller saw it, from the call to its return
};

struct journal_record {
    uint32_t magic, check;      // check: over the rest
    uint64_t number;            // of the process's work; begin and end records of one piece of work share it
    uint64_t start_time;
    uint64_t pid_namespace;
    uint64_t begin_ns, end_ns;  // CLOCK_MONOTONIC; end_ns 0: this is the record of its beginning
    uint64_t bytes, address;
    int32_t pid, outer_pid;
    uint32_t slot, generation;
    int32_t device;             // -1: none
    uint32_t stream;
    uint16_t kind, state;
    uint32_t result;
    char name[32];
};
_Static_assert(sizeof(struct journal_record) == 128, "records must divide a page");

// Starts a record about the process in `slot` with the time of now as its begin.
struct journal_record journal_new(struct gm *gm, unsigned slot, enum journal_kind kind);
// Appends it as it is (begin_ns is kept; an end_ns of 0 marks a beginning).
void journal_write(struct gm *gm, struct journal_record *record);
// Sets end_ns to now and appends it.
void journal_end(struct gm *gm, struct journal_record *record);
// A record of an instant.
void journal_about(struct gm *gm, unsigned slot, enum journal_kind kind);

const char *journal_kind_name(unsigned kind);
// Reads the journal of the folder and prints it, JSON lines or a table; begin and end are put together.
// False: it cannot be read.
bool journal_print(struct gm *gm, FILE *out, bool json);

#endif
