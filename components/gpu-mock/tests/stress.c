// A process that does nothing but driver calls, to be killed in the middle of one, or run to its end under sanitizers.
//
//     stress MODE [ITERATIONS [PID]]
//
// MODE: init, alloc, copy, launch, context, target (all of them in threads, contents checked after each step), wrong (calls that
// must fail), nvml, fall (a fault of its own, for tests of the sanitizers),
// cycle (lock, checkpoint, restore and unlock the process PID), query (ask for its state), together (a target, a process that
// cycles it and one that allocates beside it, each a child). Without ITERATIONS, or with 0, until SIGTERM. It says "ready" on
// stdout when the calls begin; a result that should not be is told on stderr, with exit status 1.
//
// With STRESS_KILL_BEFORE=n in the environment it kills itself before its n-th store to the shared state after "ready" (in init:
// after the state is mapped); the modes below are for that: one step each, with a fixed outcome.
// victim (waits to be locked, saved, restored, unlocked by others), and lock, checkpoint, restore, unlock (of PID), inject.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda_abi.h"
#include "../faults.h"
#include "../nvml_abi.h"
#include "store_kills.h"

enum { DEVICE_PAGE = 4096, THREADS = 4, LOCK_TIMEOUT_MS = 10000 };

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, CUdriverProcAddressQueryResult *status);
CUresult cuGetErrorName(CUresult error, const char **text);
CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags);
CUresult cuMemFreeHost(void *pointer);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra);
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state);
CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args);
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args);

static volatile sig_atomic_t ended;
static long iterations;
static char *ptx;

static void on_term(int number) {
    (void)number;
    ended = 1;
}

static void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

#define MUST(call)                                                              \
    do {                                                                        \
        CUresult must_result = (call);                                          \
        if (must_result) fail("%s: CUresult %d", #call, (int)must_result);      \
    } while (0)

static void say_ready(void) {
    const char *kill_before = getenv("STRESS_KILL_BEFORE");
    if (kill_before) store_kills_begin((unsigned)atoi(kill_before));
    if (write(STDOUT_FILENO, "ready\n", 6) != 6) exit(1);
}

static bool goes_on(long done) { return !ended && (!iterations || done < iterations); }

static CUcontext join_device(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    return context;
}

// ---- the steps

// The device is shared: there may be no room.
static bool allocate(CUdeviceptr *pointer, size_t size) {
    CUresult result = cuMemAlloc_v2(pointer, size);
    if (result && result != CUDA_ERROR_OUT_OF_MEMORY) fail("cuMemAlloc: CUresult %d", (int)result);
    return !result;
}

static void alloc_step(unsigned *seed) {
    CUdeviceptr pointers[6];
    bool has[6];
    for (int i = 0; i < 6; i++) has[i] = allocate(&pointers[i], 1 + (size_t)rand_r(seed) % (5 * DEVICE_PAGE));
    for (int i = 0; i < 6; i++)
        if (has[i]) MUST(cuMemFree_v2(pointers[i]));
}

static void check_bytes(const unsigned char *bytes, unsigned char value, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value) fail("byte %zu is %u, not %u", i, bytes[i], value);
}

static void copy_step(unsigned *seed) {
    size_t size = 1 + (size_t)rand_r(seed) % (8 * DEVICE_PAGE);
    unsigned char value = (unsigned char)rand_r(seed);
    CUdeviceptr first, second;
    CUstream stream;
    void *pinned;
    if (!allocate(&first, size)) return;
    if (!allocate(&second, size)) {
        MUST(cuMemFree_v2(first));
        return;
    }
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemHostAlloc(&pinned, size, 0));
    memset(pinned, value, size);
    MUST(cuMemcpyHtoD_v2(first, pinned, size));
    MUST(cuMemsetD8_v2(second, (unsigned char)~value, size));
    MUST(cuMemcpyDtoDAsync_v2(second, first, size, stream));
    MUST(cuMemcpyDtoHAsync_v2(pinned, second, size, stream));
    MUST(cuStreamSynchronize(stream));
    check_bytes(pinned, value, size);
    MUST(cuMemFreeHost(pinned));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemFree_v2(first));
    MUST(cuMemFree_v2(second));
}

