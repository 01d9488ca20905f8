#include "clients/cli/serve/stray_processes.h"

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
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/lock_file.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { WORKER_GRACE_MS = 5000, WORKER_END_MS = 2000 };
/* Wait for the unknown holder of a lock file: it may be about to write its pid, or to go. */
enum { UNKNOWN_MS = 2000 };

/* Reads /proc/PID/NAME: NUL-terminated words. Returns the number of bytes. */
static size_t read_words(pid_t pid, const char *name, char *words, size_t n_room)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%ld/%s", (long)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n_bytes = 0;
    ssize_t n = fd >= 0 ? read(fd, words, n_room - 1) : 0;
    for (; n > 0; n = read(fd, words + n_bytes, n_room - 1 - n_bytes))
        n_bytes += (size_t)n;
    if (fd >= 0)
        close(fd);
    words[n_bytes] = '\0';
    return n_bytes;
}

bool stray_runs(pid_t pid, const char *name)
{
    char link[64], path[1100];
    snprintf(link, sizeof(link), "/proc/%ld/exe", (long)pid);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(path, '/');
    return slash && strncmp(slash + 1, name, strlen(name)) == 0;
}

bool stray_state_dir(pid_t pid, char *out, size_t n_out)
{
    static const char routes[] = "/routes.pb";
    char words[16384];
    bool manager = stray_runs(pid, "sluice-manager");
    const char *option = manager ? "--state-dir" : "--routes-file", *value = NULL;
    size_t n = manager || stray_runs(pid, "sluice-server")
                   ? read_words(pid, "cmdline", words, sizeof(words))
                   : 0;
    for (const char *w = words; w < words + n && !value; w += strlen(w) + 1)
        if (strcmp(w, option) == 0 && w + strlen(w) + 1 < words + n)
            value = w + strlen(w) + 1;
    size_t n_value = value ? strlen(value) : 0, n_end = manager ? 0 : sizeof(routes) - 1;
    if (n_value <= n_end || value[0] != '/' ||
        strcmp(value + n_value - n_end, manager ? "" : routes) != 0)
        return false;
    return snprintf(out, n_out, "%.*s", (int)(n_value - n_end), value) < (int)n_out;
}

bool stray_was_served(pid_t manager)
{
    char words[16384];
    size_t n = read_words(manager, "cmdline", words, sizeof(words));
    bool served = false;
    for (const char *w = words; w < words + n && !served; w += strlen(w) + 1)
        served = strcmp(w, "--stop-workers-on-exit") == 0;
    return served;
}

pid_t stray_manager(const char *state_dir)
{
    char path[1100];
    snprintf(path, sizeof(path), "%s/sluice.lock", state_dir);
    pid_t pid = lock_file_holder(path);
    return pid <= 0 || stray_runs(pid, "sluice-manager") ? pid : 0;
}

int stray_owner(const char *path, int fd, pid_t *out_pid, int *out_pidfd, struct error *err)
{
    pid_t pid = lock_file_await_owner(fd, UNKNOWN_MS, out_pidfd);
    *out_pid = pid;
    return pid >= 0
               ? 0
               : error_set(
                     err, STATUS_FAILED_PRECONDITION,
                     "%s: an unknown process holds this lock; find the process with `lsof %s`, "
                     "stop it and try again",
                     path, path);
}

/* Returns the server that holds the lock file, with its pidfd. 0: no server, and nothing to close.
 */
static pid_t open_server(const char *lock_path, int *out_pidfd)
{
    struct error err;
    int fd;
    *out_pidfd = -1;
    if (lock_file_open(lock_path, &fd, &err) != 0)
        return 0;
    pid_t pid = lock_file_await_owner(fd, UNKNOWN_MS, out_pidfd);
    close(fd);
    if (pid <= 0 || stray_runs(pid, "sluice-server"))
        return pid;
    if (*out_pidfd >= 0)
        close(*out_pidfd);
    *out_pidfd = -1;
    return 0;
}

/* Prefers the server that is about to take the lock over the server that has the lock. */
pid_t stray_server(const char *lock_path, int *out_pidfd)
{
    char next[1200];
    int pidfd;
    snprintf(next, sizeof(next), "%s.next", lock_path);
    pid_t pid = open_server(next, &pidfd);
    if (pid == 0)
        pid = open_server(lock_path, &pidfd);
    if (out_pidfd)
        *out_pidfd = pidfd;
    else if (pidfd >= 0)
        close(pidfd);
    return pid;
}

