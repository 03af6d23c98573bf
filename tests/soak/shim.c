/* Loaded into a service by LD_PRELOAD: its wall clock is wrong, and its disk is full, when a control file says so.

   SOAK_CONTROL names a file of two 64-bit integers: nanoseconds that are added to the wall clock, and whether files
   below SOAK_DISK are refused more bytes. The monotonic clock stays as it is, as with a real wrong clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control { int64_t skew_ns; int64_t disk_full; };
static volatile struct control *control;
static const char *disk;

__attribute__((constructor)) static void open_control(void) {
    const char *path = getenv("SOAK_CONTROL");
    disk = getenv("SOAK_DISK");
    if (!path) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) control = mapped;
}

static void skew(struct timespec *t) {
    if (!control) return;
    int64_t ns = (int64_t)t->tv_nsec + control->skew_ns % 1000000000;
    t->tv_sec += control->skew_ns / 1000000000;
    if (ns < 0) { ns += 1000000000; t->tv_sec--; }
    if (ns >= 1000000000) { ns -= 1000000000; t->tv_sec++; }
    t->tv_nsec = ns;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int done = (int)syscall(SYS_clock_gettime, clock, t);
    if (done == 0 && clock == CLOCK_REALTIME) skew(t);
    return done;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

static int full(int fd) {
    if (!control || !control->disk_full || !disk) return 0;
    char link[64], path[4096];
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    if (strncmp(path, disk, strlen(disk)) != 0) return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int fd, const void *body, size_t n) { return full(fd) ? -1 : syscall(SYS_write, fd, body, n); }
ssize_t pwrite(int fd, const void *body, size_t n, off_t at) { return full(fd) ? -1 : syscall(SYS_pwrite64, fd, body, n, at); }
ssize_t pwrite64(int fd, const void *body, size_t n, off_t at) { return full(fd) ? -1 : syscall(SYS_pwrite64, fd, body, n, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { return full(fd) ? -1 : syscall(SYS_writev, fd, parts, n); }
ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t n, unsigned flags) {
    return full(out) ? -1 : syscall(SYS_copy_file_range, in, from, out, to, n, flags);
}
ssize_t sendfile64(int out, int in, off_t *from, size_t n) { return full(out) ? -1 : syscall(SYS_sendfile, out, in, from, n); }
ssize_t sendfile(int out, int in, off_t *from, size_t n) { return full(out) ? -1 : syscall(SYS_sendfile, out, in, from, n); }
