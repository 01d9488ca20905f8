#include "clients/cli/serve_settings.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "clients/cli/cli.h"
#include "clients/cli/supervise.h"

/* Rows of `sluice serve` that are also its programs', by the same name. */
static const char *const server_flags[] = {
    "--listen",          "--metrics",   "--metrics-aliases",
    "--tls-cert",        "--tls-key",   "--tls-client-ca",
    "--tls-client-auth", "--keys-file", "--allow-plaintext-keys",
    "--drain-grace",     "--log-level", "--log-format"};
static const char *const manager_flags[] = {"--model-root", "--log-level", "--log-format"};

/* The one of the manager that has another name here: the server has a --metrics too. */
static const char metrics_here[] = "manager-metrics", metrics_there[] = "--metrics";

static const struct option_spec lock_spec = {
    "lock-file", 0, OPTION_STRING, CLI_OPTION(lock_file), "", "PATH", "", 0, 0};

/* Of the command's table. */
static size_t find(const struct cli *cli, const char *name)
{
    size_t i = 0;
    while (i < cli->n_specs && strcmp(cli->specs[i].name, name) != 0)
        i++;
    assert(i < cli->n_specs);
    return i;
}

static void list_server(const struct cli *cli, struct serve_rows *out)
{
    out->n = 0;
    for (size_t i = 0; i < CLI_N(server_flags); i++)
        out->specs[out->n++] = cli->specs[find(cli, server_flags[i] + 2)];
    out->specs[out->n++] = lock_spec;
}

/* Its metrics are row 0. */
static void list_manager(const struct cli *cli, struct serve_rows *out)
{
    out->specs[0] = cli->specs[find(cli, metrics_here)];
    out->specs[0].name = metrics_there + 2;
    out->n = 1;
    for (size_t i = 0; i < CLI_N(manager_flags); i++)
        out->specs[out->n++] = cli->specs[find(cli, manager_flags[i] + 2)];
}

/* Also an empty text: off is not the same as not said. */
static void hand_on(const struct cli *cli, const char *flag, struct child *child)
{
    size_t i = find(cli, flag + 2);
    if (!options_is_own(cli->options, i))
        return;
    if (cli->specs[i].type != OPTION_BOOL) {
        child_add_word(child, flag);
        child_add_word(child, options_text(cli->options, i));
    } else { /* there is one */
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

/* What the program's words, the environment and the file come to. */
static int read_rows(const struct cli *cli, const char *section, struct serve_rows *rows,
                     const struct child *child, struct cli_settings *out,
                     struct options **out_options, struct error *err)
{
    /* The word before its settings stands where a program's name does. */
    char *const *argv = (char *const *)(uintptr_t)(child->argv + rows->n_words - 1);
    *out = cli->settings;
    return options_parse_some(section, rows->specs, rows->n,
                              (int)(count_words(child) - rows->n_words + 1), argv, out, out_options,
                              err);
}

/* SLUICE_METRICS, and `metrics` before any section, are the server's: with both programs on one
 * address neither could run. */
static int settle_metrics(const struct cli *cli, struct child *manager, struct options *options,
                          struct cli_settings *seen, struct error *err)
{
    size_t i = find(cli, metrics_here);
    const char *given = options_text(cli->options, i), *own = options_own_text(options, 0);
    bool said = strcmp(options_origin(cli->options, i), "default") != 0;
    const char *wanted = said || !own ? given : own;
    if (!said && strcmp(wanted, seen->manager_metrics) == 0)
        return 0;
    child_add_word(manager, metrics_there);
    child_add_word(manager, wanted);
    return options_set(options, seen, metrics_there + 2, wanted, err);
}

int serve_settings_hand_on(struct cli *cli, struct child *manager, struct child *server,
                           struct serve_settings *out, struct error *err)
{
    struct cli_settings of_server, of_manager;
    list_manager(cli, &out->manager);
    list_server(cli, &out->server);
    out->manager.n_words = count_words(manager);
    out->server.n_words = count_words(server);
    child_add_arg(manager, "--config", options_config(cli->options));
    child_add_arg(server, "--config", options_config(cli->options));
    for (size_t i = 0; i < CLI_N(manager_flags); i++)
        hand_on(cli, manager_flags[i], manager);
    for (size_t i = 0; i < CLI_N(server_flags); i++)
        hand_on(cli, server_flags[i], server);
    int rc =
        read_rows(cli, "manager", &out->manager, manager, &of_manager, &out->manager.options, err);
    if (!rc)
        rc = settle_metrics(cli, manager, out->manager.options, &of_manager, err);
    if (!rc)
        rc = read_rows(cli, "server", &out->server, server, &of_server, &out->server.options, err);
    if (rc)
        return rc;
    cli->settings = of_server;
    cli->settings.model_root = of_manager.model_root;
    cli->settings.manager_metrics = of_manager.manager_metrics;
    return 0;
}

int serve_settings_reload(struct cli *cli, struct serve_settings *settings,
                          const struct child *server, struct error *err)
{
    struct cli_settings fresh;
    struct options *options;
    int rc = read_rows(cli, "server", &settings->server, server, &fresh, &options, err);
    if (rc)
        return rc;
    cli->settings.grace_ms = fresh.grace_ms;
    options_destroy(options);
    return 0;
}

void serve_settings_fini(struct serve_settings *settings)
{
    options_destroy(settings->manager.options);
    options_destroy(settings->server.options);
}
