// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_errors.h"
#include "journal.h"

static const struct { const char *name; uint32_t kind; } kinds[] = {
    {"fail", GM_FAULT_FAIL}, {"hang", GM_FAULT_HANG}, {"restore-oom", GM_FAULT_RESTORE_OOM}, {"corrupt", GM_FAULT_CORRUPT},
    {"no-memory-figures", GM_FAULT_NO_MEMORY_FIGURES}, {"hide-process", GM_FAULT_HIDE_PROCESS},
};
static const struct { const char *name; uint32_t op; } ops[] = {
    {"lock", GM_OP_LOCK}, {"checkpoint", GM_OP_CHECKPOINT}, {"restore", GM_OP_RESTORE}, {"unlock", GM_OP_UNLOCK},
    {"get-state", GM_OP_GET_STATE}, {"get-thread", GM_OP_GET_THREAD}, {"init", GM_OP_INIT}, {"alloc", GM_OP_ALLOC},
};

static const char *kind_name(uint32_t kind) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].kind == kind) return kinds[i].name;
    return "unknown";
}

// ---- striking

static bool has_met_as(struct gm_fault *fault, uint64_t who, uint32_t nth) {
    for (unsigned i = 0; i < GM_MAX_DEVICES; i++) {
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong(&fault->met[i], &seen, who) || seen == who) return i + 1 == nth;
    }
    return false;
}

static bool is_sibling_locked(struct gm *gm, unsigned slot) {
    for (unsigned i = 0; i < GM_MAX_PROCESSES; i++) {
        const struct gm_process *other = &gm->shared->processes[i];
        if (i != slot && other->used && (other->state == GM_LOCKED || other->state == GM_CHECKPOINTED) && gm_alive(gm, i)) return true;
    }
    return false;
}

// The n-th throw of a seed, so that a run can be repeated (splitmix64).
static bool throw_dice(struct gm_fault *fault) {
    if (fault->probability_ppm >= 1000000) return true;
    uint64_t z = fault->seed + (atomic_fetch_add(&fault->drawn, 1) + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % 1000000 < fault->probability_ppm;
}

static bool count_down(struct gm_fault *fault) {
    int64_t left = fault->remaining;
    do {
        if (left == 0) return false;
    } while (left > 0 && !atomic_compare_exchange_weak(&fault->remaining, &left, left - 1));
    return true;
}

static bool strikes(struct gm *gm, struct gm_fault *fault, uint32_t op, unsigned slot, uint32_t side, uint32_t when) {
    const struct gm_process *process = &gm->shared->processes[slot];
    if (op && (!(fault->ops & op) || fault->side != side || fault->when != when)) return false;
    if (fault->device >= 0 && !((process->contexts | process->saved_contexts) >> fault->device & 1)) return false;
    if (fault->pid && (fault->slot != slot || fault->slot_generation != process->generation)) return false;
    if (fault->sibling_locked && !is_sibling_locked(gm, slot)) return false;
    if (fault->nth && !has_met_as(fault, (uint64_t)process->generation << 32 | (slot + 1), fault->nth)) return false;
    return throw_dice(fault) && count_down(fault);
}

bool gm_fault_strikes(struct gm *gm, enum gm_fault_kind kind, uint32_t op, unsigned slot, enum gm_fault_side side,
                      enum gm_fault_when when, struct gm_fault *out) {
    for (unsigned i = 0; i < GM_MAX_FAULTS; i++) {
        struct gm_fault *fault = &gm->shared->faults[i];
        uint32_t id = fault->active;
        if (!id || fault->kind != kind || !strikes(gm, fault, op, slot, side, when)) continue;
        atomic_fetch_add(&fault->struck, 1);
        memcpy(out, fault, sizeof *out);
        out->active = id;
        if (op) {  // NVML only looks, and must not fill the journal
            struct journal_record record = journal_new(gm, slot, JOURNAL_FAULT);
            record.end_ns = record.begin_ns;
            record.result = fault->code;
            snprintf(record.name, sizeof record.name, "%s", kind_name(kind));
            journal_write(gm, &record);
        }
        return true;
    }
    return false;
}

static bool is_still_active(struct gm *gm, uint32_t id) {
    for (unsigned i = 0; i < GM_MAX_FAULTS; i++)
        if (gm->shared->faults[i].active == id) return true;
    return false;
}

void gm_fault_hang(struct gm *gm, const struct gm_fault *fault, unsigned slot, uint32_t generation) {
    const uint64_t until = fault->duration_us ? gm_now_ns() + fault->duration_us * 1000 : UINT64_MAX;
    for (;;) {
        uint32_t changes = gm->shared->faults_changed;
        uint64_t now = gm_now_ns();
        if (now >= until || !is_still_active(gm, fault->active)) return;
        if (gm->shared->processes[slot].generation != generation || !gm_alive(gm, slot)) return;
        uint64_t wait = until - now < 50000000 ? until - now : 50000000;
        gm_futex_wait(&gm->shared->faults_changed, changes, wait);
    }
}

// ---- describing and setting

static bool parse_ops(char *text, uint32_t *bits) {
    char *rest = NULL;
    *bits = 0;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        uint32_t bit = 0;
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            if (strcmp(word, ops[i].name) == 0) bit = ops[i].op;
        if (!bit) return false;
        *bits |= bit;
    }
    return *bits != 0;
}

