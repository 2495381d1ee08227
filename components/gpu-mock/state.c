// The shared state: files, mapping, record locks, slots, liveness, device memory.
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

#include "journal.h"
#include "mailbox.h"

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

static int open_in(const char *dir, const char *name, int flags, mode_t mode) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, flags | O_CLOEXEC, mode);
    if (fd >= 0 && (flags & O_CREAT)) (void)!fchmod(fd, mode);  // all users of the machine share it, whatever the umask
    return fd;
}

static bool open_files(struct gm *gm) {
    char *why = gm->error;
    const size_t why_size = sizeof gm->error;
    if (strlen(gm_dir()) >= sizeof gm->dir) {
        snprintf(why, why_size, "%s is longer than %zu characters; use a shorter one", GM_ENV_DIR, sizeof gm->dir - 1);
        return false;
    }
    strcpy(gm->dir, gm_dir());
    int fd = open_in(gm->dir, "state", O_RDWR, 0);
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
        fd = open_in(gm->dir, "state", O_RDWR, 0);
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
    gm->locks_fd = open_in(gm->dir, "locks", O_RDWR, 0);
    gm->journal_fd = open_in(gm->dir, "journal", O_WRONLY | O_APPEND, 0);
    bool fine = gm->locks_fd >= 0 && gm->journal_fd >= 0;
    for (unsigned i = 0; i < gm->shared->device_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "device%u", i);
        gm->device_fd[i] = open_in(gm->dir, name, O_RDWR, 0);
        fine = fine && gm->device_fd[i] >= 0;
    }
    if (!fine) snprintf(why, why_size, "cannot open the files of %s: %s", gm->dir, strerror(errno));
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

// ---- creating

bool gm_parse_bytes(const char *text, uint64_t *bytes) {
    static const struct { const char *unit; uint64_t factor; } units[] = {
        {"", 1}, {"B", 1}, {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}, {"TiB", 1ull << 40},
        {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000},
    };
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno || number < 0) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0) {
            double value = number * (double)units[i].factor;
            if (!(value < 1e18)) return false;
            *bytes = (uint64_t)value;
            return true;
        }
    return false;
}

bool gm_parse_devices(const char *text, struct gm_recipe *recipe) {
    char *end;
    unsigned long count = strtoul(text, &end, 10);
    if (end == text || *end != 'x' || count < 1 || count > GM_MAX_DEVICES) return false;
    if (!gm_parse_bytes(end + 1, &recipe->memory_bytes) || recipe->memory_bytes < GM_PAGE) return false;
    recipe->memory_bytes -= recipe->memory_bytes % GM_PAGE;
    recipe->device_count = (unsigned)count;
    return true;
}

static void name_device(struct gm_device *device, unsigned index) {
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, device->uuid, 16) != 16) {
        uint64_t noise[2] = {gm_now_ns() * 0x9e3779b97f4a7c15u, ((uint64_t)getpid() << 32) + index};
        memcpy(device->uuid, noise, 16);
    }
    if (fd >= 0) close(fd);
    device->uuid[6] = (uint8_t)((device->uuid[6] & 0x0f) | 0x40);
    device->uuid[8] = (uint8_t)((device->uuid[8] & 0x3f) | 0x80);
    char *at = device->uuid_text + sprintf(device->uuid_text, "GPU-");
    for (int i = 0; i < 16; i++) at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", device->uuid[i]);
    device->pci_bus = 1 + index;
    snprintf(device->pci_bus_id, sizeof device->pci_bus_id, "%08X:%02X:%02X.0", device->pci_domain, device->pci_bus,
             device->pci_device);
}

