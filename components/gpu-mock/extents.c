// Which pieces of a device's memory belong to whom, and what becomes of them when a process dies.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "journal.h"
#include "state_parts.h"

static void wipe(struct gm *gm, const struct gm_extent *extent) {
    static const char zeros[64 * GM_PAGE];
    int fd = gm->device_fd[extent->device];
    uint64_t at = extent->offset, end = extent->offset + extent->size;
    uint64_t filled = gm->shared->devices[extent->device].prefault_bytes;
    while (at < end && at < filled) {
        uint64_t stop = end < filled ? end : filled;
        uint64_t n = stop - at < sizeof zeros ? stop - at : sizeof zeros;
        if (pwrite(fd, zeros, n, (off_t)at) <= 0) break;
        at += n;
    }
    if (at < filled) at = filled;  // also where a write failed
    if (at < end) fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)(end - at));
}

void gm_bury(struct gm *gm, unsigned slot) {
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
        if (gm->shared->processes[slot].used && !gm_alive(gm, slot)) gm_bury(gm, slot);
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
