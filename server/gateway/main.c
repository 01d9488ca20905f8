/* sluice-server: the data plane. Serves sluice.v1.Inference, follows the manager's routes and
 * relays to workers. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "base/manual.h"
#include "base/notify.h"
#include "base/options.h"
#include "server/gateway/gateway.h"
#include "server/gateway/heap.h"
#include "server/gateway/limits.h"

struct settings {
    struct gateway_config gateway;
    const char *log_level, *log_format;
    bool help, man, version;
};

/* EX_CONFIG of sysexits.h: settings that cannot work as they are, an address that is in use:
 * whoever supervises this program need not try again. */
enum { EXIT_BAD_SETTINGS = 78 };

#define FIELD(name) offsetof(struct settings, name)

/* And the table of limits.c. */
static const struct option_spec own_specs[] = {
    {"listen", 'l', OPTION_STRING, FIELD(gateway.listen), "127.0.0.1:8001", "ADDR:PORT",
     "address of the data plane; empty: none", 0, 0},
    {"listen-unix", 0, OPTION_STRING, FIELD(gateway.listen_unix), "", "PATH",
     "also serve on a unix socket (mode 0600)", 0, 0},
    {"manager", 'm', OPTION_STRING, FIELD(gateway.manager_socket), "", "PATH",
     "the manager's unix socket", 0, 0},
    {"routes-file", 0, OPTION_STRING, FIELD(gateway.routes_file), "", "PATH",
     "keeps the last routes, to serve without a manager", 0, 0},
    {"rpc-threads", 0, OPTION_U64, FIELD(gateway.threads), "2", "N", "threads that serve RPCs", 1,
     256},
    {"keepalive-time", 0, OPTION_MS, FIELD(gateway.keepalive_time_ms), "60s", "TIME",
     "a silent connection is pinged after this long", 1000, 86400000},
    {"keepalive-timeout", 0, OPTION_MS, FIELD(gateway.keepalive_timeout_ms), "20s", "TIME",
     "and dropped after this long without an answer", 100, 86400000},
    {"tls-cert", 0, OPTION_STRING, FIELD(gateway.access.tls_cert), "", "PEM",
     "TLS on the port: certificate and chain; taken up again when it changes", 0, 0},
    {"tls-key", 0, OPTION_STRING, FIELD(gateway.access.tls_key), "", "PEM", "its private key", 0,
     0},
    {"tls-client-ca", 0, OPTION_STRING, FIELD(gateway.access.tls_client_ca), "", "PEM",
     "clients show a certificate of this CA", 0, 0},
    {"tls-client-auth", 0, OPTION_STRING, FIELD(gateway.access.tls_client_auth), "", "WHAT",
     "require that certificate, or take it as optional; empty: require", 0, 0},
    {"keys-file", 0, OPTION_STRING, FIELD(gateway.access.keys_file), "", "PATH",
     "API keys (see sluice key --help); taken up again when it changes", 0, 0},
    {"allow-plaintext-keys", 0, OPTION_BOOL, FIELD(gateway.access.allow_plaintext_keys), "false",
     NULL, "API keys beyond this machine without TLS", 0, 0},
    {"drain-grace", 0, OPTION_MS, FIELD(gateway.drain_grace_ms), "60s", "TIME",
     "time accepted streams get after SIGTERM", 0, 86400000},
    {"metrics", 0, OPTION_STRING, FIELD(gateway.metrics_listen), "127.0.0.1:8002", "ADDR:PORT",
     "GET /metrics and /healthz over HTTP, also unix:PATH; empty: nowhere", 0, 0},
    {"metrics-aliases", 0, OPTION_STRING, FIELD(gateway.metrics_aliases), "", "NAMES",
     "vllm: also under vLLM's metric names", 0, 0},
    {"log-level", 0, OPTION_STRING, FIELD(log_level), "info", "LEVEL", "debug, info, warn or error",
     0, 0},
    {"log-format", 0, OPTION_STRING, FIELD(log_format), "kv", "FORMAT", "kv or json", 0, 0},
    {"help", 'h', OPTION_BOOL, FIELD(help), "false", NULL, "this text", 0, 0},
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
};

static const struct manual_exit exits[] = {
    {0, "ended by SIGTERM or SIGINT, streams drained"},
    {1, "failed"},
    {2, "wrong usage"},
    {EXIT_BAD_SETTINGS, "the settings cannot work as they are: starting again is of no use"},
};