bool gm_create(const char *dir, const struct gm_recipe *recipe, char *why, size_t why_size) {
    if (mkdir(dir, 0777) == 0) {
        (void)!chmod(dir, 0777);
    } else if (errno != EEXIST) {
        snprintf(why, why_size, "cannot create %.150s: %s", dir, strerror(errno));
        return false;
    }
    // Everything but `state` first: who sees `state` sees all.
    const char *step = "locks";
    int fd = open_in(dir, step, O_RDWR | O_CREAT, 0666);
    if (fd < 0) goto failed;
    close(fd);
    step = "journal";
    if ((fd = open_in(dir, step, O_RDWR | O_CREAT, 0666)) < 0) goto failed;
    close(fd);
    for (unsigned i = 0; i < recipe->device_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "device%u", i);
        step = "the device files";
        if ((fd = open_in(dir, name, O_RDWR | O_CREAT, 0666)) < 0) goto failed;
        int error = ftruncate(fd, (off_t)recipe->memory_bytes) ? errno : 0;
        if (!error && recipe->prefault) error = posix_fallocate(fd, 0, (off_t)recipe->memory_bytes);
        close(fd);
        errno = error;
        if (error) goto failed;
    }
    step = "state";
    char draft[64], from[300], to[300];
    snprintf(draft, sizeof draft, ".state.%d.%llu", (int)getpid(), (unsigned long long)gm_now_ns());
    if ((fd = open_in(dir, draft, O_RDWR | O_CREAT | O_EXCL, 0666)) < 0) goto failed;
    struct gm_shared *shared = MAP_FAILED;
    if (ftruncate(fd, sizeof *shared) == 0) shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    snprintf(from, sizeof from, "%s/%s", dir, draft);
    snprintf(to, sizeof to, "%s/state", dir);
    if (shared == MAP_FAILED) {
        unlink(from);
        goto failed;
    }
    shared->magic = GM_MAGIC;
    shared->version = GM_VERSION;
    shared->size = sizeof *shared;
    shared->device_count = recipe->device_count;
    shared->cuda_version = recipe->cuda_version ? recipe->cuda_version : 13000;
    snprintf(shared->driver_version, sizeof shared->driver_version, "580.82.07");
    shared->init_delay_us = recipe->init_delay_us;
    shared->util_window_ms = 167;  // NVML documents 1/6 s to 1 s, depending on the product
    shared->next_fault_id = 1;
    for (unsigned i = 0; i < recipe->device_count; i++) {
        struct gm_device *device = &shared->devices[i];
        snprintf(device->name, sizeof device->name, "%s", recipe->name ? recipe->name : "Mock H100 80GB HBM3");
        name_device(device, i);
        device->memory_bytes = recipe->memory_bytes;
        device->prefaulted = recipe->prefault;
    }
    munmap(shared, sizeof *shared);
    int linked = link(from, to);  // unlike rename, it does not replace what somebody else made meanwhile
    int error = errno;
    unlink(from);
    if (linked && error != EEXIST) {
        errno = error;
        goto failed;
    }
    return true;
failed:
    snprintf(why, why_size, "cannot create %s in %.150s: %s", step, dir, strerror(errno));
    return false;
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
    return process->pid == gm->pid && process->start_time == gm->start_time && process->pid_namespace == gm->pid_namespace;
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

static void bury(struct gm *gm, unsigned slot);

int gm_join(struct gm *gm) {
    struct flock lock;
    int found = -1;
    gm_lock(gm);
    gm_reap(gm);
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++)  // ours from before an exec: its lock went with the descriptor
        if (gm->shared->processes[slot].used && is_own(gm, &gm->shared->processes[slot])) bury(gm, slot);
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
        mine->operations.word = mine->queries.word = 0;
        mine->generation++;
        mailbox_forget_caller(gm, (unsigned)found);
        mine->used = 1;
    }
    gm_unlock(gm);
    return found;
}

// ---- whose kernel runs

void gm_device_acquire(struct gm *gm, unsigned slot, unsigned index) {
    struct gm_device *device = &gm->shared->devices[index];
    uint32_t waiter = device->waiter;
    // Who had it last lets a waiting process go first, if it comes within a millisecond.
    if (waiter && waiter != slot + 1 && device->owner == 0) {
        gm_futex_wait(&device->owner, 0, 1000000);
        if (device->owner == 0) atomic_compare_exchange_strong(&device->waiter, &waiter, 0);  // it died, or gave up
    }
    for (;;) {
        uint32_t owner = 0;
        if (atomic_compare_exchange_strong(&device->owner, &owner, slot + 1)) break;
        device->waiter = slot + 1;
        gm_futex_wait(&device->owner, owner, 20 * 1000000);
        if (device->owner == owner && owner <= GM_MAX_PROCESSES && !gm_alive(gm, owner - 1) &&
            atomic_compare_exchange_strong(&device->owner, &owner, 0))
            gm_futex_wake(&device->owner);
    }
    device->running_since_ns = gm_now_ns();
    waiter = slot + 1;
    atomic_compare_exchange_strong(&device->waiter, &waiter, 0);
    gm_futex_wake(&device->owner);  // whoever let us go first waits for this change
}

