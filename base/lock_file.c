#include "base/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

static long read_pid(int fd)
{
    char text[32];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    return strtol(text, NULL, 10);
}

static bool is_gone(long pid)
{
    return pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static int try_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

/* A process that was killed while it started another leaves the lock to that one until it has
 * become its program: a matter of milliseconds. Returns 0 or an errno: that of the lock, not of the
 * looks at its holder. */
static int lock(int fd)
{
    enum { TRIES = 50, PAUSE_NS = 10 * 1000 * 1000 };
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    int err_no = try_lock(fd);
    for (int i = 0; i < TRIES && err_no == EWOULDBLOCK && is_gone(read_pid(fd)); i++) {
        nanosleep(&pause, NULL);
        err_no = try_lock(fd);
    }
    return err_no;
}

/* Without waiting: opening a FIFO would, for whoever comes to write to it. */
static int open_regular(const char *path, int flags, struct error *err)
{
    struct stat info;
    int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_errno(err, errno, "%s", path);
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        return fd;
    close(fd);
    return error_set(err, STATUS_FAILED_PRECONDITION, "%s: not a regular file", path);
}

int lock_file_take(const char *path, int *out_fd, struct error *err)
{
    int fd = open_regular(path, O_RDWR | O_CREAT, err);
    if (fd < 0)
        return fd;
    int err_no = lock(fd);
    if (err_no != 0) {
        long pid = read_pid(fd);
        close(fd);
        if (err_no != EWOULDBLOCK)
            return error_errno(err, err_no, "%s", path);
        if (pid > 0)
            error_set(err, STATUS_FAILED_PRECONDITION, "%s: locked by pid %ld", path, pid);
        else
            error_set(err, STATUS_FAILED_PRECONDITION, "%s: locked by another process", path);
        return error_reason(err, "LOCKED");
    }
    char text[32];
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    /* The pid only informs; on a full disk the lock still holds. */
    if (ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) < 0)
        (void)ftruncate(fd, 0);
    *out_fd = fd;
    return 0;
}

bool lock_file_is_at(const char *path, int fd)
{
    struct stat there, ours;
    return lstat(path, &there) == 0 && fstat(fd, &ours) == 0 && there.st_ino == ours.st_ino &&
           there.st_dev == ours.st_dev;
}

pid_t lock_file_holder(const char *path)
{
    struct error err;
    int fd = open_regular(path, O_RDONLY, &err);
    if (fd < 0)
        return 0;
    long pid = 0;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
        pid = read_pid(fd);
        pid = pid > 0 ? pid : -1;
    }
    close(fd);
    return (pid_t)pid;
}
