/* Faults between SQLite and the disk, for tests; loaded with LD_PRELOAD.
 *
 * Only files whose path begins with the prefix in the control block are touched, and
 * only in the process it names. The block is a shared mapping of the file that FAULTS
 * names: a test in another process counts calls, arms rules and takes them back while
 * the program runs. With `record` set, every change is appended to FAULTS.rec in the
 * order in which the kernel saw it, so that what a power cut would leave can be built
 * for any moment afterwards. See shim.py, which mirrors the structures.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WRITE, SYNC, TRUNCATE, OPEN, READ, UNLINK, N_KINDS };
enum { GROWING = 1, SHORT = 2 };     /* only what makes a file longer; half of the first is done */
enum { MAX_FD = 4096, MAX_NAME = 24 };
enum { EVERYBODY = -1 };              /* instead of the number of a process */

struct rule {
    int64_t first, last;             /* calls of this kind, from 1; 0 = never */
    int32_t error, how;
};

struct control {
    int64_t pid;                     /* 0: nobody */
    int64_t record;
    struct rule rules[N_KINDS];
    int64_t seen[N_KINDS];
    int64_t failed[N_KINDS];
    char prefix[1024];
};

struct entry {                       /* of the record; then the name, then the bytes */
    int64_t offset, start_ns;
    uint32_t n;
    uint8_t kind, name_n, created, failed;
};

static struct control *control;
static int record_fd = -1;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static char names[MAX_FD][MAX_NAME];     /* "" = not ours; "/" = the directory; else "=" and the suffix */

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    static void load_##name(void) { if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name); }

