// Mimics: cuMemAlloc and its limits, unified addressing, stable pointers over checkpoint and restore
// (CUDA driver API reference, "Memory Management", "CUDA Checkpointing").
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "device_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "journal.h"

struct piece {
    uint64_t offset, size;  // in the device's file
};

// A stretch of saved contents; what is not in any is zeros (never written).
struct stretch {
    uint64_t at, size;  // within the allocation
    unsigned char *bytes;
};

struct allocation {
    CUdeviceptr base;
    size_t size;       // as asked for
    uint64_t taken;    // whole pages
    CUdevice ordinal;
    CUcontext context;  // NULL: a handle of cuMemCreate, which has no address
    struct piece *pieces;
    size_t piece_count;
    bool is_saved;
    struct stretch *stretches;
    size_t stretch_count;
};

static pthread_rwlock_t memory = PTHREAD_RWLOCK_INITIALIZER;
static struct allocation **allocations;  // by base
static size_t count, room;

static struct {
    uint64_t begin, end, next;
} ranges[GM_MAX_DEVICES];  // reserved addresses, by ordinal

enum { GUARD = GM_PAGE, BOUNCE = 1 << 20 };

// ---- which pointers exist

static size_t position_of(CUdeviceptr pointer) {  // of the first allocation whose base is above it
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (allocations[middle]->base <= pointer) low = middle + 1; else high = middle;
    }
    return low;
}

static struct allocation *allocation_with(CUdeviceptr inside) {
    size_t at = position_of(inside);
    if (!at) return NULL;
    struct allocation *found = allocations[at - 1];
    return inside - found->base < found->size ? found : NULL;
}

static bool reserve(CUdevice ordinal) {
    if (ranges[ordinal].begin) return true;
    // Much more than the device has, so that a freed address stays unused for long and a stale pointer is noticed.
    uint64_t size = device_of(ordinal)->memory_bytes * 16;
    if (size < 1ull << 32) size = 1ull << 32;
    for (; size >= device_of(ordinal)->memory_bytes; size /= 2) {
        void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) continue;
        ranges[ordinal].next = ranges[ordinal].begin = (uint64_t)(uintptr_t)at;
        ranges[ordinal].end = ranges[ordinal].begin + size;
        return true;
    }
    return false;
}

// The next free addresses after the last ones given, going round. 0: none.
static uint64_t choose_address(CUdevice ordinal, uint64_t size) {
    for (int round = 0; round < 2; round++) {
        uint64_t at = ranges[ordinal].next;
        while (at + size + GUARD <= ranges[ordinal].end) {
            size_t after = position_of(at + size + GUARD - 1);
            struct allocation *before = after ? allocations[after - 1] : NULL;
            if (!before || before->base + before->taken + GUARD <= at) {
                ranges[ordinal].next = at + size + GUARD;
                return at;
            }
            at = before->base + before->taken + GUARD;
        }
        ranges[ordinal].next = ranges[ordinal].begin;
    }
    return 0;
}

bool memory_is_handle(CUdeviceptr handle) {
    pthread_rwlock_rdlock(&memory);
    const struct allocation *found = allocation_with(handle);
    bool is_handle = found && found->base == handle && !found->context;
    pthread_rwlock_unlock(&memory);
    return is_handle;
}

bool memory_is_device_pointer(CUdeviceptr pointer) {
    bool is_inside = false;
    pthread_rwlock_rdlock(&memory);
    for (int i = 0; i < GM_MAX_DEVICES; i++) is_inside = is_inside || (pointer >= ranges[i].begin && pointer < ranges[i].end);
    pthread_rwlock_unlock(&memory);
    return is_inside;
}

// Under gm_lock: notes where the extents of this allocation are.
static bool note_pieces(struct allocation *made) {
    const struct gm_process *mine = own_slot();
    size_t n = 0;
    for (unsigned i = 0; i < mine->extent_end; i++) n += mine->extents[i].used && mine->extents[i].pointer == made->base;
    made->pieces = malloc(n * sizeof *made->pieces);
    made->piece_count = 0;
    if (!made->pieces) return false;
    for (unsigned i = 0; i < mine->extent_end; i++)
        if (mine->extents[i].used && mine->extents[i].pointer == made->base)
            made->pieces[made->piece_count++] = (struct piece){mine->extents[i].offset, mine->extents[i].size};
    return true;
}

