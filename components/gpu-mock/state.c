// The shared state: opening its files, record locks, slots, liveness.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mailbox.h"
#include "state_parts.h"

// ---- time and waiting

uint64_t gm_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gm_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

void gm_futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

// ---- opening

static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gm *opened;
static struct gm failed;  // holds the sentence of the last failure

const char *gm_dir(void) {
    const char *dir = getenv(GM_ENV_DIR);
    return dir && *dir ? dir : GM_DEFAULT_DIR;
}

static void learn_who_we_are(struct gm *gm) {
    gm->pid = gm->outer_pid = (int32_t)getpid();
    char text[4096];
    struct stat ns;
    if (stat("/proc/self/ns/pid", &ns) == 0) gm->pid_namespace = ns.st_ino;
    ssize_t n = readlink("/proc/self", text, sizeof text - 1);
    if (n > 0) {
        text[n] = 0;
        if (atoi(text) > 0) gm->outer_pid = atoi(text);
    }
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return;
    text[n] = 0;
    // "pid (comm) state ..." : comm may hold spaces and brackets, so count from the last ')'. Start time is field 22.
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (at) gm->start_time = strtoull(at + 1, NULL, 10);
}

static void learn_what_is_granted(struct gm *gm) {
    const size_t prefix = strlen(GM_ENV_GRANT);
    uint32_t granted = 0;
    bool limited = false;
    for (char **at = environ; at && *at; at++) {
        const char *value = strncmp(*at, GM_ENV_GRANT, prefix) == 0 ? strchr(*at, '=') : NULL;
        if (!value) continue;
        limited = true;
        for (unsigned i = 0; i < gm->shared->device_count; i++)
            if (strcmp(value + 1, gm->shared->devices[i].uuid_text) == 0) granted |= 1u << i;
    }
    for (unsigned i = 0; i < gm->shared->device_count; i++)
        if (!limited || granted >> i & 1) gm->granted[gm->granted_count++] = i;
}

static bool open_files(struct gm *gm) {
    char *why = gm->error;
    const size_t why_size = sizeof gm->error;
    if (strlen(gm_dir()) >= sizeof gm->dir) {
        snprintf(why, why_size, "%s is longer than %zu characters; use a shorter one", GM_ENV_DIR, sizeof gm->dir - 1);
        return false;
    }
    strcpy(gm->dir, gm_dir());
    int fd = gm_open_in(gm->dir, "state", O_RDWR, 0);
    if (fd < 0 && errno == ENOENT) {
        const char *text = getenv(GM_ENV_DEVICES);
        struct gm_recipe recipe = {0};
        if (!text || !*text) {
            snprintf(why, why_size, "%s has no mock GPUs; run `gpu-mock create` or set %s=2x80GiB", gm->dir, GM_ENV_DEVICES);
            return false;
        }
        if (!gm_parse_devices(text, &recipe)) {
            snprintf(why, why_size, "%s=%.60s is not understood; write it like 2x80GiB", GM_ENV_DEVICES, text);
            return false;
        }
        if (!gm_create(gm->dir, &recipe, why, why_size)) return false;
        fd = gm_open_in(gm->dir, "state", O_RDWR, 0);
    }
    if (fd < 0) {
        snprintf(why, why_size, "cannot open %s/state: %s", gm->dir, strerror(errno));
        return false;
    }
    struct stat found;
    if (fstat(fd, &found) || found.st_size != sizeof(struct gm_shared)) {
        close(fd);
        snprintf(why, why_size, "%s/state is of another version; run `gpu-mock reset --all`, or remove the folder", gm->dir);
        return false;
    }
    gm->shared = mmap(NULL, sizeof *gm->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);  // no record locks on this file
    if (gm->shared == MAP_FAILED) {
        snprintf(why, why_size, "cannot map %s/state: %s", gm->dir, strerror(errno));
        return false;
    }
    if (gm->shared->magic != GM_MAGIC || gm->shared->version != GM_VERSION || gm->shared->size != sizeof *gm->shared) {
        munmap(gm->shared, sizeof *gm->shared);
        snprintf(why, why_size, "%s/state is of another version; run `gpu-mock reset --all`, or remove the folder", gm->dir);
        return false;
    }
    gm->locks_fd = gm_open_in(gm->dir, "locks", O_RDWR, 0);
    gm->journal_fd = gm_open_in(gm->dir, "journal", O_WRONLY | O_APPEND, 0);
    bool fine = gm->locks_fd >= 0 && gm->journal_fd >= 0;
    for (unsigned i = 0; i < gm->shared->device_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "device%u", i);
        gm->device_fd[i] = gm_open_in(gm->dir, name, O_RDWR, 0);
        fine = fine && gm->device_fd[i] >= 0;
    }
    if (!fine) snprintf(why, why_size, "cannot open the files of %s: %s", gm->dir, strerror(errno));
    if (fine) learn_what_is_granted(gm);
    return fine;
}

