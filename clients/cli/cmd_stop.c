/* stop: ends what runs of a state directory: its `sluice serve`, or what is there without one. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "clients/cli/cli.h"
#include "clients/cli/leftover.h"

enum { LEFTOVER_GRACE_MS = 90000 };

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void tell_ended(const struct leftover_ended *ended)
{
    printf("stopped what ran without a `sluice serve`: %s%zu server%s, %zu worker%s\n",
           ended->manager ? "the manager, " : "", ended->n_servers, plural(ended->n_servers),
           ended->n_workers, plural(ended->n_workers));
}

/* Granted the lock when the other has ended. */
static int stop_serve(int lock_fd, struct error *err)
{
    char text[32] = {0};
    ssize_t n = pread(lock_fd, text, sizeof(text) - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    if (pid <= 1 || kill((pid_t)pid, SIGTERM) != 0)
        return error_errno(err, errno, "cannot signal pid %ld", pid);
    flock(lock_fd, LOCK_SH);
    return 0;
}

static int run_stop(struct cli *cli)
{
    char path[1100];
    struct leftover_ended ended = {0};
    struct error err;
    if (cli_need_state(cli, &err) != 0)
        return cli_fail(cli, &err);
    snprintf(path, sizeof(path), "%s/serve.lock", cli->state_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool serves = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;
    int status = serves ? stop_serve(fd, &err) : 0;
    /* Nor does a new one start from here on: the lock is held. */
    if (status == 0)
        status = leftover_stop(cli, LEFTOVER_GRACE_MS, &ended, &err);
    bool any = ended.manager || ended.n_servers || ended.n_workers;
    if (status == 0 && !serves && !any)
        status = error_set(&err, STATUS_FAILED_PRECONDITION, "nothing is serving from %s",
                           cli->state_dir);
    if (fd >= 0)
        close(fd);
    if (status != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        puts("{\"stopped\":true}");
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
        "serve` end, and the workers that such a manager leaves running; a manager that is a "
        "systemd unit is left to systemctl. --json prints {\"stopped\":true}.",
    .examples = stop_examples,
    .n_examples = CLI_N(stop_examples),
    .run = run_stop,
};