static bool take(struct allocation *made) {
    struct gm *gm = process.gm;
    gm_lock(gm);
    bool fine = gm_take(gm, process.slot, process.physical[made->ordinal], made->taken, made->base);
    if (fine && !note_pieces(made)) {
        gm_give(gm, process.slot, made->base);
        fine = false;
    }
    gm_unlock(gm);
    return fine;
}

static void give(struct allocation *old) {
    gm_wipe(process.gm, process.slot, old->base);
    gm_lock(process.gm);
    gm_give(process.gm, process.slot, old->base);
    gm_unlock(process.gm);
    free(old->pieces);
    old->pieces = NULL;
    old->piece_count = 0;
}

static void note(enum journal_kind kind, CUdevice ordinal, CUdeviceptr address, uint64_t bytes, CUresult result) {
    struct journal_record record = journal_new(process.gm, process.slot, kind);
    record.device = ordinal < 0 ? -1 : (int32_t)process.physical[ordinal];
    record.address = address;
    record.bytes = bytes;
    record.result = result;
    record.end_ns = record.begin_ns;
    journal_write(process.gm, &record);
}

CUresult memory_allocate(CUdevice ordinal, CUcontext context, size_t size, CUdeviceptr *pointer) {
    if (size > device_of(ordinal)->memory_bytes) {
        note(JOURNAL_ALLOC, ordinal, 0, size, CUDA_ERROR_OUT_OF_MEMORY);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *made = calloc(1, sizeof *made);
    pthread_rwlock_wrlock(&memory);
    if (made && count == room) {
        size_t more = room ? room * 2 : 64;
        struct allocation **moved = realloc(allocations, more * sizeof *moved);
        if (moved) {
            allocations = moved;
            room = more;
        }
    }
    if (made && count < room && reserve(ordinal)) {
        made->size = size;
        made->taken = (size + GM_PAGE - 1) / GM_PAGE * GM_PAGE;
        made->ordinal = ordinal;
        made->context = context;
        made->base = choose_address(ordinal, made->taken);
        if (made->base && take(made)) {
            size_t at = position_of(made->base);
            memmove(&allocations[at + 1], &allocations[at], (count - at) * sizeof *allocations);
            allocations[at] = made;
            count++;
            *pointer = made->base;
            result = CUDA_SUCCESS;
        }
    }
    pthread_rwlock_unlock(&memory);
    note(JOURNAL_ALLOC, ordinal, result ? 0 : made->base, size, result);
    if (result) free(made);
    return result;
}

static void forget(size_t at) {
    struct allocation *old = allocations[at];
    give(old);
    for (size_t i = 0; i < old->stretch_count; i++) munmap(old->stretches[i].bytes, old->stretches[i].size);
    free(old->stretches);
    note(JOURNAL_FREE, old->ordinal, old->base, old->size, CUDA_SUCCESS);
    free(old);
    memmove(&allocations[at], &allocations[at + 1], (count - at - 1) * sizeof *allocations);
    count--;
}

CUresult memory_free(CUdeviceptr pointer, bool is_handle) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&memory);
    size_t at = position_of(pointer);
    if (at && allocations[at - 1]->base == pointer && is_handle == !allocations[at - 1]->context) {
        forget(at - 1);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&memory);
    return result;
}

void memory_free_context(CUcontext context) {
    pthread_rwlock_wrlock(&memory);
    for (size_t at = count; at-- > 0;)
        if (allocations[at]->context == context) forget(at);
    pthread_rwlock_unlock(&memory);
}

bool memory_find(CUdeviceptr inside, CUdeviceptr *base, size_t *size, CUcontext *context) {
    pthread_rwlock_rdlock(&memory);
    const struct allocation *found = allocation_with(inside);
    if (found && !found->context) found = NULL;
    if (found) {
        if (base) *base = found->base;
        if (size) *size = found->size;
        if (context) *context = found->context;
    }
    pthread_rwlock_unlock(&memory);
    return found != NULL;
}

