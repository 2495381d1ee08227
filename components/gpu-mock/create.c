// Making the folder of the shared state.
//
// Copyright 2026 The timeslice authors. SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state_parts.h"

int gm_open_in(const char *dir, const char *name, int flags, mode_t mode) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, flags | O_CLOEXEC, mode);
    if (fd >= 0 && (flags & O_CREAT)) (void)!fchmod(fd, mode);  // all users of the machine share it, whatever the umask
    return fd;
}

bool gm_parse_bytes(const char *text, uint64_t *bytes) {
    static const struct { const char *unit; uint64_t factor; } units[] = {
        {"", 1}, {"B", 1}, {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}, {"TiB", 1ull << 40},
        {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000},
    };
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno || number < 0) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0) {
            double value = number * (double)units[i].factor;
            if (!(value < 1e18)) return false;
            *bytes = (uint64_t)value;
            return true;
        }
    return false;
}

bool gm_parse_devices(const char *text, struct gm_recipe *recipe) {
    char *end;
    unsigned long count = strtoul(text, &end, 10);
    if (end == text || *end != 'x' || count < 1 || count > GM_MAX_DEVICES) return false;
    if (!gm_parse_bytes(end + 1, &recipe->memory_bytes) || recipe->memory_bytes < GM_PAGE) return false;
    recipe->memory_bytes -= recipe->memory_bytes % GM_PAGE;
    recipe->device_count = (unsigned)count;
    return true;
}

static void name_device(struct gm_device *device, unsigned index) {
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, device->uuid, 16) != 16) {
        uint64_t noise[2] = {gm_now_ns() * 0x9e3779b97f4a7c15u, ((uint64_t)getpid() << 32) + index};
        memcpy(device->uuid, noise, 16);
    }
    if (fd >= 0) close(fd);
    device->uuid[6] = (uint8_t)((device->uuid[6] & 0x0f) | 0x40);
    device->uuid[8] = (uint8_t)((device->uuid[8] & 0x3f) | 0x80);
    char *at = device->uuid_text + sprintf(device->uuid_text, "GPU-");
    for (int i = 0; i < 16; i++) at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", device->uuid[i]);
    device->pci_bus = 1 + index;
    snprintf(device->pci_bus_id, sizeof device->pci_bus_id, "%08X:%02X:%02X.0", device->pci_domain, device->pci_bus,
             device->pci_device);
}

bool gm_create(const char *dir, const struct gm_recipe *recipe, char *why, size_t why_size) {
    if (mkdir(dir, 0777) == 0) {
        (void)!chmod(dir, 0777);
    } else if (errno != EEXIST) {
        snprintf(why, why_size, "cannot create %.150s: %s", dir, strerror(errno));
        return false;
    }
    // Everything but `state` first: who sees `state` sees all.
    const char *step = "locks";
    int fd = gm_open_in(dir, step, O_RDWR | O_CREAT, 0666);
    if (fd < 0) goto failed;
    close(fd);
    step = "journal";
    if ((fd = gm_open_in(dir, step, O_RDWR | O_CREAT, 0666)) < 0) goto failed;
    close(fd);
    for (unsigned i = 0; i < recipe->device_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "device%u", i);
        step = "the device files";
        if ((fd = gm_open_in(dir, name, O_RDWR | O_CREAT, 0666)) < 0) goto failed;
        int error = ftruncate(fd, (off_t)recipe->memory_bytes) ? errno : 0;
        if (!error && recipe->prefault_bytes) error = posix_fallocate(fd, 0, (off_t)recipe->prefault_bytes);
        close(fd);
        errno = error;
        if (error) goto failed;
    }
    step = "state";
    char draft[64], from[300], to[300];
    snprintf(draft, sizeof draft, ".state.%d.%llu", (int)getpid(), (unsigned long long)gm_now_ns());
    if ((fd = gm_open_in(dir, draft, O_RDWR | O_CREAT | O_EXCL, 0666)) < 0) goto failed;
    struct gm_shared *shared = MAP_FAILED;
    if (ftruncate(fd, sizeof *shared) == 0) shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    snprintf(from, sizeof from, "%s/%s", dir, draft);
    snprintf(to, sizeof to, "%s/state", dir);
    if (shared == MAP_FAILED) {
        unlink(from);
        goto failed;
    }
    shared->magic = GM_MAGIC;
    shared->version = GM_VERSION;
    shared->size = sizeof *shared;
    shared->device_count = recipe->device_count;
    shared->cuda_version = recipe->cuda_version ? recipe->cuda_version : 13000;
    snprintf(shared->driver_version, sizeof shared->driver_version, "580.82.07");
    shared->init_delay_us = recipe->init_delay_us;
    shared->util_window_ms = 167;  // NVML documents 1/6 s to 1 s, depending on the product
    shared->next_fault_id = 1;
    for (unsigned i = 0; i < recipe->device_count; i++) {
        struct gm_device *device = &shared->devices[i];
        snprintf(device->name, sizeof device->name, "%s", recipe->name ? recipe->name : "Mock H100 80GB HBM3");
        name_device(device, i);
        device->memory_bytes = recipe->memory_bytes;
        device->prefault_bytes = recipe->prefault_bytes;
    }
    munmap(shared, sizeof *shared);
    int linked = link(from, to);  // unlike rename, it does not replace what somebody else made meanwhile
    int error = errno;
    unlink(from);
    if (linked && error != EEXIST) {
        errno = error;
        goto failed;
    }
    return true;
failed:
    snprintf(why, why_size, "cannot create %s in %.150s: %s", step, dir, strerror(errno));
    return false;
}
