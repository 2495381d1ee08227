// How it counts: the state is mapped read-only in this process, so each store faults. The handler opens that page, lets the
// thread make one step, and closes the page again. Stores of another thread to the same page during that step are not counted.
// x86-64 Linux only (the trap flag); stores by the kernel on our behalf (read into the state) fail instead.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "store_kills.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "../state.h"

enum { TRAP_FLAG = 0x100, PAGE = 4096 };

static unsigned kill_at;
static _Atomic unsigned counted;
static uintptr_t begin, end;
static __thread uintptr_t opened_page;

static void on_store(int number, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)info->si_addr;
    (void)number;
    if (at < begin || at >= end) abort();
    if (++counted == kill_at) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    opened_page = at / PAGE * PAGE;
    mprotect((void *)opened_page, PAGE, PROT_READ | PROT_WRITE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    mprotect((void *)opened_page, PAGE, PROT_READ);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
}

void store_kills_begin(unsigned kill_before) {
    struct sigaction store = {.sa_sigaction = on_store, .sa_flags = SA_SIGINFO}, step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    struct gm *gm = gm_open(NULL);
    if (!gm) abort();
    kill_at = kill_before;
    begin = (uintptr_t)gm->shared;
    end = begin + sizeof *gm->shared;
    sigaction(SIGSEGV, &store, NULL);
    sigaction(SIGTRAP, &step, NULL);
    mprotect(gm->shared, sizeof *gm->shared, PROT_READ);
}

unsigned store_kills_counted(void) { return counted; }
