#include "manager/host/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "proto/launch/launch_record.h"

enum { LOG_MAX_BYTES = 16 << 20, MAX_ARGUMENT_BYTES = 64 << 10 };

static int open_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* Reads a whole small file; -1 where it is unreadable. The text is terminated. */
static ssize_t read_file(const char *path, char *out, size_t n_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t n = 0;
    ssize_t got;
    while (n + 1 < n_bytes && (got = read(fd, out + n, n_bytes - 1 - n)) > 0)
        n += (size_t)got;
    close(fd);
    out[n] = '\0';
    return (ssize_t)n;
}

uint64_t process_start_ticks(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    if (read_file(path, text, sizeof(text)) <= 0)
        return 0;
    /* The name in field 2 may have blanks and brackets; the last bracket ends the name. */
    const char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static uint64_t status_number(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

uint64_t process_resident_bytes(pid_t pid)
{
    char path[64], text[8192];
    snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
    if (read_file(path, text, sizeof(text)) <= 0)
        return 0;
    return (status_number(text, "\nRssAnon:") + status_number(text, "\nRssShmem:")) * 1024;
}

uint64_t process_oom_kills(void)
{
    char text[16384];
    if (read_file("/proc/vmstat", text, sizeof(text)) <= 0)
        return 0;
    return status_number(text, "\noom_kill ");
}

/* Keeps one earlier log. The log stays below a size that is enough to find a fault. */
static void rotate_log(const char *path)
{
    char old[4200];
    struct stat st;
    if (stat(path, &st) != 0 || st.st_size < LOG_MAX_BYTES)
        return;
    snprintf(old, sizeof(old), "%s.1", path);
    (void)rename(path, old);
}

/* `record_fd`: the sealed launch record, after the other descriptors; -1: none. */
static int fill_actions(const struct process_launch *launch, int record_fd,
                        posix_spawn_file_actions_t *actions)
{
    int rc = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);
    if (rc == 0 && launch->log_path) {
        rotate_log(launch->log_path);
        rc = posix_spawn_file_actions_addopen(actions, 1, launch->log_path,
                                              O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (rc == 0)
            rc = posix_spawn_file_actions_adddup2(actions, 1, 2);
    } else if (rc == 0) {
        rc = posix_spawn_file_actions_adddup2(actions, launch->stdout_fd, 1);
        if (rc == 0)
            rc = posix_spawn_file_actions_addopen(actions, 2, "/dev/null", O_WRONLY, 0);
    }
    if (rc == 0)
        rc = posix_spawn_file_actions_addchdir_np(actions, "/");
    for (size_t i = 0; rc == 0 && i < launch->n_fds; i++)
        rc = posix_spawn_file_actions_adddup2(actions, launch->fds[i], PROCESS_FIRST_FD + (int)i);
    int end_fd = PROCESS_FIRST_FD + (int)launch->n_fds;
    if (rc == 0 && record_fd >= 0)
        rc = posix_spawn_file_actions_adddup2(actions, record_fd, end_fd++);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(actions, end_fd);
    return rc;
}

static int fill_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int rc = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
                                                      POSIX_SPAWN_SETSIGDEF);
    if (rc == 0)
        rc = posix_spawnattr_setsigmask(attributes, &none);
    if (rc == 0)
        rc = posix_spawnattr_setsigdefault(attributes, &all);
    return rc;
}

/* Copies argv, and names the descriptor of the record. */
static int fill_arguments(const struct process_launch *launch, char number[16],
                          char *out_argv[PROCESS_MAX_ARGUMENTS + 3], struct error *err)
{
    static char flag[] = "--launch-fd";
    size_t n = 0;
    for (; launch->argv[n]; n++) {
        if (n == PROCESS_MAX_ARGUMENTS)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "too many arguments");
        out_argv[n] = launch->argv[n];
    }
    if (launch->record) {
        snprintf(number, 16, "%d", PROCESS_FIRST_FD + (int)launch->n_fds);
        out_argv[n++] = flag;
        out_argv[n++] = number;
    }
    out_argv[n] = NULL;
    return 0;
}

