// The state that all processes of a machine share: layout of the mapped files, and the calls to open, lock and walk them.
// Promise and invariants: STATE.md.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#ifndef GPU_MOCK_STATE_H
#define GPU_MOCK_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Folder: TIMESLICE_GPU_MOCK_DIR, default below. Files in it:
//   state      struct gm_shared, mapped by everybody
//   locks      no content; record locks on its bytes say who lives and who may change things
//   device<N>  memory of device N, sparse
//   journal    ground truth, see journal.h
#define GM_DEFAULT_DIR "/dev/shm/timeslice-gpu-mock"
#define GM_ENV_DIR "TIMESLICE_GPU_MOCK_DIR"
#define GM_ENV_DEVICES "TIMESLICE_GPU_MOCK"  // "2x80GiB": used when the folder has no state yet
// TIMESLICE_GPU_MOCK_GRANT_<anything>=GPU-...: the process has this device; with at least one of them it has no others, as
// in a container that was given some of a machine's devices. One variable each, so that what grants them need not know of
// each other.
#define GM_ENV_GRANT "TIMESLICE_GPU_MOCK_GRANT_"

enum {
    GM_MAGIC = 0x4b4d4754,  // "TGMK"
    GM_VERSION = 3,         // raise it with every change of layout
    GM_MAX_DEVICES = 16,
    GM_MAX_PROCESSES = 256,
    GM_MAX_EXTENTS = 4096,  // per process
    GM_MAX_FAULTS = 64,
    GM_PAGE = 4096,         // granularity of device memory
    GM_UTIL_BUCKETS = 256,
    GM_UTIL_BUCKET_NS = 10 * 1000 * 1000,
};

// CUprocessState, and what the slot's state word holds.
enum gm_process_state { GM_RUNNING = 0, GM_LOCKED = 1, GM_CHECKPOINTED = 2, GM_FAILED = 3 };

// A piece of device memory that a process owns. `used` is stored last when it appears and first when it goes.
struct gm_extent {
    _Atomic uint32_t used;
    uint32_t device;
    uint64_t offset;   // in file device<N>
    uint64_t size;
    uint64_t pointer;  // the CUdeviceptr that this piece belongs to
};

// One request to a helper thread in the target. The word tells phase, caller's slot and a nonce; see mailbox.h.
struct gm_mailbox {
    _Atomic uint32_t word;  // futex
    uint32_t op;            // enum gm_op
    uint32_t timeout_ms;
    uint32_t served;        // answers given; the helper's own
    uint32_t pair_count;    // GPU pairs of a restore
    struct { uint8_t from[16], to[16]; } pairs[GM_MAX_DEVICES];
    struct {
        _Atomic uint32_t who;  // caller and nonce, stored last
        uint32_t result;       // CUresult
        uint32_t answer;       // state or thread id
    } answers[8];           // the last ones, so that a caller that is slow to fetch its own keeps nobody waiting
};

// A process that called cuInit. `used` without its lock held means: dead, and not yet cleaned up.
struct gm_process {
    _Atomic uint32_t used;
    _Atomic uint32_t generation;     // counts the owners of this slot
    int32_t pid;                     // in its own PID namespace
    int32_t outer_pid;               // as its /proc mount sees it (the host's, where /proc is the host's)
    uint64_t pid_namespace;          // inode of /proc/self/ns/pid
    uint64_t start_time;             // field 22 of /proc/PID/stat, clock ticks since boot
    uint32_t uid;
    char name[16];                   // /proc/self/comm
    _Atomic uint32_t state;          // enum gm_process_state
    _Atomic uint32_t restore_tid;    // helper thread, in the process's own namespace
    _Atomic uint32_t contexts;       // bit N: it has a context on device N (shown by NVML)
    _Atomic uint32_t saved_contexts; // the same while it is CHECKPOINTED, when `contexts` is 0
    _Atomic uint32_t unsaveable;     // things that it shared, and managed memory that it has: Checkpoint is NOT_SUPPORTED
    _Atomic uint64_t used_bytes[GM_MAX_DEVICES];   // on the device now; written by its owner only
    _Atomic uint64_t saved_bytes[GM_MAX_DEVICES];  // in its own host memory while CHECKPOINTED
    _Atomic uint32_t extent_end;     // extents[i] with i >= extent_end were never used
    struct gm_mailbox operations, queries;
    struct gm_extent extents[GM_MAX_EXTENTS];
};