static bool parse_number(const char *text, double low, double high, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= low && *out <= high;
}

static bool parse_code(const char *text, uint32_t *code) {
    double number;
    if (parse_number(text, 0, 999, &number)) {
        *code = (uint32_t)number;
        return true;
    }
    return cuda_error_by_name(text, code);
}

// A word "key=value" that is a setting of a device. 1: taken, 0: not one, -1: bad value.
static int set_on_device(struct gm_device *device, const char *kind, const char *key, const char *value) {
    double number;
    struct { const char *kind, *key; _Atomic uint64_t *to; double factor; } settings[] = {
        {"slow", "checkpoint", &device->checkpoint_min_us, 1e6}, {"slow", "restore", &device->restore_min_us, 1e6},
        {"slow", "lock", &device->lock_min_us, 1e6}, {"speed", "out", &device->out_bytes_per_s, 1e9},
        {"speed", "in", &device->in_bytes_per_s, 1e9},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (strcmp(kind, settings[i].kind) || strcmp(key, settings[i].key)) continue;
        if (!parse_number(value, 0, 1e6, &number)) return -1;
        *settings[i].to = (uint64_t)(number * settings[i].factor + 0.5);
        return 1;
    }
    if (strcmp(kind, "device-lost") == 0 && strcmp(key, "code") == 0) {
        uint32_t code;
        if (!parse_code(value, &code)) return -1;
        device->lost = code;
        return 1;
    }
    return 0;
}

static int set_for_all(struct gm_shared *shared, const char *key, const char *value) {
    double number;
    if (!parse_number(value, 0, 1e6, &number)) return -1;
    if (strcmp(key, "init-delay") == 0) shared->init_delay_us = (uint64_t)(number * 1e6 + 0.5);
    else if (strcmp(key, "cuda-version") == 0) shared->cuda_version = (uint32_t)number;
    else if (strcmp(key, "util-window-ms") == 0) shared->util_window_ms = (uint32_t)number;
    else return 0;
    return 1;
}

static bool split(const char *word, char *key, size_t size, const char **value) {
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    if (n >= size) return false;
    memcpy(key, word, n);
    key[n] = 0;
    *value = equals ? equals + 1 : "";
    return true;
}