static int spawn(const struct process_launch *launch, int record_fd, struct process *out_process,
                 struct error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    const char *slash = strrchr(launch->program, '/');
    const char *name = slash ? slash + 1 : launch->program;
    char *argv[PROCESS_MAX_ARGUMENTS + 3], number[16];
    pid_t pid = 0;
    if (fill_arguments(launch, number, argv, err) != 0)
        return err->status;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int rc = fill_actions(launch, record_fd, &actions);
    if (rc == 0)
        rc = fill_attributes(&attributes);
    if (rc == 0)
        rc = posix_spawn(&pid, launch->program, &actions, &attributes, argv, launch->env);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (rc == EAGAIN) { /* a limit; a later start may succeed */
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s cannot be started: the limit on processes or threads is reached", name);
        return error_reason(err, REASON_TOO_MANY_PROCESSES);
    }
    if (rc != 0)
        return error_errno(err, rc, "%s cannot be started", name);
    /* Only this process reaps its children, so the pid stays valid until process_ended() returns
     * true. */
    int pidfd = open_pidfd(pid);
    if (pidfd < 0) {
        int err_no = errno;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return error_errno(err, err_no, "%s: pidfd_open", name);
    }
    out_process->pid = pid;
    out_process->pidfd = pidfd;
    out_process->start_ticks = process_start_ticks(pid);
    return 0;
}

int process_spawn(const struct process_launch *launch, struct process *out_process,
                  struct error *err)
{
    int record_fd = -1, above = PROCESS_FIRST_FD + (int)launch->n_fds + 1;
    if (launch->record && launch_record_seal(launch->record, above, &record_fd, err) != 0)
        return err->status;
    int rc = spawn(launch, record_fd, out_process, err);
    if (record_fd >= 0)
        close(record_fd);
    return rc;
}

int process_open(pid_t pid, uint64_t start_ticks, struct process *out_process, struct error *err)
{
    int pidfd = pid > 0 ? open_pidfd(pid) : -1;
    if (pidfd < 0)
        return error_set(err, STATUS_NOT_FOUND, "no process %ld", (long)pid);
    /* Checked while the pidfd is held: from here on the pair of pid and start time cannot
     * change. */
    uint64_t ticks = process_start_ticks(pid);
    if (ticks == 0 || ticks != start_ticks) {
        close(pidfd);
        return error_set(err, STATUS_NOT_FOUND, "process %ld is another process now", (long)pid);
    }
    *out_process = (struct process){.pid = pid, .start_ticks = ticks, .pidfd = pidfd};
    return 0;
}

void process_fini(struct process *process)
{
    if (process->pidfd >= 0)
        close(process->pidfd);
    *process = (struct process){.pidfd = -1};
}

