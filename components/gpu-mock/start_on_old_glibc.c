// The command's first step, for glibc 2.17 (see glibc_2_17.h): what the linker's start-up code calls got a new version in
// 2.34. The linker is told to call this instead (--wrap), and this calls the old version, which does the same.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
typedef int main_function(int, char **, char **);

int old_start(main_function *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");

int start(main_function *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *)
    __asm__("__wrap___libc_start_main");

int start(main_function *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*at_exit)(void),
          void *stack_end) {
    return old_start(main, argc, argv, init, fini, at_exit, stack_end);
}