struct gm *gm_open(const char **why) {
    pthread_mutex_lock(&open_mutex);
    if (opened && opened->pid != getpid()) opened = NULL;  // a forked child; the parent's record locks are not its own
    if (!opened) {
        struct gm *gm = calloc(1, sizeof *gm);
        if (gm) {
            learn_who_we_are(gm);
            if (open_files(gm)) {
                opened = gm;
            } else {
                failed = *gm;
                free(gm);
            }
        }
    }
    struct gm *result = opened;
    pthread_mutex_unlock(&open_mutex);
    if (!result && why) *why = failed.error;
    return result;
}

// ---- locks and slots

static pthread_mutex_t change_mutex = PTHREAD_MUTEX_INITIALIZER;

static int record_lock(int fd, int command, short type, off_t byte, struct flock *lock) {
    *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(fd, command, lock);
    } while (result < 0 && errno == EINTR);
    return result;
}

static off_t slot_byte(unsigned slot) { return 1 + (off_t)slot; }

void gm_lock(struct gm *gm) {
    struct flock lock;
    pthread_mutex_lock(&change_mutex);
    while (record_lock(gm->locks_fd, F_SETLKW, F_WRLCK, 0, &lock) < 0) {
        // EDEADLK cannot be real: nobody waits for another record lock while it holds this one. ENOLCK passes.
        usleep(1000);
    }
}

void gm_unlock(struct gm *gm) {
    struct flock lock;
    record_lock(gm->locks_fd, F_SETLK, F_UNLCK, 0, &lock);
    pthread_mutex_unlock(&change_mutex);
}

static bool is_own(const struct gm *gm, const struct gm_process *process) {
    return process->pid == gm->pid && process->start_time == gm->start_time && process->pid_namespace == gm->pid_namespace &&
           gm->pid == (int32_t)getpid();  // a forked child that goes on with its parent's hold is another process
}

bool gm_alive(struct gm *gm, unsigned slot) {
    const struct gm_process *process = &gm->shared->processes[slot];
    if (!process->used) return false;
    if (is_own(gm, process)) return true;
    struct flock lock;
    return record_lock(gm->locks_fd, F_GETLK, F_WRLCK, slot_byte(slot), &lock) == 0 && lock.l_type != F_UNLCK;
}

int32_t gm_visible_pid(struct gm *gm, unsigned slot) {
    const struct gm_process *process = &gm->shared->processes[slot];
    if (!process->used) return 0;
    if (is_own(gm, process)) return gm->pid;
    struct flock lock;
    if (record_lock(gm->locks_fd, F_GETLK, F_WRLCK, slot_byte(slot), &lock) || lock.l_type == F_UNLCK) return 0;
    return lock.l_pid > 0 ? lock.l_pid : 0;
}

int gm_find_pid(struct gm *gm, int32_t pid) {
    if (pid <= 0) return -1;
    // The likely one first: most processes share our namespace.
    for (int guess = 1; guess >= 0; guess--)
        for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++) {
            const struct gm_process *process = &gm->shared->processes[slot];
            if (process->used && (process->pid == pid) == guess && gm_visible_pid(gm, slot) == pid) return (int)slot;
        }
    return -1;
}

int gm_join(struct gm *gm) {
    struct flock lock;
    int found = -1;
    gm_lock(gm);
    gm_reap(gm);
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++)  // ours from before an exec: its lock went with the descriptor
        if (gm->shared->processes[slot].used && is_own(gm, &gm->shared->processes[slot])) gm_bury(gm, slot);
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES && found < 0; slot++)
        if (!gm->shared->processes[slot].used && record_lock(gm->locks_fd, F_SETLK, F_WRLCK, slot_byte(slot), &lock) == 0)
            found = (int)slot;
    if (found >= 0) {
        struct gm_process *mine = &gm->shared->processes[found];
        mine->pid = gm->pid;
        mine->outer_pid = gm->outer_pid;
        mine->pid_namespace = gm->pid_namespace;
        mine->start_time = gm->start_time;
        mine->uid = (uint32_t)getuid();
        int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : read(fd, mine->name, sizeof mine->name - 1);
        if (fd >= 0) close(fd);
        mine->name[n > 1 ? n - 1 : 0] = 0;
        mine->restore_tid = 0;
        mine->state = GM_RUNNING;
        mine->contexts = mine->saved_contexts = mine->unsaveable = 0;
        for (int i = 0; i < GM_MAX_DEVICES; i++) mine->used_bytes[i] = mine->saved_bytes[i] = 0;
        memset(&mine->operations, 0, sizeof mine->operations);
        memset(&mine->queries, 0, sizeof mine->queries);
        mine->generation++;
        mailbox_forget_caller(gm, (unsigned)found);
        mine->used = 1;
    }
    gm_unlock(gm);
    return found;
}