static void launch(CUfunction function, unsigned threads, CUstream stream, void **parameters) {
    MUST(cuLaunchKernel(function, (threads + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

static void launch_step(unsigned *seed) {
    unsigned count = 1 + (unsigned)rand_r(seed) % 2000;
    float value = (float)(rand_r(seed) % 100), factor = 2, *host = malloc(count * sizeof *host);
    unsigned long long micros = (unsigned long long)rand_r(seed) % 200;
    CUdeviceptr pointer;
    CUstream stream;
    CUevent event;
    CUmodule module;
    CUfunction fill, scale, busy;
    if (!host) fail("no memory");
    if (!allocate(&pointer, count * sizeof *host)) {
        free(host);
        return;
    }
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, 0));
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuModuleGetFunction(&scale, module, "scale"));
    MUST(cuModuleGetFunction(&busy, module, "busy"));
    launch(fill, count, stream, (void *[]){&value, &pointer, &count});
    launch(busy, 1, stream, (void *[]){&micros});
    launch(scale, count, stream, (void *[]){&factor, &pointer, &count});
    MUST(cuEventRecord(event, stream));
    MUST(cuStreamWaitEvent(stream, event, 0));
    MUST(cuEventSynchronize(event));
    MUST(cuMemcpyDtoH_v2(host, pointer, count * sizeof *host));
    for (unsigned i = 0; i < count; i++)
        if (host[i] != value * factor) fail("element %u is %f, not %f", i, (double)host[i], (double)(value * factor));
    MUST(cuModuleUnload(module));
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemFree_v2(pointer));
    free(host);
}

static void context_step(unsigned *seed) {
    CUcontext context;
    CUdeviceptr pointer;
    CUstream stream;
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuStreamCreate(&stream, rand_r(seed) % 2 ? CU_STREAM_NON_BLOCKING : 0));
    if (allocate(&pointer, 1 + (size_t)rand_r(seed) % (4 * DEVICE_PAGE))) MUST(cuMemsetD8_v2(pointer, 1, 1));
    MUST(cuCtxDestroy_v2(context));  // with its stream and its memory
}

