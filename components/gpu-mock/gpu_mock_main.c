// The command gpu-mock: makes mock GPUs, shows them, injects faults, prints the journal.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "faults.h"
#include "journal.h"
#include "state.h"

enum { FAILED = 1, BAD_USE = 2 };

static int complain(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("gpu-mock: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

static const char help[] =
    "gpu-mock: GPUs that are files, for programs that use the real CUDA driver API and NVML.\n"
    "\n"
    "  gpu-mock create [2x80GiB] [--name TEXT] [--cuda 13000] [--init-delay SECONDS] [--prefault[=SIZE]]\n"
    "  gpu-mock show [--json | --check]    devices, processes, faults; --check: is the state consistent?\n"
    "  gpu-mock inject WHAT [KEY=VALUE...] | -f FILE | --list | --clear [ID]    (gpu-mock inject --help)\n"
    "  gpu-mock journal [--json]           what ran when: the ground truth\n"
    "  gpu-mock reset [--all]              faults, settings and journal back to new; --all: removes the folder\n"
    "  gpu-mock env                        prints the environment that `run` sets, for `eval`\n"
    "  gpu-mock run -- COMMAND...          runs a command that sees the mock GPUs\n"
    "\n"
    "The GPUs live in the folder TIMESLICE_GPU_MOCK_DIR (default " GM_DEFAULT_DIR ").\n"
    "TIMESLICE_GPU_MOCK=2x80GiB makes them on first use. The libraries are looked for beside this command, or in TIMESLICE_GPU_MOCK_LIB.\n";

static const char inject_help[] =
    "gpu-mock inject WHAT [KEY=VALUE...]: one fault or setting; it holds at once, for running processes too.\n"
    "\n"
    "Settings:\n"
    "  slow [device=N] checkpoint=S restore=S lock=S   what these take at least, in seconds (0: as fast as it goes)\n"
    "  speed [device=N] out=GBPS in=GBPS               of a checkpoint and a restore\n"
    "  device-lost [device=N] [code=999]               every call that touches it fails; code=0: it is back\n"
    "  set init-delay=S cuda-version=13000 util-window-ms=167\n"
    "Faults (printed with their id):\n"
    "  fail op=OP[,OP] [code=3]     the call returns this CUresult (number or name); p=0.05: a flake\n"
    "  hang op=OP[,OP] [for=S]      until the time is over, or the fault is cleared\n"
    "  restore-oom                  OUT_OF_MEMORY, and the process is FAILED for ever\n"
    "  corrupt                      one random byte in the next restore\n"
    "  no-memory-figures            NVML has no memory figure for the process\n"
    "  hide-process                 NVML does not list it\n"
    "OP: lock checkpoint restore unlock get-state get-thread init alloc\n"
    "For all faults: device=N  pid=PID  nth=N (only the n-th different process)  p=0..1 seed=N  times=N\n"
    "  side=caller (instead of the target's helper)  when=after (the work is done, the answer is not)\n"
    "  sibling-locked (only while another process is locked or saved)  leaves-failed (the process is FAILED afterwards)\n"
    "A file (-f) holds one of these per line; # starts a comment.\n";

static struct gm *open_or_complain(void) {
    const char *why = "no memory";
    struct gm *gm = gm_open(&why);
    if (!gm) complain(FAILED, "%s", why);
    return gm;
}

// What is changed through a mapping is no event for a watcher of the folder (inotify), so that the command makes one.
static void tell_watchers(const struct gm *gm) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/state", gm->dir);
    (void)!utimensat(AT_FDCWD, path, NULL, 0);
}

// ---- create, reset

static int create(int argc, char **argv) {
    struct gm_recipe recipe = {0};
    char why[300], path[PATH_MAX];
    const char *devices = getenv(GM_ENV_DEVICES), *prefault = NULL;
    if (!devices || !*devices) devices = "1x80GiB";
    for (int i = 0; i < argc; i++) {
        const bool has_value = i + 1 < argc;
        char *end = NULL;
        if (strcmp(argv[i], "--prefault") == 0) {
            prefault = "";
        } else if (strncmp(argv[i], "--prefault=", 11) == 0) {
            prefault = argv[i] + 11;
        } else if (strcmp(argv[i], "--name") == 0 && has_value) {
            recipe.name = argv[++i];
        } else if (strcmp(argv[i], "--cuda") == 0 && has_value) {
            recipe.cuda_version = (unsigned)strtoul(argv[++i], &end, 10);
            if (*end || recipe.cuda_version < 11000) return complain(BAD_USE, "--cuda %s is not a version like 13000", argv[i]);
        } else if (strcmp(argv[i], "--init-delay") == 0 && has_value) {
            double seconds = strtod(argv[++i], &end);
            if (*end || !(seconds >= 0 && seconds < 3600)) return complain(BAD_USE, "--init-delay %s is not a time in seconds", argv[i]);
            recipe.init_delay_us = (uint64_t)(seconds * 1e6);
        } else if (argv[i][0] != '-') {
            devices = argv[i];
        } else {
            return complain(BAD_USE, "create does not know %s; see gpu-mock --help", argv[i]);
        }
    }
    if (!gm_parse_devices(devices, &recipe))
        return complain(BAD_USE, "%s is not understood; write COUNTxSIZE like 2x80GiB, with at most %d devices", devices, GM_MAX_DEVICES);
    recipe.prefault_bytes = prefault && !*prefault ? recipe.memory_bytes : 0;
    if (prefault && *prefault && !gm_parse_bytes(prefault, &recipe.prefault_bytes))
        return complain(BAD_USE, "--prefault=%s is not a size like 64MiB", prefault);
    if (recipe.prefault_bytes > recipe.memory_bytes) recipe.prefault_bytes = recipe.memory_bytes;
    recipe.prefault_bytes -= recipe.prefault_bytes % GM_PAGE;
    snprintf(path, sizeof path, "%s/state", gm_dir());
    if (access(path, F_OK) == 0) return complain(FAILED, "%s has mock GPUs already; remove them with gpu-mock reset --all", gm_dir());
    if (!gm_create(gm_dir(), &recipe, why, sizeof why)) return complain(FAILED, "%s", why);
    printf("%u mock GPUs of %" PRIu64 " bytes in %s\n", recipe.device_count, recipe.memory_bytes, gm_dir());
    return 0;
}

static int remove_folder(void) {
    static const char *const names[] = {"state", "locks", "journal"};  // state first: nobody opens the rest without it
    char path[PATH_MAX];
    int error = 0;
    for (int i = 0; i < 3 + GM_MAX_DEVICES; i++) {
        if (i < 3) snprintf(path, sizeof path, "%s/%s", gm_dir(), names[i]);
        else snprintf(path, sizeof path, "%s/device%d", gm_dir(), i - 3);
        if (unlink(path) && errno != ENOENT) error = errno;
    }
    if (rmdir(gm_dir()) && errno != ENOENT && errno != ENOTEMPTY && errno != EBUSY) error = errno;
    return error ? complain(FAILED, "cannot remove %s: %s", gm_dir(), strerror(error)) : 0;
}

static int reset(int argc, char **argv) {
    if (argc == 1 && strcmp(argv[0], "--all") == 0) return remove_folder();
    if (argc) return complain(BAD_USE, "reset does not know %s; see gpu-mock --help", argv[0]);
    struct gm *gm = open_or_complain();
    if (!gm) return FAILED;
    gm_fault_remove(gm, 0);
    for (unsigned i = 0; i < gm->shared->device_count; i++) {
        struct gm_device *device = &gm->shared->devices[i];
        device->lost = 0;
        device->out_bytes_per_s = device->in_bytes_per_s = 0;
        device->checkpoint_min_us = device->restore_min_us = device->lock_min_us = 0;
    }
    gm_lock(gm);
    gm_reap(gm);
    int error = ftruncate(gm->journal_fd, 0) ? errno : 0;
    gm_unlock(gm);
    tell_watchers(gm);
    return error ? complain(FAILED, "cannot empty the journal: %s", strerror(error)) : 0;
}

// ---- show

static const char *state_name(uint32_t state) {
    static const char *const names[] = {"running", "locked", "checkpointed", "failed"};
    return state < 4 ? names[state] : "unknown";
}

static void show_json(struct gm *gm) {
    const struct gm_shared *shared = gm->shared;
    char text[300];
    const char *between = "";
    printf("{\"dir\":\"%s\",\"cuda_version\":%u,\"driver_version\":\"%s\",\"init_delay_s\":%g,\"devices\":[", gm->dir, shared->cuda_version,
           shared->driver_version, (double)shared->init_delay_us / 1e6);
    for (unsigned i = 0; i < shared->device_count; i++, between = ",") {
        const struct gm_device *d = &shared->devices[i];
        printf("%s{\"index\":%u,\"name\":\"%s\",\"uuid\":\"%s\",\"pci\":\"%s\",\"memory_bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64
               ",\"utilization\":%u,\"lost\":%u,\"owner_slot\":%d,\"out_gbps\":%g,\"in_gbps\":%g,\"checkpoint_s\":%g,\"restore_s\":%g,\"lock_s\":%g}",
               between, i, d->name, d->uuid_text, d->pci_bus_id, d->memory_bytes, gm_device_used(gm, i), gm_utilization(gm, i), d->lost,
               (int)d->owner - 1, (double)d->out_bytes_per_s / 1e9, (double)d->in_bytes_per_s / 1e9, (double)d->checkpoint_min_us / 1e6,
               (double)d->restore_min_us / 1e6, (double)d->lock_min_us / 1e6);
    }
    printf("],\"processes\":[");
    between = "";
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++) {
        const struct gm_process *p = &shared->processes[slot];
        if (!p->used || !gm_alive(gm, slot)) continue;
        printf("%s{\"slot\":%u,\"pid\":%" PRId32 ",\"inner_pid\":%" PRId32 ",\"start_time\":%" PRIu64 ",\"uid\":%u,\"state\":\"%s\",\"is_cuda\":%s,\"used_bytes\":[",
               between, slot, gm_visible_pid(gm, slot), p->pid, p->start_time, p->uid, state_name(p->state), p->restore_tid ? "true" : "false");
        for (unsigned i = 0; i < shared->device_count; i++) printf("%s%" PRIu64, i ? "," : "", (uint64_t)p->used_bytes[i]);
        printf("],\"saved_bytes\":[");
        for (unsigned i = 0; i < shared->device_count; i++) printf("%s%" PRIu64, i ? "," : "", (uint64_t)p->saved_bytes[i]);
        printf("]}");
        between = ",";
    }
    printf("],\"faults\":[");
    between = "";
    for (unsigned i = 0; i < GM_MAX_FAULTS; i++) {
        const struct gm_fault *fault = &shared->faults[i];
        if (!fault->active) continue;
        gm_fault_describe(fault, text, sizeof text);
        printf("%s{\"id\":%u,\"what\":\"%s\",\"struck\":%" PRIu64 "}", between, fault->active, text, (uint64_t)fault->struck);
        between = ",";
    }
    printf("]}\n");
}