/* The command lines of a state directory's programs: an option, and as its value one of the paths.
 * Workers: a socket in a replica's folder below one of the paths. */
struct match {
    const char *const *options;
    bool in_replica; /* PATH/replica-ID/worker.sock */
    char paths[8][PATH_MAX];
    size_t n_paths;
};

/* Adds the path as written and with links resolved. */
static void match_add_path(struct match *match, const char *folder, const char *name)
{
    enum { CAPACITY = sizeof(match->paths) / sizeof(match->paths[0]) };
    char real[PATH_MAX];
    if (match->n_paths + 2 > CAPACITY)
        return;
    snprintf(match->paths[match->n_paths++], PATH_MAX, "%.4000s%s%s", folder, *name ? "/" : "",
             name);
    if (realpath(folder, real))
        snprintf(match->paths[match->n_paths++], PATH_MAX, "%.4000s%s%s", real, *name ? "/" : "",
                 name);
}

/* True if `path` lies in a replica's folder below `folder` and no living manager holds the lock
 * file in `folder`. */
static bool is_replica_socket(const char *path, const char *folder)
{
    static const char replica[] = "/replica-", lock_name[] = "/manager.lock";
    char lock[PATH_MAX + sizeof(lock_name)];
    size_t n = strlen(folder);
    if (strncmp(path, folder, n) != 0 || strncmp(path + n, replica, sizeof(replica) - 1) != 0)
        return false;
    snprintf(lock, sizeof(lock), "%s%s", folder, lock_name);
    return lock_file_holder(lock) == 0;
}

static bool cmdline_matches(pid_t pid, const struct match *match)
{
    char words[16384];
    size_t n = read_words(pid, "cmdline", words, sizeof(words));
    for (const char *w = words; w < words + n; w += strlen(w) + 1)
        for (const char *const *option = match->options; *option; option++) {
            size_t n_option = strlen(*option);
            if (strncmp(w, *option, n_option) != 0 || (w[n_option] && w[n_option] != '='))
                continue;
            const char *path = w + n_option + 1; /* the value in this word, or the next word */
            if (strncmp(path, "unix:", 5) == 0)
                path += 5;
            for (size_t i = 0; path < words + n && i < match->n_paths; i++)
                if (match->in_replica ? is_replica_socket(path, match->paths[i])
                                      : strcmp(path, match->paths[i]) == 0)
                    return true;
        }
    return false;
}

/* -- process lists ------------------------------------------------------------------------------
 */

enum { MAX_FOUND = 4096 }; /* more than a manager's largest number of replicas */

struct found {
    pid_t pids[MAX_FOUND];
    int fds[MAX_FOUND]; /* pidfds */
    size_t n;
};

static bool has_ended(int pidfd)
{
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    return poll(&end, 1, 0) > 0;
}

/* Adds the process unless it is listed already or runs another program. Takes ownership of the
 * pidfd. */
static void found_insert(struct found *found, pid_t pid, int pidfd, const char *name)
{
    bool wanted = pidfd >= 0 && found->n < MAX_FOUND && pid > 1 && stray_runs(pid, name);
    for (size_t i = 0; wanted && i < found->n; i++)
        wanted = found->pids[i] != pid;
    if (wanted) {
        found->pids[found->n] = pid;
        found->fds[found->n++] = pidfd;
    } else if (pidfd >= 0) {
        close(pidfd);
    }
}

static void found_add(struct found *found, pid_t pid, const char *name)
{
    if (pid > 1)
        found_insert(found, pid, (int)syscall(SYS_pidfd_open, pid, 0), name);
}

