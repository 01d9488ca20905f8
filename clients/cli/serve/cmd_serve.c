/* cmd_serve.c: `serve`: starts manager and server and keeps them running. A second thread loads the
 * given models (serve_load.c). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "base/system/lock_file.h"
#include "clients/cli/serve/announce.h"
#include "clients/cli/serve/child.h"
#include "clients/cli/serve/open_requests.h"
#include "clients/cli/serve/serve.h"
#include "clients/cli/serve/serve_ports.h"
#include "clients/cli/serve/stray_processes.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/client/client.h"

enum { STOP_TALK_MS = 300, STOP_HURRY_MS = 1000, STOP_KILL_MS = 5000 };

/* Takes the state directory's lock: one `serve` per state directory. The kernel releases the lock
 * at the end of the process. */
static int take_lock(struct serve *s, struct error *err)
{
    char flags[CLI_HINT_BYTES], who[32] = "";
    if (lock_file_take(s->lock_path, &s->lock_fd, err) == 0)
        return 0;
    if (err->reason != REASON_LOCKED)
        return err->status;
    pid_t pid = lock_file_holder(s->lock_path);
    if (pid > 0)
        snprintf(who, sizeof(who), " (pid %d)", (int)pid);
    if (pid == 0) /* `sluice stop` holds the lock shared until all processes have ended */
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "%s is being stopped; try again when `sluice stop` has finished",
                  s->cli->state_dir);
    else
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "sluice serve is running already on %s%s; stop it with: sluice stop%s",
                  s->cli->state_dir, who, cli_hint_flags(s->cli, CLI_HINT_STATE, flags));
    return error_reason(err, pid == 0 ? REASON_STOPPING : REASON_ALREADY_SERVING);
}

static int prepare_paths(struct serve *s, struct error *err)
{
    const char *state = s->cli->state_dir;
    ssize_t n = readlink("/proc/self/exe", s->bin_dir, sizeof(s->bin_dir) - 1);
    if (n <= 0)
        return error_errno(err, errno, "cannot find the directory of this program");
    s->bin_dir[n] = '\0';
    *strrchr(s->bin_dir, '/') = '\0';
    snprintf(s->manager_path, sizeof(s->manager_path), "%s/sluice-manager", s->bin_dir);
    snprintf(s->server_path, sizeof(s->server_path), "%s/sluice-server", s->bin_dir);
    snprintf(s->manager_log, sizeof(s->manager_log), "%s/log/manager.log", state);
    snprintf(s->server_log, sizeof(s->server_log), "%s/log/server.log", state);
    snprintf(s->socket_path, sizeof(s->socket_path), "%s/run/manager.sock", state);
    snprintf(s->routes_path, sizeof(s->routes_path), "%s/routes.pb", state);
    snprintf(s->lock_path, sizeof(s->lock_path), "%s/serve.lock", state);
    snprintf(s->inner_path, sizeof(s->inner_path), "%s/run/server.sock", state);
    snprintf(s->inner_target, sizeof(s->inner_target), "unix:%s", s->inner_path);
    if (s->cli->settings.lock_file[0])
        snprintf(s->server_lock, sizeof(s->server_lock), "%s", s->cli->settings.lock_file);
    else
        snprintf(s->server_lock, sizeof(s->server_lock), "%s.lock", s->routes_path);
    char dir[1100];
    snprintf(dir, sizeof(dir), "%s/log", state);
    int rc = cli_make_dir(dir, err);
    snprintf(dir, sizeof(dir), "%s/run", state);
    return rc ? rc : cli_make_dir(dir, err);
}

/* A taken default port of HTTP must not keep Sluice from its start: another port is used. An
 * address that the user gave is never changed. */
static void move_http(struct serve *s)
{
    if (!serve_http_move(&s->cli->settings, s->moved_http)) {
        s->moved_http[0] = '\0';
        return;
    }
    child_add_arg(&s->children[1], "--http-listen", s->moved_http);
    s->cli->settings.http_listen = s->moved_http;
}

static void announce_moved_http(const struct serve *s)
{
    if (s->moved_http[0])
        announce(s->cli, "http_moved", json_pack("{s:s}", "address", s->moved_http),
                 "the default port of HTTP is in use; HTTP is served on %s, and --http-listen "
                 "chooses an address",
                 s->moved_http);
}

