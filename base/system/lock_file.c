#include "base/system/lock_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
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

/* Returns true if a text of the kernel has a line of a held flock(2) that contains `words`. */
static bool has_flock(FILE *text, const char *words)
{
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof(line), text))
        found = strstr(line, "FLOCK ") && !strstr(line, "->") && strstr(line, words);
    return found;
}

/* Searches /proc/locks, the kernel's list of all locks. Every user may read the list. The pid of an
 * entry names the process that took the lock. By now, another process may have that pid. */
static bool is_in_proc_locks(pid_t pid, const struct stat *file)
{
    char words[96];
    snprintf(words, sizeof(words), " WRITE %d %02x:%02x:%llu ", (int)pid, major(file->st_dev),
             minor(file->st_dev), (unsigned long long)file->st_ino);
    FILE *list = fopen("/proc/locks", "re");
    bool found = list && has_flock(list, words);
    if (list)
        fclose(list);
    return found;
}

/* Returns true if the process's descriptor `name` is open on the file and holds the lock. Sets
 * *denied if this process may not see the descriptor. A process with more capabilities shows the
 * names of its descriptors but not their targets. */
static bool descriptor_locks(pid_t pid, int descriptors, const char *name, const struct stat *file,
                             bool *denied)
{
    struct stat at;
    char path[64];
    if (fstatat(descriptors, name, &at, 0) != 0) {
        *denied |= errno == EACCES || errno == EPERM;
        return false;
    }
    if (at.st_ino != file->st_ino || at.st_dev != file->st_dev)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/fdinfo/%.16s", (int)pid, name);
    FILE *info = fopen(path, "re");
    bool found = info && has_flock(info, " WRITE ");
    if (info)
        fclose(info);
    return found;
}

/* Returns true if process `pid` holds the lock. The lock file's text alone proves nothing: the
 * process's descriptors do, or /proc/locks if the descriptors are not readable. */
static bool has_lock(pid_t pid, int fd)
{
    char path[32];
    struct stat file;
    bool found = false, denied = false;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    if (fstat(fd, &file) != 0)
        return false;
    DIR *descriptors = opendir(path);
    if (!descriptors)
        return errno == EACCES && is_in_proc_locks(pid, &file);
    for (const struct dirent *entry; !found && (entry = readdir(descriptors)) != NULL;)
        found = entry->d_name[0] != '.' &&
                descriptor_locks(pid, dirfd(descriptors), entry->d_name, &file, &denied);
    closedir(descriptors);
    return found || (denied && is_in_proc_locks(pid, &file));
}

/* Returns the process that a locked file names, if that process holds the lock; otherwise -1. */
static pid_t named_holder(int fd)
{
    long pid = read_pid(fd);
    return pid > 0 && pid <= INT_MAX && has_lock((pid_t)pid, fd) ? (pid_t)pid : -1;
}

static int try_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

/* Takes the lock, waiting at most half a second for a holder that the file does not name. Unnamed
 * holders last milliseconds: a child of a killed process before exec, or a process in
 * lock_file_owner(). Or the holder has not yet written its pid. Returns 0 or the errno of the
 * lock. */
static int lock_with_patience(int fd)
{
    enum { TRIES = 50, PAUSE_NS = 10 * 1000 * 1000 };
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    int err_no = try_lock(fd);
    for (int i = 0; i < TRIES && err_no == EWOULDBLOCK && named_holder(fd) < 0; i++) {
        nanosleep(&pause, NULL);
        err_no = try_lock(fd);
    }
    return err_no;
}

/* Opens a regular file without blocking; opening a FIFO would block until a writer comes. */
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
    int err_no = lock_with_patience(fd);
    if (err_no != 0) {
        pid_t pid = err_no == EWOULDBLOCK ? named_holder(fd) : -1;
        close(fd);
        if (err_no != EWOULDBLOCK)
            return error_errno(err, err_no, "%s", path);
        if (pid > 0)
            error_set(err, STATUS_FAILED_PRECONDITION, "%s: locked by pid %d", path, (int)pid);
        else
            error_set(err, STATUS_FAILED_PRECONDITION, "%s: locked by another process", path);
        return error_reason(err, REASON_LOCKED);
    }
    char text[32];
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    /* The pid is only information. On a full disk the lock holds without it. */
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

int lock_file_open(const char *path, int *out_fd, struct error *err)
{
    int fd = open_regular(path, O_RDONLY, err);
    if (fd < 0)
        return fd;
    *out_fd = fd;
    return 0;
}

pid_t lock_file_owner(int fd, int *out_pidfd)
{
    *out_pidfd = -1;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0)
        return 0;
    long named = read_pid(fd);
    if (named <= 0 || named > INT_MAX)
        return -1;
    /* Opened before the check: the named process then holds the lock, or has ended. */
    int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)named, 0);
    pid_t pid = named_holder(fd);
    if (pid == named) {
        *out_pidfd = pidfd;
        return pid;
    }
    if (pidfd >= 0)
        close(pidfd);
    return -1;
}

/* Makes an inotify of the open lock file; -1: the kernel gives no more of them. */
static int watch_file(int fd)
{
    char path[64];
    int changes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (changes >= 0)
        (void)inotify_add_watch(changes, path, IN_MODIFY | IN_CLOSE);
    return changes;
}

/* Waits for a change of the file. *closed: a process has closed the file. */
static void wait_for_change(int changes, int64_t wait_ns, bool *closed)
{
    _Alignas(struct inotify_event) char events[4096];
    struct pollfd ready = {.fd = changes, .events = POLLIN};
    const struct timespec limit = {.tv_sec = wait_ns / NS_PER_S, .tv_nsec = wait_ns % NS_PER_S};
    (void)ppoll(&ready, 1, &limit, NULL);
    ssize_t n = changes >= 0 ? read(changes, events, sizeof(events)) : 0;
    struct inotify_event event;
    *closed = false;
    for (ssize_t at = 0; at < n; at += (ssize_t)(sizeof(event) + event.len)) {
        memcpy(&event, events + at, sizeof(event));
        *closed |= (event.mask & IN_CLOSE) != 0;
    }
}

pid_t lock_file_await_owner(int fd, uint32_t wait_ms, int *out_pidfd)
{
    static const int64_t settle_ns = 10 * NS_PER_MS; /* the kernel reports a close just before it
                                                      * drops the lock */
    int64_t end_ns = clock_now_ns() + wait_ms * NS_PER_MS, left_ns = wait_ms * NS_PER_MS;
    int changes = watch_file(fd);
    bool closed = false;
    pid_t pid;
    while ((pid = lock_file_owner(fd, out_pidfd)) < 0 && left_ns > 0) {
        wait_for_change(changes, closed && left_ns > settle_ns ? settle_ns : left_ns, &closed);
        left_ns = end_ns - clock_now_ns();
    }
    if (changes >= 0)
        close(changes);
    return pid;
}

pid_t lock_file_holder(const char *path)
{
    struct error err;
    int fd, pidfd;
    if (lock_file_open(path, &fd, &err) != 0)
        return 0;
    pid_t pid = lock_file_owner(fd, &pidfd);
    if (pidfd >= 0)
        close(pidfd);
    close(fd);
    return pid;
}