void gm_device_release(struct gm *gm, unsigned slot, unsigned index) {
    struct gm_device *device = &gm->shared->devices[index];
    (void)slot;
    uint64_t since = device->running_since_ns;
    device->running_since_ns = 0;
    gm_account_busy(device, since, gm_now_ns());
    device->owner = 0;
    gm_futex_wake(&device->owner);
}

// ---- device memory

static void wipe(struct gm *gm, const struct gm_extent *extent) {
    int fd = gm->device_fd[extent->device];
    if (!gm->shared->devices[extent->device].prefaulted) {
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)extent->offset, (off_t)extent->size);
        return;
    }
    static const char zeros[64 * GM_PAGE];
    for (uint64_t done = 0; done < extent->size;) {
        uint64_t n = extent->size - done < sizeof zeros ? extent->size - done : sizeof zeros;
        if (pwrite(fd, zeros, n, (off_t)(extent->offset + done)) <= 0) break;
        done += n;
    }
}

static void bury(struct gm *gm, unsigned slot) {
    struct gm_process *process = &gm->shared->processes[slot];
    for (unsigned i = 0; i < process->extent_end; i++)
        if (process->extents[i].used) {
            wipe(gm, &process->extents[i]);
            process->extents[i].used = 0;
        }
    journal_about(gm, slot, JOURNAL_GONE);
    for (unsigned d = 0; d < gm->shared->device_count; d++) {  // before the slot can have another owner
        uint32_t dead = slot + 1;
        if (atomic_compare_exchange_strong(&gm->shared->devices[d].owner, &dead, 0)) gm_futex_wake(&gm->shared->devices[d].owner);
    }
    process->contexts = 0;
    process->restore_tid = 0;
    process->used = 0;
}

void gm_reap(struct gm *gm) {
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++)
        if (gm->shared->processes[slot].used && !gm_alive(gm, slot)) bury(gm, slot);
}

uint64_t gm_device_used(struct gm *gm, unsigned device) {
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++) {
        const struct gm_process *process = &gm->shared->processes[slot];
        if (process->used && process->used_bytes[device] && gm_alive(gm, slot)) sum += process->used_bytes[device];
    }
    return sum;
}

struct range {
    uint64_t begin, end;
};

