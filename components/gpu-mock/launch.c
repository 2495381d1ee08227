// Modules from PTX text, and the kernels that the mock can run. kernels.ptx holds the text that a real GPU runs as well.
// Mimics: CUDA driver API reference, "Module Management", "Execution Control"; PTX ISA, ".entry", ".param".
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "launch.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host_memory.h"
#include "journal.h"
#include "streams.h"
#include "variants.h"

enum { MAX_PARAMETERS = 8 };

struct launch {
    const struct builtin *builtin;
    uint64_t threads;  // grid x block, in x
    uint64_t parameters[MAX_PARAMETERS];
};

typedef CUresult kernel_function(CUcontext context, const struct launch *launch);

// What the mock can run: the name, and the sizes of the parameters in bytes.
static const struct builtin {
    const char *name, *sizes;
    kernel_function *run;
} builtins[];

struct CUfunc_st {
    struct CUfunc_st *next;
    struct CUmod_st *module;
    char name[64];
    unsigned parameter_count;
    unsigned char sizes[MAX_PARAMETERS];
    const struct builtin *builtin;  // NULL: the text names a kernel that the mock does not know
};

struct CUmod_st {
    struct CUmod_st *next;
    CUcontext context;
    struct CUfunc_st *functions;
};

static pthread_mutex_t modules_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct CUmod_st *modules;

// ---- kernels

static float as_float(uint64_t bits) {
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return value;
}

enum { CHUNK = 64 * 1024 };  // elements that are in host memory at one time

static CUresult run_busy(CUcontext context, const struct launch *launch) {
    (void)context;
    uint64_t until_ns = gm_now_ns() + launch->parameters[0] * 1000;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
    return CUDA_SUCCESS;
}

// y = a * x + y with one rounding (PTX fma.rn), x = a * x, x = a; one element per thread.
static CUresult run_elements(const struct launch *launch, char what, float a, CUdeviceptr x, CUdeviceptr y, uint64_t n) {
    if (n > launch->threads) n = launch->threads;
    float *xs = malloc(CHUNK * sizeof *xs), *ys = malloc(CHUNK * sizeof *ys);
    CUresult result = xs && ys ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t done = 0; done < n && !result;) {
        size_t m = n - done < CHUNK ? (size_t)(n - done) : CHUNK, bytes = m * sizeof *xs;
        if (what != 'f') result = any_read(x + done * sizeof *xs, xs, bytes);
        if (what == 'a' && !result) result = any_read(y + done * sizeof *ys, ys, bytes);
        if (result) break;
        if (what == 'a') for (size_t i = 0; i < m; i++) ys[i] = fmaf(a, xs[i], ys[i]);
        if (what == 's') for (size_t i = 0; i < m; i++) xs[i] = a * xs[i];
        if (what == 'f') for (size_t i = 0; i < m; i++) xs[i] = a;
        result = what == 'a' ? any_write(y + done * sizeof *ys, ys, bytes) : any_write(x + done * sizeof *xs, xs, bytes);
        done += m;
    }
    free(xs);
    free(ys);
    return result;
}

static CUresult run_axpy(CUcontext context, const struct launch *launch) {
    const uint64_t *p = launch->parameters;
    (void)context;
    return run_elements(launch, 'a', as_float(p[0]), p[1], p[2], p[3]);
}

static CUresult run_scale(CUcontext context, const struct launch *launch) {
    const uint64_t *p = launch->parameters;
    (void)context;
    return run_elements(launch, 's', as_float(p[0]), p[1], 0, p[2]);
}

static CUresult run_fill(CUcontext context, const struct launch *launch) {
    const uint64_t *p = launch->parameters;
    (void)context;
    return run_elements(launch, 'f', as_float(p[0]), p[1], 0, p[2]);
}