REAL(int, open64, const char *, int, ...)
REAL(int, openat64, int, const char *, int, ...)
REAL(int, close, int)
REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t)
REAL(ssize_t, write, int, const void *, size_t)
REAL(ssize_t, pread64, int, void *, size_t, off64_t)
REAL(ssize_t, read, int, void *, size_t)
REAL(int, ftruncate64, int, off64_t)
REAL(int, fsync, int)
REAL(int, fdatasync, int)
REAL(int, unlink, const char *)

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("FAULTS");
    char record[PATH_MAX];
    load_open64(); load_openat64(); load_close(); load_pwrite64(); load_write(); load_pread64();
    load_read(); load_ftruncate64(); load_fsync(); load_fdatasync(); load_unlink();
    if (!path || strlen(path) + 5 > sizeof record)
        return;
    int fd = real_open64(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    real_close(fd);
    if (at == MAP_FAILED)
        return;
    strcat(strcpy(record, path), ".rec");
    record_fd = real_open64(record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    control = at;
}

static int mine(void)
{
    return control && control->pid && (control->pid == getpid() || control->pid == EVERYBODY);
}

/* The name under which a path is ours, or NULL. */
static const char *name_of(const char *path, char *out)
{
    size_t n = strlen(control->prefix);
    if (!n || !path)
        return NULL;
    if (!strncmp(path, control->prefix, n) && strlen(path) - n < MAX_NAME - 2 && !strchr(path + n, '/')) {
        out[0] = '=';
        return strcpy(out + 1, path + n) - 1;
    }
    const char *slash = strrchr(control->prefix, '/');
    if (slash && strlen(path) == (size_t)(slash - control->prefix) && !strncmp(path, control->prefix, strlen(path)))
        return strcpy(out, "/");
    return NULL;
}

static const char *name_at(int fd)
{
    return mine() && fd >= 0 && fd < MAX_FD && names[fd][0] ? names[fd] : NULL;
}

/* 0, or what this call fails with; *half when half of it is to be done first. */
static int decide(int kind, int growing, int *half)
{
    int64_t n = __atomic_add_fetch(&control->seen[kind], 1, __ATOMIC_SEQ_CST);
    struct rule rule = control->rules[kind];
    if (half)
        *half = 0;
    if (!rule.first || n < rule.first || n > rule.last || ((rule.how & GROWING) && !growing))
        return 0;
    int64_t failed = __atomic_add_fetch(&control->failed[kind], 1, __ATOMIC_SEQ_CST);
    if (half && (rule.how & SHORT) && failed == 1)
        *half = 1;
    return rule.error;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void note(const char *name, int kind, int64_t start_ns, int64_t offset, const void *p, size_t n, int created,
                 int failed)
{
    struct entry entry = {offset, start_ns, (uint32_t)n, (uint8_t)kind, (uint8_t)strlen(name), (uint8_t)created,
                          (uint8_t)failed};
    char *whole = malloc(sizeof entry + entry.name_n + n);
    memcpy(whole, &entry, sizeof entry);
    memcpy(whole + sizeof entry, name, entry.name_n);
    if (n)
        memcpy(whole + sizeof entry + entry.name_n, p, n);
    ssize_t written = real_write(record_fd, whole, sizeof entry + entry.name_n + n);
    (void)written;
    free(whole);
}

static void begin(int64_t *at)
{
    pthread_mutex_lock(&guard);
    *at = now_ns();
}

static int64_t size_at(int fd)
{
    struct stat64 found;
    return fstat64(fd, &found) ? 0 : found.st_size;
}

static int opened(int fd, const char *name, int existed, int64_t at)
{
    if (fd >= 0 && fd < MAX_FD) {
        strcpy(names[fd], name);
        if (control->record && !existed)
            note(name, OPEN, at, 0, NULL, 0, 1, 0);
    }
    return fd;
}

static int c_open(int directory, const char *path, int flags, mode_t mode)
{
    char room[MAX_NAME];
    const char *name = mine() ? name_of(path, room) : NULL;
    struct stat64 found;
    int64_t at;
    int error, fd, existed;
    if (!name)
        return real_openat64(directory, path, flags, mode);
    begin(&at);
    existed = !stat64(path, &found);
    error = decide(OPEN, !existed, NULL);
    if (error == EROFS && (flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT))
        error = 0;
    fd = error ? -1 : opened(real_openat64(directory, path, flags, mode), name, existed, at);
    if (error)
        errno = error;
    pthread_mutex_unlock(&guard);
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return c_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return c_open(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return c_open(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return c_open(at, path, flags, mode); }
int __open_2(const char *path, int flags) { return c_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return c_open(AT_FDCWD, path, flags, 0); }

int close(int fd)
{
    load_close();
    if (fd >= 0 && fd < MAX_FD)
        names[fd][0] = 0;
    return real_close(fd);
}

static ssize_t c_write(int fd, const void *p, size_t n, off64_t offset, int here)
{
    const char *name = name_at(fd);
    int64_t at;
    int error, half;
    ssize_t done = -1;
    if (!name)
        return here ? real_write(fd, p, n) : real_pwrite64(fd, p, n, offset);
    begin(&at);
    if (here)
        offset = lseek64(fd, 0, SEEK_CUR);
    error = decide(WRITE, offset + (int64_t)n > size_at(fd), &half);
    if (!error || (half && n > 1)) {
        if (half)
            n /= 2;
        done = here ? real_write(fd, p, n) : real_pwrite64(fd, p, n, offset);
        if (control->record && done > 0)
            note(name, WRITE, at, offset, p, (size_t)done, 0, 0);
    } else {
        errno = error;
    }
    pthread_mutex_unlock(&guard);
    return done;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t offset) { load_pwrite64(); return c_write(fd, p, n, offset, 0); }
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t offset) { load_pwrite64(); return c_write(fd, p, n, offset, 0); }
ssize_t write(int fd, const void *p, size_t n) { load_write(); return c_write(fd, p, n, 0, 1); }

static ssize_t c_read(int fd, void *p, size_t n, off64_t offset, int here)
{
    int error = name_at(fd) ? decide(READ, 0, NULL) : 0;
    if (error) {
        errno = error;
        return -1;
    }
    return here ? real_read(fd, p, n) : real_pread64(fd, p, n, offset);
}

ssize_t pread(int fd, void *p, size_t n, off_t offset) { load_pread64(); return c_read(fd, p, n, offset, 0); }
ssize_t pread64(int fd, void *p, size_t n, off64_t offset) { load_pread64(); return c_read(fd, p, n, offset, 0); }
ssize_t read(int fd, void *p, size_t n) { load_read(); return c_read(fd, p, n, 0, 1); }

static int c_truncate(int fd, off64_t size)
{
    const char *name = name_at(fd);
    int64_t at;
    int error, done = -1;
    if (!name)
        return real_ftruncate64(fd, size);
    begin(&at);
    error = decide(TRUNCATE, size > size_at(fd), NULL);
    if (error) {
        errno = error;
    } else {
        done = real_ftruncate64(fd, size);
        if (control->record && !done)
            note(name, TRUNCATE, at, size, NULL, 0, 0, 0);
    }
    pthread_mutex_unlock(&guard);
    return done;
}

int ftruncate(int fd, off_t size) { load_ftruncate64(); return c_truncate(fd, size); }
int ftruncate64(int fd, off64_t size) { load_ftruncate64(); return c_truncate(fd, size); }

static int c_sync(int fd, int (*real)(int))
{
    const char *name = name_at(fd);
    int64_t at;
    int error;
    if (!name)
        return real(fd);
    /* What is not recorded needs no real sync: no machine stops in these tests. */
    begin(&at);
    error = decide(SYNC, 0, NULL);
    if (control->record)
        note(name, SYNC, at, 0, NULL, 0, 0, error != 0);
    if (error)
        errno = error;
    pthread_mutex_unlock(&guard);
    return error ? -1 : 0;
}

int fsync(int fd) { load_fsync(); return c_sync(fd, real_fsync); }
int fdatasync(int fd) { load_fdatasync(); return c_sync(fd, real_fdatasync); }

int unlink(const char *path)
{
    char room[MAX_NAME];
    const char *name = mine() ? name_of(path, room) : NULL;
    int64_t at;
    int error, done = -1;
    load_unlink();
    if (!name)
        return real_unlink(path);
    begin(&at);
    error = decide(UNLINK, 0, NULL);
    if (error) {
        errno = error;
    } else {
        done = real_unlink(path);
        if (control->record && !done)
            note(name, UNLINK, at, 0, NULL, 0, 0, 0);
    }
    pthread_mutex_unlock(&guard);
    return done;
}
