/* sluice-server: the data plane. Serves sluice.v1.Inference, follows the manager's routes and
 * relays requests to workers. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "base/settings/manual.h"
#include "base/settings/options.h"
#include "base/settings/reload.h"
#include "base/system/heap.h"
#include "base/system/notify.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/gateway.h"
#include "server/gateway/takeover.h"

struct settings {
    struct gateway_config gateway;
    const char *log_level, *log_format, *lock_file;
    bool takeover, origin, help, man, version;
};

/* EX_CONFIG of sysexits.h: settings that cannot work, or an address in use. A supervisor need
 * not try again. */
enum { EXIT_BAD_SETTINGS = 78, EXIT_LOCKED = 75 };

#define FIELD(name) offsetof(struct settings, name)

/* The options of the program; limits.c has a table of further options. */
static const struct option_spec own_specs[] = {
    {"listen", 'l', OPTION_STRING, FIELD(gateway.listen), "127.0.0.1:8001", "ADDR:PORT",
     "address of the data plane; empty: none", 0, 0},
    {"listen-unix", 0, OPTION_STRING, FIELD(gateway.listen_unix), "", "PATH",
     "also serve on a unix socket (mode 0600)", 0, 0},
    {"http-listen", 0, OPTION_STRING, FIELD(gateway.http_listen), "127.0.0.1:8000", "ADDR:PORT",
     "addresses of HTTP, also unix:PATH, between commas; empty: none", 0, 0},
    {"http-origins", 0, OPTION_STRING, FIELD(gateway.http_origins), "", "ORIGINS",
     "sites whose pages may use HTTP, between commas, beside those of this machine; *: all", 0, 0},
    {"http-strict", 0, OPTION_BOOL, FIELD(gateway.http_strict), "false", NULL,
     "refuse JSON bodies with unknown fields, or fields without effect", 0, 0},
    {"http-open-metrics", 0, OPTION_BOOL, FIELD(gateway.http_open_metrics), "false", NULL,
     "GET /metrics over HTTP needs no API key", 0, 0},
    {"manager", 'm', OPTION_STRING, FIELD(gateway.manager_socket), "", "PATH",
     "unix socket of the manager", 0, 0},
    {"routes-file", 0, OPTION_STRING, FIELD(gateway.routes_file), "", "PATH",
     "file for the last routes, to serve without a manager", 0, 0},
    {"lock-file", 0, OPTION_STRING, FIELD(lock_file), "", "PATH",
     "lock that allows one server; empty: ROUTES_FILE.lock, or none without a routes file", 0, 0},
    {"takeover", 0, OPTION_BOOL, FIELD(takeover), "false", NULL,
     "replace the server that holds the lock; that server drains once this one is ready", 0, 0},
    {"takeover-timeout", 0, OPTION_MS, FIELD(gateway.takeover_ms), "30s", "TIME",
     "time for this server to be ready and for the old one to answer; else the old one stays", 100,
     3600000},
    {"rpc-threads", 0, OPTION_U64, FIELD(gateway.threads), "2", "N", "threads that serve RPCs", 1,
     256},
    {"keepalive-time", 0, OPTION_MS, FIELD(gateway.keepalive_time_ms), "60s", "TIME",
     "ping a silent connection after this long", 1000, 86400000},
    {"keepalive-timeout", 0, OPTION_MS, FIELD(gateway.keepalive_timeout_ms), "20s", "TIME",
     "drop a connection that does not answer a ping for this long", 100, 86400000},
    {"tls-cert", 0, OPTION_STRING, FIELD(gateway.access.tls_cert), "", "PEM",
     "TLS on the port: certificate and chain; read again when the file changes", 0, 0},
    {"tls-key", 0, OPTION_STRING, FIELD(gateway.access.tls_key), "", "PEM",
     "private key of the certificate", 0, 0},
    {"tls-client-ca", 0, OPTION_STRING, FIELD(gateway.access.tls_client_ca), "", "PEM",
     "CA that client certificates must be from", 0, 0},
    {"tls-client-auth", 0, OPTION_STRING, FIELD(gateway.access.tls_client_auth), "", "WHAT",
     "require: clients need a certificate; optional: they may have one; empty: require", 0, 0},
    {"keys-file", 0, OPTION_STRING, FIELD(gateway.access.keys_file), "", "PATH",
     "API keys (see sluice key --help); read again when the file changes", 0, 0},
    {"allow-plaintext-keys", 0, OPTION_BOOL, FIELD(gateway.access.allow_plaintext_keys), "false",
     NULL, "accept API keys from other machines without TLS", 0, 0},
    {"drain-grace", 0, OPTION_MS, FIELD(gateway.drain_grace_ms), "60s", "TIME",
     "time for accepted streams to finish after SIGTERM", 0, 86400000},
    {"metrics", 0, OPTION_STRING, FIELD(gateway.metrics_listen), "127.0.0.1:8002", "ADDR:PORT",
     "address of GET /metrics and /healthz over HTTP, or unix:PATH; empty: not served", 0, 0},
    {"metrics-aliases", 0, OPTION_STRING, FIELD(gateway.metrics_aliases), "", "NAMES",
     "vllm: repeat metrics under vLLM's names", 0, 0},
    {"log-level", 0, OPTION_WORD, FIELD(log_level), "info", "debug|info|warn|error",
     "lowest level that is logged", 0, 0},
    {"log-format", 0, OPTION_WORD, FIELD(log_format), "kv", "kv|json", "format of log lines", 0, 0},
    {"origin", 0, OPTION_BOOL, FIELD(origin), "false", NULL,
     "with show-config: also print the origin of each value", 0, 0},
    {"help", 'h', OPTION_BOOL, FIELD(help), "false", NULL, "print this text", 0, 0},
    {"man", 0, OPTION_BOOL, FIELD(man), "false", NULL, "print the man page, in roff", 0, 0},
    {"version", 'V', OPTION_BOOL, FIELD(version), "false", NULL, "print the version", 0, 0},
};

