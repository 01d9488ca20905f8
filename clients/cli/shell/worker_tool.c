#include "clients/cli/shell/worker_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/message/message.h"

enum { REPORT_MAX_BYTES = 16 << 20, PATH_BYTES = 1100 };

extern char **environ;

static volatile pid_t worker;

/* Passes SIGTERM on to the worker. Ctrl-C reaches the worker through the terminal's process group.
 */
static void on_signal(int signal_number)
{
    if (signal_number == SIGTERM && worker > 0)
        kill(worker, SIGTERM);
}

static int worker_path(char *out, size_t n_out, struct error *err)
{
    ssize_t n = readlink("/proc/self/exe", out, n_out - sizeof("/sluice-worker"));
    if (n <= 0)
        return error_errno(err, errno,
                           "cannot find the directory of this program; run sluice by its path");
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    snprintf(slash, n_out - (size_t)(slash - out), "/sluice-worker");
    return 0;
}

static int start(const char *const *argv, int stdout_fd, bool quiet, pid_t *out_pid,
                 struct error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t set;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, stdout_fd, STDOUT_FILENO);
    if (quiet)
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    posix_spawnattr_init(&attributes);
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attributes, &set);
    sigaddset(&set, SIGPIPE); /* this program ignores SIGPIPE, the worker must not */
    posix_spawnattr_setsigdefault(&attributes, &set);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int rc = posix_spawn(out_pid, argv[0], &actions, &attributes, (char *const *)(uintptr_t)argv,
                         environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return rc ? error_errno(err, rc, "cannot start %s", argv[0]) : 0;
}

/* Waits until data can be read, or until the timeout has passed. */
static int await(int fd, int64_t until_ns, uint32_t timeout_ms, struct error *err)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (timeout_ms) {
        int64_t left_ns = until_ns - clock_now_ns();
        int n = left_ns > 0 ? poll(&ready, 1, (int)(left_ns / NS_PER_MS) + 1) : 0;
        if (n > 0)
            return 0;
        if (n == 0)
            return error_set(err, STATUS_DEADLINE_EXCEEDED,
                             "sluice-worker sent no report within %u ms", timeout_ms);
        if (errno != EINTR)
            return error_errno(err, errno, "cannot wait for the worker's report");
    }
    return 0;
}

static int read_all(int fd, uint32_t timeout_ms, struct strbuf *out, struct error *err)
{
    char buffer[16384];
    int64_t until_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    for (ssize_t n = 1; n != 0;) {
        if (await(fd, until_ns, timeout_ms, err) != 0)
            return err->status;
        n = read(fd, buffer, sizeof(buffer));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, errno, "cannot read the worker's report");
        if (n > 0 && !strbuf_add(out, buffer, (size_t)n))
            return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                             "the worker's report is longer than 16 MiB");
    }
    return 0;
}

static int parse_report(const struct strbuf *bytes, int status,
                        Sluice__Worker__V1__ToolReport__ResultCase kind,
                        Sluice__Worker__V1__ToolReport **out_report, struct error *err)
{
    ProtobufCMessage *message;
    if (WIFSIGNALED(status))
        return error_set(err, STATUS_INTERNAL, "sluice-worker was killed by signal %d",
                         WTERMSIG(status));
    if (!bytes->n_bytes)
        return error_set(err, STATUS_INTERNAL,
                         "sluice-worker exited with status %d and without a report",
                         WEXITSTATUS(status));
    int rc = rpc_message_parse(&sluice__worker__v1__tool_report__descriptor, strbuf_str(bytes),
                               bytes->n_bytes, &message, err);
    if (rc)
        return error_prefix(err, "the worker's report");
    Sluice__Worker__V1__ToolReport *report = (Sluice__Worker__V1__ToolReport *)message;
    if (report->result_case == SLUICE__WORKER__V1__TOOL_REPORT__RESULT_ERROR) {
        rc = error_set(err, status_from_grpc(report->error->code), "%s", report->error->message);
        error_reason_parse(err, report->error->reason);
    } else if (report->result_case != kind) {
        rc = error_set(err, STATUS_INTERNAL,
                       "sluice-worker sent a report of another kind; install sluice and "
                       "sluice-worker of the same version");
    }
    if (rc)
        rpc_message_free(message);
    else
        *out_report = report;
    return rc;
}

int worker_tool_run(const char *argv[WORKER_TOOL_MAX_ARGS],
                    Sluice__Worker__V1__ToolReport__ResultCase kind, uint32_t timeout_ms,
                    Sluice__Worker__V1__ToolReport **out_report, struct error *err)
{
    char path[PATH_BYTES];
    struct sigaction action = {.sa_handler = on_signal}, old_int, old_term;
    struct strbuf bytes;
    int fds[2], status = 0;
    pid_t pid;
    int rc = worker_path(path, sizeof(path), err);
    if (!rc && pipe2(fds, O_CLOEXEC) != 0)
        rc = error_errno(err, errno, "cannot make a pipe");
    if (rc)
        return rc;
    argv[0] = path;
    rc = start(argv, fds[1], timeout_ms != 0, &pid, err);
    close(fds[1]);
    if (rc) {
        close(fds[0]);
        return rc;
    }
    worker = pid;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);
    strbuf_init(&bytes, REPORT_MAX_BYTES);
    rc = read_all(fds[0], timeout_ms, &bytes, err);
    if (rc)
        kill(pid, SIGKILL);
    close(fds[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    worker = 0;
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    if (!rc)
        rc = parse_report(&bytes, status, kind, out_report, err);
    strbuf_fini(&bytes);
    return rc;
}

int worker_tool_add_flags(const struct cli *cli, enum load_user user,
                          char *flags[LOAD_SETTINGS_MAX], const char *argv[WORKER_TOOL_MAX_ARGS],
                          struct error *err)
{
    struct option_spec specs[LOAD_SETTINGS_MAX];
    size_t n = load_settings_specs(user, 0, specs, LOAD_SETTINGS_MAX), n_argv = 1, k = 0;
    while (argv[n_argv])
        n_argv++;
    for (size_t i = 0; i < n; i++, k = 0) {
        while (strcmp(cli->specs[k].name, specs[i].name) != 0)
            k++;
        struct strbuf flag = {0};
        strbuf_printf(&flag, "--%s=%s", specs[i].name, options_text(cli->options, k));
        bool failed = strbuf_failed(&flag) || !(flags[i] = strdup(strbuf_str(&flag)));
        strbuf_fini(&flag);
        if (failed || n_argv + 1 >= WORKER_TOOL_MAX_ARGS)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                             "out of memory for the worker's flags");
        argv[n_argv++] = flags[i];
    }
    return 0;
}

void worker_tool_free_flags(char *flags[LOAD_SETTINGS_MAX])
{
    for (size_t i = 0; i < LOAD_SETTINGS_MAX; i++)
        free(flags[i]);
}
