// Checkpoint and restore. The call only sends a request: the work is done by helper threads in the target, so a stopped target
// hangs, a killed caller cancels nothing, and the saved pages are the target's own memory.
//
// Mimics: CUDA driver API reference, "CUDA Checkpointing":
// - Lock: only from RUNNING (ILLEGAL_STATE otherwise); past timeoutMs NOT_READY and RUNNING again; 0 waits for ever.
// - Checkpoint: only from LOCKED; Restore: only from CHECKPOINTED, leaves LOCKED; Unlock: only from LOCKED.
// - Restore needs cuInit in the caller; GPU pairs must name every checkpointed GPU; custom storage is NOT_SUPPORTED here.
// - IPC and managed memory: NOT_SUPPORTED at Checkpoint (github.com/NVIDIA/cuda-checkpoint, README, "Functionality").
// State queries have a thread of their own, so that they are answered while a save is under way.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "device_memory.h"
#include "faults.h"
#include "journal.h"
#include "mailbox.h"
#include "streams.h"

enum { IDLE_CHECK_NS = 250 * 1000 * 1000 };

// ---- in the target

static void sleep_until(uint64_t at_ns) {
    struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
}

static void sleep_rest(void *at_ns) { sleep_until(*(uint64_t *)at_ns); }

// How long the operation has to take at least: GPUs of one process go one after the other.
static uint64_t least_ns(uint32_t op, const uint64_t bytes[GM_MAX_DEVICES]) {
    uint64_t sum = 0, on = contexts_on();
    for (unsigned i = 0; i < process.gm->shared->device_count; i++) {
        const struct gm_device *device = &process.gm->shared->devices[i];
        if (!bytes[i] && !(on >> i & 1)) continue;
        uint64_t min_us = op == GM_OP_LOCK ? device->lock_min_us : op == GM_OP_CHECKPOINT ? device->checkpoint_min_us : device->restore_min_us;
        uint64_t speed = op == GM_OP_CHECKPOINT ? device->out_bytes_per_s : op == GM_OP_RESTORE ? device->in_bytes_per_s : 0;
        uint64_t ns = speed ? (uint64_t)((double)bytes[i] / (double)speed * 1e9) : 0;
        sum += ns > min_us * 1000 ? ns : min_us * 1000;
    }
    return sum;
}