static int by_begin(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

// Free ranges of the device, in order. The caller frees *gaps. Returns their number, -1: no host memory.
static long find_gaps(struct gm *gm, unsigned device, struct range **gaps) {
    size_t count = 0, room = 64;
    struct range *taken = malloc(room * sizeof *taken);
    for (unsigned slot = 0; taken && slot < GM_MAX_PROCESSES; slot++) {
        const struct gm_process *process = &gm->shared->processes[slot];
        if (!process->used) continue;
        for (unsigned i = 0; taken && i < process->extent_end; i++) {
            const struct gm_extent *extent = &process->extents[i];
            if (!extent->used || extent->device != device) continue;
            if (count + 2 > room) {
                struct range *more = realloc(taken, (room *= 2) * sizeof *taken);
                if (!more) free(taken);
                taken = more;
                if (!taken) break;
            }
            taken[count++] = (struct range){extent->offset, extent->offset + extent->size};
        }
    }
    if (!taken) return -1;
    qsort(taken, count, sizeof *taken, by_begin);
    long found = 0;
    uint64_t at = 0;
    for (size_t i = 0; i <= count; i++) {  // in place: a gap is written where a taken range was read before
        struct range here = i < count ? taken[i] : (struct range){gm->shared->devices[device].memory_bytes, 0};
        struct range gap = {at, here.begin};
        if (here.end > at) at = here.end;
        if (gap.end > gap.begin) taken[found++] = gap;
    }
    *gaps = taken;
    return found;
}

static struct gm_extent *free_record(struct gm_process *process) {
    for (unsigned i = 0; i < process->extent_end; i++)
        if (!process->extents[i].used) return &process->extents[i];
    if (process->extent_end == GM_MAX_EXTENTS) return NULL;
    return &process->extents[process->extent_end++];
}

static bool take_range(struct gm_process *process, unsigned device, uint64_t offset, uint64_t size, uint64_t pointer) {
    struct gm_extent *extent = free_record(process);
    if (!extent) return false;
    extent->device = device;
    extent->offset = offset;
    extent->size = size;
    extent->pointer = pointer;
    extent->used = 1;
    process->used_bytes[device] += size;
    return true;
}

bool gm_take(struct gm *gm, unsigned slot, unsigned device, uint64_t size, uint64_t pointer) {
    struct gm_process *process = &gm->shared->processes[slot];
    gm_reap(gm);
    if (gm->shared->devices[device].memory_bytes < size + gm_device_used(gm, device)) return false;
    struct range *gaps;
    long count = find_gaps(gm, device, &gaps);
    if (count < 0) return false;
    bool fine = false;
    for (long i = 0; i < count && !fine; i++)
        if (gaps[i].end - gaps[i].begin >= size) {
            fine = take_range(process, device, gaps[i].begin, size, pointer);
            break;
        }
    if (!fine) {
        uint64_t left = size;
        for (long i = 0; i < count && left; i++) {
            uint64_t piece = gaps[i].end - gaps[i].begin < left ? gaps[i].end - gaps[i].begin : left;
            if (!take_range(process, device, gaps[i].begin, piece, pointer)) break;
            left -= piece;
        }
        fine = left == 0;
        if (!fine) gm_give(gm, slot, pointer);
    }
    free(gaps);
    return fine;
}

void gm_wipe(struct gm *gm, unsigned slot, uint64_t pointer) {
    struct gm_process *process = &gm->shared->processes[slot];
    for (unsigned i = 0; i < process->extent_end; i++)
        if (process->extents[i].used && process->extents[i].pointer == pointer) wipe(gm, &process->extents[i]);
}

void gm_give(struct gm *gm, unsigned slot, uint64_t pointer) {
    struct gm_process *process = &gm->shared->processes[slot];
    for (unsigned i = 0; i < process->extent_end; i++) {
        struct gm_extent *extent = &process->extents[i];
        if (!extent->used || extent->pointer != pointer) continue;
        process->used_bytes[extent->device] -= extent->size;
        extent->used = 0;
    }
}

// ---- how busy a device was

void gm_account_busy(struct gm_device *device, uint64_t begin_ns, uint64_t end_ns) {
    // Only the last window of buckets can be seen, so what lies before is skipped.
    const uint64_t span = (uint64_t)GM_UTIL_BUCKETS * GM_UTIL_BUCKET_NS;
    if (end_ns > span && begin_ns < end_ns - span) begin_ns = end_ns - span;
    while (begin_ns < end_ns) {
        uint64_t number = begin_ns / GM_UTIL_BUCKET_NS, edge = (number + 1) * GM_UTIL_BUCKET_NS;
        uint64_t until = edge < end_ns ? edge : end_ns, add_us = (until - begin_ns + 500) / 1000;
        _Atomic uint64_t *bucket = &device->busy[number % GM_UTIL_BUCKETS];
        uint64_t old = *bucket, new;
        do {
            uint64_t us = old >> 32 == (uint32_t)number ? old & 0xffffffffu : 0;
            new = (uint64_t)(uint32_t)number << 32 | (us + add_us);
        } while (!atomic_compare_exchange_weak(bucket, &old, new));
        begin_ns = until;
    }
}

unsigned gm_utilization(struct gm *gm, unsigned index) {
    struct gm_device *device = &gm->shared->devices[index];
    uint64_t now = gm_now_ns(), window = (uint64_t)gm->shared->util_window_ms * 1000000u;
    const uint64_t span = (uint64_t)(GM_UTIL_BUCKETS - 2) * GM_UTIL_BUCKET_NS;
    if (window < GM_UTIL_BUCKET_NS) window = GM_UTIL_BUCKET_NS;
    if (window > span) window = span;
    uint64_t since = now > window ? now - window : 0, busy_ns = 0;
    for (uint64_t number = since / GM_UTIL_BUCKET_NS; number <= now / GM_UTIL_BUCKET_NS; number++) {
        uint64_t value = device->busy[number % GM_UTIL_BUCKETS];
        if (value >> 32 != (uint32_t)number) continue;
        uint64_t ns = (value & 0xffffffffu) * 1000;
        if (ns > GM_UTIL_BUCKET_NS) ns = GM_UTIL_BUCKET_NS;
        uint64_t begin = number * GM_UTIL_BUCKET_NS;
        if (begin < since) ns = ns * (begin + GM_UTIL_BUCKET_NS - since) / GM_UTIL_BUCKET_NS;  // the oldest counts in part
        busy_ns += ns;
    }
    uint32_t owner = device->owner;
    uint64_t running_since = device->running_since_ns;
    if (owner && owner <= GM_MAX_PROCESSES && running_since && running_since < now && gm_alive(gm, owner - 1))
        busy_ns += now - (running_since > since ? running_since : since);
    uint64_t percent = (busy_ns * 100 + window / 2) / window;
    return percent > 100 ? 100 : (unsigned)percent;
}
