/* fail.c: prints the error of a command and what to try next. Decides by the error's reason and
 * its typed details (field, version), never by its text. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/system/shell_word.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/flag_words.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"

/* Returns the version that the command names, else the error's version. So the advice spares the
 * model's other versions. */
static const char *version_of(const struct cli *cli, const struct error *err)
{
    const char *const named[] = {cli->settings.version, cli->settings.to_version,
                                 strcmp(cli->command->name, "rm") == 0 ? cli_word(cli, 1) : NULL,
                                 err->version};
    for (size_t i = 0; i < CLI_N(named); i++)
        if (named[i] && named[i][0])
            return named[i];
    /* An unload without a version would end every version. */
    return err->reason == REASON_ALREADY_LOADED ? "VERSION" : "";
}

/* Appends a flag with its value as a shell takes it; nothing for "". */
static bool add_flag(const char *flag, const char *value, struct strbuf *out)
{
    if (!value[0])
        return true;
    strbuf_add_str(out, flag);
    shell_word_add(out, value);
    return !strbuf_failed(out);
}

/* Appends the sentence `next` of a reason (reason.h) with its places filled in. */
static bool add_next(const struct cli *cli, const struct error *err, const char *next,
                     struct strbuf *out)
{
    char flags[CLI_HINT_BYTES];
    const char *model = cli_word(cli, 0), *version = version_of(cli, err);
    const char *group = cli_given(cli, "group") ? cli->settings.device_group : "";
    bool complete = true;
    for (; complete && *next; next++) {
        if (*next != '%')
            complete = strbuf_add(out, next, 1);
        else if (*++next == 'M')
            complete = strbuf_add_str(out, model && !strchr(model, '/') ? model : "MODEL");
        else if (*next == 'V')
            complete = add_flag(" --version ", version, out);
        else if (*next == 'G')
            complete = add_flag(" --group ", group, out);
        else /* 'F' */
            complete = strbuf_add_str(out, cli_hint_flags(cli, CLI_HINT_STATE, flags));
    }
    return complete;
}

/* Writes the state directory whose manager has the socket of --manager. False: none has. */
static bool state_dir_of(const char *manager, char *out, size_t n_out)
{
    static const char scheme[] = "unix:", end[] = "/run/manager.sock";
    if (strncmp(manager, scheme, sizeof(scheme) - 1) == 0)
        manager += sizeof(scheme) - 1;
    size_t n = strlen(manager), n_end = sizeof(end) - 1;
    return n > n_end && strcmp(manager + n - n_end, end) == 0 &&
           snprintf(out, n_out, "%.*s", (int)(n - n_end), manager) < (int)n_out;
}

/* No process answered at the address. sluice serve has no --manager: its manager's socket lies in
 * the state directory. */
static bool add_start(const struct cli *cli, struct strbuf *out)
{
    char flags[CLI_HINT_BYTES], state_dir[PATH_MAX];
    bool asks_server = cli->server_target[0] != '\0';
    const char *manager = cli_given(cli, "manager") ? cli->settings.manager : "";
    bool by_socket = manager[0] && !cli_dial_is_port(manager);
    if ((cli->command->groups & CLI_MANAGE) && cli_dial_is_port(cli->manager_target))
        return strbuf_add_str(
            out, "if no manager runs there, start one with --manage-listen for this address");
    if (!asks_server && cli->state_dir[0] && !cli_given(cli, "manager") &&
        cli_is_served(cli->state_dir))
        return strbuf_add_str(out, "try again in a moment: sluice serve runs there and starts it");
    if (asks_server && !cli_given(cli, "server") && cli_manager_listens(cli))
        return strbuf_printf(out,
                             "no server runs there, but a manager does; sluice status%s shows the "
                             "server's address, give it with --server",
                             cli_hint_flags(cli, CLI_HINT_STATE, flags));
    if (!asks_server && by_socket && !state_dir_of(manager, state_dir, sizeof(state_dir)))
        return strbuf_add_str(out, "give --manager STATE/run/manager.sock of a running manager, or "
                                   "leave --manager out and give --state-dir STATE");
    strbuf_add_str(out, "start Sluice with: sluice serve MODEL.gguf");
    strbuf_add_str(out, cli_hint_flags(cli, CLI_HINT_LISTEN, flags));
    return add_flag(" --state-dir ",
                    by_socket && state_dir_of(manager, state_dir, sizeof(state_dir))
                        ? state_dir
                        : cli->settings.state_dir,
                    out);
}

