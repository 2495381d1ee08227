// Included first in every file of the libraries and the command (BUILD, COPTS): they then run on glibc 2.17 and later,
// whichever one they are linked with.
//
// glibc keeps the old versions of what it changed; `.symver` asks for those. The symbols of 2.34 lay in libpthread
// before, which is why that is among the needed libraries. The tag of the wheel follows from this file, and a test
// holds the two together.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#pragma once
#define _GNU_SOURCE  // as the files say themselves, but this one comes before

#if defined(__x86_64__) && defined(__linux__)
#include <sys/stat.h>

__asm__(".symver pthread_condattr_setclock, pthread_condattr_setclock@GLIBC_2.3.3");
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_once, pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_rdlock, pthread_rwlock_rdlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_unlock, pthread_rwlock_unlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_wrlock, pthread_rwlock_wrlock@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");

// Before 2.33 these two were not functions of the library; what they called is there still.
int __fxstat(int version, int fd, struct stat *result);
int __xstat(int version, const char *path, struct stat *result);
static inline int gm_fstat(int fd, struct stat *result) { return __fxstat(1, fd, result); }
static inline int gm_stat(const char *path, struct stat *result) { return __xstat(1, path, result); }
#define fstat(fd, result) gm_fstat(fd, result)
#define stat(path, result) gm_stat(path, result)
#endif
