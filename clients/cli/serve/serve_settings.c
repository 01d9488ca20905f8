#include "clients/cli/serve/serve_settings.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/settings/options.h"
#include "base/strbuf.h"
#include "clients/cli/serve/child.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/server/listeners.h"

enum { CHECK_MS = 10000 }; /* time for a program to check its settings */

/* Options of `sluice serve` that manager or server have too, under the same name. */
static const char *const server_flags[] = {
    "--listen",           "--metrics",      "--metrics-aliases",
    "--tls-cert",         "--tls-key",      "--tls-client-ca",
    "--tls-client-auth",  "--keys-file",    "--allow-plaintext-keys",
    "--drain-grace",      "--log-level",    "--log-format",
    "--http-listen",      "--http-origins", "--http-strict",
    "--http-open-metrics"};
static const char http_flag[] = "--http-listen";
static const char *const manager_flags[] = {"--model-root", "--log-level", "--log-format"};

/* The manager's --metrics has another name in serve, because the server has a --metrics too. */
static const char metrics_here[] = "manager-metrics", metrics_there[] = "--metrics";

static const struct option_spec lock_spec = {
    "lock-file", 0, OPTION_STRING, CLI_OPTION(lock_file), "", "PATH", "", 0, 0};

/* Returns the index of an option in the command's table. */
static size_t find_spec(const struct cli *cli, const char *name)
{
    size_t i = 0;
    while (i < cli->n_specs && strcmp(cli->specs[i].name, name) != 0)
        i++;
    assert(i < cli->n_specs);
    return i;
}

/* Lists the server's rows. The lock file is the last row. */
static void add_server_rows(const struct cli *cli, struct serve_rows *out)
{
    out->n = 0;
    for (size_t i = 0; i < CLI_N(server_flags); i++)
        out->specs[out->n++] = cli->specs[find_spec(cli, server_flags[i] + 2)];
    out->specs[out->n++] = lock_spec;
}

/* Lists the manager's rows. Metrics are row 0. */
static void add_manager_rows(const struct cli *cli, struct serve_rows *out)
{
    out->specs[0] = cli->specs[find_spec(cli, metrics_here)];
    out->specs[0].name = metrics_there + 2;
    out->n = 1;
    for (size_t i = 0; i < CLI_N(manager_flags); i++)
        out->specs[out->n++] = cli->specs[find_spec(cli, manager_flags[i] + 2)];
}

/* Passes an option on to a program, also with an empty value: off differs from unset. */
static void pass_option(const struct cli *cli, const char *flag, struct child *child)
{
    size_t i = find_spec(cli, flag + 2);
    if (!options_is_own(cli->options, i))
        return;
    if (cli->specs[i].type != OPTION_BOOL) {
        child_add_word(child, flag);
        child_add_word(child, options_text(cli->options, i));
    } else if (strcmp(flag, "--http-strict") == 0) {
        child_add_word(child, cli->settings.http_strict ? flag : "--http-strict=false");
    } else if (strcmp(flag, "--http-open-metrics") == 0) {
        child_add_word(child, cli->settings.http_open_metrics ? flag : "--http-open-metrics=false");
    } else { /* allow-plaintext-keys */
        child_add_word(
            child, cli->settings.dial.allow_plaintext_keys ? flag : "--allow-plaintext-keys=false");
    }
}

static size_t count_words(const struct child *child)
{
    size_t n = 0;
    while (child->argv[n])
        n++;
    return n;
}

/* Reads a program's settings from its arguments, the environment and the file. */
static int read_rows(const struct cli *cli, const char *section, struct serve_rows *rows,
                     const struct child *child, struct cli_settings *out,
                     struct options **out_options, struct error *err)
{
    /* options_parse_some skips argv[0], so start one argument early. */
    char *const *argv = (char *const *)(uintptr_t)(child->argv + rows->n_words - 1);
    *out = cli->settings;
    return options_parse_some(section, rows->specs, rows->n,
                              (int)(count_words(child) - rows->n_words + 1), argv, out, out_options,
                              err);
}

static bool sets_metrics(const struct cli *cli, const struct options *own)
{
    return strcmp(options_origin(own, find_spec(cli, metrics_here)), "default") != 0;
}

/* Returns the address of the manager's metrics, from the settings of serve and manager.
 * SLUICE_METRICS and a `metrics` key outside sections belong to the server: both programs cannot
 * use one address. */
static const char *metrics_of_manager(const struct cli *cli, const struct options *own,
                                      const struct options *of_manager)
{
    const char *section = options_own_text(of_manager, 0);
    return sets_metrics(cli, own) || !section ? options_text(own, find_spec(cli, metrics_here))
                                              : section;
}

static int settle_metrics(const struct cli *cli, struct child *manager, struct options *options,
                          struct cli_settings *seen, struct error *err)
{
    const char *wanted = metrics_of_manager(cli, cli->options, options);
    if (!sets_metrics(cli, cli->options) && strcmp(wanted, seen->manager_metrics) == 0)
        return 0;
    child_add_word(manager, metrics_there);
    child_add_word(manager, wanted);
    return options_set(options, seen, metrics_there + 2, wanted, err);
}

/* Returns the index of --http-listen among the server's rows. */
static size_t http_row(void)
{
    size_t i = 0;
    while (strcmp(server_flags[i], http_flag) != 0)
        i++;
    return i;
}