static int found_add_holder(struct found *found, const char *state_dir, const char *lock,
                            const char *name, struct error *err)
{
    char path[1100];
    int fd, pidfd;
    pid_t pid;
    snprintf(path, sizeof(path), "%s/%s", state_dir, lock);
    if (lock_file_open(path, &fd, err) != 0)
        return err->status == STATUS_NOT_FOUND ? 0 : err->status;
    int rc = stray_owner(path, fd, &pid, &pidfd, err);
    close(fd);
    if (rc == 0 && pid > 0 && !stray_runs(pid, name) && !has_ended(pidfd))
        rc = error_set(err, STATUS_FAILED_PRECONDITION,
                       "%s: pid %d holds this lock but is no %s; stop that process and try again",
                       path, (int)pid, name);
    found_insert(found, pid, pidfd, name);
    return rc;
}

/* Adds run_dir of section [manager] in the file, if that section is about this state directory. */
static void add_run_dir(const struct cli *cli, struct match *match)
{
    char run_dir[PATH_MAX], state_dir[PATH_MAX];
    struct error err;
    if (cli_program_setting(cli, "manager", "run-dir", run_dir, sizeof(run_dir), &err) == 0 &&
        cli_program_setting(cli, "manager", "state-dir", state_dir, sizeof(state_dir), &err) == 0 &&
        run_dir[0] && (!state_dir[0] || strcmp(state_dir, cli->state_dir) == 0))
        match_add_path(match, run_dir, "");
}

/* Adds all programs of that name whose command lines match. */
static void found_scan(struct found *found, const char *name, const struct match *match)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return;
    for (const struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 1 && stray_runs((pid_t)pid, name) && cmdline_matches((pid_t)pid, match))
            found_add(found, (pid_t)pid, name);
    }
    closedir(proc);
}

static void found_add_servers(struct found *found, const struct cli *cli)
{
    static const char *const options[] = {"--manager", "--routes-file", NULL};
    struct match match = {.options = options};
    match_add_path(&match, cli->state_dir, "run/manager.sock");
    match_add_path(&match, cli->state_dir, "routes.pb");
    found_scan(found, "sluice-server", &match);
}

/* `run_dir`: the manager's --run-dir; NULL: unknown. */
static void found_add_workers(struct found *found, const struct cli *cli, const char *run_dir)
{
    static const char *const options[] = {"--socket", NULL};
    struct match match = {.options = options, .in_replica = true};
    match_add_path(&match, cli->state_dir, "run");
    if (run_dir && run_dir[0])
        match_add_path(&match, run_dir, "");
    else
        add_run_dir(cli, &match);
    found_scan(found, "sluice-worker", &match);
}

static void found_fini(struct found *found)
{
    for (size_t i = 0; i < found->n; i++)
        close(found->fds[i]);
    free(found);
}

/* Returns the first process that has not ended within the grace; found->n if all have ended. */
static size_t found_wait(const struct found *found, uint32_t grace_ms)
{
    int64_t end_ns = clock_now_ns() + (int64_t)grace_ms * NS_PER_MS;
    for (size_t i = 0; i < found->n; i++) {
        struct pollfd end = {.fd = found->fds[i], .events = POLLIN};
        int n_ended;
        do {
            int64_t left_ms = (end_ns - clock_now_ns()) / NS_PER_MS;
            n_ended = poll(&end, 1, left_ms > 0 ? (int)left_ms : 0);
        } while (n_ended < 0 && errno == EINTR);
        if (n_ended <= 0)
            return i;
    }
    return found->n;
}

static int found_signal(const struct found *found, int signal_number, const char *name,
                        struct error *err)
{
    for (size_t i = 0; i < found->n; i++)
        if (syscall(SYS_pidfd_send_signal, found->fds[i], signal_number, NULL, 0) != 0 &&
            errno != ESRCH)
            return error_errno(err, errno, "cannot stop %s, pid %ld", name, (long)found->pids[i]);
    return 0;
}

static int found_stop(const struct found *found, const char *name, uint32_t grace_ms,
                      struct error *err)
{
    if (found_signal(found, SIGTERM, name, err) != 0)
        return err->status;
    size_t i = found_wait(found, grace_ms);
    if (i == found->n)
        return 0;
    return error_set(
        err, STATUS_DEADLINE_EXCEEDED,
        "%s, pid %ld, has not ended within %u ms and still runs; run kill -KILL %ld and try again",
        name, (long)found->pids[i], grace_ms, (long)found->pids[i]);
}

