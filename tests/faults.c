/* A file system that fails for a moment: calls on files below a folder fail by chance. To be preloaded.

FAULTS_BELOW   the folder, an absolute path
FAULTS_SEED    of the random numbers; without it nothing fails
FAULTS_ONE_IN  one call of so many fails, with ESTALE, EIO or EINTR
FAULTS_LOG     a file: "<pid> failed <call> <path>", and "<pid> did <call> <path>" of those that replace or open files
*/
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static uint64_t state;
static pid_t drawn_by;

static int below(int at, const char *path, char *whole) {
    const char *folder = getenv("FAULTS_BELOW");
    if (folder == NULL || path == NULL) return 0;
    whole[0] = 0;
    if (path[0] != '/') {
        char link[64];
        snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, whole, PATH_MAX - 1);
        if (length < 0) return 0;
        whole[length] = '/';
        whole[length + 1] = 0;
    }
    strncat(whole, path, 2 * PATH_MAX - strlen(whole) - 1);
    return strncmp(whole, folder, strlen(folder)) == 0;
}

static void note(const char *what, const char *call, const char *path) {
    char line[3 * PATH_MAX];
    const char *name = getenv("FAULTS_LOG");
    if (name == NULL) return;
    int kept = errno, file = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    int length = snprintf(line, sizeof line, "%d %s %s %s\n", getpid(), what, call, path);
    if (file >= 0 && write(file, line, length) < 0) abort();
    syscall(SYS_close, file);
    errno = kept;
}

/* Whether a call fails; errno is set then. */
static int fails(int at, const char *path, const char *call) {
    static const int errors[] = {ESTALE, EIO, EINTR};
    char whole[2 * PATH_MAX];
    const char *seed = getenv("FAULTS_SEED"), *one_in = getenv("FAULTS_ONE_IN");
    if (seed == NULL || one_in == NULL || !below(at, path, whole)) return 0;
    if (drawn_by != getpid()) {  /* also after a fork */
        drawn_by = getpid();
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = 0x9e3779b97f4a7c15ull * (strtoull(seed, NULL, 10) + 1) + now.tv_nsec;
    }
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    if ((state >> 20) % strtoull(one_in, NULL, 10)) return 0;
    note("failed", call, whole);
    errno = errors[(state >> 50) % 3];
    return 1;
}

static void did(int at, const char *path, const char *call) {
    char whole[2 * PATH_MAX];
    if (below(at, path, whole)) note("did", call, whole);
}

#define STAT(name, type) \
    int name(const char *path, struct type *status) { \
        return fails(AT_FDCWD, path, "stat") ? -1 : REAL(name)(path, status); \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define XSTAT(name, type) \
    int name(int version, const char *path, struct type *status); \
    int name(int version, const char *path, struct type *status) { \
        return fails(AT_FDCWD, path, "stat") ? -1 : REAL(name)(version, path, status); \
    }
XSTAT(__xstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat, stat)
XSTAT(__lxstat64, stat64)

#define STATAT(name, type) \
    int name(int at, const char *path, struct type *status, int flags) { \
        return fails(at, path, "stat") ? -1 : REAL(name)(at, path, status, flags); \
    }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

#define XSTATAT(name, type) \
    int name(int version, int at, const char *path, struct type *status, int flags); \
    int name(int version, int at, const char *path, struct type *status, int flags) { \
        return fails(at, path, "stat") ? -1 : REAL(name)(version, at, path, status, flags); \
    }
XSTATAT(__fxstatat, stat)
XSTATAT(__fxstatat64, stat64)

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        if (fails(AT_FDCWD, path, "open")) return -1; \
        int file = REAL(name)(path, flags, mode); \
        if (file >= 0 && flags & O_APPEND) did(AT_FDCWD, path, "append"); \
        return file; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        return fails(at, path, "openat") ? -1 : REAL(name)(at, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

DIR *opendir(const char *path) { return fails(AT_FDCWD, path, "opendir") ? NULL : REAL(opendir)(path); }

int rename(const char *path, const char *other) {
    if (fails(AT_FDCWD, other, "rename")) return -1;
    int result = REAL(rename)(path, other);
    if (result == 0) did(AT_FDCWD, other, "rename");
    return result;
}

int renameat(int at, const char *path, int at_other, const char *other) {
    return fails(at_other, other, "renameat") ? -1 : REAL(renameat)(at, path, at_other, other);
}

int link(const char *path, const char *other) {
    return fails(AT_FDCWD, other, "link") ? -1 : REAL(link)(path, other);
}

int unlink(const char *path) { return fails(AT_FDCWD, path, "unlink") ? -1 : REAL(unlink)(path); }

int unlinkat(int at, const char *path, int flags) {
    return fails(at, path, "unlinkat") ? -1 : REAL(unlinkat)(at, path, flags);
}

int utimensat(int at, const char *path, const struct timespec times[2], int flags) {
    return fails(at, path, "utime") ? -1 : REAL(utimensat)(at, path, times, flags);
}

int fsync(int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length >= 0) path[length] = 0;
    return length >= 0 && fails(AT_FDCWD, path, "fsync") ? -1 : REAL(fsync)(file);
}