// slow, speed, device-lost, set: these take effect at once and are no faults in the table.
static int change_settings(struct gm *gm, int argc, char *const argv[], char *why, size_t why_size) {
    struct gm_shared *shared = gm->shared;
    const char *value;
    char key[32];
    long device = -1;
    for (int i = 1; i < argc; i++)
        if (split(argv[i], key, sizeof key, &value) && strcmp(key, "device") == 0) {
            char *end;
            device = strtol(value, &end, 10);
            if (*end || end == value || device < 0 || device >= (long)shared->device_count) {
                snprintf(why, why_size, "there is no device %.20s; there are %u", value, shared->device_count);
                return -1;
            }
        }
    bool is_lost = strcmp(argv[0], "device-lost") == 0, has_code = false;
    for (int i = 1; i < argc; i++) {
        if (!split(argv[i], key, sizeof key, &value)) value = key, key[0] = 0;
        if (strcmp(key, "device") == 0) continue;
        has_code = has_code || strcmp(key, "code") == 0;
        int taken = strcmp(argv[0], "set") == 0 ? set_for_all(shared, key, value) : 0;
        for (unsigned d = 0; d < shared->device_count && strcmp(argv[0], "set"); d++)
            if (device < 0 || d == (unsigned)device) taken = set_on_device(&shared->devices[d], argv[0], key, value);
        if (taken == 1) continue;
        snprintf(why, why_size, taken ? "%.40s: not a value that %s takes" : "%.40s: %s has no such word; see gpu-mock inject --help", argv[i], argv[0]);
        return -1;
    }
    if (is_lost && !has_code)
        for (unsigned d = 0; d < shared->device_count; d++)
            if (device < 0 || d == (unsigned)device) shared->devices[d].lost = 999;
    return 0;
}

static bool set_word(struct gm *gm, struct gm_fault *fault, const char *key, const char *value) {
    double number = 0;
    char copy[128];
    snprintf(copy, sizeof copy, "%s", value);
    if (strcmp(key, "op") == 0) return parse_ops(copy, &fault->ops);
    if (strcmp(key, "code") == 0) return parse_code(value, &fault->code);
    if (strcmp(key, "side") == 0) {
        fault->side = strcmp(value, "caller") == 0;
        return fault->side || strcmp(value, "target") == 0;
    }
    if (strcmp(key, "when") == 0) {
        fault->when = strcmp(value, "after") == 0;
        return fault->when || strcmp(value, "before") == 0;
    }
    if (strcmp(key, "sibling-locked") == 0) {
        fault->sibling_locked = 1;
        return !*value;
    }
    if (strcmp(key, "leaves-failed") == 0) {
        fault->leaves_failed = 1;
        return !*value;
    }
    if (!parse_number(value, 0, 4e9, &number)) return false;
    if (strcmp(key, "device") == 0) {
        fault->device = number < GM_MAX_DEVICES ? (int32_t)number : -1;
        return number < gm->shared->device_count;
    }
    if (strcmp(key, "nth") == 0) {
        fault->nth = (uint32_t)number;
        return number >= 1 && number <= GM_MAX_DEVICES;
    }
    if (strcmp(key, "p") == 0) {
        fault->probability_ppm = (uint32_t)(number * 1e6 + 0.5);
        return number <= 1;
    }
    if (strcmp(key, "seed") == 0) {
        fault->seed = (uint64_t)number;
        return true;
    }
    if (strcmp(key, "times") == 0) {
        atomic_store(&fault->remaining, (int64_t)number);
        return number >= 1;
    }
    if (strcmp(key, "for") == 0) {
        fault->duration_us = (uint64_t)(number * 1e6 + 0.5);
        return true;
    }
    if (strcmp(key, "pid") == 0) {
        int slot = gm_find_pid(gm, fault->pid = (int32_t)number);
        if (slot < 0) return false;
        fault->slot = (uint32_t)slot;
        fault->slot_generation = gm->shared->processes[slot].generation;
        return true;
    }
    return false;
}