/* This program chooses sockets and files. The manager finds the worker program itself. */
static int prepare_children(struct serve *s, struct error *err)
{
    s->children[0] = (struct child){
        .name = "manager",
        .log_path = s->manager_log,
        .pidfd = -1,
        .argv = {s->manager_path, "--state-dir", s->cli->state_dir, "--socket", s->socket_path,
                 "--stop-workers-on-exit"},
    };
    s->children[1] = (struct child){
        .name = "server",
        .log_path = s->server_log,
        .pidfd = -1,
        .argv =
            {s->server_path, "--manager", s->socket_path, "--routes-file", s->routes_path,
             "--listen-unix", s->inner_path,
             /* The file may change. The server must keep the lock file that this program reads. */
             "--lock-file", s->server_lock},
    };
    int rc = serve_settings_hand_on(s->cli, &s->children[0], &s->children[1], &s->settings, err);
    if (!rc && s->settings.has_default_http)
        move_http(s);
    return rc;
}

/* Discards pending SIGHUPs: serve is stopping, and a SIGHUP must not count as a second stop signal.
 */
static void discard_hangups(struct serve *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signalfd(s->signals, &set, 0);
}

static void announce_draining(const struct serve *s, uint64_t n)
{
    char grace[32];
    format_ms(s->cli->settings.grace_ms, grace);
    json_t *fields = json_pack("{s:I,s:I}", "requests", (json_int_t)n, "grace_ms",
                               (json_int_t)s->cli->settings.grace_ms);
    if (n)
        announce(s->cli, "draining", fields,
                 "draining %llu request%s for up to %s; press Ctrl-C again to stop now",
                 (unsigned long long)n, n == 1 ? "" : "s", grace);
    else
        announce(s->cli, "draining", fields,
                 "draining requests for up to %s; press Ctrl-C again to stop now", grace);
}

/* Stops a child. True if the child had to be killed. */
static bool stop_child(struct serve *s, struct child *child, uint64_t grace_ms)
{
    if (child_wait(child, (uint32_t)grace_ms, s->signals) || child_wait(child, STOP_HURRY_MS, -1))
        return false;
    child_signal(child, SIGKILL);
    child_wait(child, STOP_KILL_MS, -1);
    return true;
}

/* Stops the server at once after a second stop signal: the server's own second SIGTERM ends it. */
static void stop_server(struct serve *s, struct child *server)
{
    uint64_t grace_ms = s->cli->settings.grace_ms;
    if (!child_wait(server, (uint32_t)grace_ms + STOP_KILL_MS, s->signals))
        child_signal(server, SIGTERM);
    stop_child(s, server, 0);
}

/* Stops the server, then the manager, which ends the workers. A server that has just taken over is
 * stopped too. After another signal a process gets one second and is killed. The workers of a
 * killed manager are killed as well. */
static void stop_children(struct serve *s)
{
    struct child *manager = &s->children[0], *server = &s->children[1];
    struct child successor = {.name = "server", .pidfd = -1};
    struct signalfd_siginfo info;
    struct pollfd hurry = {.fd = s->signals, .events = POLLIN};
    announce(s->cli, "stopping", NULL, "stopping");
    discard_hangups(s);
    struct rpc_client *client;
    struct error ignored;
    bool asks = server->pid > 0 && cli_server(s->cli, &client, &ignored) == 0;
    uint64_t n = asks ? open_requests_count(client) : 0;
    int pidfd;
    pid_t holder = stray_server(s->server_lock, &pidfd);
    /* A lock holder from before this program's server first ran is no successor. */
    bool was_up = server->proven || s->answered[1];
    if (pidfd >= 0 && holder != server->pid && was_up)
        child_adopt(&successor, holder, pidfd);
    else if (pidfd >= 0)
        close(pidfd);
    child_signal(server, SIGTERM);
    child_signal(&successor, SIGTERM);
    bool ended = child_wait(server, STOP_TALK_MS, -1) && child_wait(&successor, STOP_TALK_MS, -1);
    /* Discard signals up to now: `timeout` sends its signal twice. */
    while (poll(&hurry, 1, 0) > 0 && read(s->signals, &info, sizeof(info)) > 0)
        ;
    if (!ended) {
        announce_draining(s, n);
        stop_server(s, server);
        stop_server(s, &successor);
    }
    if (poll(&hurry, 1, 0) > 0)
        announce(s->cli, "stopping_now", NULL, "stopping now");
    bool ran = manager->pid > 0;
    child_signal(manager, SIGTERM);
    bool killed = stop_child(s, manager, s->cli->settings.grace_ms + 3 * (uint64_t)STOP_KILL_MS);
    /* The manager has ended its workers only if it exited with status 0. */
    if (killed || !ran || manager->last_status != 0)
        stray_kill_workers(s->cli);
}