/* Sends SIGTERM first, like a manager; then kills. */
static int found_stop_workers(const struct found *found, struct error *err)
{
    if (found_signal(found, SIGTERM, "sluice-worker", err) != 0)
        return err->status;
    if (found_wait(found, WORKER_GRACE_MS) == found->n)
        return 0;
    if (found_signal(found, SIGKILL, "sluice-worker", err) != 0)
        return err->status;
    size_t i = found_wait(found, WORKER_END_MS);
    if (i == found->n)
        return 0;
    return error_set(err, STATUS_DEADLINE_EXCEEDED,
                     "sluice-worker, pid %ld, was killed but has not ended within %d ms; its "
                     "memory is in use until it ends",
                     (long)found->pids[i], WORKER_END_MS);
}

/* -- questions to a manager -----------------------------------------------------------------------
 */

/* Returns the unit's name if systemd started the process as a unit's main process, else NULL.
 * systemd would restart it. */
static const char *unit_of(pid_t pid, char *words, size_t n_room)
{
    char mine[64];
    snprintf(mine, sizeof(mine), "SYSTEMD_EXEC_PID=%ld", (long)pid);
    size_t n = read_words(pid, "environ", words, n_room);
    bool is_unit = false;
    for (const char *w = words; w < words + n && !is_unit; w += strlen(w) + 1)
        is_unit = strcmp(w, mine) == 0;
    if (!is_unit)
        return NULL;
    n = read_words(pid, "cgroup", words, n_room);
    while (n && words[n - 1] == '\n')
        words[--n] = '\0';
    const char *slash = strrchr(words, '/');
    return slash && strstr(slash, ".service") ? slash + 1 : "of systemd";
}

/* Reads the manager's --run-dir from its command line. Empty: none. A relative path is based on the
 * manager's working directory. */
static void find_run_dir(pid_t manager, char out[PATH_MAX])
{
    static const char option[] = "--run-dir";
    char words[16384], link[64], folder[PATH_MAX] = "";
    size_t n = read_words(manager, "cmdline", words, sizeof(words)), n_option = sizeof(option) - 1;
    const char *given = "";
    for (const char *w = words; w < words + n; w += strlen(w) + 1)
        if (strncmp(w, option, n_option) == 0 && (!w[n_option] || w[n_option] == '=') &&
            w + n_option + 1 < words + n)
            given = w + n_option + 1;
    snprintf(link, sizeof(link), "/proc/%ld/cwd", (long)manager);
    ssize_t n_folder = given[0] && given[0] != '/' ? readlink(link, folder, sizeof(folder) - 1) : 0;
    folder[n_folder > 0 ? n_folder : 0] = '\0';
    snprintf(out, PATH_MAX, "%.2000s%s%.2000s", folder, folder[0] ? "/" : "", given);
}

/* Gets the status of the manager that holds the state directory. The configured address may lead to
 * another manager, so the pid is compared. Owned (rpc_message_free); NULL: no answer. */
static ProtobufCMessage *ask_status(struct cli *cli, pid_t manager)
{
    Sluice__Manager__V1__GetStatusRequest request = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    if (cli_call(cli, "GetStatus", &request.base, &message, &err) != 0)
        return NULL;
    if (((const Sluice__Manager__V1__GetStatusResponse *)message)->pid == (uint32_t)manager)
        return message;
    rpc_message_free(message);
    return NULL;
}

/* As ask_status, then at the manager's default socket, in case another socket is configured. */
static ProtobufCMessage *ask_own(struct cli *cli, pid_t manager, const char *run_dir)
{
    ProtobufCMessage *message = ask_status(cli, manager);
    if (message)
        return message;
    rpc_client_destroy(cli->manager);
    cli->manager = NULL;
    snprintf(cli->manager_target, sizeof(cli->manager_target), "unix:%.1000s%s/manager.sock",
             run_dir[0] ? run_dir : cli->state_dir, run_dir[0] ? "" : "/run");
    return ask_status(cli, manager);
}

struct stray_list {
    struct found *servers, *manager, *workers;
    bool manager_answers;
    char run_dir[PATH_MAX]; /* from the manager's command line; empty: default */
};

