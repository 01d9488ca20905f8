#include "manager/settings/settings.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/settings/manual.h"
#include "base/settings/options.h"
#include "base/settings/reload.h"
#include "base/strbuf.h"
#include "base/system/notify.h"

#define FIELD(name) offsetof(struct settings, name)

enum { HOUR_MS = 3600 * 1000, DAY_MS = 24 * HOUR_MS };

static const struct option_spec specs[] = {
    {"state-dir", 'd', OPTION_STRING, FIELD(state_dir), "", "DIR",
     "database and lock; empty: $XDG_STATE_HOME/sluice", 0, 0},
    {"run-dir", 0, OPTION_STRING, FIELD(run_dir), "", "DIR",
     "sockets, worker logs and exit reports; empty: STATE_DIR/run", 0, 0},
    {"socket", 's', OPTION_STRING, FIELD(socket), "", "PATH",
     "unix socket to listen on, mode 0600; empty: RUN_DIR/manager.sock", 0, 0},
    {"manage-group", 0, OPTION_STRING, FIELD(manage_group), "", "GROUP",
     "gives this group access to the socket (0660), with the roles in --manage-keys-file of "
     "them",
     0, 0},
    {"manage-listen", 0, OPTION_STRING, FIELD(manage_listen), "", "ADDR:PORT",
     "also listen on TCP, for example 127.0.0.1:8003; needs TLS, and certificates or keys", 0, 0},
    {"manage-tls-cert", 0, OPTION_STRING, FIELD(access.tls_cert), "", "PEM",
     "certificate chain of the management port", 0, 0},
    {"manage-tls-key", 0, OPTION_STRING, FIELD(access.tls_key), "", "PEM",
     "private key of --manage-tls-cert", 0, 0},
    {"manage-tls-client-ca", 0, OPTION_STRING, FIELD(access.tls_client_ca), "", "PEM",
     "callers of the management port need certificates of this CA", 0, 0},
    {"manage-tls-client-auth", 0, OPTION_STRING, FIELD(access.tls_client_auth), "", "WHAT",
     "require (default), or optional: callers with a key need no certificate", 0, 0},
    {"manage-tls-client-role", 0, OPTION_STRING, FIELD(access.client_role), "", "ROLE",
     "role of certificates that the keys file does not name: viewer, operator, admin; empty: none",
     0, 0},
    {"manage-keys-file", 0, OPTION_STRING, FIELD(access.keys_file), "", "PATH",
     "keys, certificate names and users, with their roles (see sluice key new --help); read "
     "again when the file changes",
     0, 0},
    {"worker", 0, OPTION_STRING, FIELD(worker), "", "PATH",
     "the program sluice-worker; empty: beside this one", 0, 0},
    {"model-root", 'm', OPTION_STRING, FIELD(model_root), "", "DIR",
     "models must lie below this folder; empty: anywhere", 0, 0},
    {"metrics", 0, OPTION_STRING, FIELD(metrics), "127.0.0.1:8004", "ADDR:PORT",
     "address of GET /metrics and /healthz over HTTP, or unix:PATH; empty: none", 0, 0},
    {"drain-grace", 0, OPTION_MS, FIELD(drain_grace_ms), "60s", "TIME",
     "running requests of an unloaded model may take this long", 0, DAY_MS},
    {"restart-backoff-initial", 0, OPTION_MS, FIELD(restart_backoff_initial_ms), "1s", "TIME",
     "wait before a dead worker is started again; doubled each time", 1, HOUR_MS},
    {"restart-backoff-max", 0, OPTION_MS, FIELD(restart_backoff_max_ms), "60s", "TIME",
     "longest wait before a dead worker is started again", 1, HOUR_MS},
    {"crash-window", 0, OPTION_MS, FIELD(crash_window_ms), "60s", "TIME",
     "--crash-limit deaths of a replica within this time end its restarts", 1, DAY_MS},
    {"crash-limit", 0, OPTION_U64, FIELD(crash_limit), "5", "N",
     "deaths within --crash-window, or starts in a row that never became ready", 1,
     SETTINGS_MAX_CRASHES},
    {"kill-grace", 0, OPTION_MS, FIELD(kill_grace_ms), "5s", "TIME",
     "a worker that should have ended is killed after this", 1, HOUR_MS},
    {"connect-timeout", 0, OPTION_MS, FIELD(connect_timeout_ms), "30s", "TIME",
     "a started worker must answer on its socket within this time", 1, HOUR_MS},
    {"load-timeout", 0, OPTION_MS, FIELD(load_timeout_ms), "30m", "TIME",
     "a started worker must be ready within this time", 1, DAY_MS},
    {"tool-timeout", 0, OPTION_MS, FIELD(tool_timeout_ms), "60s", "TIME",
     "reading a model file, planning or probing may take this long", 1, HOUR_MS},
    {"max-open-operations", 0, OPTION_U64, FIELD(max_open_operations), "64", "N",
     "loads and unloads under way at once", 1, 1024},
    {"max-replicas", 0, OPTION_U64, FIELD(max_replicas), "64", "N", "worker processes at once", 1,
     1024},
    {"memory-budget", 0, OPTION_STRING, FIELD(memory_budget_text), "0", "LIST",
     "limit of the host memory of all workers together, and on single NUMA nodes: "
     "48G, node:0=16G,node:1=32G, or both; 0: all free memory",
     0, 0},
    {"placement", 0, OPTION_STRING, FIELD(placement_text), "auto", "auto|spread|pack",
     "which device of a group a replica takes: the one with the fewest processes (spread), or the "
     "fullest one with room (pack). Default: auto, which spreads over GPUs and takes all CPU nodes",
     0, 0},
    {"event-retention", 0, OPTION_U64, FIELD(event_retention), "100000", "N",
     "approximate number of events kept for WatchEvents", 1024, 100000000},
    {"stall-timeout", 0, OPTION_MS, FIELD(stall_timeout_ms), "10s", "TIME",
     "a worker without progress is marked stalled after this, and killed after twice this", 400,
     HOUR_MS},
    {"slow-reader-timeout", 0, OPTION_MS, FIELD(slow_reader_ms), "30s", "TIME",
     "a watch whose caller does not read is ended after this time", 1, HOUR_MS},
    {"stop-workers-on-exit", 0, OPTION_BOOL, FIELD(stop_workers_on_exit), "false", NULL,
     "end the workers with the manager (default: they run on)", 0, 0},
    {"log-level", 0, OPTION_WORD, FIELD(log_level), "info", "debug|info|warn|error",
     "lowest level that is logged, by the workers too", 0, 0},
    {"log-format", 0, OPTION_WORD, FIELD(log_format), "kv", "kv|json", "format of log lines", 0, 0},
    {"origin", 0, OPTION_BOOL, FIELD(origin), "false", NULL,
     "with show-config: also print the source of each value", 0, 0},
    {"help", 'h', OPTION_BOOL, FIELD(help), "false", NULL, "print this text", 0, 0},
    {"man", 0, OPTION_BOOL, FIELD(man), "false", NULL, "print the man page, in roff", 0, 0},
    {"version", 'V', OPTION_BOOL, FIELD(version), "false", NULL, "print the version", 0, 0},
};

