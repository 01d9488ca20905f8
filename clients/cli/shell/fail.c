/* fail.c: prints the error of a command and what to try next. */
#include <stdio.h>
#include <string.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/flag_words.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"

/* Next steps by reason. The flags that select the manager go between `before` and `after`. */
static const struct {
    const char *reason, *before, *after;
} next_steps[] = {
    {"MODEL_NOT_FOUND", "sluice ls", " lists the models; sluice register NAME FILE adds one"},
    {"VERSION_NOT_FOUND", "sluice ls", " lists the versions"},
    {"NO_REPLICA_READY", "sluice ps", " shows the state of its replicas"},
    {"REPLICA_NOT_FOUND", "sluice ps", " lists the replicas"},
    {"OPERATION_NOT_FOUND", "sluice ops", " lists the operations"},
    {"OPERATION_IN_PROGRESS", "sluice ops --open",
     " lists open operations; sluice ops cancel ID ends one"},
    {"TOO_MANY_OPERATIONS", "sluice ops --open", " lists open operations"},
    {"OPERATION_ENDED", "sluice ops", " shows how the operation ended"},
    {"CANNOT_CANCEL", "sluice ops", " shows the operation's state"},
    {"DEVICE_GROUP_NOT_FOUND", "sluice groups", " lists the device groups"},
    {"DEVICE_GROUP_IN_USE", "sluice ps", " shows what is loaded on it"},
    {"DEVICE_NOT_FOUND", "sluice devices", " lists the devices"},
    {"DEVICE_QUARANTINED", "sluice devices", " shows why and since when"},
    {"DEVICE_NOT_HELD", "sluice devices", " shows the state of each device"},
    {"DEVICE_MEMORY", "sluice ps", " shows the memory in use; sluice unload MODEL frees memory"},
    {"EVENTS_GONE", "sluice events --from N", " starts at the oldest event that is kept"},
    {"REQUEST_ID_REUSED", "", "give another --request-id"},
    {"QUEUE_FULL", "", "try again in a moment"},
};

/* Copies the version from a manager's message "MODEL/VERSION is loaded ...". Empty: no version. */
static const char *version_in(const char *message, const char *model, char out[CLI_VERSION_BYTES])
{
    const char *at = model ? strstr(message, model) : NULL;
    size_t n = model ? strlen(model) : 0;
    bool found = at && (at == message || at[-1] == ' ') && at[n] == '/';
    snprintf(out, CLI_VERSION_BYTES, "%.*s", found ? (int)strcspn(at + n + 1, " ") : 0,
             found ? at + n + 1 : "");
    return out;
}

/* Returns the version that the command names, so that the advice spares the model's other versions.
 */
static const char *version_of(const struct cli *cli)
{
    const char *const said[] = {cli->settings.version, cli->settings.to_version,
                                strcmp(cli->command->name, "rm") == 0 ? cli_word(cli, 1) : NULL};
    for (size_t i = 0; i < CLI_N(said); i++)
        if (said[i] && said[i][0])
            return said[i];
    return "";
}

static bool advice(const struct cli *cli, const struct error *err, struct strbuf *out)
{
    char flags[CLI_HINT_BYTES], seen[CLI_VERSION_BYTES];
    const char *model = cli_word(cli, 0), *connection = NULL;
    const char *version = version_of(cli);
    if (strcmp(cli->command->name, "serve") == 0)
        return false; /* other errors advise to run `serve` or `doctor` */
    bool by_port = (cli->command->groups & CLI_MANAGE) && cli_dial_is_port(cli->manager_target);
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0] &&
        ((cli->command->groups & CLI_DIAL) || by_port))
        connection = cli_dial_advice(&cli->settings.dial, err->message);
    if (connection)
        return strbuf_add_str(out, connection);
    if (err->status == STATUS_UNAVAILABLE && strstr(err->message, "Permission denied"))
        return strbuf_add_str(
            out, "the socket belongs to another user; run this command as that user with sudo -u");
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0] && by_port)
        return strbuf_add_str(
            out, "if no manager runs there, start one with --manage-listen for this address");
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0] && cli->server_target[0] &&
        !cli_given(cli, "server") && cli_manager_listens(cli))
        return strbuf_printf(out,
                             "no server runs there, but a manager does; sluice status%s shows the "
                             "server's address, give it with --server",
                             cli_hint_flags(cli, CLI_HINT_STATE, flags));
    if (err->status == STATUS_UNAVAILABLE && !err->reason[0])
        return strbuf_printf(out,
                             "if no server runs there, start one with: sluice serve MODEL.gguf%s",
                             cli_hint_flags(cli, CLI_HINT_LISTEN | CLI_HINT_STATE, flags));
    cli_hint_flags(cli, CLI_HINT_STATE, flags);
    /* The manager also uses NOT_LOADED for an unload, where advice to load would be wrong. */
    if (strcmp(err->reason, "MODEL_NOT_LOADED") == 0 ||
        (strcmp(err->reason, "NOT_LOADED") == 0 && strcmp(cli->command->name, "scale") == 0))
        return strbuf_printf(out, "load it with: sluice load %s%s%s%s",
                             model && !strchr(model, '/') ? model : "NAME",
                             version[0] ? " --version " : "", version, flags);
    if (strcmp(err->reason, "ALREADY_LOADED") == 0) {
        const char *name = model && !strchr(model, '/') ? model : "NAME";
        const char *group = cli_given(cli, "group") ? cli->settings.device_group : "";
        version = version[0] ? version : version_in(err->message, model, seen);
        const char *flag = version[0] ? " --version " : "";
        if (strncmp(err->message, "n_replicas:", 11) == 0)
            return strbuf_printf(out, "change the number with: sluice scale %s N%s%s%s", name, flag,
                                 version, flags);
        return strbuf_printf(
            out, "unload it with: sluice unload %s%s%s%s%s%s, then load it with the new settings",
            name, flag, version, group[0] ? " --group " : "", group, flags);
    }
    if (strcmp(err->reason, "VERSION_LOADED") == 0)
        return strbuf_printf(out, "first end its replicas with: sluice unload %s%s%s%s",
                             model && !strchr(model, '/') ? model : "MODEL",
                             version[0] ? " --version " : "", version, flags);
    if (err->status == STATUS_UNAUTHENTICATED)
        return strbuf_add_str(out, "give an API key with --api-key-file or SLUICE_API_KEY, or a "
                                   "certificate with --tls-client-cert");
    for (size_t i = 0; i < CLI_N(next_steps); i++)
        if (strcmp(err->reason, next_steps[i].reason) == 0)
            return strbuf_printf(out, "%s%s%s", next_steps[i].before,
                                 next_steps[i].before[0] ? flags : "", next_steps[i].after);
    return false;
}

int cli_fail(const struct cli *cli, const struct error *err)
{
    struct strbuf hint;
    bool usage = strcmp(err->reason, CLI_USAGE_REASON) == 0;
    if (strcmp(err->reason, "STDOUT_CLOSED") == 0)
        return 1; /* the reader of the pipe, like `head`, has closed it */
    if (cli->settings.json) {
        output_json_error(err);
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
