#include "clients/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/flag_words.h"
#include "clients/cli/output.h"
#include "clients/cli/paths.h"
#include "clients/cli/printable.h"

char *cli_request_id(const struct cli *cli, char id[UUID_BYTES])
{
    rng_uuid(id);
    return cli->settings.request_id[0] ? (char *)(uintptr_t)cli->settings.request_id : id;
}

const char *cli_joined(size_t n, char *const words[], struct strbuf *out)
{
    strbuf_clear(out);
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, "%s%s", i ? "," : "", words[i]);
    return strbuf_str(out);
}

const char *cli_word(const struct cli *cli, size_t i)
{
    if (i == 0 && cli->model[0])
        return cli->model;
    return options_positional(cli->options, i);
}

int cli_split_version(struct cli *cli, struct error *err)
{
    const char *word = options_positional(cli->options, 0), *colon;
    bool takes_version = false;
    for (size_t i = 0; i < cli->n_specs; i++)
        takes_version |= strcmp(cli->specs[i].name, "version") == 0;
    if (!takes_version || strncmp(cli->command->arguments, "MODEL", 5) != 0 || !word ||
        strchr(word, '/') || !(colon = strchr(word, ':')))
        return 0;
    size_t n = (size_t)(colon - word);
    if (n == 0 || n >= sizeof(cli->model) || !colon[1]) {
        error_set(err, STATUS_INVALID_ARGUMENT, "\"%.40s\" is no MODEL[:VERSION]", word);
        return cli_usage(err);
    }
    if (cli->settings.version[0]) {
        error_set(err, STATUS_INVALID_ARGUMENT, "--version: \"%.40s\" names one already", word);
        return cli_usage(err);
    }
    snprintf(cli->model, sizeof(cli->model), "%.*s", (int)n, word);
    cli->settings.version = colon + 1;
    return 0;
}

bool cli_given(const struct cli *cli, const char *name)
{
    for (size_t i = 0; i < cli->n_specs; i++)
        if (strcmp(cli->specs[i].name, name) == 0)
            return strcmp(options_origin(cli->options, i), "default") != 0;
    return false;
}

void cli_add_quoted(struct strbuf *out, const char *value)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
    if (value[0] && value[strspn(value, plain)] == '\0') {
        strbuf_add_str(out, value);
        return;
    }
    strbuf_add_char(out, '\'');
    for (const char *p = value; *p; p++)
        if (*p == '\'')
            strbuf_add_str(out, "'\\''");
        else
            strbuf_add_char(out, *p);
    strbuf_add_char(out, '\'');
}

static void add_flag(struct strbuf *out, const char *name, const char *value)
{
    strbuf_printf(out, " --%s ", name);
    cli_add_quoted(out, value);
}

const char *cli_hint_flags(const struct cli *cli, unsigned hints, char out[CLI_HINT_BYTES])
{
    const struct cli_settings *s = &cli->settings;
    bool elsewhere = s->server[0] && strcmp(s->server, CLI_DEFAULT_SERVER) != 0;
    struct strbuf text;
    strbuf_init(&text, CLI_HINT_BYTES - 1);
    if ((hints & CLI_HINT_SERVER) && elsewhere)
        add_flag(&text, "server", s->server);
    if ((hints & CLI_HINT_LISTEN) && elsewhere && strncmp(s->server, "unix:", 5) != 0)
        add_flag(&text, "listen", s->server);
    if ((hints & CLI_HINT_STATE) && s->state_dir[0])
        add_flag(&text, "state-dir", s->state_dir);
    snprintf(out, CLI_HINT_BYTES, "%s", strbuf_str(&text));
    strbuf_fini(&text);
    return out;
}

/* What a person should try next, by reason: the flags that mean the same manager stand between. */
static const struct {
    const char *reason, *before, *after;
} next_steps[] = {
    {"MODEL_NOT_FOUND", "sluice ls", " lists the models; sluice register NAME FILE adds one"},
    {"VERSION_NOT_FOUND", "sluice ls", " lists the versions"},
    {"NO_REPLICA_READY", "sluice ps", " shows what its replicas do"},
    {"REPLICA_NOT_FOUND", "sluice ps", " lists the replicas"},
    {"OPERATION_NOT_FOUND", "sluice ops", " lists the operations"},
    {"OPERATION_IN_PROGRESS", "sluice ops --open",
     " lists what is under way; sluice ops cancel ID ends it"},
    {"TOO_MANY_OPERATIONS", "sluice ops --open", " lists what is under way"},
    {"OPERATION_ENDED", "sluice ops", " tells how it ended"},
    {"CANNOT_CANCEL", "sluice ops", " tells its state"},
    {"DEVICE_GROUP_NOT_FOUND", "sluice groups", " lists the device groups"},
    {"DEVICE_GROUP_IN_USE", "sluice ps", " shows what is loaded on it"},
    {"DEVICE_NOT_FOUND", "sluice devices", " lists the devices"},
    {"DEVICE_QUARANTINED", "sluice devices", " tells why and since when"},
    {"DEVICE_NOT_HELD", "sluice devices", " tells the state of each"},
    {"DEVICE_MEMORY", "sluice ps", " shows what takes memory; sluice unload MODEL frees it"},
    {"VERSION_LOADED", "sluice unload MODEL", " ends its replicas first"},
    {"EVENTS_GONE", "sluice events --from N", " reads on from the oldest that is kept"},
    {"REQUEST_ID_REUSED", "", "give another --request-id"},
    {"QUEUE_FULL", "", "ask again in a moment"},
};