/* --help, or the man page. */
static void print_manual(const struct spec_list *list, bool roff)
{
    struct manual manual = {
        .program = "sluice-server",
        .page = "sluice-server",
        .section = 8,
        .synopsis = "--manager STATE/run/manager.sock [options]",
        .summary = "the data plane of Sluice",
        .description = "Serves sluice.v1.Inference over gRPC (with health and reflection), routes "
                       "requests to workers as the manager tells, and keeps serving the last "
                       "routes while the manager is away.\n\nSIGTERM drains: accepted streams "
                       "finish within `--drain-grace`; a second one ends it at once.",
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

/* Waits for SIGTERM or SIGINT, and returns it; SIGHUP has the files read again. 0: SIGUSR1, which
 * only this program sends itself. */
static int wait_for_signal(const sigset_t *set, struct gateway *gateway)
{
    int got = 0;
    while (sigwait(set, &got) != 0 || got == SIGHUP)
        if (got == SIGHUP && gateway)
            gateway_reload(gateway);
    if (got == SIGUSR1)
        return 0;
    log_info(LOG_EVENT("stopping"), LOG_STR("signal", strsignal(got)));
    return got;
}

struct hurry {
    const sigset_t *set;
    struct gateway *gateway;
};

/* A second signal while draining: no more grace. A third one: at once. */
static void *hurry_on_signals(void *arg)
{
    const struct hurry *hurry = arg;
    if (!wait_for_signal(hurry->set, NULL))
        return NULL;
    gateway_hurry(hurry->gateway);
    if (wait_for_signal(hurry->set, NULL))
        _Exit(1);
    return NULL;
}

static void drain(struct gateway *gateway, const sigset_t *set, uint32_t grace_ms)
{
    struct hurry hurry = {set, gateway};
    pthread_t thread;
    bool watched = pthread_create(&thread, NULL, hurry_on_signals, &hurry) == 0;
    notify_send("STOPPING=1");
    gateway_drain(gateway, grace_ms);
    if (!watched)
        return;
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
}

static int serve(const struct settings *settings)
{
    struct error err;
    struct gateway *gateway;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a full disk is an error of write(), never the end */
    heap_bound(settings->gateway.threads);
    struct gateway_config config = settings->gateway;
    config.watchdog_ms = notify_watchdog_ms();
    if (gateway_create(&config, &gateway, &err) != 0) {
        log_error(LOG_EVENT("cannot start"), LOG_STR("message", err.message));
        return err.status == STATUS_INVALID_ARGUMENT || err.status == STATUS_ALREADY_EXISTS ||
                       err.status == STATUS_PERMISSION_DENIED
                   ? EXIT_BAD_SETTINGS
                   : 1;
    }
    log_info(LOG_EVENT("serving"), LOG_STR("listen", settings->gateway.listen),
             LOG_U64("port", gateway_port(gateway)), LOG_STR("version", SLUICE_VERSION));
    notify_send("READY=1");
    while (!wait_for_signal(&set, gateway)) /* SIGUSR1 from outside says nothing */
        ;
    drain(gateway, &set, (uint32_t)settings->gateway.drain_grace_ms);
    gateway_destroy(gateway, 0);
    log_info(LOG_EVENT("stopped"));
    return 0;
}

int main(int argc, char *argv[])
{
    struct settings settings = {0};
    struct options *options;
    struct error err;
    enum log_level level;
    enum log_format format;
    struct spec_list list;
    list_specs(&list);
    if (options_parse("server", list.specs, list.n, argc, argv, &settings, &options, &err) != 0) {
        fprintf(stderr, "sluice-server: %s\n", err.message);
        return 2;
    }
    int rc = 0;
    if (settings.help || settings.man) {
        print_manual(&list, settings.man);
    } else if (settings.version) {
        puts("sluice-server " SLUICE_VERSION);
    } else if (options_n_positionals(options)) {
        fprintf(stderr, "sluice-server: unexpected word \"%s\" (see --help)\n",
                options_positional(options, 0));
        rc = 2;
    } else if (!*settings.gateway.manager_socket && !*settings.gateway.routes_file) {
        fprintf(stderr, "sluice-server: nothing tells where models are: give --manager "
                        "STATE/run/manager.sock, or the --routes-file of an earlier run (see "
                        "--help)\n");
        rc = 2;
    } else if (!log_level_parse(settings.log_level, &level) ||
               !log_format_parse(settings.log_format, &format)) {
        fprintf(stderr, "sluice-server: --log-level wants debug, info, warn or error; --log-format "
                        "kv or json\n");
        rc = 2;
    } else {
        log_init("sluice-server", level, format);
        rc = serve(&settings);
    }
    options_destroy(options);
    return rc;
}
