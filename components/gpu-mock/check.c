// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned wrong;

static void say(FILE *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("gpu-mock: ", out);
    vfprintf(out, format, args);
    fputc('\n', out);
    va_end(args);
    wrong++;
}

struct owned {
    uint64_t begin, end;
    unsigned slot;
};

static int by_begin(const void *a, const void *b) {
    const struct owned *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

// Extents lie on the device, apart from each other, and add up to what their owners say.
static void check_device(struct gm *gm, unsigned index, FILE *out) {
    static struct owned owned[GM_MAX_PROCESSES * GM_MAX_EXTENTS];
    const struct gm_device *device = &gm->shared->devices[index];
    size_t count = 0;
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++) {
        const struct gm_process *process = &gm->shared->processes[slot];
        uint64_t own = 0;
        if (!process->used) continue;
        for (unsigned i = 0; i < process->extent_end && i < GM_MAX_EXTENTS; i++) {
            const struct gm_extent *extent = &process->extents[i];
            if (!extent->used || extent->device != index) continue;
            if (!extent->size || extent->size % GM_PAGE || extent->offset % GM_PAGE || extent->offset + extent->size > device->memory_bytes)
                say(out, "slot %u: extent %u is not on device %u", slot, i, index);
            own += extent->size;
            owned[count++] = (struct owned){extent->offset, extent->offset + extent->size, slot};
        }
        // Read while the owner lives, but it changes them only under the lock that we hold.
        if (own != process->used_bytes[index])
            say(out, "slot %u: says %" PRIu64 " bytes on device %u, its extents are %" PRIu64, slot, (uint64_t)process->used_bytes[index], index, own);
        sum += own;
    }
    if (sum > device->memory_bytes) say(out, "device %u: %" PRIu64 " bytes are taken of %" PRIu64, index, sum, device->memory_bytes);
    qsort(owned, count, sizeof *owned, by_begin);
    for (size_t i = 1; i < count; i++)
        if (owned[i].begin < owned[i - 1].end)
            say(out, "device %u: slots %u and %u both own byte %" PRIu64, index, owned[i - 1].slot, owned[i].slot, owned[i].begin);
    // What nobody owns holds no pages (unless they were filled in advance), so nothing leaks.
    struct stat file;
    if (fstat(gm->device_fd[index], &file) == 0 && (uint64_t)file.st_blocks * 512 > sum + device->prefault_bytes)
        say(out, "device %u: its file holds %" PRIu64 " bytes, owned are %" PRIu64, index, (uint64_t)file.st_blocks * 512, sum);
}

unsigned gm_check(struct gm *gm, FILE *out) {
    wrong = 0;
    gm_lock(gm);
    gm_reap(gm);
    for (unsigned i = 0; i < gm->shared->device_count; i++) check_device(gm, i, out);
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++) {
        const struct gm_process *process = &gm->shared->processes[slot];
        if (!process->used) continue;
        if (process->state > GM_FAILED) say(out, "slot %u: there is no state %u", slot, process->state);
        if (process->extent_end > GM_MAX_EXTENTS) say(out, "slot %u: %u extents are too many", slot, process->extent_end);
    }
    for (unsigned i = 0; i < gm->shared->device_count; i++) {
        uint32_t owner = gm->shared->devices[i].owner;
        if (owner > GM_MAX_PROCESSES || (owner && !gm->shared->processes[owner - 1].used))
            say(out, "device %u: runs a kernel of slot %d, which nobody has", i, (int)owner - 1);
    }
    gm_unlock(gm);
    return wrong;
}
