// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic uint64_t last_number;

// FNV-1a over everything behind the check.
static uint32_t check_of(const struct journal_record *record) {
    const unsigned char *at = (const unsigned char *)record;
    uint32_t hash = 2166136261u;
    for (size_t i = offsetof(struct journal_record, number); i < sizeof *record; i++) hash = (hash ^ at[i]) * 16777619u;
    return hash;
}

struct journal_record journal_new(struct gm *gm, unsigned slot, enum journal_kind kind) {
    const struct gm_process *process = &gm->shared->processes[slot];
    return (struct journal_record){
        .number = ++last_number,
        .pid = process->pid,
        .outer_pid = process->outer_pid,
        .pid_namespace = process->pid_namespace,
        .start_time = process->start_time,
        .slot = slot,
        .generation = process->generation,
        .device = -1,
        .kind = (uint16_t)kind,
        .state = (uint16_t)process->state,
        .begin_ns = gm_now_ns(),
    };
}

void journal_write(struct gm *gm, struct journal_record *record) {
    record->magic = JOURNAL_MAGIC;
    record->check = check_of(record);
    ssize_t n;
    do {
        n = write(gm->journal_fd, record, sizeof *record);  // O_APPEND: the place is chosen under the inode's lock
    } while (n < 0 && errno == EINTR);
}

void journal_end(struct gm *gm, struct journal_record *record) {
    record->end_ns = gm_now_ns();
    journal_write(gm, record);
}

void journal_about(struct gm *gm, unsigned slot, enum journal_kind kind) {
    struct journal_record record = journal_new(gm, slot, kind);
    record.end_ns = record.begin_ns;
    journal_write(gm, &record);
}

// ---- reading

const char *journal_kind_name(unsigned kind) {
    static const char *const names[] = {
        [JOURNAL_JOIN] = "join", [JOURNAL_GONE] = "gone", [JOURNAL_CONTEXT] = "context", [JOURNAL_ALLOC] = "alloc",
        [JOURNAL_FREE] = "free", [JOURNAL_COPY] = "copy", [JOURNAL_MEMSET] = "memset", [JOURNAL_KERNEL] = "kernel",
        [JOURNAL_LOCK] = "lock", [JOURNAL_CHECKPOINT] = "checkpoint", [JOURNAL_RESTORE] = "restore",
        [JOURNAL_UNLOCK] = "unlock", [JOURNAL_ILLEGAL] = "illegal", [JOURNAL_FAULT] = "fault",
        [JOURNAL_CALL] = "call",
    };
    return kind < sizeof names / sizeof *names && names[kind] ? names[kind] : "unknown";
}

static const char *state_name(unsigned state) {
    static const char *const names[] = {"running", "locked", "checkpointed", "failed"};
    return state < 4 ? names[state] : "unknown";
}

static bool same_work(const struct journal_record *a, const struct journal_record *b) {
    return a->number == b->number && a->pid == b->pid && a->start_time == b->start_time && a->slot == b->slot &&
           a->generation == b->generation && a->kind == b->kind;
}

// Finds the begin records that have an end: hashed by process and number.
static void mark_ended(struct journal_record *records, size_t count) {
    size_t room = 16;
    while (room < count * 2) room *= 2;
    size_t *table = calloc(room, sizeof *table);  // 1 + index of a begin record
    if (!table) return;
    for (size_t i = 0; i < count; i++) {
        struct journal_record *record = &records[i];
        uint64_t hash = (record->number * 0x9e3779b97f4a7c15u) ^ (record->start_time * 0xc2b2ae3d27d4eb4fu) ^ (uint64_t)record->pid << 17;
        size_t at = (hash >> 20) & (room - 1);
        while (table[at] && !same_work(&records[table[at] - 1], record)) at = (at + 1) & (room - 1);
        if (!record->end_ns) {
            if (!table[at]) table[at] = i + 1;
        } else if (table[at]) {
            records[table[at] - 1].magic = 0;  // told by its end
        }
    }
    free(table);
}

static void print_json(FILE *out, const struct journal_record *r) {
    char name[sizeof r->name + 1];
    size_t n = 0;
    for (; n < sizeof r->name && r->name[n]; n++) name[n] = r->name[n] < ' ' || r->name[n] == '"' || r->name[n] == '\\' ? '?' : r->name[n];
    name[n] = 0;
    fprintf(out, "{\"kind\":\"%s\",\"pid\":%" PRId32 ",\"inner_pid\":%" PRId32 ",\"pid_namespace\":%" PRIu64 ",\"start_time\":%" PRIu64
            ",\"device\":", journal_kind_name(r->kind), r->outer_pid, r->pid, r->pid_namespace, r->start_time);
    if (r->device < 0) fprintf(out, "null"); else fprintf(out, "%" PRId32, r->device);
    fprintf(out, ",\"begin_ns\":%" PRIu64 ",\"end_ns\":", r->begin_ns);
    if (r->end_ns) fprintf(out, "%" PRIu64, r->end_ns); else fprintf(out, "null");
    fprintf(out, ",\"bytes\":%" PRIu64 ",\"address\":%" PRIu64 ",\"stream\":%" PRIu32 ",\"result\":%" PRIu32 ",\"state\":\"%s\",\"name\":\"%s\"}\n",
            r->bytes, r->address, r->stream, r->result, state_name(r->state), name);
}

static void print_row(FILE *out, const struct journal_record *r) {
    fprintf(out, "%16.6f %10.3f  %-10s pid %-7" PRId32 " device %-2" PRId32 " %-12" PRIu64 " result %-3" PRIu32 " %-12s %.32s\n",
            (double)r->begin_ns / 1e9, r->end_ns ? (double)(r->end_ns - r->begin_ns) / 1e6 : -1.0, journal_kind_name(r->kind), r->outer_pid,
            r->device, r->bytes, r->result, state_name(r->state), r->name);
}

bool journal_print(struct gm *gm, FILE *out, bool json) {
    char path[300];
    snprintf(path, sizeof path, "%s/journal", gm->dir);
    FILE *in = fopen(path, "rbe");
    if (!in) return false;
    size_t count = 0, room = 1024;
    struct journal_record *records = malloc(room * sizeof *records);
    while (records && fread(&records[count], sizeof *records, 1, in) == 1) {
        if (records[count].magic != JOURNAL_MAGIC || records[count].check != check_of(&records[count])) continue;
        if (++count == room) {
            struct journal_record *more = realloc(records, (room *= 2) * sizeof *records);
            if (!more) free(records);
            records = more;
        }
    }
    fclose(in);
    if (!records) return false;
    mark_ended(records, count);
    if (!json) fprintf(out, "%16s %10s  %s\n", "begin (s)", "took (ms)", "what");
    for (size_t i = 0; i < count; i++) {
        if (records[i].magic != JOURNAL_MAGIC) continue;
        if (json) print_json(out, &records[i]); else print_row(out, &records[i]);
    }
    free(records);
    return true;
}