enum { N_OWN_SPECS = sizeof(own_specs) / sizeof(own_specs[0]) };

struct spec_list {
    struct option_spec specs[N_OWN_SPECS + N_GATEWAY_LIMITS];
    size_t n;
};

static void list_specs(struct spec_list *out)
{
    memcpy(out->specs, own_specs, sizeof(own_specs));
    out->n = N_OWN_SPECS;
    out->n += gateway_limits_options(out->specs + out->n, FIELD(gateway.limits));
}

static const struct manual_example examples[] = {
    {"sluice-server --manager /run/sluice/manager.sock --routes-file /var/lib/sluice/routes.pb",
     NULL},
    {"sluice-server --manager ./state/run/manager.sock --listen 0.0.0.0:8001", NULL},
    {"sluice-server --config /etc/sluice/sluice.conf --takeover",
     "for a new binary or new settings"},
    {"sluice-server show-config --origin --config /etc/sluice/sluice.conf", NULL},
};

static const struct manual_exit exits[] = {
    {0, "ended by SIGTERM or SIGINT, streams drained"},
    {1, "failed"},
    {2, "wrong usage"},
    {EXIT_LOCKED, "another server holds the lock; the message has its pid"},
    {EXIT_BAD_SETTINGS, "the settings cannot work; correct them before the next start"},
};

/* Prints --help or the man page. */
static void print_manual(const struct spec_list *list, bool roff)
{
    struct manual manual = {
        .program = "sluice-server",
        .page = "sluice-server",
        .section = 8,
        .synopsis = "[check-config | show-config] --manager STATE/run/manager.sock [options]",
        .summary = "the data plane of Sluice",
        .description =
            "Serves sluice.v1.Inference over gRPC (with health and reflection), and the APIs of "
            "other servers over HTTP. Routes requests to workers by the manager's routes. Keeps "
            "the last routes while the manager is away.\n\nSIGTERM drains: accepted streams "
            "finish within `--drain-grace`; a second SIGTERM ends the grace. SIGHUP reads "
            "settings, TLS files and keys again. `--log-level`, `--log-format` and "
            "`--drain-grace` change at once. The log names other changes, which need "
            "a restart. Settings with an error change nothing.\n\n`check-config` "
            "checks the settings and prints the error that a start would have. "
            "`show-config` prints the settings. Neither starts a server.",
        .specs = list->specs,
        .n_specs = list->n,
        .exits = exits,
        .n_exits = sizeof(exits) / sizeof(exits[0]),
        .examples = examples,
        .n_examples = sizeof(examples) / sizeof(examples[0]),
        .see_also = "sluice(1), sluice-manager(8), sluice-worker(8)",
    };
    struct strbuf text;
    strbuf_init(&text, 0);
    if (roff)
        manual_roff(&manual, SLUICE_DATE, &text);
    else
        manual_help(&manual, &text);
    fputs(strbuf_str(&text), stdout);
    strbuf_fini(&text);
}

