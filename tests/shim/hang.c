// A disk that hangs or fails on purpose, for a process that loads this before its libraries (LD_PRELOAD).
//
// Calls on files below HANG_DIR stand still while the file HANG_CONTROL begins with `hang`, and fail with EIO
// while it begins with `eio`. Page faults of mapped files are not calls, and go on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// What HANG_CONTROL says, by system calls alone: 'h', 'e', or 0.
static char told(void) {
    static const char *control;
    if (!control && !(control = getenv("HANG_CONTROL"))) return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char first = 0;
    if (syscall(SYS_read, fd, &first, 1) != 1) first = 0;
    syscall(SYS_close, fd);
    return first;
}

static int is_below(const char *path) {
    const char *dir = getenv("HANG_DIR");
    return dir && path && strncmp(path, dir, strlen(dir)) == 0;
}

// Stands still, or says that the call is to fail.
static int fails(void) {
    for (;;) {
        switch (told()) {
        case 'h':
            usleep(20000);
            continue;
        case 'e':
            errno = EIO;
            return 1;
        default:
            return 0;
        }
    }
}

static int path_fails(const char *path) { return told() && is_below(path) && fails(); }

static int fd_fails(int fd) {
    if (!told()) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return is_below(path) && fails();
}

#define NEXT(type, name, ...)                                                                                  \
    static type (*next)(__VA_ARGS__);                                                                          \
    if (!next) next = dlsym(RTLD_NEXT, name)

#define OPEN(name)                                                                                             \
    int name(const char *path, int flags, ...) {                                                               \
        NEXT(int, #name, const char *, int, ...);                                                              \
        va_list rest;                                                                                          \
        va_start(rest, flags);                                                                                 \
        mode_t mode = va_arg(rest, mode_t);                                                                    \
        va_end(rest);                                                                                          \
        return path_fails(path) ? -1 : next(path, flags, mode);                                                \
    }
OPEN(open)
OPEN(open64)

#define ON_FD(type, name, parameters, arguments, fd)                                                           \
    type name parameters {                                                                                     \
        static type(*next) parameters;                                                                         \
        if (!next) next = dlsym(RTLD_NEXT, #name);                                                             \
        return fd_fails(fd) ? (type)-1 : next arguments;                                                       \
    }
ON_FD(ssize_t, read, (int fd, void *into, size_t n), (fd, into, n), fd)
ON_FD(ssize_t, pread, (int fd, void *into, size_t n, off_t at), (fd, into, n, at), fd)
ON_FD(ssize_t, pread64, (int fd, void *into, size_t n, off64_t at), (fd, into, n, at), fd)
ON_FD(ssize_t, preadv, (int fd, const struct iovec *into, int n, off_t at), (fd, into, n, at), fd)
ON_FD(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), fd)
ON_FD(ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n), fd)
ON_FD(ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at), (fd, from, n, at), fd)
ON_FD(int, fsync, (int fd), (fd), fd)
ON_FD(int, fdatasync, (int fd), (fd), fd)

#define ON_PATH(type, name, parameters, arguments, path)                                                       \
    type name parameters {                                                                                     \
        static type(*next) parameters;                                                                         \
        if (!next) next = dlsym(RTLD_NEXT, #name);                                                             \
        return path_fails(path) ? (type)-1 : next arguments;                                                   \
    }
ON_PATH(int, rename, (const char *from, const char *to), (from, to), to)
ON_PATH(int, unlink, (const char *path), (path), path)
ON_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode), path)

int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict into) {
    NEXT(int, "statx", int, const char *restrict, int, unsigned, struct statx *restrict);
    int failed = *path ? path_fails(path) : fd_fails(at);
    return failed ? -1 : next(at, path, flags, mask, into);
}
