#include "clients/cli/leftover.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "clients/cli/cli.h"
#include "proto/rpc/rpc_message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { WORKER_END_MS = 2000 };

pid_t leftover_manager(const char *state_dir)
{
    char path[1100], text[32] = {0};
    snprintf(path, sizeof(path), "%s/sluice.lock", state_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    long pid = 0;
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && pread(fd, text, sizeof(text) - 1, 0) > 0)
        pid = strtol(text, NULL, 10);
    if (fd >= 0)
        close(fd);
    return pid > 1 ? (pid_t)pid : 0;
}

/* A pid from a message may by now be anybody's. */
static bool runs_program(pid_t pid, const char *name)
{
    char link[64], path[1100];
    snprintf(link, sizeof(link), "/proc/%ld/exe", (long)pid);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(path, '/');
    return slash && strncmp(slash + 1, name, strlen(name)) == 0;
}

static int stop_one(pid_t pid, const char *name, uint32_t grace_ms, struct error *err)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        return errno == ESRCH ? 0 : error_errno(err, errno, "%s, pid %ld", name, (long)pid);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    int status = 0;
    if (runs_program(pid, name)) {
        syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0);
        if (poll(&end, 1, (int)grace_ms) == 0)
            status = error_set(err, STATUS_DEADLINE_EXCEEDED, "%s, pid %ld, has not ended in %u ms",
                               name, (long)pid, grace_ms);
    }
    close(pidfd);
    return status;
}

int leftover_stop(struct cli *cli, uint32_t grace_ms, struct error *err)
{
    Sluice__Manager__V1__GetStatusRequest request = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    int status = cli_call(cli, "GetStatus", &request.base, &message, err);
    if (status != 0)
        return status;
    const Sluice__Manager__V1__GetStatusResponse *known =
        (const Sluice__Manager__V1__GetStatusResponse *)message;
    for (size_t i = 0; i < known->n_servers && status == 0; i++)
        status = stop_one((pid_t)known->servers[i]->pid, "sluice-server", grace_ms, err);
    if (status == 0)
        status = stop_one((pid_t)known->pid, "sluice-manager", grace_ms, err);
    rpc_message_free(message);
    return status;
}

/* Whether one of a program's words is a path below a directory. */
static bool is_told_of(const char *pid, const char *dir)
{
    char path[300], words[8192];
    size_t n_dir = strlen(dir);
    snprintf(path, sizeof(path), "/proc/%s/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, words, sizeof(words) - 1) : 0;
    if (fd >= 0)
        close(fd);
    words[n > 0 ? n : 0] = '\0';
    for (const char *w = words; w < words + n; w += strlen(w) + 1)
        if (strncmp(w, dir, n_dir) == 0 && w[n_dir] == '/')
            return true;
    return false;
}

static void kill_worker(pid_t pid)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    if (pidfd < 0)
        return;
    if (runs_program(pid, "sluice-worker")) {
        syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
        poll(&end, 1, WORKER_END_MS);
    }
    close(pidfd);
}

void leftover_end_workers(const char *state_dir)
{
    char real[PATH_MAX];
    const char *dirs[] = {state_dir, realpath(state_dir, real)};
    DIR *proc = leftover_manager(state_dir) ? NULL : opendir("/proc");
    if (!proc)
        return;
    for (const struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 1 && runs_program((pid_t)pid, "sluice-worker") &&
            (is_told_of(entry->d_name, dirs[0]) || (dirs[1] && is_told_of(entry->d_name, dirs[1]))))
            kill_worker((pid_t)pid);
    }
    closedir(proc);
}