#define MUST_FAIL(call)                                        \
    do {                                                       \
        if ((call) == CUDA_SUCCESS) fail("%s succeeded", #call); \
    } while (0)

// What a careless program does: wrong sizes, wrong handles, wrong text, wrong addresses.
static void wrong_step(unsigned *seed) {
    CUdeviceptr pointer, other;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUevent event;
    CUprocessState state;
    CUdriverProcAddressQueryResult status;
    void *entry;
    const char *text;
    char bytes[64] = {0};
    static const char *const texts[] = {
        "", ".version 7.0", ".version 7.0 .target sm_70 .entry", ".version 7.0 .target sm_70 .entry (", ".version 7.0 .target sm_70 .entry a(",
        ".version 7.0 .target sm_70 .entry a(.param .u99 b)", ".version 7.0 .target sm_70 /* .entry a()", "\x7f" "ELF",
    };
    MUST(cuMemAlloc_v2(&pointer, DEVICE_PAGE));
    MUST_FAIL(cuMemAlloc_v2(&other, (size_t)-1));
    MUST_FAIL(cuMemAlloc_v2(&other, 0));
    MUST_FAIL(cuMemAlloc_v2(NULL, 16));
    MUST_FAIL(cuMemFree_v2(pointer + 1 + (unsigned)rand_r(seed) % 4000));
    MUST_FAIL(cuMemcpyHtoD_v2(pointer + DEVICE_PAGE - 8, bytes, sizeof bytes));
    MUST_FAIL(cuMemcpyDtoH_v2(bytes, pointer - 8, sizeof bytes));
    MUST_FAIL(cuMemcpyDtoH_v2(bytes, pointer, (size_t)-1));
    MUST_FAIL(cuMemsetD8_v2(pointer, 1, (size_t)-1));
    MUST_FAIL(cuMemsetD8_v2(0, 1, 16));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!cuModuleLoadData(&module, texts[i])) {  // nothing wrong with it as far as it goes
            MUST_FAIL(cuModuleGetFunction(&function, module, "a"));
            MUST(cuModuleUnload(module));
        }
    MUST(cuModuleLoadData(&module, ptx));
    MUST_FAIL(cuModuleGetFunction(&function, module, "no such kernel"));
    MUST_FAIL(cuModuleGetFunction(&function, module, ""));
    MUST(cuModuleGetFunction(&function, module, "fill"));
    MUST_FAIL(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, (void *[]){bytes, bytes, bytes}, NULL));
    MUST_FAIL(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    MUST(cuModuleUnload(module));
    MUST_FAIL(cuModuleUnload(module));
    MUST(cuStreamCreate(&stream, 0));
    MUST(cuStreamDestroy_v2(stream));
    MUST_FAIL(cuStreamSynchronize(stream));
    MUST(cuEventCreate(&event, 0));
    MUST(cuEventDestroy_v2(event));
    MUST_FAIL(cuEventSynchronize(event));
    MUST_FAIL(cuStreamCreate(&stream, 99));
    MUST_FAIL(cuMemFreeHost(bytes));
    MUST(cuMemFree_v2(pointer));
    MUST_FAIL(cuMemFree_v2(pointer));
    MUST_FAIL(cuMemcpyHtoD_v2(pointer, bytes, sizeof bytes));
    MUST_FAIL(cuCheckpointProcessGetState(1, &state));
    MUST_FAIL(cuCheckpointProcessUnlock(getpid(), NULL));
    MUST_FAIL(cuCheckpointProcessRestore(-1, NULL));
    MUST_FAIL(cuGetErrorName((CUresult)12345, &text));
    MUST(cuGetProcAddress_v2("cuNothing", &entry, 13000, 0, &status));
    MUST_FAIL(cuGetProcAddress_v2("cuInit", &entry, 99000, 0, &status));
}

static void nvml_step(unsigned *seed) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlUtilization_t utilization;
    nvmlProcessInfo_v2_t infos[4];
    nvmlPciInfo_t pci;
    unsigned count = 0;
    char text[96];
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) fail("NVML does not start");
    if (nvmlDeviceGetMemoryInfo(device, &memory) || memory.used > memory.total) fail("memory");
    if (nvmlDeviceGetUtilizationRates(device, &utilization) || utilization.gpu > 100) fail("utilization");
    if (nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL) != NVML_ERROR_INSUFFICIENT_SIZE || count != 1) fail("count");
    count = 4;
    if (nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos) || infos[0].pid != (unsigned)getpid()) fail("processes");
    if (nvmlDeviceGetUUID(device, text, sizeof text) || nvmlDeviceGetHandleByUUID(text, &device)) fail("UUID");
    if (nvmlDeviceGetPciInfo_v3(device, &pci) || nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &device)) fail("PCI id");
    if (!nvmlDeviceGetName(device, text, (unsigned)rand_r(seed) % 5)) fail("a name without room");
    if (nvmlDeviceGetHandleByPciBusId_v2("x:y", &device) == NVML_SUCCESS || nvmlDeviceGetHandleByUUID("", &device) == NVML_SUCCESS)
        fail("a device of no name");
    if (nvmlDeviceGetName((nvmlDevice_t)text, text, sizeof text) != NVML_ERROR_INVALID_ARGUMENT) fail("a handle of nothing");
    if (nvmlShutdown()) fail("nvmlShutdown");
}

static volatile int raced;

static void *race(void *argument) {
    for (int i = 0; i < 1000; i++) raced++;
    return argument;
}

// A data race, and a read of freed memory.
static void fall_step(unsigned *seed) {
    pthread_t threads[2];
    char *volatile block = malloc(16);
    (void)seed;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, race, NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    free(block);
    raced += *(volatile char *)block;
}