static void ask_servers(struct cli *cli, struct stray_list *strays)
{
    ProtobufCMessage *message = ask_own(cli, strays->manager->pids[0], strays->run_dir);
    strays->manager_answers = message != NULL;
    if (!message)
        return;
    const Sluice__Manager__V1__GetStatusResponse *known =
        (const Sluice__Manager__V1__GetStatusResponse *)message;
    for (size_t i = 0; i < known->n_servers; i++)
        found_add(strays->servers, (pid_t)known->servers[i]->pid, "sluice-server");
    rpc_message_free(message);
}

/* Adds the workers that the manager lists. Their run directory may be anywhere. */
static void ask_workers(struct cli *cli, struct found *workers)
{
    Sluice__Manager__V1__ListReplicasRequest request =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    request.include_stopped = true;
    if (cli_call(cli, "ListReplicas", &request.base, &message, &err) != 0)
        return;
    const Sluice__Manager__V1__ListReplicasResponse *list =
        (const Sluice__Manager__V1__ListReplicasResponse *)message;
    for (size_t i = 0; i < list->n_replicas; i++)
        found_add(workers, (pid_t)list->replicas[i]->pid, "sluice-worker");
    rpc_message_free(message);
}

static int check_no_unit(const char *what, pid_t pid, const char *then, struct error *err)
{
    char words[16384];
    const char *unit = pid ? unit_of(pid, words, sizeof(words)) : NULL;
    if (!unit)
        return 0;
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "the %s (pid %ld) is the systemd unit %s, and systemd would restart it; run "
                     "systemctl stop %s, %s",
                     what, (long)pid, unit, unit, then);
}

static int find_processes(struct cli *cli, struct stray_list *strays, struct error *err)
{
    if (found_add_holder(strays->manager, cli->state_dir, "sluice.lock", "sluice-manager", err) !=
        0)
        return err->status;
    bool managed = strays->manager->n > 0;
    if (check_no_unit(
            "manager", managed ? strays->manager->pids[0] : 0,
            "stop the server's unit likewise, then run this command again for the workers",
            err) != 0)
        return err->status;
    if (managed)
        find_run_dir(strays->manager->pids[0], strays->run_dir);
    if (managed)
        ask_servers(cli, strays);
    found_add_servers(strays->servers, cli);
    if (found_add_holder(strays->servers, cli->state_dir, "routes.pb.lock", "sluice-server", err) !=
        0)
        return err->status;
    for (size_t i = 0; i < strays->servers->n; i++)
        if (check_no_unit("server", strays->servers->pids[i],
                          "then run this command again for the rest", err) != 0)
            return err->status;
    return 0;
}

static int stop_all(struct cli *cli, const struct stray_list *strays, uint32_t grace_ms,
                    struct error *err)
{
    if (found_stop(strays->servers, "sluice-server", grace_ms, err) != 0)
        return err->status;
    if (strays->manager_answers)
        ask_workers(cli, strays->workers);
    if (found_stop(strays->manager, "sluice-manager", grace_ms, err) != 0)
        return err->status;
    found_add_workers(strays->workers, cli, strays->run_dir);
    return found_stop_workers(strays->workers, err);
}

int stray_stop(struct cli *cli, uint32_t grace_ms, struct stray_ended *out_ended, struct error *err)
{
    struct stray_list strays = {.servers = calloc(1, sizeof(struct found)),
                                .manager = calloc(1, sizeof(struct found)),
                                .workers = calloc(1, sizeof(struct found))};
    int rc = 0;
    if (!strays.servers || !strays.manager || !strays.workers)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (!rc)
        rc = find_processes(cli, &strays, err);
    if (!rc)
        rc = stop_all(cli, &strays, grace_ms, err);
    if (!rc)
        *out_ended = (struct stray_ended){.n_servers = strays.servers->n,
                                          .manager = strays.manager->n,
                                          .n_workers = strays.workers->n};
    struct found *all[] = {strays.servers, strays.manager, strays.workers};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i])
            found_fini(all[i]);
    return rc;
}

void stray_kill_workers(const struct cli *cli)
{
    struct error err;
    struct found *workers = stray_manager(cli->state_dir) ? NULL : calloc(1, sizeof(*workers));
    if (!workers)
        return;
    found_add_workers(workers, cli, NULL);
    if (found_signal(workers, SIGKILL, "sluice-worker", &err) == 0)
        found_wait(workers, WORKER_END_MS);
    found_fini(workers);
}