// ---- contents

static int file_of(const struct allocation *where) { return process.gm->device_fd[process.physical[where->ordinal]]; }

// Moves bytes of an allocation that is on the device. Exactly one of `to` and `from` is given.
static CUresult transfer(const struct allocation *where, uint64_t at, unsigned char *to, const unsigned char *from, size_t size) {
    int fd = file_of(where);
    for (size_t i = 0; i < where->piece_count && size; i++) {
        const struct piece *piece = &where->pieces[i];
        if (at >= piece->size) {
            at -= piece->size;
            continue;
        }
        while (size && at < piece->size) {
            size_t n = piece->size - at < size ? piece->size - at : size;
            off_t offset = (off_t)(piece->offset + at);
            ssize_t moved = to ? pread(fd, to, n, offset) : pwrite(fd, from, n, offset);
            if (moved < 0 && errno == EINTR) continue;
            if (moved <= 0) return CUDA_ERROR_OPERATING_SYSTEM;  // /dev/shm is full, or the cgroup's limit
            if (to) to += moved; else from += moved;
            at += (uint64_t)moved;
            size -= (size_t)moved;
        }
        at = 0;
    }
    return size ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

// Under the memory's lock: the allocation that holds all of it on the device, or NULL and a line in the journal.
static struct allocation *reachable(CUdeviceptr at, size_t size) {
    struct allocation *found = allocation_with(at);
    if (found && found->context && !found->is_saved && size <= found->size - (at - found->base)) return found;
    note(JOURNAL_ILLEGAL, found ? found->ordinal : -1, at, size, CUDA_ERROR_ILLEGAL_ADDRESS);
    return NULL;
}

CUresult memory_check(CUdeviceptr at, size_t size) {
    if (!size) return CUDA_SUCCESS;
    pthread_rwlock_rdlock(&memory);
    bool fine = reachable(at, size) != NULL;
    pthread_rwlock_unlock(&memory);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult memory_read(CUdeviceptr from, void *to, size_t size) {
    if (!size) return CUDA_SUCCESS;
    pthread_rwlock_rdlock(&memory);
    const struct allocation *where = reachable(from, size);
    CUresult result = where ? transfer(where, from - where->base, to, NULL, size) : CUDA_ERROR_ILLEGAL_ADDRESS;
    pthread_rwlock_unlock(&memory);
    return result;
}

CUresult memory_write(CUdeviceptr to, const void *from, size_t size) {
    if (!size) return CUDA_SUCCESS;
    pthread_rwlock_rdlock(&memory);
    const struct allocation *where = reachable(to, size);
    CUresult result = where ? transfer(where, to - where->base, NULL, from, size) : CUDA_ERROR_ILLEGAL_ADDRESS;
    pthread_rwlock_unlock(&memory);
    return result;
}

CUresult memory_copy(CUdeviceptr to, CUdeviceptr from, size_t size) {
    TRY(memory_check(to, size));
    TRY(memory_check(from, size));
    size_t chunk = size < BOUNCE ? size : BOUNCE;
    unsigned char *bounce = malloc(chunk ? chunk : 1);
    if (!bounce) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    for (size_t done = 0; done < size && !result; done += chunk) {
        if (size - done < chunk) chunk = size - done;
        result = memory_read(from + done, bounce, chunk);
        if (!result) result = memory_write(to + done, bounce, chunk);
    }
    free(bounce);
    return result;
}

CUresult memory_fill(CUdeviceptr to, const void *pattern, size_t pattern_size, size_t n) {
    size_t size = pattern_size * n, chunk = size < BOUNCE ? size : BOUNCE;
    TRY(memory_check(to, size));
    unsigned char *bounce = malloc(chunk ? chunk : 1);
    if (!bounce) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < chunk; i += pattern_size) memcpy(bounce + i, pattern, pattern_size);
    CUresult result = CUDA_SUCCESS;
    for (size_t done = 0; done < size && !result; done += chunk) {
        if (size - done < chunk) chunk = size - done;
        result = memory_write(to + done, bounce, chunk);
    }
    free(bounce);
    return result;
}

// ---- save and restore

void memory_sums(uint64_t per_device[GM_MAX_DEVICES]) {
    memset(per_device, 0, GM_MAX_DEVICES * sizeof *per_device);
    pthread_rwlock_rdlock(&memory);
    for (size_t i = 0; i < count; i++) per_device[process.physical[allocations[i]->ordinal]] += allocations[i]->taken;
    pthread_rwlock_unlock(&memory);
}

static void drop_stretches(struct allocation *of) {
    for (size_t i = 0; i < of->stretch_count; i++) munmap(of->stretches[i].bytes, of->stretches[i].size);
    free(of->stretches);
    of->stretches = NULL;
    of->stretch_count = 0;
}

// Copies what was written of one allocation; holes of the sparse file cost nothing.
static CUresult save_one(struct allocation *from) {
    int fd = file_of(from);
    uint64_t before = 0;  // bytes of the allocation in earlier pieces
    for (size_t i = 0; i < from->piece_count; before += from->pieces[i++].size) {
        off_t at = (off_t)from->pieces[i].offset, end = at + (off_t)from->pieces[i].size;
        while (at < end) {
            off_t begin = lseek(fd, at, SEEK_DATA);
            if (begin < 0 || begin >= end) break;  // ENXIO: only holes behind
            off_t until = lseek(fd, begin, SEEK_HOLE);
            if (until < 0 || until > end) until = end;
            struct stretch *more = realloc(from->stretches, (from->stretch_count + 1) * sizeof *more);
            if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
            from->stretches = more;
            struct stretch *stretch = &more[from->stretch_count];
            stretch->at = before + (uint64_t)(begin - (off_t)from->pieces[i].offset);
            stretch->size = (uint64_t)(until - begin);
            stretch->bytes = mmap(NULL, stretch->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (stretch->bytes == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
            from->stretch_count++;
            TRY(transfer(from, stretch->at, stretch->bytes, NULL, stretch->size));
            at = until;
        }
    }
    return CUDA_SUCCESS;
}

CUresult memory_save(void (*before_freeing)(void *), void *context) {
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&memory);
    for (size_t i = 0; i < count && !result; i++) result = save_one(allocations[i]);
    before_freeing(context);
    for (size_t i = 0; i < count; i++) {  // the device is freed only when all is safe
        if (result) {
            drop_stretches(allocations[i]);
            continue;
        }
        own_slot()->saved_bytes[process.physical[allocations[i]->ordinal]] += allocations[i]->taken;
        give(allocations[i]);
        allocations[i]->is_saved = true;
    }
    pthread_rwlock_unlock(&memory);
    return result;
}

CUresult memory_restore(bool corrupt, uint64_t seed) {
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&memory);
    size_t taken = 0;
    for (; taken < count; taken++)
        if (!take(allocations[taken])) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < allocations[i]->stretch_count; k++) total += allocations[i]->stretches[k].size;
    uint64_t victim = total ? (seed * 0x9e3779b97f4a7c15u >> 11) % total : 0;
    for (size_t i = 0; i < count && !result; i++)
        for (size_t k = 0; k < allocations[i]->stretch_count && !result; k++) {
            struct stretch *stretch = &allocations[i]->stretches[k];
            if (corrupt && victim < stretch->size) {
                // A byte that matters: within what was asked for, not in the rest of its last page.
                uint64_t inside = allocations[i]->size - stretch->at;
                uint64_t at = inside < stretch->size ? victim % inside : victim;
                stretch->bytes[at] ^= (unsigned char)(1 + seed % 255);
                corrupt = false;
            } else if (corrupt) {
                victim -= stretch->size;
            }
            result = transfer(allocations[i], stretch->at, NULL, stretch->bytes, stretch->size);
        }
    if (result) {
        for (size_t i = 0; i < taken; i++) give(allocations[i]);
    } else {
        for (size_t i = 0; i < count; i++) {
            drop_stretches(allocations[i]);
            allocations[i]->is_saved = false;
        }
        for (int i = 0; i < GM_MAX_DEVICES; i++) own_slot()->saved_bytes[i] = 0;
    }
    pthread_rwlock_unlock(&memory);
    return result;
}
