// cuInit and the gate.
// Mimics: cuInit, and the rule that a call without it (or in a forked child) is CUDA_ERROR_NOT_INITIALIZED; CUDA_VISIBLE_DEVICES as in
// the CUDA C++ Programming Guide (environment variables); "API locks are taken so further CUDA API calls will block" (CUprocessState).
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"
#include "journal.h"

struct process process;

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

CUresult check_initialised(void) {
    pid_t by = __atomic_load_n(&process.initialised_by, __ATOMIC_ACQUIRE);
    return by && by == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

// "0,1" or "GPU-abc...", of the devices that the process has: what follows the first unknown entry is not visible, as the guide says.
static void choose_devices(void) {
    const struct gm *gm = process.gm;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    process.visible_count = 0;
    if (!text) {
        for (unsigned i = 0; i < gm->granted_count; i++) process.physical[process.visible_count++] = gm->granted[i];
        return;
    }
    while (*text) {
        size_t length = strcspn(text, ",");
        int found = -1;
        char *end;
        long index = strtol(text, &end, 10);
        if (end == text + length && length && index >= 0 && index < (long)gm->granted_count) found = (int)gm->granted[index];
        for (unsigned i = 0; i < gm->granted_count && length > 4; i++)
            if (strncmp(text, gm->shared->devices[gm->granted[i]].uuid_text, length) == 0) found = (int)gm->granted[i];
        for (unsigned i = 0; i < process.visible_count; i++)
            if (found == (int)process.physical[i]) found = -1;
        if (found < 0) return;
        process.physical[process.visible_count++] = (unsigned)found;
        text += length + (text[length] == ',');
    }
}

// Under init_mutex, with process.gm set.
static CUresult take_slot(void) {
    if (process.joined_by == getpid()) return CUDA_SUCCESS;
    int slot = gm_join(process.gm);
    if (slot < 0) {
        fprintf(stderr, "gpu-mock: all %d places for processes are taken\n", GM_MAX_PROCESSES);
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    process.slot = (unsigned)slot;
    process.joined_by = getpid();
    return CUDA_SUCCESS;
}

CUresult join_as_caller(void) {
    if (process.initialised_by && process.initialised_by != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_mutex);
    CUresult result = CUDA_SUCCESS;
    if (process.joined_by != getpid()) {
        process.gm = gm_open(NULL);
        result = process.gm ? take_slot() : CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_unlock(&init_mutex);
    return result;
}

API CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (process.initialised_by && process.initialised_by != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_mutex);
    CUresult result = CUDA_SUCCESS;
    const char *why = NULL;
    struct gm_fault fault;
    if (process.initialised_by) goto out;
    struct gm *gm = gm_open(&why);
    if (!gm) {
        fprintf(stderr, "gpu-mock: %s\n", why ? why : "no memory");
        result = CUDA_ERROR_NO_DEVICE;
        goto out;
    }
    uint64_t delay_us = gm->shared->init_delay_us;
    struct timespec delay = {.tv_sec = (time_t)(delay_us / 1000000), .tv_nsec = (long)(delay_us % 1000000) * 1000};
    while (nanosleep(&delay, &delay) && errno == EINTR) {}
    process.gm = gm;
    choose_devices();
    if (!process.visible_count) {
        result = CUDA_ERROR_NO_DEVICE;
        goto out;
    }
    result = take_slot();
    if (result) goto out;
    if (gm_fault_strikes(gm, GM_FAULT_HANG, GM_OP_INIT, process.slot, GM_SIDE_TARGET, GM_BEFORE, &fault))
        gm_fault_hang(gm, &fault, process.slot, own_slot()->generation);
    if (gm_fault_strikes(gm, GM_FAULT_FAIL, GM_OP_INIT, process.slot, GM_SIDE_TARGET, GM_BEFORE, &fault)) {
        result = (CUresult)fault.code;
        goto out;
    }
    result = start_helpers();
    if (result) goto out;
    journal_about(gm, process.slot, JOURNAL_JOIN);
    __atomic_store_n(&process.initialised_by, getpid(), __ATOMIC_RELEASE);
out:
    pthread_mutex_unlock(&init_mutex);
    return result;
}

// ---- the gate

static pthread_mutex_t gate_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_changed;
static pthread_once_t gate_once = PTHREAD_ONCE_INIT;
static unsigned active;
static enum { OPEN, CLOSED, BROKEN } gate = OPEN;

static void make_gate(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&gate_changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

CUresult gate_enter(CUcontext *context) {
    TRY(check_initialised());
    pthread_once(&gate_once, make_gate);
    pthread_mutex_lock(&gate_mutex);
    while (gate == CLOSED) pthread_cond_wait(&gate_changed, &gate_mutex);
    if (gate == BROKEN) {
        pthread_mutex_unlock(&gate_mutex);
        return CUDA_ERROR_UNKNOWN;  // no document says what a FAILED process gets
    }
    active++;
    pthread_mutex_unlock(&gate_mutex);
    if (!context) return CUDA_SUCCESS;
    *context = current_context();
    if (!*context) return gate_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!is_context(*context)) return gate_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CUresult lost = (CUresult)device_of((*context)->ordinal)->lost;
    if (lost) return gate_leave(lost);
    if ((*context)->broken) return gate_leave((CUresult)(*context)->broken);
    return CUDA_SUCCESS;
}

CUresult gate_leave(CUresult result) {
    pthread_mutex_lock(&gate_mutex);
    active--;
    if (gate != OPEN) pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate_mutex);
    return result;
}

bool gate_close(bool (*is_idle)(void), uint64_t deadline_ns) {
    struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / 1000000000u), .tv_nsec = (long)(deadline_ns % 1000000000u)};
    pthread_once(&gate_once, make_gate);
    pthread_mutex_lock(&gate_mutex);
    gate = CLOSED;
    bool in_time = true;
    while ((active || !is_idle()) && in_time) {
        if (deadline_ns == UINT64_MAX)
            pthread_cond_wait(&gate_changed, &gate_mutex);
        else
            in_time = pthread_cond_timedwait(&gate_changed, &gate_mutex, &deadline) != ETIMEDOUT;
    }
    in_time = !active && is_idle();
    if (!in_time) {
        gate = OPEN;
        pthread_cond_broadcast(&gate_changed);
    }
    pthread_mutex_unlock(&gate_mutex);
    return in_time;
}

void gate_open(void) {
    pthread_mutex_lock(&gate_mutex);
    gate = OPEN;
    pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate_mutex);
}

void gate_fail(void) {
    pthread_mutex_lock(&gate_mutex);
    gate = BROKEN;
    pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate_mutex);
}

void gate_poke(void) {
    pthread_once(&gate_once, make_gate);
    pthread_mutex_lock(&gate_mutex);
    if (gate != OPEN) pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate_mutex);
}