static uint32_t do_lock(const struct mailbox_request *request, uint64_t begin_ns) {
    if (own_slot()->state != GM_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
    uint64_t none[GM_MAX_DEVICES] = {0};
    uint64_t deadline = request->timeout_ms ? begin_ns + (uint64_t)request->timeout_ms * 1000000u : UINT64_MAX;
    uint64_t earliest = begin_ns + least_ns(GM_OP_LOCK, none);
    sleep_until(earliest < deadline ? earliest : deadline);
    if (earliest > deadline || !gate_close(stream_all_idle, deadline)) return CUDA_ERROR_NOT_READY;
    own_slot()->state = GM_LOCKED;
    return CUDA_SUCCESS;
}

static uint32_t do_checkpoint(uint64_t begin_ns) {
    uint64_t bytes[GM_MAX_DEVICES];
    if (own_slot()->state != GM_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    if (own_slot()->unsaveable) return CUDA_ERROR_NOT_SUPPORTED;
    memory_sums(bytes);
    uint64_t end_ns = begin_ns + least_ns(GM_OP_CHECKPOINT, bytes);
    uint32_t result = memory_save(sleep_rest, &end_ns);
    if (!result) {
        own_slot()->saved_contexts = own_slot()->contexts;
        own_slot()->contexts = 0;  // device handles are released
        own_slot()->state = GM_CHECKPOINTED;
    }
    return result;
}

static int device_by_uuid(const uint8_t uuid[16]) {
    for (unsigned i = 0; i < process.gm->shared->device_count; i++)
        if (memcmp(process.gm->shared->devices[i].uuid, uuid, 16) == 0) return (int)i;
    return -1;
}

// Where each ordinal goes. The pairs must name every GPU that is in use, and two of ours cannot become one.
static uint32_t remap(const struct mailbox_request *request, unsigned physical[GM_MAX_DEVICES]) {
    uint32_t used = contexts_on();
    memcpy(physical, process.physical, sizeof process.physical);
    for (unsigned i = 0; i < request->pair_count; i++) {
        int from = device_by_uuid(request->pairs[i].from), to = device_by_uuid(request->pairs[i].to);
        if (from < 0 || to < 0) return CUDA_ERROR_INVALID_VALUE;
        if (strcmp(process.gm->shared->devices[from].name, process.gm->shared->devices[to].name)) return CUDA_ERROR_INVALID_VALUE;
        for (unsigned k = 0; k < process.visible_count; k++)
            if (process.physical[k] == (unsigned)from) physical[k] = (unsigned)to;
        used &= ~(1u << from);
    }
    if (request->pair_count && used) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < process.visible_count; i++)
        for (unsigned k = 0; k < i; k++)
            if (physical[i] == physical[k]) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static uint32_t do_restore(const struct mailbox_request *request, uint64_t begin_ns) {
    unsigned before[GM_MAX_DEVICES], after[GM_MAX_DEVICES];
    uint64_t bytes[GM_MAX_DEVICES];
    struct gm_fault fault;
    if (own_slot()->state != GM_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
    TRY(remap(request, after));
    if (gm_fault_strikes(process.gm, GM_FAULT_RESTORE_OOM, GM_OP_RESTORE, process.slot, GM_SIDE_TARGET, GM_BEFORE, &fault)) {
        own_slot()->state = GM_FAILED;
        gate_fail();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bool corrupt = gm_fault_strikes(process.gm, GM_FAULT_CORRUPT, GM_OP_RESTORE, process.slot, GM_SIDE_TARGET, GM_BEFORE, &fault);
    memcpy(before, process.physical, sizeof before);
    memcpy(process.physical, after, sizeof after);
    memory_sums(bytes);
    uint64_t end_ns = begin_ns + least_ns(GM_OP_RESTORE, bytes);
    uint32_t result = memory_restore(corrupt, corrupt ? fault.seed : 0);
    if (result) {
        memcpy(process.physical, before, sizeof before);
        return result;
    }
    contexts_moved();
    own_slot()->saved_contexts = 0;
    sleep_until(end_ns);
    own_slot()->state = GM_LOCKED;
    return CUDA_SUCCESS;
}

static uint32_t do_unlock(void) {
    if (own_slot()->state != GM_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    own_slot()->state = GM_RUNNING;
    gate_open();
    return CUDA_SUCCESS;
}

static void meet_hang(uint32_t op, enum gm_fault_when when) {
    struct gm_fault fault;
    if (gm_fault_strikes(process.gm, GM_FAULT_HANG, op, process.slot, GM_SIDE_TARGET, when, &fault))
        gm_fault_hang(process.gm, &fault, process.slot, own_slot()->generation);
}

static bool meet_failure(uint32_t op, enum gm_fault_when when, uint32_t *result) {
    struct gm_fault fault;
    if (!gm_fault_strikes(process.gm, GM_FAULT_FAIL, op, process.slot, GM_SIDE_TARGET, when, &fault)) return false;
    *result = fault.code;
    if (fault.leaves_failed) {
        own_slot()->state = GM_FAILED;
        gate_fail();
    }
    return true;
}

static enum journal_kind kind_of(uint32_t op) {
    return op == GM_OP_LOCK ? JOURNAL_LOCK : op == GM_OP_CHECKPOINT ? JOURNAL_CHECKPOINT : op == GM_OP_RESTORE ? JOURNAL_RESTORE : JOURNAL_UNLOCK;
}

static uint32_t serve_operation(void *context, const struct mailbox_request *request, uint32_t *answer) {
    uint64_t bytes[GM_MAX_DEVICES];
    uint32_t result = CUDA_SUCCESS, on = contexts_on();
    struct journal_record record = journal_new(process.gm, process.slot, kind_of(request->op));
    (void)context, (void)answer;
    memory_sums(bytes);
    for (unsigned i = 0; i < GM_MAX_DEVICES; i++) {
        record.bytes += bytes[i];
        if (!(on >> i & 1)) continue;
        if (record.device < 0) record.device = (int32_t)i;  // the first; all are in the name
        size_t n = strlen(record.name);
        snprintf(record.name + n, sizeof record.name - n, "%s%u", n ? "," : "devices ", i);
    }
    journal_write(process.gm, &record);
    meet_hang(request->op, GM_BEFORE);
    uint64_t begin_ns = gm_now_ns();
    if (!meet_failure(request->op, GM_BEFORE, &result)) {
        switch (request->op) {
            case GM_OP_LOCK: result = do_lock(request, begin_ns); break;
            case GM_OP_CHECKPOINT: result = do_checkpoint(begin_ns); break;
            case GM_OP_RESTORE: result = do_restore(request, begin_ns); break;
            case GM_OP_UNLOCK: result = do_unlock(); break;
            default: result = CUDA_ERROR_INVALID_VALUE;
        }
        if (!result) meet_failure(request->op, GM_AFTER, &result);
    }
    record.result = result;
    record.state = (uint16_t)own_slot()->state;
    journal_end(process.gm, &record);
    meet_hang(request->op, GM_AFTER);
    return result;
}

static uint32_t serve_query(void *context, const struct mailbox_request *request, uint32_t *answer) {
    uint32_t result = CUDA_SUCCESS;
    (void)context;
    meet_hang(request->op, GM_BEFORE);
    if (meet_failure(request->op, GM_BEFORE, &result)) return result;
    *answer = request->op == GM_OP_GET_STATE ? own_slot()->state : own_slot()->restore_tid;
    return CUDA_SUCCESS;
}

static void *serve_operations(void *context) {
    own_slot()->restore_tid = (uint32_t)syscall(SYS_gettid);
    for (;;) mailbox_serve(&own_slot()->operations, serve_operation, context, IDLE_CHECK_NS);
    return NULL;
}

static void *serve_queries(void *context) {
    for (;;) mailbox_serve(&own_slot()->queries, serve_query, context, IDLE_CHECK_NS);
    return NULL;
}

CUresult start_helpers(void) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    block_for_helper(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool fine = pthread_create(&thread, &attributes, serve_queries, NULL) == 0 &&
                pthread_create(&thread, &attributes, serve_operations, NULL) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    while (fine && !own_slot()->restore_tid) sched_yield();  // until then nobody takes us for a CUDA process
    return fine ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

// ---- in the caller

static CUresult ask(int pid, bool is_query, const struct mailbox_request *request, uint32_t *answer) {
    struct gm *gm = process.gm;
    struct gm_fault fault;
    uint32_t result, ignored;
    int target = gm_find_pid(gm, pid);
    if (target < 0 || !gm->shared->processes[target].restore_tid) return CUDA_ERROR_INVALID_VALUE;
    const uint32_t generation = gm->shared->processes[target].generation;
    if (gm_fault_strikes(gm, GM_FAULT_HANG, request->op, (unsigned)target, GM_SIDE_CALLER, GM_BEFORE, &fault))
        gm_fault_hang(gm, &fault, (unsigned)target, generation);
    if (gm_fault_strikes(gm, GM_FAULT_FAIL, request->op, (unsigned)target, GM_SIDE_CALLER, GM_BEFORE, &fault)) return (CUresult)fault.code;
    if (!mailbox_call(gm, process.slot, (unsigned)target, generation, is_query, request, &result, answer ? answer : &ignored))
        return CUDA_ERROR_INVALID_VALUE;  // it died: from now on its pid is unknown
    if (gm_fault_strikes(gm, GM_FAULT_HANG, request->op, (unsigned)target, GM_SIDE_CALLER, GM_AFTER, &fault))
        gm_fault_hang(gm, &fault, (unsigned)target, generation);
    if (!result && gm_fault_strikes(gm, GM_FAULT_FAIL, request->op, (unsigned)target, GM_SIDE_CALLER, GM_AFTER, &fault)) result = fault.code;
    return (CUresult)result;
}

// An operation, noted with the time that its caller spent in it. A caller that is killed leaves no note.
static CUresult operate(int pid, const struct mailbox_request *request) {
    const uint64_t begin_ns = gm_now_ns();
    const int target = gm_find_pid(process.gm, pid);
    const CUresult result = ask(pid, false, request, NULL);
    if (target >= 0) {
        struct journal_record record = journal_new(process.gm, (unsigned)target, JOURNAL_CALL);
        record.begin_ns = begin_ns;
        record.result = result;
        snprintf(record.name, sizeof record.name, "%s", journal_kind_name(kind_of(request->op)));
        journal_end(process.gm, &record);
    }
    return result;
}

static bool is_zero(const void *at, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)at)[i]) return false;
    return true;
}

API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    TRY(join_as_caller());
    struct mailbox_request request = {.op = GM_OP_LOCK};
    if (args) {
        if (args->reserved0 || !is_zero(args->reserved1, sizeof args->reserved1)) return CUDA_ERROR_INVALID_VALUE;
        request.timeout_ms = args->timeoutMs;
    }
    return operate(pid, &request);
}

API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    TRY(join_as_caller());
    struct mailbox_request request = {.op = GM_OP_CHECKPOINT};
    if (args) {
        if (args->customStorageInfo_out) return CUDA_ERROR_NOT_SUPPORTED;
        if (!is_zero(args->reserved, sizeof args->reserved)) return CUDA_ERROR_INVALID_VALUE;
    }
    return operate(pid, &request);
}

API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    TRY(check_initialised());
    struct mailbox_request request = {.op = GM_OP_RESTORE};
    if (args) {
        if (args->customStorageInfo_out) return CUDA_ERROR_NOT_SUPPORTED;
        if (!is_zero(args->reserved, sizeof args->reserved)) return CUDA_ERROR_INVALID_VALUE;
        if (args->gpuPairsCount > GM_MAX_DEVICES || (args->gpuPairsCount && !args->gpuPairs)) return CUDA_ERROR_INVALID_VALUE;
        request.pair_count = args->gpuPairsCount;
        for (unsigned i = 0; i < args->gpuPairsCount; i++) {
            memcpy(request.pairs[i].from, args->gpuPairs[i].oldUuid.bytes, 16);
            memcpy(request.pairs[i].to, args->gpuPairs[i].newUuid.bytes, 16);
        }
    }
    return operate(pid, &request);
}

API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    TRY(join_as_caller());
    struct mailbox_request request = {.op = GM_OP_UNLOCK};
    if (args && !is_zero(args, sizeof *args)) return CUDA_ERROR_INVALID_VALUE;
    return operate(pid, &request);
}

API CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    TRY(join_as_caller());
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    struct mailbox_request request = {.op = GM_OP_GET_STATE};
    uint32_t answer = 0;
    TRY(ask(pid, true, &request, &answer));
    *state = (CUprocessState)answer;
    return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
    TRY(join_as_caller());
    if (!tid) return CUDA_ERROR_INVALID_VALUE;
    struct mailbox_request request = {.op = GM_OP_GET_THREAD};
    uint32_t answer = 0;
    TRY(ask(pid, true, &request, &answer));
    *tid = (int)answer;
    return CUDA_SUCCESS;
}