enum { N_SPECS = sizeof(specs) / sizeof(specs[0]) };

/* Options of check, backup and restore. */
static const struct option_spec offline_specs[] = {
    {"state-dir", 'd', OPTION_STRING, FIELD(state_dir), "", "DIR",
     "database and lock; empty: $XDG_STATE_HOME/sluice", 0, 0},
    {"json", 0, OPTION_BOOL, FIELD(json), "false", NULL, "print one JSON object", 0, 0},
    {"help", 'h', OPTION_BOOL, FIELD(help), "false", NULL, "print this text", 0, 0},
};

/* In test builds, end-to-end tests may simulate a machine of several nodes with a tree of their
 * own. */
static const char *system_tree(void)
{
#if SLUICE_DEBUG_CHECKS
    const char *tree = getenv("SLUICE_SYS_TREE");
    if (tree)
        return tree;
#endif
    return "/sys";
}

static int read_texts(struct settings *settings, struct error *err)
{
    if (memory_budget_parse("--memory-budget", settings->memory_budget_text,
                            &settings->memory_budget, err) != 0 ||
        memory_budget_check_nodes("--memory-budget", &settings->memory_budget, system_tree(),
                                  err) != 0)
        return err->status;
    if (fit_policy_parse(settings->placement_text, &settings->placement))
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--placement: \"%.80s\"; must be auto, spread or pack",
                     settings->placement_text);
}

int settings_parse(int argc, char *const argv[], struct settings *out_settings,
                   struct options **out_options, struct error *err)
{
    struct options *options = NULL;
    if (options_parse("manager", specs, N_SPECS, argc, argv, out_settings, &options, err) != 0)
        return err->status;
    for (size_t i = 0; i < options_n_positionals(options); i++) {
        const char *word = options_positional(options, i);
        if (i == 0 && (strcmp(word, "check-config") == 0 || strcmp(word, "show-config") == 0))
            continue;
        error_set(err, STATUS_INVALID_ARGUMENT, "\"%.80s\" is not an option; see --help", word);
        options_destroy(options);
        return err->status;
    }
    if (read_texts(out_settings, err) != 0) {
        options_destroy(options);
        return err->status;
    }
    *out_options = options;
    return 0;
}

/* Parses all options, as the state directory may be in the manager's own configuration. */
int settings_parse_offline(int argc, char *const argv[], struct settings *out_settings,
                           struct options **out_options, struct error *err)
{
    static struct option_spec all[N_SPECS + 1];
    struct options *options = NULL;
    memcpy(all, specs, sizeof(specs));
    all[N_SPECS] = offline_specs[1];
    if (options_parse("manager", all, N_SPECS + 1, argc, argv, out_settings, &options, err) != 0)
        return err->status;
    if (options_n_positionals(options) > 1) {
        error_set(err, STATUS_INVALID_ARGUMENT, "\"%.80s\": one file at most; see --help",
                  options_positional(options, 1));
        options_destroy(options);
        return err->status;
    }
    *out_options = options;
    return 0;
}