static void query_step(int pid) {
    CUprocessState state;
    CUresult result = cuCheckpointProcessGetState(pid, &state);
    if (result && result != CUDA_ERROR_INVALID_VALUE) fail("cuCheckpointProcessGetState: CUresult %d", (int)result);
    if (!result && (unsigned)state > CU_PROCESS_STATE_CHECKPOINTED) fail("process %d is in state %d", pid, (int)state);
}

// False: the target is gone.
static bool cycle_step(int pid) {
    CUcheckpointLockArgs lock = {.timeoutMs = LOCK_TIMEOUT_MS};
    CUresult result = cuCheckpointProcessLock(pid, &lock);
    if (result == CUDA_ERROR_ILLEGAL_STATE) {  // left behind by a cycler that was killed
        CUprocessState state;
        if (cuCheckpointProcessGetState(pid, &state)) return false;
        if (state == CU_PROCESS_STATE_CHECKPOINTED) (void)cuCheckpointProcessRestore(pid, NULL);
        (void)cuCheckpointProcessUnlock(pid, NULL);
        return true;
    }
    if (!result) result = cuCheckpointProcessCheckpoint(pid, NULL);
    if (!result) {
        // Somebody else may have taken the room meanwhile: again, until there is some.
        do result = cuCheckpointProcessRestore(pid, NULL);
        while (result == CUDA_ERROR_OUT_OF_MEMORY && !ended);
    }
    if (!result) result = cuCheckpointProcessUnlock(pid, NULL);
    CUprocessState state;
    if (result && cuCheckpointProcessGetState(pid, &state) == CUDA_ERROR_INVALID_VALUE) return false;
    if (result && !ended) fail("lock, checkpoint, restore, unlock: CUresult %d", (int)result);
    return true;
}

// ---- the modes

typedef void step_function(unsigned *seed);

static void repeat(step_function *step, unsigned seed) {
    for (long done = 0; goes_on(done); done++) step(&seed);
}

struct thread {
    pthread_t id;
    CUcontext context;
    unsigned number;
};

static void *run_thread(void *argument) {
    static step_function *const steps[THREADS] = {alloc_step, copy_step, launch_step, context_step};
    struct thread *thread = argument;
    MUST(cuCtxSetCurrent(thread->context));
    repeat(steps[thread->number], thread->number);
    return NULL;
}

static void run_target(void) {
    struct thread threads[THREADS];
    CUcontext context = join_device();
    CUdeviceptr kept;
    unsigned char back[3 * DEVICE_PAGE];
    MUST(cuMemAlloc_v2(&kept, sizeof back));
    MUST(cuMemsetD8_v2(kept, 0xC3, sizeof back));
    say_ready();
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.context = context, .number = i};
        if (pthread_create(&threads[i].id, NULL, run_thread, &threads[i])) fail("no thread");
    }
    for (long done = 0; goes_on(done); done++) {
        memset(back, 0, sizeof back);
        MUST(cuMemcpyDtoH_v2(back, kept, sizeof back));
        check_bytes(back, 0xC3, sizeof back);
    }
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i].id, NULL);
    MUST(cuMemFree_v2(kept));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
}

static void run_cycle(int pid) {
    CUprocessState state;
    MUST(cuInit(0));
    for (int tries = 0; cuCheckpointProcessGetState(pid, &state); tries++) {  // it may still be on its way
        if (tries == 10000) fail("process %d does not appear", pid);
        usleep(1000);
    }
    say_ready();
    for (long done = 0; goes_on(done); done++) {
        query_step(pid);
        if (!cycle_step(pid)) return;
    }
}

// ---- single steps, for kills before each store

static void run_victim(void) {
    CUdeviceptr kept;
    unsigned char back[3 * DEVICE_PAGE];
    join_device();
    MUST(cuMemAlloc_v2(&kept, sizeof back));
    MUST(cuMemsetD8_v2(kept, 0xC3, sizeof back));
    say_ready();
    while (!ended) pause();
    MUST(cuMemcpyDtoH_v2(back, kept, sizeof back));
    check_bytes(back, 0xC3, sizeof back);
}