int gm_inject(struct gm *gm, int argc, char *const argv[], char *why, size_t why_size) {
    struct gm_fault made = {.device = -1, .probability_ppm = 1000000, .remaining = -1};
    if (argc < 1) {
        snprintf(why, why_size, "say what to inject; see gpu-mock inject --help");
        return -1;
    }
    static const char *const settings[] = {"slow", "speed", "device-lost", "set"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (strcmp(argv[0], settings[i]) == 0) return change_settings(gm, argc, argv, why, why_size);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(argv[0], kinds[i].name) == 0) made.kind = kinds[i].kind;
    if (!made.kind) {
        snprintf(why, why_size, "unknown fault %.40s; see gpu-mock inject --help", argv[0]);
        return -1;
    }
    if (made.kind == GM_FAULT_FAIL) made.code = 3;  // "initialization error", the flake of public reports
    if (made.kind == GM_FAULT_RESTORE_OOM || made.kind == GM_FAULT_CORRUPT) {
        made.ops = GM_OP_RESTORE;
        atomic_store(&made.remaining, 1);
    }
    if (made.kind == GM_FAULT_RESTORE_OOM) {
        made.code = 2;
        made.leaves_failed = 1;
    }
    if (made.kind == GM_FAULT_CORRUPT) made.seed = gm_now_ns() % 1000000;
    for (int i = 1; i < argc; i++) {
        char key[32];
        const char *value;
        if (!split(argv[i], key, sizeof key, &value) || !set_word(gm, &made, key, value)) {
            snprintf(why, why_size, "%.60s: not understood, or no such process or device; see gpu-mock inject --help", argv[i]);
            return -1;
        }
    }
    if ((made.kind == GM_FAULT_FAIL || made.kind == GM_FAULT_HANG) && !made.ops) {
        snprintf(why, why_size, "%s needs op=lock, checkpoint, restore, unlock, get-state, get-thread, init or alloc", argv[0]);
        return -1;
    }
    gm_lock(gm);
    struct gm_fault *place = NULL;
    for (unsigned i = 0; i < GM_MAX_FAULTS && !place; i++)
        if (!gm->shared->faults[i].active || (gm->shared->faults[i].remaining == 0 && gm->shared->faults[i].kind != GM_FAULT_HANG))
            place = &gm->shared->faults[i];
    uint32_t id = 0;
    if (place) {
        id = atomic_fetch_add(&gm->shared->next_fault_id, 1);
        place->active = 0;  // one that has struck for the last time gives its place
        memcpy(place, &made, sizeof made);
        place->active = id;
        gm->shared->faults_changed++;
        gm_futex_wake(&gm->shared->faults_changed);
    } else {
        snprintf(why, why_size, "all %d places for faults are taken; remove some with gpu-mock inject --clear", GM_MAX_FAULTS);
    }
    gm_unlock(gm);
    return place ? (int)id : -1;
}

bool gm_fault_remove(struct gm *gm, uint32_t id) {
    bool found = false;
    gm_lock(gm);
    for (unsigned i = 0; i < GM_MAX_FAULTS; i++) {
        struct gm_fault *fault = &gm->shared->faults[i];
        if (!fault->active || (id && fault->active != id)) continue;
        fault->active = 0;
        found = true;
    }
    gm->shared->faults_changed++;
    gm_futex_wake(&gm->shared->faults_changed);
    gm_unlock(gm);
    return found || !id;
}

void gm_fault_describe(const struct gm_fault *fault, char *out, size_t size) {
    size_t n = (size_t)snprintf(out, size, "%s", kind_name(fault->kind));
#define ADD(...) (n += n < size ? (size_t)snprintf(out + n, size - n, __VA_ARGS__) : 0)
    const char *between = " op=";
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (fault->ops & ops[i].op) {
            ADD("%s%s", between, ops[i].name);
            between = ",";
        }
    if (fault->code) ADD(" code=%u", fault->code);
    if (fault->device >= 0) ADD(" device=%d", fault->device);
    if (fault->pid) ADD(" pid=%d", fault->pid);
    if (fault->nth) ADD(" nth=%u", fault->nth);
    if (fault->probability_ppm < 1000000) ADD(" p=%g", fault->probability_ppm / 1e6);
    if (fault->seed) ADD(" seed=%llu", (unsigned long long)fault->seed);
    if (fault->remaining >= 0) ADD(" times=%lld", (long long)fault->remaining);
    if (fault->duration_us) ADD(" for=%g", (double)fault->duration_us / 1e6);
    if (fault->side) ADD(" side=caller");
    if (fault->when) ADD(" when=after");
    if (fault->sibling_locked) ADD(" sibling-locked");
    if (fault->leaves_failed) ADD(" leaves-failed");
#undef ADD
}