/* Takes the state directory for this serve. */
static int claim_state(struct serve *s, struct error *err)
{
    char flags[CLI_HINT_BYTES];
    int rc = cli_need_state(s->cli, err);
    if (!rc)
        rc = prepare_children(s, err);
    if (!rc)
        rc = serve_settings_check(&s->cli->settings, err);
    if (rc == STATUS_INVALID_ARGUMENT)
        return cli_usage(err);
    if (!rc)
        rc = serve_check_paths(s->cli, err);
    if (!rc)
        rc = prepare_paths(s, err);
    if (!rc)
        rc = take_lock(s, err);
    if (rc)
        return rc;
    pid_t stray = stray_manager(s->cli->state_dir);
    if (stray > 0) { /* else the manager reports what blocks it */
        error_set(
            err, STATUS_FAILED_PRECONDITION,
            "a manager (pid %ld) uses %s without a `sluice serve`; stop it with: sluice stop%s",
            (long)stray, s->cli->state_dir, cli_hint_flags(s->cli, CLI_HINT_STATE, flags));
        return error_reason(err, REASON_MANAGER_RUNS);
    }
    stray = stray_server(s->server_lock, NULL);
    if (stray > 0) {
        error_set(
            err, STATUS_FAILED_PRECONDITION,
            "a server (pid %ld) uses %s without a `sluice serve`; stop it with: sluice stop%s",
            (long)stray, s->server_lock, cli_hint_flags(s->cli, CLI_HINT_STATE, flags));
        return error_reason(err, REASON_SERVER_RUNS);
    }
    rc = serve_ports_check(s->cli, err);
    if (!rc)
        announce_moved_http(s);
    return rc ? rc : serve_open_signals(s, err);
}

/* Creates the clients before the second thread starts, because both threads use them. */
static int open_clients(struct serve *s, struct error *err)
{
    struct rpc_client *client;
    /* serve talks to its own manager, even if --manager names another. */
    snprintf(s->cli->manager_target, sizeof(s->cli->manager_target), "unix:%s", s->socket_path);
    if (s->cli->settings.listen[0])
        cli_dial_address(s->cli->settings.listen, s->dial, sizeof(s->dial));
    else
        snprintf(s->dial, sizeof(s->dial), "%s", s->inner_target);
    s->cli->settings.server = s->dial;
    int rc = cli_dial_open("server", s->inner_target, NULL, &s->cli->server, err);
    return rc ? rc : cli_manager(s->cli, &client, err);
}

static int run_serve(struct cli *cli)
{
    struct serve s = {.cli = cli,
                      .started_unix_ns = clock_wall_ns(),
                      .lock_fd = -1,
                      .signals = -1,
                      .loaded = -1,
                      .ends = -1};
    struct error err;
    pthread_t loader;
    bool loading = false;
    if (claim_state(&s, &err) != 0) {
        int code = cli_fail(cli, &err);
        serve_settings_fini(&s.settings);
        return code;
    }
    int rc = open_clients(&s, &err);
    for (int i = 0; !rc && i < 2; i++)
        rc = child_start(&s.children[i], &err);
    s.server_pid = s.children[1].pid;
    if (!rc && pthread_create(&loader, NULL, serve_load, &s) != 0)
        rc = error_set(&err, STATUS_RESOURCE_EXHAUSTED, "cannot start a thread");
    if (rc) {
        rc = cli_fail(cli, &err);
    } else {
        loading = true;
        rc = serve_supervise(&s);
    }
    cli->ending = true;
    stop_children(&s);
    if (loading)
        pthread_join(loader, NULL); /* the manager is gone, so the loader's calls fail */
    close(s.lock_fd);
    serve_settings_fini(&s.settings);
    return rc;
}