static void list_faults(struct gm *gm) {
    char text[300];
    for (unsigned i = 0; i < GM_MAX_FAULTS; i++) {
        const struct gm_fault *fault = &gm->shared->faults[i];
        if (!fault->active) continue;
        gm_fault_describe(fault, text, sizeof text);
        printf("fault %u: %s (struck %" PRIu64 " times)\n", fault->active, text, (uint64_t)fault->struck);
    }
}

static void show_people(struct gm *gm) {
    const double mib = 1048576.0;
    printf("%s, CUDA %u, driver %s\n", gm->dir, gm->shared->cuda_version, gm->shared->driver_version);
    for (unsigned i = 0; i < gm->shared->device_count; i++) {
        const struct gm_device *d = &gm->shared->devices[i];
        printf("GPU %u  %s  %s  %.1f of %.1f MiB, %u %%%s\n", i, d->name, d->uuid_text, (double)gm_device_used(gm, i) / mib,
               (double)d->memory_bytes / mib, gm_utilization(gm, i), d->lost ? ", LOST" : "");
    }
    for (unsigned slot = 0; slot < GM_MAX_PROCESSES; slot++) {
        const struct gm_process *p = &gm->shared->processes[slot];
        if (!p->used || !p->restore_tid || !gm_alive(gm, slot)) continue;
        printf("process %" PRId32 "  %-12s", gm_visible_pid(gm, slot), state_name(p->state));
        for (unsigned i = 0; i < gm->shared->device_count; i++)
            if ((p->contexts | p->saved_contexts) >> i & 1)
                printf("  GPU %u: %.1f MiB, saved %.1f MiB", i, (double)p->used_bytes[i] / mib, (double)p->saved_bytes[i] / mib);
        printf("  %s\n", p->name);
    }
    list_faults(gm);
}

