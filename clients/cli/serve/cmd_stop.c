/* cmd_stop.c: `stop`: stops the `sluice serve` of a state directory, and stray processes. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/system/lock_file.h"
#include "clients/cli/serve/open_requests.h"
#include "clients/cli/serve/stray_processes.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/client/client.h"

/* TALK_MS: a stop that takes longer prints what it waits for. */
enum { LEFTOVER_GRACE_MS = 90000, TALK_MS = 500 };

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void print_ended(const struct stray_ended *ended)
{
    printf("stopped processes that ran without a `sluice serve`: %s%zu server%s, %zu worker%s\n",
           ended->manager ? "the manager, " : "", ended->n_servers, plural(ended->n_servers),
           ended->n_workers, plural(ended->n_workers));
}

/* Counts the requests of serve's server. 0 if unknown. */
static uint64_t count_requests(const struct cli *cli)
{
    char target[1200];
    struct rpc_client *server;
    struct error ignored;
    snprintf(target, sizeof(target), "unix:%s/run/server.sock", cli->state_dir);
    if (cli_dial_open("server", target, NULL, &server, &ignored) != 0)
        return 0;
    uint64_t n = open_requests_count(server);
    rpc_client_destroy(server);
    return n;
}

/* Says what the command waits for. This program does not know the --drain-grace of serve. */
static void print_draining(const struct cli *cli, uint64_t n)
{
    char flags[CLI_HINT_BYTES], count[32] = "";
    if (n)
        snprintf(count, sizeof(count), " %" PRIu64, n);
    fprintf(stderr,
            "draining%s request%s, for at most the --drain-grace of serve (60 s by default); to "
            "end them at once: sluice stop%s\n",
            count, n == 1 ? "" : "s", cli_hint_flags(cli, CLI_HINT_STATE, flags));
}

/* Stops serve and waits for its end, which grants the shared lock. *out_served: a serve was
 * running. */
static int stop_serve(const struct cli *cli, const char *path, int lock_fd, bool *out_served,
                      struct error *err)
{
    int pidfd;
    pid_t pid;
    if (stray_owner(path, lock_fd, &pid, &pidfd, err) != 0)
        return err->status;
    *out_served = pid != 0;
    if (pid == 0)
        return 0;
    uint64_t n = cli->settings.json ? 0 : count_requests(cli);
    bool signalled = syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) == 0 || errno == ESRCH;
    int rc = signalled ? 0 : error_errno(err, errno, "cannot signal pid %d", (int)pid);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    if (signalled && !cli->settings.json && pidfd >= 0 && poll(&end, 1, TALK_MS) == 0)
        print_draining(cli, n);
    if (pidfd >= 0)
        close(pidfd);
    if (signalled)
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
        rc = stop_serve(cli, path, fd, &serves, &err);
    else if (rc == STATUS_NOT_FOUND)
        rc = 0;
    /* The held lock also keeps a new serve from starting. */
    if (rc == 0)
        rc = stray_stop(cli, LEFTOVER_GRACE_MS, &ended, &err);
    bool any = ended.manager || ended.n_servers || ended.n_workers;
    if (rc == 0 && !serves && !any) {
        error_set(&err, STATUS_FAILED_PRECONDITION, "no Sluice process uses %s; nothing to stop",
                  cli->state_dir);
        rc = error_reason(&err, REASON_NOT_SERVING);
    }
    if (fd >= 0)
        close(fd);
    if (rc != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        printf("{\"stopped\":true,\"managers\":%zu,\"servers\":%zu,\"workers\":%zu}\n",
               ended.manager, ended.n_servers, ended.n_workers);
    else if (any)
        print_ended(&ended);
    else
        puts("stopped");
    return 0;
}

static const struct manual_example stop_examples[] = {
    {"sluice stop", NULL}, {"sluice stop --state-dir /var/lib/sluice", NULL}};

const struct cli_command cmd_stop = {
    .name = "stop",
    .arguments = "",
    .summary = "stop all programs of a state directory and wait for their end",
    .description =
        "Streams may finish, for up to `--drain-grace` of `sluice serve`. If serve is draining "
        "already, this command ends the streams at once. Ctrl-C ends the wait of this command "
        "alone. Also stops managers and servers that run "
        "without a `sluice serve`, and the workers of these managers. Workers are also found in "
        "run_dir of section [manager] in the file of --config. A manager that is a systemd unit is "
        "left running: stop it with systemctl. --json prints {\"stopped\":true} and the numbers of "
        "managers, servers and workers that ran without a `sluice serve`.",
    .examples = stop_examples,
    .n_examples = CLI_N(stop_examples),
    .run = run_stop,
};
