/* stop: ends a `sluice serve`, or what a killed one has left. */
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

static int tell_stopped(const struct cli *cli, const char *text)
{
    puts(cli->settings.json ? "{\"stopped\":true}" : text);
    return 0;
}

static int run_stop(struct cli *cli)
{
    char path[1100], text[32] = {0};
    struct error err;
    if (cli_need_state(cli, &err) != 0)
        return cli_fail(cli, &err);
    snprintf(path, sizeof(path), "%s/serve.lock", cli->state_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0) {
        if (fd >= 0)
            close(fd);
        if (!leftover_manager(cli->state_dir))
            error_set(&err, STATUS_FAILED_PRECONDITION, "nothing is serving from %s",
                      cli->state_dir);
        else if (leftover_stop(cli, LEFTOVER_GRACE_MS, &err) == 0)
            return tell_stopped(cli, "stopped what an earlier `sluice serve` had left");
        return cli_fail(cli, &err);
    }
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    if (pid <= 1 || kill((pid_t)pid, SIGTERM) != 0) {
        close(fd);
        error_errno(&err, errno, "cannot signal pid %ld", pid);
        return cli_fail(cli, &err);
    }
    flock(fd, LOCK_SH); /* granted when the other has ended */
    close(fd);
    return tell_stopped(cli, "stopped");
}

static const struct manual_example stop_examples[] = {
    {"sluice stop", NULL}, {"sluice stop --state-dir /var/lib/sluice", NULL}};

const struct cli_command cmd_stop = {
    .name = "stop",
    .arguments = "",
    .summary = "stop a `sluice serve`, and wait for its end",
    .description =
        "Streams finish, up to `--drain-grace` of `sluice serve`; where it drains already, "
        "this ends them at once. --json prints {\"stopped\":true}.",
    .examples = stop_examples,
    .n_examples = CLI_N(stop_examples),
    .run = run_stop,
};