static int show(int argc, char **argv) {
    const char *how = argc ? argv[0] : "";
    if (argc > 1 || (argc && strcmp(how, "--json") && strcmp(how, "--check")))
        return complain(BAD_USE, "show takes --json or --check; see gpu-mock --help");
    struct gm *gm = open_or_complain();
    if (!gm) return FAILED;
    if (strcmp(how, "--check") == 0) return gm_check(gm, stderr) ? FAILED : 0;
    if (strcmp(how, "--json") == 0) show_json(gm); else show_people(gm);
    return 0;
}

// ---- inject, journal

static int inject_file(struct gm *gm, const char *path) {
    char line[500], why[300];
    FILE *in = strcmp(path, "-") ? fopen(path, "re") : stdin;
    if (!in) return complain(FAILED, "cannot read %s: %s", path, strerror(errno));
    int code = 0;
    for (int number = 1; !code && fgets(line, sizeof line, in); number++) {
        char *words[32], *rest = NULL;
        int count = 0;
        line[strcspn(line, "#\n")] = 0;
        for (char *word = strtok_r(line, " \t", &rest); word && count < 32; word = strtok_r(NULL, " \t", &rest)) words[count++] = word;
        if (!count) continue;
        int id = gm_inject(gm, count, words, why, sizeof why);
        if (id < 0) code = complain(BAD_USE, "%s line %d: %s", path, number, why);
        if (id > 0) printf("%d\n", id);
    }
    if (in != stdin) fclose(in);
    tell_watchers(gm);
    return code;
}