// Adds one to the counter and spins until as many have come as there are parties: a collective. The counter lies in registered host
// memory (shared between processes by mmap) or in device memory. While it spins, the device is lent to others in slices, as the
// time-slicing of contexts does.
static CUresult run_meet(CUcontext context, const struct launch *launch) {
    static pthread_mutex_t on_device = PTHREAD_MUTEX_INITIALIZER;  // makes the read-modify-write of device memory one step
    const CUdeviceptr counter = launch->parameters[0];
    const uint32_t parties = (uint32_t)launch->parameters[1];
    const unsigned device = process.physical[context->ordinal];
    if (!parties || counter % sizeof(uint32_t)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    _Atomic uint32_t *shared = host_memory_at(counter, sizeof(uint32_t));
    uint32_t old = 0, seen = 0;
    if (shared) {
        old = atomic_fetch_add(shared, 1);
    } else {
        pthread_mutex_lock(&on_device);
        CUresult result = any_read(counter, &old, sizeof old);
        uint32_t new = old + 1;
        if (!result) result = any_write(counter, &new, sizeof new);
        pthread_mutex_unlock(&on_device);
        if (result) return result;
    }
    const uint32_t target = (old / parties + 1) * parties;
    for (;;) {
        if (shared) seen = *shared; else TRY(any_read(counter, &seen, sizeof seen));
        if ((int32_t)(seen - target) >= 0) return CUDA_SUCCESS;
        gm_device_release(process.gm, process.slot, device);
        struct timespec slice = {.tv_nsec = 200 * 1000};
        nanosleep(&slice, NULL);
        gm_device_acquire(process.gm, process.slot, device);
    }
}

static const struct builtin builtins[] = {
    {"busy", "\x08", run_busy},              // microseconds
    {"axpy", "\x04\x08\x08\x04", run_axpy},  // a, x, y, n
    {"scale", "\x04\x08\x04", run_scale},    // a, x, n
    {"fill", "\x04\x08\x04", run_fill},      // value, x, n
    {"meet", "\x08\x04", run_meet},          // counter, parties
};

static CUresult run_kernel(CUcontext context, uint32_t stream_id, void *argument) {
    const struct launch *launch = argument;
    const unsigned device = process.physical[context->ordinal];
    if (process.gm->shared->devices[device].lost) return (CUresult)process.gm->shared->devices[device].lost;
    gm_device_acquire(process.gm, process.slot, device);
    struct journal_record record = journal_new(process.gm, process.slot, JOURNAL_KERNEL);
    record.device = (int32_t)device;
    record.stream = stream_id;
    snprintf(record.name, sizeof record.name, "%s", launch->builtin->name);
    journal_write(process.gm, &record);
    CUresult result = launch->builtin->run(context, launch);
    record.result = result;
    journal_end(process.gm, &record);
    gm_device_release(process.gm, process.slot, device);
    return result;
}

// ---- PTX text

static const char *skip_blanks(const char *at) {
    for (;;) {
        while (isspace((unsigned char)*at)) at++;
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
        } else {
            return at;
        }
    }
}

static size_t word_length(const char *at) {
    size_t n = 0;
    while (isalnum((unsigned char)at[n]) || at[n] == '_' || at[n] == '$' || at[n] == '.') n++;
    return n;
}

static unsigned type_size(const char *type, size_t length) {
    static const struct { const char *name; unsigned size; } types[] = {
        {".u8", 1}, {".s8", 1}, {".b8", 1}, {".u16", 2}, {".s16", 2}, {".b16", 2}, {".f16", 2}, {".u32", 4}, {".s32", 4}, {".b32", 4},
        {".f32", 4}, {".u64", 8}, {".s64", 8}, {".b64", 8}, {".f64", 8},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].name) == length && strncmp(type, types[i].name, length) == 0) return types[i].size;
    return 0;
}

// Reads "NAME ( .param .u64 a, ... )" behind .entry. NULL: not understood.
static struct CUfunc_st *parse_entry(const char *at) {
    at = skip_blanks(at);
    size_t length = word_length(at);
    struct CUfunc_st *made = calloc(1, sizeof *made);
    if (!made || !length || length >= sizeof made->name) goto bad;
    memcpy(made->name, at, length);
    at = skip_blanks(at + length);
    if (*at != '(') return made;  // no parameters
    at = skip_blanks(at + 1);
    while (*at && *at != ')') {
        unsigned size = 0;
        while (*at && *at != ',' && *at != ')') {  // .param, alignment, type, attributes, name: the type is what counts
            size_t n = word_length(at);
            if (!n) {
                at = skip_blanks(at + 1);
                continue;
            }
            if (!size) size = type_size(at, n);
            at = skip_blanks(at + n);
        }
        if (!size || made->parameter_count == MAX_PARAMETERS) goto bad;
        made->sizes[made->parameter_count++] = (unsigned char)size;
        if (*at == ',') at = skip_blanks(at + 1);
    }
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, made->name) == 0 && strlen(builtins[i].sizes) == made->parameter_count &&
            memcmp(builtins[i].sizes, made->sizes, made->parameter_count) == 0)
            made->builtin = &builtins[i];
    return made;
bad:
    free(made);
    return NULL;
}

static void free_module(struct CUmod_st *module) {
    for (struct CUfunc_st *at = module->functions, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    free(module);
}

static CUresult parse_module(const char *text, struct CUmod_st **out) {
    const char *at = skip_blanks(text);
    if (strncmp(at, ".version", 8) || !strstr(at, ".target")) return CUDA_ERROR_INVALID_IMAGE;  // cubin and fatbin are not for us
    struct CUmod_st *made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    while (*(at = skip_blanks(at))) {
        size_t n = word_length(at);
        if (n == 6 && strncmp(at, ".entry", 6) == 0) {
            struct CUfunc_st *function = parse_entry(at + 6);
            if (!function) {
                free_module(made);
                return CUDA_ERROR_INVALID_PTX;
            }
            function->module = made;
            function->next = made->functions;
            made->functions = function;
        }
        at += n ? n : 1;
    }
    *out = made;
    return CUDA_SUCCESS;
}

// ---- API: modules

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUcontext context;
    TRY(gate_enter(&context));
    if (!module || !image) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    struct CUmod_st *made = NULL;
    CUresult result = parse_module(image, &made);
    if (result) return gate_leave(result);
    made->context = context;
    pthread_mutex_lock(&modules_mutex);
    made->next = modules;
    modules = made;
    pthread_mutex_unlock(&modules_mutex);
    *module = made;
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;  // they steer the compiler, which the mock has not
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    FILE *in = fopen(path, "rbe");
    if (!in) return CUDA_ERROR_FILE_NOT_FOUND;
    size_t size = 0, room = 64 * 1024;
    char *text = malloc(room);
    while (text) {
        size += fread(text + size, 1, room - size - 1, in);
        if (size < room - 1) break;
        char *more = realloc(text, room *= 2);
        if (!more) free(text);
        text = more;
    }
    fclose(in);
    if (!text) return CUDA_ERROR_OUT_OF_MEMORY;
    text[size] = 0;
    CUresult result = cuModuleLoadData(module, text);
    free(text);
    return result;
}