static bool advice(const struct cli *cli, const struct error *err, struct strbuf *out)
{
    char flags[CLI_HINT_BYTES];
    const char *model = cli_word(cli, 0), *connection = NULL;
    const char *version = cli->settings.version ? cli->settings.version : "";
    if (strcmp(cli->command->name, "serve") == 0)
        return false; /* it is what the others are advised to run */
    bool by_port = (cli->command->groups & CLI_MANAGE) && cli_dial_is_port(cli->manager_target);
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0] &&
        ((cli->command->groups & CLI_DIAL) || by_port))
        connection = cli_dial_advice(&cli->settings.dial, err->message);
    if (connection)
        return strbuf_add_str(out, connection);
    if (err->status == STATUS_UNAVAILABLE && strstr(err->message, "Permission denied"))
        return strbuf_add_str(out, "that socket is another user's: run this as the user that runs "
                                   "it, with sudo -u");
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0] && by_port)
        return strbuf_add_str(out, "is it running, with --manage-listen for this address?");
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0] && cli->server_target[0] &&
        !cli_given(cli, "server") && cli_manager_listens(cli))
        return strbuf_printf(out,
                             "no server is there, but a manager runs: sluice status%s tells where "
                             "its server listens; give that address with --server",
                             cli_hint_flags(cli, CLI_HINT_STATE, flags));
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0])
        return strbuf_printf(out, "is it running? start it with: sluice serve MODEL.gguf%s",
                             cli_hint_flags(cli, CLI_HINT_LISTEN | CLI_HINT_STATE, flags));
    cli_hint_flags(cli, CLI_HINT_STATE, flags);
    /* NOT_LOADED is the manager's word, also to an unload: that wanted it so. */
    if (strcmp(err->reason, "MODEL_NOT_LOADED") == 0 ||
        (strcmp(err->reason, "NOT_LOADED") == 0 && strcmp(cli->command->name, "scale") == 0))
        return strbuf_printf(out, "load it with: sluice load %s%s%s%s",
                             model && !strchr(model, '/') ? model : "NAME",
                             version[0] ? " --version " : "", version, flags);
    if (strcmp(err->reason, "ALREADY_LOADED") == 0) {
        const char *name = model && !strchr(model, '/') ? model : "NAME";
        const char *flag = version[0] ? " --version " : "";
        if (strncmp(err->message, "n_replicas:", 11) == 0)
            return strbuf_printf(out, "change the number with: sluice scale %s N%s%s%s", name, flag,
                                 version, flags);
        return strbuf_printf(out, "unload it with: sluice unload %s%s%s%s, then load it as wanted",
                             name, flag, version, flags);
    }
    if (err->status == STATUS_UNAUTHENTICATED)
        return strbuf_add_str(out, "give a key with --api-key-file or SLUICE_API_KEY, or a "
                                   "certificate with --tls-client-cert");
    for (size_t i = 0; i < CLI_N(next_steps); i++)
        if (strcmp(err->reason, next_steps[i].reason) == 0)
            return strbuf_printf(out, "%s%s%s", next_steps[i].before,
                                 next_steps[i].before[0] ? flags : "", next_steps[i].after);
    return false;
}

static const char usage_reason[] = "USAGE";

int cli_usage(struct error *err)
{
    return error_reason(err, usage_reason);
}

int cli_fail(const struct cli *cli, const struct error *err)
{
    struct strbuf hint;
    bool usage = strcmp(err->reason, usage_reason) == 0;
    if (strcmp(err->reason, "STDOUT_CLOSED") == 0)
        return 1; /* `| head` has had enough: nobody asked why */
    if (cli->settings.json) {
        print_json_error(err);
        return usage ? 2 : 1;
    }
    strbuf_init(&hint, 0);
    fprintf(stderr, "sluice %s: ", cli->command->name);
    struct strbuf words;
    strbuf_init(&words, 0);
    flag_words_add(cli->specs, cli->n_specs,
                   err->message[0] ? err->message : status_name(err->status), &words);
    printable_write(stderr, strbuf_str(&words));
    strbuf_fini(&words);
    if (err->reason[0] && !usage)
        fprintf(stderr, " (%s, %s)\n", status_name(err->status), err->reason);
    else
        fprintf(stderr, " (%s)\n", status_name(err->status));
    if (advice(cli, err, &hint))
        fprintf(stderr, "%s\n", strbuf_str(&hint));
    strbuf_fini(&hint);
    return usage ? 2 : 1;
}

int cli_need_state(const struct cli *cli, struct error *err)
{
    if (cli->state_dir[0])
        return 0;
    error_set(err, STATUS_INVALID_ARGUMENT,
              "--state-dir: give it where neither XDG_STATE_HOME nor HOME is set");
    return cli_usage(err);
}

void cli_resolve_paths(struct cli *cli)
{
    const char *given = cli->settings.state_dir;
    char here[sizeof(cli->state_dir)];
    if (given[0] && given[0] != '/' && getcwd(here, sizeof(here)))
        paths_join(here, given, cli->state_dir, sizeof(cli->state_dir));
    else if (given[0])
        snprintf(cli->state_dir, sizeof(cli->state_dir), "%s", given);
    else if (paths_default_state(cli->state_dir, sizeof(cli->state_dir)) != 0)
        cli->state_dir[0] = '\0'; /* cli_need_state says so where it matters */
    if (cli_dial_is_port(cli->settings.manager))
        snprintf(cli->manager_target, sizeof(cli->manager_target), "%s", cli->settings.manager);
    else if (cli->settings.manager[0])
        snprintf(cli->manager_target, sizeof(cli->manager_target), "unix:%s",
                 cli->settings.manager);
    else
        snprintf(cli->manager_target, sizeof(cli->manager_target), "unix:%s/run/manager.sock",
                 cli->state_dir);
}