const struct option_spec *settings_offline_specs(size_t *out_n)
{
    *out_n = sizeof(offline_specs) / sizeof(offline_specs[0]);
    return offline_specs;
}

/* Settings that the loop reads at each use, so that SIGHUP may change them. Running workers keep
 * their own. */
static const char *const live[] = {"log-level",
                                   "log-format",
                                   "drain-grace",
                                   "restart-backoff-initial",
                                   "restart-backoff-max",
                                   "crash-window",
                                   "crash-limit",
                                   "kill-grace",
                                   "connect-timeout",
                                   "load-timeout",
                                   "max-open-operations",
                                   "max-replicas",
                                   "stop-workers-on-exit",
                                   NULL};

int settings_check(const struct settings *settings, struct error *err)
{
    struct settings copy = *settings;
    return read_texts(&copy, err);
}

static int check_parsed(const void *parsed, struct error *err)
{
    return settings_check(parsed, err);
}

struct reload *settings_watch(int argc, char *const argv[], const struct settings *settings)
{
    const struct reload_config config = {
        .section = "manager",
        .specs = specs,
        .n_specs = N_SPECS,
        .argc = argc,
        .argv = argv,
        .settings = settings,
        .settings_bytes = sizeof(*settings),
        .check = check_parsed,
        .live = live,
    };
    return reload_create(&config);
}

void settings_reload(struct reload *reload, struct settings *settings)
{
    struct strbuf set, restart;
    struct error err;
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_KV;
    strbuf_init(&set, 0);
    strbuf_init(&restart, 0);
    notify_reloading();
    if (reload_read(reload, settings, &set, &restart, &err) != 0) {
        log_error(LOG_EVENT("settings not reloaded"), LOG_STR("message", err.message),
                  LOG_STR("in_force", "the earlier settings"));
        notify_status("READY=1", "Settings not reloaded: %s", err.message);
    } else {
        /* the option table has checked the words */
        (void)log_level_parse(settings->log_level, &level);
        (void)log_format_parse(settings->log_format, &format);
        log_set(level, format);
        log_info(LOG_EVENT("settings reloaded"), LOG_STR("set", strbuf_str(&set)),
                 LOG_STR("need_restart", strbuf_str(&restart)));
        notify_status("READY=1", "Managing%s%s%s",
                      restart.n_bytes ? "; a restart is needed for " : "", strbuf_str(&restart),
                      restart.n_bytes ? " to change" : "");
    }
    strbuf_fini(&set);
    strbuf_fini(&restart);
}

static const struct manual_example examples[] = {
    {"sluice-manager --state-dir /var/lib/sluice --model-root /srv/models", NULL},
    {"sluice-manager show-config --origin --config /etc/sluice/sluice.conf", NULL},
    {"sluice-manager -d ./state --restart-backoff-initial 100ms --log-level debug", NULL},
    {"sluice-manager check --state-dir /var/lib/sluice",
     "check the database while no manager runs"},
    {"grpcurl -plaintext -unix ./state/run/manager.sock sluice.manager.v1.ModelManager/GetStatus",
     NULL},
};

static const struct manual_exit exits[] = {
    {0, "ended by SIGTERM or SIGINT"},
    {1, "failed"},
    {2, "wrong usage"},
    {74, "no room on the disk for a first start; a later start may succeed"},
    {75, "another manager has the state directory; the message names its pid"},
    {78, "unusable settings, for example an address in use or a port without TLS"},
};

static const struct manual manual = {
    .program = "sluice-manager",
    .page = "sluice-manager",
    .section = 8,
    .synopsis = "[check-config | show-config] [options]",
    .summary = "keeps models, replicas and operations, and supervises the workers",
    .description =
        "Serves sluice.manager.v1 on a unix socket and keeps its state in SQLite.\n\n"
        "Every caller has a role: viewer, operator or admin. On the socket, root and the "
        "manager's own user are admins. Other users, keys and certificates have the roles in "
        "--manage-keys-file.\n\n"
        "SIGTERM ends the manager and leaves the workers running; the next manager adopts "
        "the workers. SIGHUP reads the settings again and applies changes of times, limits "
        "and the log. The log names other changes, which need a restart. After an error all "
        "settings stay as they are.\n\n"
        "`check`, `backup` and `restore` work on the state database while no manager runs; "
        "each has a --help.\n\n"
        "`check-config` checks the settings and prints the errors of a start. `show-config` "
        "prints the settings. Neither starts anything.",
    .specs = specs,
    .n_specs = N_SPECS,
    .exits = exits,
    .n_exits = sizeof(exits) / sizeof(exits[0]),
    .examples = examples,
    .n_examples = sizeof(examples) / sizeof(examples[0]),
    .see_also = "sluice(1), sluice-server(8), sluice-worker(8)",
};

void settings_manual(bool roff, struct strbuf *out)
{
    if (roff)
        manual_roff(&manual, SLUICE_DATE, out);
    else
        manual_help(&manual, out);
}