static bool is_module(CUmodule module) {
    for (struct CUmod_st *at = modules; at; at = at->next)
        if (at == module) return true;
    return false;
}

API CUresult cuModuleUnload(CUmodule module) {
    TRY(gate_enter(NULL));
    pthread_mutex_lock(&modules_mutex);
    bool known = is_module(module);
    for (struct CUmod_st **at = &modules; known && *at; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            break;
        }
    pthread_mutex_unlock(&modules_mutex);
    if (!known) return gate_leave(CUDA_ERROR_INVALID_HANDLE);
    free_module(module);  // launched work holds what it needs
    return gate_leave(CUDA_SUCCESS);
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    TRY(gate_enter(NULL));
    if (!function || !name || !*name) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&modules_mutex);
    if (is_module(module)) {
        result = CUDA_ERROR_NOT_FOUND;
        for (struct CUfunc_st *at = module->functions; at; at = at->next)
            if (strcmp(at->name, name) == 0) {
                *function = at;
                result = at->builtin ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;  // real text, but not one of our kernels
            }
    }
    pthread_mutex_unlock(&modules_mutex);
    return gate_leave(result);
}

void modules_forget_context(CUcontext context) {
    pthread_mutex_lock(&modules_mutex);
    for (struct CUmod_st **at = &modules; *at;) {
        struct CUmod_st *module = *at;
        if (module->context == context) {
            *at = module->next;
            free_module(module);
        } else {
            at = &module->next;
        }
    }
    pthread_mutex_unlock(&modules_mutex);
}

// ---- API: launch

static CUresult collect(const struct CUfunc_st *function, void **parameters, void **extra, struct launch *launch) {
    const unsigned char *buffer = NULL;
    size_t size = 0, at = 0;
    if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
        else return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < function->parameter_count; i++) {
        const size_t n = function->sizes[i];
        launch->parameters[i] = 0;
        if (parameters) {
            if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
            memcpy(&launch->parameters[i], parameters[i], n);
        } else {
            at = (at + n - 1) / n * n;
            if (!buffer || at + n > size) return CUDA_ERROR_INVALID_VALUE;
            memcpy(&launch->parameters[i], buffer + at, n);
            at += n;
        }
    }
    return CUDA_SUCCESS;
}

static bool is_function(CUfunction function) {
    for (struct CUmod_st *module = modules; module; module = module->next)
        for (struct CUfunc_st *at = module->functions; at; at = at->next)
            if (at == function) return true;
    return false;
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, bool per_thread) {
    CUcontext context;
    TRY(gate_enter(&context));
    const CUlaunchConfig *c = config;
    const uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;
    if (!c->gridDimX || !c->gridDimY || !c->gridDimZ || !threads || threads > 1024 || c->blockDimZ > 64) return gate_leave(CUDA_ERROR_INVALID_VALUE);
    struct launch *launch = malloc(sizeof *launch);
    if (!launch) return gate_leave(CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&modules_mutex);
    CUresult result = is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (!result && function->module->context != context) result = CUDA_ERROR_INVALID_HANDLE;
    if (!result) result = collect(function, parameters, extra, launch);
    if (!result) launch->builtin = function->builtin;
    pthread_mutex_unlock(&modules_mutex);
    if (result) {
        free(launch);
        return gate_leave(result);
    }
    launch->threads = (uint64_t)c->gridDimX * c->blockDimX;
    return gate_leave(stream_submit(context, c->hStream, per_thread, run_kernel, launch));
}

static CUresult launch_kernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                              CUstream stream, void **parameters, void **extra, bool per_thread) {
    CUlaunchConfig config = {gx, gy, gz, bx, by, bz, shared, stream, NULL, 0};
    return launch_config(&config, function, parameters, extra, per_thread);
}
STREAM_VARIANTS(cuLaunchKernel,
                (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                 void **parameters, void **extra),
                launch_kernel, (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra, PER_THREAD))

static CUresult launch_kernel_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, bool per_thread) {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    if (config->numAttrs) return CUDA_ERROR_NOT_SUPPORTED;
    return launch_config(config, function, parameters, extra, per_thread);
}
STREAM_VARIANTS(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra), launch_kernel_ex,
                (config, function, parameters, extra, PER_THREAD))