struct gm_device {
    char name[64];
    char uuid_text[48];              // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
    uint8_t uuid[16];
    char pci_bus_id[32];             // "00000000:01:00.0"
    uint32_t pci_domain, pci_bus, pci_device;
    uint64_t memory_bytes;
    uint64_t prefault_bytes;         // so much of its file is filled in advance: ranges freed in there are zeroed, not punched
    _Atomic uint32_t lost;           // CUresult of every call that touches it, 0: fine
    _Atomic uint32_t owner;          // futex: 1 + slot of the process whose kernel runs now, 0: idle
    _Atomic uint32_t waiter;         // 1 + slot of a process that waits for its turn
    _Atomic uint64_t running_since_ns;
    _Atomic uint64_t busy[GM_UTIL_BUCKETS];  // (bucket number << 32) | busy microseconds
    // What a save and a restore take; 0: as fast as it goes. Settable at any time.
    _Atomic uint64_t out_bytes_per_s, in_bytes_per_s;
    _Atomic uint64_t checkpoint_min_us, restore_min_us, lock_min_us;
};

// Operations that a fault can be about, as bits.
enum gm_op {
    GM_OP_LOCK = 1, GM_OP_CHECKPOINT = 2, GM_OP_RESTORE = 4, GM_OP_UNLOCK = 8, GM_OP_GET_STATE = 16,
    GM_OP_GET_THREAD = 32, GM_OP_INIT = 64, GM_OP_ALLOC = 128,
};
enum gm_fault_kind {
    GM_FAULT_FAIL = 1,          // return `code`
    GM_FAULT_HANG,              // for `duration_us`, 0: until the fault is removed
    GM_FAULT_RESTORE_OOM,       // OUT_OF_MEMORY, and the process is FAILED for ever
    GM_FAULT_CORRUPT,           // one random byte in a restore
    GM_FAULT_NO_MEMORY_FIGURES, // NVML: usedGpuMemory is not available
    GM_FAULT_HIDE_PROCESS,      // NVML: the process is not listed
};
enum gm_fault_side { GM_SIDE_TARGET = 0, GM_SIDE_CALLER = 1 };
enum gm_fault_when { GM_BEFORE = 0, GM_AFTER = 1 };

struct gm_fault {
    _Atomic uint32_t active;         // stored last when it appears; its id, so that it can be named. 0: free
    uint32_t kind, ops, code;
    int32_t device;                  // -1: any; else only processes with a context on it
    int32_t pid;                     // 0: any; else the target's pid, as the injector saw it
    uint32_t slot, slot_generation;  // what `pid` was resolved to
    uint32_t nth;                    // 0: any; else only the n-th different process that meets this fault
    uint32_t side, when;
    uint32_t sibling_locked;         // only while another process is LOCKED or CHECKPOINTED
    uint32_t leaves_failed;          // the process is FAILED afterwards
    uint32_t probability_ppm;        // 1000000: always
    uint64_t seed;
    uint64_t duration_us;
    _Atomic uint64_t drawn;          // how often the dice were thrown: the n-th throw of a seed is always the same
    _Atomic int64_t remaining;       // how often it may still strike; negative: without end
    _Atomic uint64_t struck;
    _Atomic uint64_t met[GM_MAX_DEVICES];  // processes that met it, in order: generation << 32 | slot + 1
};

struct gm_shared {
    uint32_t magic, version;
    uint64_t size;
    uint32_t device_count;
    _Atomic uint32_t cuda_version;   // 13000
    char driver_version[32];         // "580.82.07"
    _Atomic uint64_t init_delay_us;
    _Atomic uint32_t util_window_ms; // NVML utilisation looks back so far
    _Atomic uint32_t next_fault_id;
    _Atomic uint32_t faults_changed; // futex: raised with every change of a fault, wakes what hangs
    struct gm_device devices[GM_MAX_DEVICES];
    struct gm_fault faults[GM_MAX_FAULTS];
    struct gm_process processes[GM_MAX_PROCESSES];
};