static const struct option_spec serve_specs[] = {
    {"listen", 'l', OPTION_STRING, CLI_OPTION(listen), "127.0.0.1:8001", "ADDR:PORT",
     "address of the data plane (gRPC)", 0, 0},
    {"http-listen", 0, OPTION_STRING, CLI_OPTION(http_listen), "127.0.0.1:8000", "ADDR:PORT",
     "addresses of HTTP, also unix:PATH, between commas; empty: off", 0, 0},
    {"http-origins", 0, OPTION_STRING, CLI_OPTION(http_origins), "", "ORIGINS",
     "sites whose pages may use HTTP, between commas, beside those of this machine; *: all", 0, 0},
    {"http-strict", 0, OPTION_BOOL, CLI_OPTION(http_strict), "false", NULL,
     "refuse JSON bodies with unknown fields, or fields without effect", 0, 0},
    {"http-open-metrics", 0, OPTION_BOOL, CLI_OPTION(http_open_metrics), "false", NULL,
     "GET /metrics over HTTP needs no API key", 0, 0},
    {"no-http", 0, OPTION_BOOL, CLI_OPTION(no_http), "false", NULL,
     "serve no HTTP, like --http-listen with an empty value", 0, 0},
    {"metrics", 0, OPTION_STRING, CLI_OPTION(metrics), "127.0.0.1:8002", "ADDR:PORT",
     "address of the server's /metrics, also unix:PATH; empty: off", 0, 0},
    {"manager-metrics", 0, OPTION_STRING, CLI_OPTION(manager_metrics), "127.0.0.1:8004",
     "ADDR:PORT", "address of the manager's /metrics, which includes the workers", 0, 0},
    {"metrics-aliases", 0, OPTION_STRING, CLI_OPTION(metrics_aliases), "", "NAMES",
     "vllm: add metrics under vLLM's names", 0, 0},
    {"name", 0, OPTION_STRING, CLI_OPTION(name), "", "NAME",
     "name of the model; empty: from the file's name", 0, 0},
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version of the model; empty: the next number", 0, 0},
    {"model-root", 0, OPTION_STRING, CLI_OPTION(model_root), "", "DIR",
     "directory that must contain all model files and folders", 0, 0},
    {"tls-cert", 0, OPTION_STRING, CLI_OPTION(tls_cert), "", "FILE",
     "certificate and chain for TLS on the data plane (PEM)", 0, 0},
    {"tls-key", 0, OPTION_STRING, CLI_OPTION(tls_key), "", "FILE",
     "private key of --tls-cert (PEM)", 0, 0},
    {"tls-client-ca", 0, OPTION_STRING, CLI_OPTION(tls_client_ca), "", "FILE",
     "CA of client certificates (PEM)", 0, 0},
    {"tls-client-auth", 0, OPTION_STRING, CLI_OPTION(tls_client_auth), "", "require|optional",
     "clients must or may present a certificate; empty: require", 0, 0},
    {"keys-file", 0, OPTION_STRING, CLI_OPTION(keys_file), "", "FILE",
     "file with API keys (see sluice key --help)", 0, 0},
    {"allow-plaintext-keys", 0, OPTION_BOOL, CLI_OPTION(dial.allow_plaintext_keys), "false", NULL,
     "accept API keys from other machines without TLS", 0, 0},
    {"drain-grace", 0, OPTION_MS, CLI_OPTION(grace_ms), "60s", "TIME",
     "time for running requests to finish at the end", 0, 86400000},
    {"log-level", 0, OPTION_WORD, CLI_OPTION(log_level), "info", "debug|info|warn|error",
     "lowest level that is logged", 0, 0},
    {"log-format", 0, OPTION_WORD, CLI_OPTION(log_format), "kv", "kv|json", "format of the logs", 0,
     0},
};
static const struct manual_example serve_examples[] = {
    {"sluice serve ./SmolLM2-135M-Instruct.Q4_1.gguf", NULL},
    {"sluice serve ./model.gguf --name smol --listen 0.0.0.0:8001 --replicas 2 --threads 1", NULL},
    {"sluice serve --state-dir /var/lib/sluice", "restores the models of the last run"},
};

const struct cli_command cmd_serve = {
    .name = "serve",
    .arguments = "[PATH...]",
    .summary = "start manager and server, load models, keep everything running",
    .description =
        "PATH is a GGUF file or a Hugging Face folder. Restarts programs that end. Ctrl-C, "
        "SIGTERM, `sluice stop` or the end of the terminal "
        "drain requests and stop everything. On SIGHUP manager and server read their settings "
        "again, unless this program or one of them refuses the new settings. A server that takes "
        "over from this program's server (sluice-server --takeover) is supervised in its place. "
        "The file of --config may have sections [server] and [manager] with the options of "
        "sluice-server and sluice-manager. Flags and keys of [cli] override these sections; "
        "defaults do not. With --json each event is a JSON object on a line.",
    .examples = serve_examples,
    .n_examples = CLI_N(serve_examples),
    .specs = serve_specs,
    .n_specs = CLI_N(serve_specs),
    .groups = CLI_DEPLOY,
    .see_also = "sluice-server(8), sluice-manager(8)",
    .run = run_serve,
};
