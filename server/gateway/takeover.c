#include "server/gateway/takeover.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/lock_file.h"

enum { LOOK_MS = 5, MAX_NAME = 32 };
/* Time for the old server between its check of PATH.next and the release of the lock. */
enum { CLOSING_MS = 200 };
enum { MAX_PATH = 4096 + 16 };

static bool is_server(int pid)
{
    char path[64], name[MAX_NAME] = "";
    snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, name, sizeof(name) - 1);
    close(fd);
    return n > 0 && strcmp(name, "sluice-server\n") == 0;
}

/* Finds the process that holds the lock, as a pidfd, which no other process can reuse. */
static int find_old(const char *path, struct takeover *takeover, struct error *err)
{
    int fd, pidfd;
    if (lock_file_open(path, &fd, err) != 0)
        return err->status;
    pid_t pid = lock_file_owner(fd, &pidfd);
    close(fd);
    if (pid == 0)
        return error_set(err, STATUS_UNAVAILABLE, "%s: the lock is changing hands; try again",
                         path);
    if (pid > 0 && pidfd >= 0 && is_server(pid)) {
        takeover->old = pidfd;
        takeover->old_pid = pid;
        return 0;
    }
    if (pidfd >= 0)
        close(pidfd);
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "%s: the holder of the lock is not a sluice-server that can be replaced",
                     path);
}

static int take_next(const char *path, int *out_next, struct error *err)
{
    char next[MAX_PATH];
    snprintf(next, sizeof(next), "%s.next", path);
    return lock_file_take(next, out_next, err);
}

static pid_t next_holder(const char *path)
{
    char next[MAX_PATH];
    snprintf(next, sizeof(next), "%s.next", path);
    return lock_file_holder(next);
}

bool takeover_is_wanted(const char *path)
{
    return *path && next_holder(path) != 0;
}

static void close_next(struct takeover *takeover)
{
    if (takeover->next >= 0)
        close(takeover->next);
    takeover->next = -1;
}

/* The lock is free for a moment after the old server has released it. The lock belongs to a
 * waiting successor then. */
static int leave_to_next(const char *path, struct takeover *takeover, struct error *err)
{
    pid_t next = next_holder(path);
    if (next == 0)
        return 0;
    takeover_release(takeover);
    if (next > 0)
        error_set(err, STATUS_FAILED_PRECONDITION, "%s: locked by pid %ld, which is taking over",
                  path, (long)next);
    else
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "%s: locked by another process, which is taking over", path);
    return error_reason(err, REASON_LOCKED);
}

int takeover_begin(const char *path, bool replace, struct takeover *out_takeover, struct error *err)
{
    *out_takeover = (struct takeover){-1, -1, -1, 0};
    if (!*path)
        return 0;
    int rc = lock_file_take(path, &out_takeover->lock, err);
    if (rc == 0)
        return leave_to_next(path, out_takeover, err);
    if (err->reason != REASON_LOCKED)
        return rc;
    if (!replace)
        return rc;
    rc = take_next(path, &out_takeover->next, err);
    return rc ? rc : find_old(path, out_takeover, err);
}

int takeover_finish(struct takeover *takeover, const char *path, uint64_t limit_ms,
                    struct error *err)
{
    int64_t end_ns = clock_now_ns() + (int64_t)limit_ms * NS_PER_MS;
    bool gone = syscall(SYS_pidfd_send_signal, takeover->old, TAKEOVER_SIGNAL, NULL, 0) != 0;
    if (gone && errno != ESRCH)
        return error_errno(err, errno, "cannot signal process %d, which holds %s",
                           takeover->old_pid, path);
    int rc = lock_file_take(path, &takeover->lock, err);
    while (rc != 0 && err->reason == REASON_LOCKED) {
        struct pollfd end = {.fd = takeover->old, .events = POLLIN};
        bool late = clock_now_ns() >= end_ns;
        if (late && takeover->next < 0)
            return error_set(err, STATUS_DEADLINE_EXCEEDED,
                             "process %d has not released %s within %llu ms and continues to serve",
                             takeover->old_pid, path, (unsigned long long)limit_ms);
        if (late) { /* the old server may have checked PATH.next just now */
            close_next(takeover);
            end_ns += CLOSING_MS * NS_PER_MS;
        }
        poll(&end, gone ? 0 : 1, LOOK_MS);
        gone = gone || end.revents != 0;
        rc = lock_file_take(path, &takeover->lock, err);
    }
    close_next(takeover);
    close(takeover->old);
    takeover->old = -1;
    return rc;
}

int takeover_renew(struct takeover *takeover, const char *path, struct error *err)
{
    int fd;
    if (takeover->lock < 0 || lock_file_is_at(path, takeover->lock))
        return 0;
    int rc = lock_file_take(path, &fd, err);
    if (rc)
        return rc;
    close(takeover->lock);
    takeover->lock = fd;
    return 1;
}

bool takeover_alone(const char *path, void (*restore)(void))
{
    struct error err;
    int next;
    if (!*path || take_next(path, &next, &err) != 0)
        return false;
    restore();
    close(next);
    return true;
}

void takeover_release(struct takeover *takeover)
{
    if (takeover->lock >= 0)
        close(takeover->lock);
    takeover->lock = -1;
}
