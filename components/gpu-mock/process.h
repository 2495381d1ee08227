// What libcuda knows about the process it is loaded in: its slot, its contexts, and the gate that Lock closes.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_PROCESS_H
#define GPU_MOCK_PROCESS_H

#include <pthread.h>
#include <signal.h>

#include "cuda_abi.h"
#include "state.h"

// Order of locks: gate, contexts, engine (streams.c), memory (device_memory.c), then gm_lock. Nobody waits for work under any of them.
struct process {
    struct gm *gm;
    unsigned slot;
    pid_t initialised_by;              // 0: cuInit was not called; another pid: we are a forked child
    pid_t joined_by;                   // who took the slot; without cuInit it is only a caller of the checkpoint API
    unsigned visible_count;            // devices after CUDA_VISIBLE_DEVICES
    unsigned physical[GM_MAX_DEVICES]; // ordinal -> device; a restore with GPU pairs changes it
};
extern struct process process;

struct CUctx_st {
    CUdevice ordinal;
    unsigned flags;
    bool is_primary;
    unsigned id;
    _Atomic uint32_t broken;           // sticky CUresult after an illegal access of a kernel
    struct CUctx_st *next;             // all contexts, under the contexts' mutex
};

// CUDA_SUCCESS, or why the API cannot be used: cuInit missing, or a forked child.
CUresult check_initialised(void);
// For the checkpoint API, which needs no cuInit in the caller: takes a slot, so that its requests have a living name.
CUresult join_as_caller(void);
static inline struct gm_process *own_slot(void) { return &process.gm->shared->processes[process.slot]; }
static inline struct gm_device *device_of(CUdevice ordinal) { return &process.gm->shared->devices[process.physical[ordinal]]; }
static inline bool is_device(CUdevice ordinal) { return ordinal >= 0 && (unsigned)ordinal < process.visible_count; }

// The gate. Every call that launches work, manages resources or touches a device passes it, and counts as active until it leaves.
// On success the current context is in *context where it is asked for (INVALID_CONTEXT without one).
CUresult gate_enter(CUcontext *context);
CUresult gate_leave(CUresult result);
// Closes the gate, then waits until no call is active and `is_idle` says that no work is left. False: past the deadline, and open again.
bool gate_close(bool (*is_idle)(void), uint64_t deadline_ns);
void gate_open(void);
// Nobody passes any more: the process is FAILED.
void gate_fail(void);
void gate_poke(void);  // work was finished: whoever closes the gate looks again

// Contexts (contexts.c).
CUcontext current_context(void);
bool is_context(CUcontext context);    // known, not destroyed
CUcontext primary_context(CUdevice ordinal);
void contexts_moved(void);             // after a restore onto other devices
uint32_t contexts_on(void);            // bits of the devices with a context

// Helper threads (cuda_checkpoint.c).
CUresult start_helpers(void);

// What the library's own threads block: the program's signals, but not those that a thread's own fault raises. Blocked, these would
// end the process without asking its handlers (Python's faulthandler, for one).
static inline void block_for_helper(sigset_t *signals) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigfillset(signals);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(signals, faults[i]);
}

#define TRY(expression) do { CUresult try_result = (expression); if (try_result) return try_result; } while (0)

#endif