// This process's hold on the files. One per library and process; never closed, since closing any descriptor of `locks`
// drops the process's record locks on it (libcuda's as well, if both libraries are loaded).
struct gm {
    struct gm_shared *shared;
    int locks_fd, journal_fd;
    int device_fd[GM_MAX_DEVICES];
    unsigned granted[GM_MAX_DEVICES], granted_count;  // devices that this process has (all, or those of GM_ENV_GRANT), in order
    char dir[200];
    int32_t pid, outer_pid;          // of the process that opened it: another pid means that we are a forked child
    uint64_t pid_namespace, start_time;
    char error[300];                 // why gm_open failed, for people
};

// Opens the folder of the environment (creating it from TIMESLICE_GPU_MOCK if it has no state yet), once per process.
// NULL: not there or not usable; *why (if given) points to a sentence. Thread-safe. After a fork the child gets its own.
struct gm *gm_open(const char **why);

// Is the slot's owner alive? Asks its record lock, so a zombie is dead. True for the caller's own process.
bool gm_alive(struct gm *gm, unsigned slot);
// The pid of the slot's owner as this process's PID namespace sees it; 0: dead, or outside of it.
int32_t gm_visible_pid(struct gm *gm, unsigned slot);
// The slot of the living process with that pid (as the caller sees it), or -1.
int gm_find_pid(struct gm *gm, int32_t pid);

// Bytes of the device that living processes own. No lock needed.
uint64_t gm_device_used(struct gm *gm, unsigned device);
// Percent of the last window (shared->util_window_ms) in which a kernel ran. No lock needed.
unsigned gm_utilization(struct gm *gm, unsigned device);
void gm_account_busy(struct gm_device *device, uint64_t begin_ns, uint64_t end_ns);

// The lock over all changes that more than one process could make. Taken by libcuda and the command, not by NVML.
void gm_lock(struct gm *gm);
void gm_unlock(struct gm *gm);

// Under the lock: frees what dead processes left.
void gm_reap(struct gm *gm);
// Takes a slot for this process (locks its byte for the rest of its life). -1: all are taken. Not under the lock; once per process.
int gm_join(struct gm *gm);

// Lets a kernel of this process run on the device: waits until no other kernel does. One at a time, in the order of luck.
void gm_device_acquire(struct gm *gm, unsigned slot, unsigned device);
void gm_device_release(struct gm *gm, unsigned slot, unsigned device);

// Under the lock: takes `size` bytes (a multiple of GM_PAGE) of the device for the slot, in as few extents as possible.
// False: no room (nothing is taken).
bool gm_take(struct gm *gm, unsigned slot, unsigned device, uint64_t size, uint64_t pointer);
// Of the caller's own slot: empties all extents of that pointer, then (under the lock) gives them back. Emptying takes long, so
// it is done without the lock: a process that is stopped in the middle must not stop the others.
void gm_wipe(struct gm *gm, unsigned slot, uint64_t pointer);
void gm_give(struct gm *gm, unsigned slot, uint64_t pointer);

uint64_t gm_now_ns(void);  // CLOCK_MONOTONIC
// Waits while *word == value, at most timeout_ns (always finite: a killed waker must not hang anybody). Spurious returns.
void gm_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns);
void gm_futex_wake(_Atomic uint32_t *word);

// Makes the folder and its files. False: *why says what to do.
struct gm_recipe {
    unsigned device_count;
    uint64_t memory_bytes;
    const char *name;      // NULL: default
    unsigned cuda_version; // 0: default
    uint64_t init_delay_us;
    uint64_t prefault_bytes;  // of each device
};
bool gm_create(const char *dir, const struct gm_recipe *recipe, char *why, size_t why_size);
// "2x80GiB" -> count and bytes.
bool gm_parse_devices(const char *text, struct gm_recipe *recipe);
bool gm_parse_bytes(const char *text, uint64_t *bytes);
const char *gm_dir(void);

#endif
