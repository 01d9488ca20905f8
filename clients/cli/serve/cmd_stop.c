/* stop: ends what runs of a state directory: its `sluice serve`, or what is there without one. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/system/lock_file.h"
#include "clients/cli/serve/stray_processes.h"
#include "clients/cli/shell/cli.h"

enum { LEFTOVER_GRACE_MS = 90000 };

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void tell_ended(const struct stray_ended *ended)
{
    printf("stopped what ran without a `sluice serve`: %s%zu server%s, %zu worker%s\n",
           ended->manager ? "the manager, " : "", ended->n_servers, plural(ended->n_servers),
           ended->n_workers, plural(ended->n_workers));
}

/* Granted the lock when the other has ended. *out_served: there was one. */
static int stop_serve(const char *path, int lock_fd, bool *out_served, struct error *err)
{
    int pidfd;
    pid_t pid;
    if (stray_owner(path, lock_fd, &pid, &pidfd, err) != 0)
        return err->status;
    *out_served = pid != 0;
    if (pid == 0)
        return 0;
    bool told = syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) == 0 || errno == ESRCH;
    int rc = told ? 0 : error_errno(err, errno, "cannot signal pid %d", (int)pid);
    if (pidfd >= 0)
        close(pidfd);
    if (told)
        flock(lock_fd, LOCK_SH);
    return rc;
}

static int run_stop(struct cli *cli)
{
    char path[1100];
    struct stray_ended ended = {0};
    struct error err;
    if (cli_need_state(cli, &err) != 0)
        return cli_fail(cli, &err);
    snprintf(path, sizeof(path), "%s/serve.lock", cli->state_dir);
    int fd = -1;
    bool serves = false;
    int rc = lock_file_open(path, &fd, &err);
    if (rc == 0)
        rc = stop_serve(path, fd, &serves, &err);
    else if (rc == STATUS_NOT_FOUND)
        rc = 0;
    /* Nor does a new one start from here on: the lock is held. */
    if (rc == 0)
        rc = stray_stop(cli, LEFTOVER_GRACE_MS, &ended, &err);
    bool any = ended.manager || ended.n_servers || ended.n_workers;
    if (rc == 0 && !serves && !any) {
        error_set(&err, STATUS_FAILED_PRECONDITION, "nothing is serving from %s", cli->state_dir);
        rc = error_reason(&err, "NOT_SERVING");
    }
    if (fd >= 0)
        close(fd);
    if (rc != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        printf("{\"stopped\":true,\"managers\":%zu,\"servers\":%zu,\"workers\":%zu}\n",
               ended.manager, ended.n_servers, ended.n_workers);
    else if (any)
        tell_ended(&ended);
    else
        puts("stopped");
    return 0;
}

static const struct manual_example stop_examples[] = {
    {"sluice stop", NULL}, {"sluice stop --state-dir /var/lib/sluice", NULL}};

const struct cli_command cmd_stop = {
    .name = "stop",
    .arguments = "",
    .summary = "stop all that serves from a state directory, and wait for its end",
    .description =
        "Streams finish, up to `--drain-grace` of `sluice serve`; where it drains already, "
        "this ends them at once. Also a manager and servers that were started without `sluice "
        "serve` end, and the workers that such a manager leaves running, also where run_dir of "
        "[manager] in the file of --config has them elsewhere; a manager that is a systemd unit is "
        "left to systemctl. --json prints {\"stopped\":true} and the counts of managers, servers "
        "and workers that ran without a `sluice serve`.",
    .examples = stop_examples,
    .n_examples = CLI_N(stop_examples),
    .run = run_stop,
};