static int inject(int argc, char **argv) {
    char why[300] = "";
    if (argc && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) return fputs(inject_help, stdout) < 0;
    if (!argc) return complain(BAD_USE, "say what to inject; see gpu-mock inject --help");
    struct gm *gm = open_or_complain();
    if (!gm) return FAILED;
    if (strcmp(argv[0], "--list") == 0) {
        list_faults(gm);
        return 0;
    }
    if (strcmp(argv[0], "--clear") == 0) {
        char *end = "";
        unsigned long id = argc > 1 ? strtoul(argv[1], &end, 10) : 0;
        if (argc > 2 || *end || (argc > 1 && !id)) return complain(BAD_USE, "--clear takes the id of a fault, or nothing for all");
        if (!gm_fault_remove(gm, (uint32_t)id)) return complain(FAILED, "there is no fault %lu; see gpu-mock inject --list", id);
        tell_watchers(gm);
        return 0;
    }
    if (strcmp(argv[0], "-f") == 0) return argc == 2 ? inject_file(gm, argv[1]) : complain(BAD_USE, "-f takes one file");
    int id = gm_inject(gm, argc, argv, why, sizeof why);
    if (id < 0) return complain(BAD_USE, "%s", why);
    if (id > 0) printf("%d\n", id);
    tell_watchers(gm);
    return 0;
}