/* Advice after a failed TLS handshake. The server may have missed what the command did not give. */
static const char *after_handshake(const struct cli_dial *dial)
{
    bool tls = dial->tls || dial->tls_ca[0];
    return !tls ? reason_facts(REASON_HANDSHAKE_CLOSED)->next
           : dial->tls_client_cert[0]
               ? "the server closed the connection; give a --tls-client-cert from a CA that the "
                 "server accepts"
               : "the server closed the connection; if it asks for a client certificate, give "
                 "--tls-client-cert and --tls-client-key";
}

static bool advice(const struct cli *cli, const struct error *err, struct strbuf *out)
{
    const char *next = reason_facts(err->reason)->next;
    if (cli->advice[0])
        return strbuf_add_str(out, cli->advice);
    if (cli_uses_url(cli) && reason_facts(err->reason)->area != REASON_OF_ACCESS &&
        err->reason != REASON_GRPC_PORT)
        return false; /* the server may be no Sluice, and its manager is not known */
    if (strcmp(cli->command->name, "serve") == 0 &&
        reason_facts(err->reason)->area != REASON_OF_FILE)
        return false; /* other errors advise to run `serve` */
    switch (err->reason) {
    case REASON_NONE:
        if (err->status == STATUS_UNAVAILABLE)
            return add_start(cli, out);
        if (err->status == STATUS_UNAUTHENTICATED)
            next = reason_facts(REASON_API_KEY_MISSING)->next;
        break;
    case REASON_NOT_CONNECTED:
        return add_start(cli, out);
    case REASON_HANDSHAKE_CLOSED:
        next = after_handshake(&cli->settings.dial);
        break;
    case REASON_ALREADY_LOADED:
        if (strcmp(err->field, "n_replicas") == 0)
            next = "change the number with: sluice scale %M N%V%F";
        break;
    case REASON_NOT_LOADED: /* for an unload, the advice to load would be wrong */
        if (strcmp(cli->command->name, "scale") == 0)
            next = reason_facts(REASON_MODEL_NOT_LOADED)->next;
        break;
    case REASON_NO_FILE_ACCESS: /* the message has the command that grants access */
    case REASON_USAGE:          /* the command line's own messages say what to do */
    case REASON_NOT_SERVING:
    case REASON_STOPPING:
        return false;
    default:
        break;
    }
    return next[0] && add_next(cli, err, next, out);
}

/* Names the server that has answered, if that server is not the server of the state directory. The
 * advice of the error is about the state directory. */
static void add_fallback(const struct cli *cli, const struct error *err, struct strbuf *out)
{
    if (cli->fell_back && err->status != STATUS_UNAVAILABLE && err->status != STATUS_CANCELLED)
        strbuf_printf(out,
                      "%sno server runs in %s, so the server at %s answered; to use that server "
                      "with all commands, set SLUICE_STATE_DIR to its state directory",
                      out->n_bytes ? "\n" : "", cli->state_dir, cli->server_target);
}

/* A peer's text for a parked version ends with a remedy for clients without this command line. The
 * advice has the remedy as a command. So the error is stated anew, from its reason and version. */
static void restate_parked(const struct cli *cli, struct error *err)
{
    const char *model = cli_word(cli, 0);
    if ((err->reason != REASON_PARKED && err->reason != REASON_MODEL_PARKED) || !model ||
        !*err->version)
        return;
    snprintf(err->message, sizeof(err->message), "version \"%s\" of model \"%.200s\" is parked",
             err->version, model);
}

int cli_fail(const struct cli *cli, const struct error *failure)
{
    struct strbuf hint;
    struct error err = *failure;
    if (!cli_uses_url(cli))
        cli_explain_connection(cli, &err);
    bool usage = err.reason == REASON_USAGE;
    if (err.reason == REASON_STDOUT_CLOSED)
        return 1; /* the reader of the pipe, like `head`, has closed it */
    if (cli->settings.json) {
        output_json_error(&err);
        return usage ? 2 : 1;
    }
    strbuf_init(&hint, 0);
    restate_parked(cli, &err);
    fprintf(stderr, "sluice %s: ", cli->command->name);
    struct strbuf words;
    strbuf_init(&words, 0);
    flag_words_add(cli->specs, cli->n_specs, err.message[0] ? err.message : status_name(err.status),
                   &words);
    printable_write(stderr, strbuf_str(&words));
    strbuf_fini(&words);
    fprintf(stderr, " (%s", status_name(err.status));
    if (err.reason && !usage) {
        fputs(", ", stderr);
        printable_write(stderr, error_reason_name(&err)); /* a peer may give any text */
    }
    fputs(")\n", stderr);
    advice(cli, &err, &hint);
    if (!usage)
        add_fallback(cli, &err, &hint);
    if (hint.n_bytes) {
        printable_write(stderr, strbuf_str(&hint));
        fputc('\n', stderr);
    }
    strbuf_fini(&hint);
    return usage ? 2 : 1;
}
