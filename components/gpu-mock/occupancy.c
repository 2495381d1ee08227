// Whose kernel runs on a device, and how busy it was.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "state.h"

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