static int journal(int argc, char **argv) {
    bool json = argc == 1 && strcmp(argv[0], "--json") == 0;
    if (argc && !json) return complain(BAD_USE, "journal takes --json; see gpu-mock --help");
    struct gm *gm = open_or_complain();
    if (!gm) return FAILED;
    if (!journal_print(gm, stdout, json)) return complain(FAILED, "cannot read the journal in %s: %s", gm->dir, strerror(errno));
    return fflush(stdout) ? FAILED : 0;
}

// ---- env, run

// The folder of the two libraries: TIMESLICE_GPU_MOCK_LIB, else beside this command.
static bool find_libraries(char out[PATH_MAX]) {
    const char *given = getenv("TIMESLICE_GPU_MOCK_LIB");
    char path[PATH_MAX], probe[PATH_MAX + 32];
    if (given && *given) {
        if (!realpath(given, out)) return false;
    } else {
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
        if (n < 0) return false;
        path[n] = 0;
        snprintf(out, PATH_MAX, "%s", dirname(path));
    }
    snprintf(probe, sizeof probe, "%s/libcuda.so.1", out);
    return access(probe, R_OK) == 0;
}

// False: it does not fit.
static bool library_path(char *out, size_t size, const char *folder) {
    const char *before = getenv("LD_LIBRARY_PATH");
    return size > (size_t)snprintf(out, size, "%s%s%s", folder, before && *before ? ":" : "", before && *before ? before : "");
}

static int env(int argc, char **argv) {
    char folder[PATH_MAX], path[4 * PATH_MAX];
    if (argc) return complain(BAD_USE, "env takes nothing, but got %s", argv[0]);
    if (!find_libraries(folder)) return complain(FAILED, "libcuda.so.1 is not beside this command; set TIMESLICE_GPU_MOCK_LIB to its folder");
    if (!library_path(path, sizeof path, folder)) return complain(FAILED, "LD_LIBRARY_PATH is too long: more than %zu bytes", sizeof path);
    printf("export %s='%s'\nexport LD_LIBRARY_PATH='%s'\n", GM_ENV_DIR, gm_dir(), path);
    return 0;
}

static int run(int argc, char **argv) {
    char folder[PATH_MAX], path[4 * PATH_MAX];
    if (argc && strcmp(argv[0], "--") == 0) {
        argc--;
        argv++;
    }
    if (!argc) return complain(BAD_USE, "run needs a command: gpu-mock run -- COMMAND...");
    if (!find_libraries(folder)) return complain(FAILED, "libcuda.so.1 is not beside this command; set TIMESLICE_GPU_MOCK_LIB to its folder");
    if (!open_or_complain()) return FAILED;
    if (!library_path(path, sizeof path, folder)) return complain(FAILED, "LD_LIBRARY_PATH is too long: more than %zu bytes", sizeof path);
    if (setenv("LD_LIBRARY_PATH", path, 1) || setenv(GM_ENV_DIR, gm_dir(), 1)) return complain(FAILED, "no memory");
    execvp(argv[0], argv);
    return complain(errno == ENOENT ? 127 : 126, "cannot run %s: %s", argv[0], strerror(errno));
}

int main(int argc, char **argv) {
    static const struct { const char *name; int (*run)(int, char **); } commands[] = {
        {"create", create}, {"show", show}, {"inject", inject}, {"reset", reset}, {"journal", journal}, {"env", env}, {"run", run},
    };
    if (argc < 2) {
        fputs(help, stderr);
        return BAD_USE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) return fputs(help, stdout) < 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name)) continue;
        if (argc == 3 && strcmp(argv[2], "--help") == 0 && commands[i].run != inject) return fputs(help, stdout) < 0;
        return commands[i].run(argc - 2, argv + 2);
    }
    return complain(BAD_USE, "there is no command %s; see gpu-mock --help", argv[1]);
}