static int turn_http_off(const struct cli *cli, struct child *server, struct error *err)
{
    size_t i = find_spec(cli, http_flag + 2);
    if (strcmp(options_origin(cli->options, i), "flag") == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--no-http: leave out --http-listen, or leave out --no-http");
    child_add_word(server, http_flag);
    child_add_word(server, "");
    return 0;
}

int serve_settings_hand_on(struct cli *cli, struct child *manager, struct child *server,
                           struct serve_settings *out, struct error *err)
{
    struct cli_settings of_server, of_manager;
    add_manager_rows(cli, &out->manager);
    add_server_rows(cli, &out->server);
    out->manager.n_words = count_words(manager);
    out->server.n_words = count_words(server);
    child_add_arg(manager, "--config", options_config(cli->options));
    child_add_arg(server, "--config", options_config(cli->options));
    for (size_t i = 0; i < CLI_N(manager_flags); i++)
        pass_option(cli, manager_flags[i], manager);
    for (size_t i = 0; i < CLI_N(server_flags); i++)
        if (!cli->settings.no_http || strcmp(server_flags[i], http_flag) != 0)
            pass_option(cli, server_flags[i], server);
    int rc = 0;
    if (cli->settings.no_http)
        rc = turn_http_off(cli, server, err);
    if (!rc)
        rc = read_rows(cli, "manager", &out->manager, manager, &of_manager, &out->manager.options,
                       err);
    if (!rc)
        rc = settle_metrics(cli, manager, out->manager.options, &of_manager, err);
    if (!rc)
        rc = read_rows(cli, "server", &out->server, server, &of_server, &out->server.options, err);
    if (rc)
        return rc;
    cli->settings = of_server;
    cli->settings.model_root = of_manager.model_root;
    cli->settings.manager_metrics = of_manager.manager_metrics;
    out->has_default_http = strcmp(options_origin(out->server.options, http_row()), "default") == 0;
    return 0;
}

int serve_settings_check(const struct cli_settings *settings, struct error *err)
{
    struct rpc_addresses http;
    struct rpc_listener listeners[3 + RPC_MAX_ADDRESSES] = {
        {"--listen", settings->listen},
        {"--metrics", settings->metrics},
        {"--manager-metrics", settings->manager_metrics},
    };
    int rc = rpc_listeners_split("--http-listen", settings->http_listen, &http, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < http.n; i++)
        listeners[3 + i] = (struct rpc_listener){"--http-listen", http.list[i]};
    return rpc_listeners_check(listeners, 3 + http.n, err);
}

static bool is_in(const char *const *flags, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(flags[i] + 2, name) == 0)
            return true;
    return false;
}

/* Lists settings that take effect only after a restart of serve. Settings that the programs read
 * themselves are not listed. Settings that serve passes on, before or now, are listed: they are
 * arguments of the programs. */
static void list_waiting(const struct cli *cli, const struct serve_rows *of_server,
                         const struct options *fresh, const struct options *fresh_server,
                         struct strbuf *out)
{
    size_t lock = of_server->n - 1; /* the lock file is an argument of the server */
    if (strcmp(options_text(of_server->options, lock), options_text(fresh_server, lock)) != 0)
        strbuf_add_str(out, lock_spec.name);
    for (size_t i = 0; i < cli->n_specs; i++) {
        const char *name = cli->specs[i].name;
        bool was = options_is_own(cli->options, i), is = options_is_own(fresh, i);
        bool same = strcmp(options_text(cli->options, i), options_text(fresh, i)) == 0;
        bool shared = is_in(server_flags, CLI_N(server_flags), name) ||
                      is_in(manager_flags, CLI_N(manager_flags), name);
        if (shared ? was != is || (is && !same) : !same)
            strbuf_printf(out, "%s%s", out->n_bytes ? " " : "", name);
    }
}

struct fresh {
    struct options *own, *manager, *server;
    struct cli_settings settings; /* the server's settings, and some of the others */
};

static int read_again(const struct cli *cli, struct serve_settings *settings,
                      const struct child *manager, const struct child *server, struct fresh *out,
                      struct error *err)
{
    struct cli_settings ignored;
    int rc = options_parse("cli", cli->specs, cli->n_specs, cli->argc, cli->argv, &ignored,
                           &out->own, err);
    if (!rc)
        rc = child_check(manager, "check-config", CHECK_MS, err);
    if (!rc)
        rc = child_check(server, "check-config", CHECK_MS, err);
    if (!rc)
        rc = read_rows(cli, "manager", &settings->manager, manager, &ignored, &out->manager, err);
    if (!rc)
        rc = read_rows(cli, "server", &settings->server, server, &out->settings, &out->server, err);
    if (rc)
        return rc;
    out->settings.manager_metrics = metrics_of_manager(cli, out->own, out->manager);
    return serve_settings_check(&out->settings, err);
}

int serve_settings_reload(struct cli *cli, struct serve_settings *settings,
                          const struct child *manager, const struct child *server,
                          struct strbuf *out_waiting, struct error *err)
{
    struct fresh fresh = {0};
    int rc = read_again(cli, settings, manager, server, &fresh, err);
    if (rc == 0) {
        list_waiting(cli, &settings->server, fresh.own, fresh.server, out_waiting);
        cli->settings.grace_ms = fresh.settings.grace_ms;
    }
    options_destroy(fresh.own);
    options_destroy(fresh.manager);
    options_destroy(fresh.server);
    return rc;
}

void serve_settings_fini(struct serve_settings *settings)
{
    options_destroy(settings->manager.options);
    options_destroy(settings->server.options);
}