/* A running server, for the signal handling. */
struct running {
    struct settings *settings;
    struct gateway *gateway;
    struct reload *reload;
    struct takeover takeover;
    const char *lock; /* path of the lock file; empty: none */
    bool lock_is_lost;
    sigset_t signals;
};

/* Options that a reload changes in a running server. */
static const char *const live_settings[] = {"log-level", "log-format", "drain-grace", NULL};

/* The option table has checked the values. */
static void parse_log(const struct settings *settings, enum log_level *out_level,
                      enum log_format *out_format)
{
    (void)log_level_parse(settings->log_level, out_level);
    (void)log_format_parse(settings->log_format, out_format);
}

/* Checks that a start and a reload share. */
static int check_settings(const void *parsed, struct error *err)
{
    const struct settings *settings = parsed;
    if (!*settings->gateway.manager_socket && !*settings->gateway.routes_file)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "no source of routes: give --manager STATE/run/manager.sock, "
                         "or the --routes-file of an earlier run (see --help)");
    if (settings->takeover && !*settings->lock_file && !*settings->gateway.routes_file)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--takeover: give the --lock-file or --routes-file of the server to "
                         "replace");
    return 0;
}

/* Handles SIGHUP. */
static void reload_settings(struct running *running)
{
    struct settings fresh = *running->settings;
    struct strbuf set, restart;
    struct error err;
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_KV;
    strbuf_init(&set, 0);
    strbuf_init(&restart, 0);
    notify_reloading();
    if (reload_read(running->reload, &fresh, &set, &restart, &err) != 0) {
        log_error(LOG_EVENT("settings not reloaded"), LOG_STR("message", err.message),
                  LOG_STR("in_force", "previous settings"));
        notify_status("READY=1", "Settings not reloaded: %s", err.message);
    } else {
        *running->settings = fresh;
        parse_log(&fresh, &level, &format);
        log_set(level, format);
        log_info(LOG_EVENT("settings reloaded"), LOG_STR("set", strbuf_str(&set)),
                 LOG_STR("need_restart", strbuf_str(&restart)));
        notify_status("READY=1",
                      restart.n_bytes ? "Serving; %s: new values need a restart" : "Serving%s",
                      strbuf_str(&restart));
    }
    strbuf_fini(&set);
    strbuf_fini(&restart);
    gateway_reload(running->gateway);
}

/* Restores files that others removed. Without the lock file no successor finds this server. A
 * killed successor leaves a dead socket in place of this server's. */
static void restore_files(struct running *running)
{
    struct error err;
    int renewed = takeover_renew(&running->takeover, running->lock, &err);
    if (renewed > 0)
        log_warn(LOG_EVENT("lock file created again"), LOG_STR("path", running->lock));
    if (renewed < 0 && !running->lock_is_lost)
        log_error(LOG_EVENT("lock file lost"), LOG_STR("message", err.message));
    running->lock_is_lost = renewed < 0;
    if (gateway_lost_socket() && takeover_alone(running->lock, gateway_restore_sockets))
        log_warn(LOG_EVENT("unix socket restored"),
                 LOG_STR("why", "the server that had replaced it is gone"));
}

/* Waits for the next signal; checks the files every second unless draining. */
static int next_signal(struct running *running, bool draining)
{
    const struct timespec look = {.tv_sec = 1};
    for (;;) {
        int got = sigtimedwait(&running->signals, NULL, draining ? NULL : &look);
        if (got > 0)
            return got;
        if (errno == EAGAIN)
            restore_files(running);
    }
}

/* Waits for a signal that ends the server, and returns it. SIGHUP reloads settings and files. 0:
 * SIGUSR1, which only this program sends to itself. */