static const char *const calls[] = {"lock", "checkpoint", "restore", "unlock"};

static bool is_call(const char *name) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(name, calls[i]) == 0) return true;
    return false;
}

static void run_call(const char *name, int pid) {
    MUST(cuInit(0));
    say_ready();
    if (name[0] == 'l') MUST(cuCheckpointProcessLock(pid, NULL));
    if (name[0] == 'c') MUST(cuCheckpointProcessCheckpoint(pid, NULL));
    if (name[0] == 'r') MUST(cuCheckpointProcessRestore(pid, NULL));
    if (name[0] == 'u') MUST(cuCheckpointProcessUnlock(pid, NULL));
}

static void run_inject(void) {
    char why[300], *words[] = {"fail", "op=alloc", "code=801"};
    struct gm *gm = gm_open(NULL);
    if (!gm) fail("no mock GPUs");
    say_ready();
    int id = gm_inject(gm, 3, words, why, sizeof why);
    if (id <= 0 || !gm_fault_remove(gm, (uint32_t)id)) fail("inject: %s", why);
}

static pid_t start_child(void (*run)(int), int argument) {
    pid_t child = fork();
    if (child < 0) fail("no process");
    if (child == 0) {
        run(argument);
        exit(0);
    }
    return child;
}

static void run_target_child(int argument) {
    (void)argument;
    run_target();
}

static void run_alloc_child(int argument) {
    join_device();
    repeat(alloc_step, (unsigned)argument);
    MUST(cuDevicePrimaryCtxRelease_v2(0));
}

static void run_together(void) {
    pid_t target = start_child(run_target_child, 0);
    pid_t children[] = {start_child(run_alloc_child, 7), target, start_child(run_cycle, target)};
    bool fine = true;
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        int status;
        if (waitpid(children[i], &status, 0) < 0 || status) fine = false;
        if (status) fprintf(stderr, "child %zu ended with status %d\n", i, status);
    }
    if (!fine) exit(1);
}

static char *read_file(const char *path) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    char *text = calloc(1, 1 << 16);
    if (!file || !text || !fread(text, 1, (1 << 16) - 1, file)) fail("GPU_MOCK_PTX must name the file with the kernels");
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    iterations = argc > 2 ? atol(argv[2]) : 0;
    int pid = argc > 3 ? atoi(argv[3]) : 0;
    ptx = read_file(getenv("GPU_MOCK_PTX"));
    static const struct {
        const char *name;
        step_function *step;
    } simple[] = {
        {"alloc", alloc_step}, {"copy", copy_step}, {"launch", launch_step}, {"context", context_step},
        {"wrong", wrong_step}, {"nvml", nvml_step}, {"fall", fall_step},
    };
    if (strcmp(mode, "init") == 0) {
        say_ready();
        join_device();
    } else if (strcmp(mode, "victim") == 0) {
        run_victim();
    } else if (strcmp(mode, "inject") == 0) {
        run_inject();
    } else if (is_call(mode)) {
        run_call(mode, pid);
    } else if (strcmp(mode, "target") == 0) {
        run_target();
    } else if (strcmp(mode, "cycle") == 0) {
        run_cycle(pid);
    } else if (strcmp(mode, "query") == 0) {
        MUST(cuInit(0));
        say_ready();
        for (long done = 0; goes_on(done); done++) query_step(pid);
    } else if (strcmp(mode, "together") == 0) {
        run_together();
    } else {
        size_t i = 0;
        while (i < sizeof simple / sizeof *simple && strcmp(mode, simple[i].name)) i++;
        if (i == sizeof simple / sizeof *simple) fail("stress: no mode %s", mode);
        join_device();
        say_ready();
        repeat(simple[i].step, getenv("STRESS_KILL_BEFORE") ? 1 : (unsigned)getpid());
        MUST(cuDevicePrimaryCtxRelease_v2(0));
    }
    free(ptx);
    return 0;
}