bool process_runs(const struct process *process, const char *path)
{
    char exe[64];
    struct stat own, there;
    snprintf(exe, sizeof(exe), "/proc/%ld/exe", (long)process->pid);
    return process->pidfd >= 0 && stat(exe, &own) == 0 && stat(path, &there) == 0 &&
           own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

bool process_signal(const struct process *process, int signal_number)
{
    return process->pidfd >= 0 &&
           syscall(SYS_pidfd_send_signal, process->pidfd, signal_number, NULL, 0) == 0;
}

bool process_ended(const struct process *process, struct process_end *out_end)
{
    siginfo_t info = {0};
    *out_end = (struct process_end){0};
    if (waitid(P_PIDFD, (id_t)process->pidfd, &info, WEXITED | WNOHANG) == 0) {
        if (info.si_pid == 0)
            return false;
        out_end->known = true;
        if (info.si_code == CLD_EXITED)
            out_end->exit_status = info.si_status;
        else
            out_end->signal_number = info.si_status;
        return true;
    }
    /* Not our child: its pidfd is readable once the process has ended, even while it is not
     * reaped. */
    struct pollfd watch = {.fd = process->pidfd, .events = POLLIN};
    return errno == ECHILD && poll(&watch, 1, 0) == 1;
}

struct held_memory {
    const uint64_t *inodes;
    size_t n_inodes;
    uint64_t seen; /* a bit per inode */
    uint64_t n_bytes;
    pid_t holder;
};

static void count_descriptor(struct held_memory *held, pid_t pid, int folder, const char *name)
{
    static const char memfd[] = "/memfd:";
    char target[sizeof(memfd)];
    struct stat st;
    if (readlinkat(folder, name, target, sizeof(target)) < (ssize_t)sizeof(memfd) - 1 ||
        memcmp(target, memfd, sizeof(memfd) - 1) != 0 || fstatat(folder, name, &st, 0) != 0)
        return;
    for (size_t i = 0; i < held->n_inodes; i++) {
        if (st.st_ino != held->inodes[i] || (held->seen & UINT64_C(1) << i))
            continue;
        held->seen |= UINT64_C(1) << i;
        /* allocated bytes, whatever the file's size */
        held->n_bytes += (uint64_t)st.st_blocks * 512;
        held->holder = pid;
    }
}

uint64_t process_memory_held(const uint64_t *inodes, size_t n_inodes, pid_t *out_holder)
{
    struct held_memory held = {.inodes = inodes, .n_inodes = n_inodes < 64 ? n_inodes : 64};
    DIR *proc = n_inodes ? opendir("/proc") : NULL;
    struct dirent *entry;
    while (proc && (entry = readdir(proc))) {
        char *end, path[64];
        long pid = strtol(entry->d_name, &end, 10);
        struct stat st;
        if (*end || pid <= 0 || fstatat(dirfd(proc), entry->d_name, &st, 0) != 0 ||
            st.st_uid != geteuid())
            continue;
        snprintf(path, sizeof(path), "/proc/%ld/fd", pid);
        DIR *folder = opendir(path);
        while (folder && (entry = readdir(folder)))
            count_descriptor(&held, (pid_t)pid, dirfd(folder), entry->d_name);
        if (folder)
            closedir(folder);
    }
    if (proc)
        closedir(proc);
    *out_holder = held.holder;
    return held.n_bytes;
}

/* Value of --name among NUL-separated arguments, as "--name" "value" or "--name=value". */
static const char *find_argument(const char *arguments, size_t n_bytes, const char *name)
{
    size_t n_name = strlen(name);
    for (const char *at = arguments; at < arguments + n_bytes; at += strlen(at) + 1) {
        if (strncmp(at, name, n_name) != 0)
            continue;
        if (at[n_name] == '=')
            return at + n_name + 1;
        const char *next = at + strlen(at) + 1;
        if (at[n_name] == '\0' && next < arguments + n_bytes)
            return next;
    }
    return NULL;
}

static bool read_worker(pid_t pid, const char *run_dir, char *buffer, struct process_found *out)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%ld/cmdline", (long)pid);
    ssize_t n = read_file(path, buffer, MAX_ARGUMENT_BYTES);
    if (n <= 0)
        return false;
    const char *socket_path = find_argument(buffer, (size_t)n, "--socket");
    const char *id = find_argument(buffer, (size_t)n, "--replica");
    const char *epoch = find_argument(buffer, (size_t)n, "--epoch");
    size_t n_dir = strlen(run_dir);
    if (!socket_path || !id || !epoch || strncmp(socket_path, run_dir, n_dir) != 0 ||
        socket_path[n_dir] != '/' || strlen(id) >= sizeof(out->replica_id))
        return false;
    out->pid = pid;
    out->start_ticks = process_start_ticks(pid);
    out->epoch = strtoull(epoch, NULL, 10);
    snprintf(out->replica_id, sizeof(out->replica_id), "%s", id);
    return out->start_ticks != 0;
}

void process_scan(const char *run_dir,
                  void (*found)(void *arg, const struct process_found *process), void *arg)
{
    DIR *proc = opendir("/proc");
    char *buffer = malloc(MAX_ARGUMENT_BYTES);
    struct dirent *entry;
    while (proc && buffer && (entry = readdir(proc))) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        struct stat st;
        struct process_found process;
        if (*end || pid <= 0 || pid == getpid() ||
            fstatat(dirfd(proc), entry->d_name, &st, 0) != 0 || st.st_uid != geteuid())
            continue;
        if (read_worker((pid_t)pid, run_dir, buffer, &process))
            found(arg, &process);
    }
    free(buffer);
    if (proc)
        closedir(proc);
}