static int wait_for_signal(struct running *running, bool draining)
{
    int got = next_signal(running, draining);
    while (got == SIGHUP || (draining && got == TAKEOVER_SIGNAL)) {
        if (got == SIGHUP && !draining)
            reload_settings(running);
        got = next_signal(running, draining);
    }
    if (got == SIGUSR1)
        return 0;
    log_info(LOG_EVENT("stopping"), LOG_STR("signal", strsignal(got)));
    return got;
}

/* While draining, a second signal ends the grace, and a third one ends the process. */
static void *hurry_on_signals(void *arg)
{
    struct running *running = arg;
    if (!wait_for_signal(running, true))
        return NULL;
    gateway_hurry(running->gateway);
    if (wait_for_signal(running, true))
        _Exit(1);
    return NULL;
}

static void drain(struct running *running, bool replaced)
{
    pthread_t thread;
    bool watched = pthread_create(&thread, NULL, hurry_on_signals, running) == 0;
    notify_status("STOPPING=1", replaced ? "Another server has taken over; its last streams finish"
                                         : "Streams finish");
    if (replaced)
        gateway_hand_over(running->gateway);
    takeover_release(&running->takeover);
    gateway_drain(running->gateway, (uint32_t)running->settings->gateway.drain_grace_ms);
    log_info(LOG_EVENT("drained"),
             LOG_U64("refused", gateway_n_refusals(running->gateway, LIMIT_DRAINING)),
             LOG_U64("cut", gateway_n_refusals(running->gateway, LIMIT_DRAIN)));
    if (!watched)
        return;
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
}

static void block_signals(sigset_t *out_signals)
{
    static const int wanted[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, TAKEOVER_SIGNAL};
    sigemptyset(out_signals);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        sigaddset(out_signals, wanted[i]);
    pthread_sigmask(SIG_BLOCK, out_signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a full disk is an error of write() and must not end the server */
}

/* Empty if there is no lock. */
static void lock_path(const struct settings *settings, char *out_path, size_t n_bytes)
{
    const char *routes = settings->gateway.routes_file;
    if (*settings->lock_file || !*routes)
        snprintf(out_path, n_bytes, "%s", settings->lock_file);
    else
        snprintf(out_path, n_bytes, "%s.lock", routes);
}

/* A server whose lock cannot be created (a full or read-only disk) serves all the same. No other
 * server can take it over then, and the port is still protected. */
static int take_lock(const struct settings *settings, const char *path, struct takeover *out,
                     struct error *err)
{
    int rc = takeover_begin(path, settings->takeover, out, err);
    if (!rc || err->reason == REASON_LOCKED || settings->takeover)
        return rc;
    log_warn(LOG_EVENT("lock file not created"), LOG_STR("message", err->message));
    return 0;
}

/* Returns the signal that ends the server. 0 for signals without effect: SIGUSR1 from outside,
 * or the takeover signal of a successor that is gone. */
static int wait_for_end(struct running *running)
{
    int got = wait_for_signal(running, false);
    if (got != TAKEOVER_SIGNAL || takeover_is_wanted(running->lock))
        return got;
    log_warn(LOG_EVENT("not handed over"), LOG_STR("why", "no server waits to take over"));
    return 0;
}

static int run_until_signal(struct running *running)
{
    struct error err;
    struct settings *settings = running->settings;
    struct takeover *takeover = &running->takeover;
    if (takeover->old >= 0 &&
        takeover_finish(takeover, running->lock, settings->gateway.takeover_ms, &err) != 0) {
        gateway_settle(running->gateway, false);
        gateway_hand_over(running->gateway); /* the new sockets go back to the old server */
        log_error(LOG_EVENT("not taken over"), LOG_STR("message", err.message));
        drain(running, false);
        return 1;
    }
    gateway_settle(running->gateway, true);
    log_info(LOG_EVENT("serving"), LOG_STR("listen", settings->gateway.listen),
             LOG_U64("port", gateway_port(running->gateway)),
             LOG_STR("http", settings->gateway.http_listen), LOG_STR("version", SLUICE_VERSION),
             LOG_I64("replaced_pid", takeover->old_pid));
    notify_status("READY=1", "Serving on %s", settings->gateway.listen);
    int got = 0;
    while (got == 0)
        got = wait_for_end(running);
    drain(running, got == TAKEOVER_SIGNAL);
    return 0;
}

static int exit_code(const struct error *err)
{
    return err->status == STATUS_INVALID_ARGUMENT || err->status == STATUS_ALREADY_EXISTS ||
                   err->status == STATUS_PERMISSION_DENIED
               ? EXIT_BAD_SETTINGS
               : 1;
}

static int serve(struct settings *settings, struct reload *reload)
{
    struct error err;
    char lock[4096];
    struct running running = {.settings = settings, .reload = reload, .lock = lock};
    block_signals(&running.signals);
    lock_path(settings, lock, sizeof(lock));
    if (take_lock(settings, lock, &running.takeover, &err) != 0) {
        bool locked = err.reason == REASON_LOCKED;
        log_error(LOG_EVENT("cannot start"), LOG_STR("message", err.message),
                  LOG_STR("hint", locked && !settings->takeover ? "--takeover replaces it" : ""));
        return locked ? EXIT_LOCKED : 1;
    }
    heap_bound(settings->gateway.threads);
    struct gateway_config config = settings->gateway;
    config.watchdog_ms = notify_watchdog_ms();
    config.share = running.takeover.old >= 0 ? RPC_SHARE_BESIDE : RPC_SHARE_FIRST;
    if (gateway_create(&config, &running.gateway, &err) != 0) {
        log_error(LOG_EVENT("cannot start"), LOG_STR("message", err.message));
        return exit_code(&err);
    }
    int rc = run_until_signal(&running);
    gateway_destroy(running.gateway, 0);
    log_info(LOG_EVENT("stopped"));
    return rc;
}

static int fail(const struct error *err, int code)
{
    fprintf(stderr, "sluice-server: %s\n", err->message);
    return code;
}

/* Runs check-config and show-config, which start nothing. */
static int run_command(const char *word, const struct settings *settings,
                       const struct options *options)
{
    struct error err;
    if (strcmp(word, "show-config") == 0) {
        struct strbuf text;
        strbuf_init(&text, 0);
        options_show(options, settings->origin, &text);
        fputs(strbuf_str(&text), stdout);
        strbuf_fini(&text);
        return 0;
    }
    if (strcmp(word, "check-config") != 0) {
        fprintf(stderr, "sluice-server: unexpected argument \"%.80s\" (see --help)\n", word);
        return 2;
    }
    bool has_source = *settings->gateway.manager_socket || *settings->gateway.routes_file;
    if (has_source && check_settings(settings, &err) != 0)
        return fail(&err, 2);
    if (gateway_check(&settings->gateway, &err) != 0)
        return fail(&err, exit_code(&err));
    /* A config file for `sluice serve` leaves the source of routes to the command line. */
    puts(has_source
             ? "sluice-server: the settings are good"
             : "sluice-server: the settings are good; the command line must give the source of "
               "routes (--manager)");
    return 0;
}

static int start(struct settings *settings, const struct spec_list *list, int argc, char *argv[])
{
    struct error err;
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_KV;
    if (check_settings(settings, &err) != 0)
        return fail(&err, 2);
    parse_log(settings, &level, &format);
    const struct reload_config config = {
        .section = "server",
        .specs = list->specs,
        .n_specs = list->n,
        .argc = argc,
        .argv = argv,
        .settings = settings,
        .settings_bytes = sizeof(*settings),
        .check = check_settings,
        .live = live_settings,
    };
    struct reload *reload = reload_create(&config);
    if (!reload) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        return fail(&err, 1);
    }
    log_init("sluice-server", level, format);
    int rc = serve(settings, reload);
    reload_destroy(reload);
    return rc;
}

int main(int argc, char *argv[])
{
    struct settings settings = {0};
    struct options *options;
    struct error err;
    struct spec_list list;
    list_specs(&list);
    if (options_parse("server", list.specs, list.n, argc, argv, &settings, &options, &err) != 0)
        return fail(&err, 2);
    int rc = 0;
    if (settings.help || settings.man) {
        print_manual(&list, settings.man);
    } else if (settings.version) {
        puts("sluice-server " SLUICE_VERSION);
    } else if (options_n_positionals(options)) {
        size_t last = options_n_positionals(options) - 1;
        rc = run_command(options_positional(options, last), &settings, options);
    } else {
        rc = start(&settings, &list, argc, argv);
    }
    options_destroy(options);
    return rc;
}
