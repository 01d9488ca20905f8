#include "clients/cli/shell/cli.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/settings/options.h"
#include "base/system/folder.h"
#include "base/system/shell_word.h"
#include "base/utf8.h"

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
    const char *arguments = cli->command->arguments;
    bool takes_model = strncmp(arguments + (arguments[0] == '['), "MODEL", 5) == 0;
    if (!takes_model || !word || strchr(word, '/') || !(colon = strchr(word, ':')) ||
        cli_uses_url(cli)) /* an OpenAI server has names of its own */
        return 0;
    if (!takes_version && !(cli->command->groups & CLI_MANAGE)) /* for example a file path */
        return 0;
    if (!takes_version) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "\"%.80s\": sluice %s takes a model without a version; write %.*s", word,
                  cli->command->name, (int)(colon - word), word);
        return cli_usage(err);
    }
    size_t n = (size_t)(colon - word);
    if (n == 0 || n >= sizeof(cli->model) || !colon[1]) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "\"%.40s\" is no MODEL[:VERSION]; write for example smol or smol:2", word);
        return cli_usage(err);
    }
    if (cli->settings.version[0]) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "--version: \"%.40s\" names a version already; leave out --version", word);
        return cli_usage(err);
    }
    snprintf(cli->model, sizeof(cli->model), "%.*s", (int)n, word);
    cli->settings.version = colon + 1;
    return 0;
}

bool cli_uses_url(const struct cli *cli)
{
    return cli->settings.url && cli->settings.url[0];
}

bool cli_given(const struct cli *cli, const char *name)
{
    for (size_t i = 0; i < cli->n_specs; i++)
        if (strcmp(cli->specs[i].name, name) == 0)
            return strcmp(options_origin(cli->options, i), "default") != 0;
    return false;
}

static void add_flag(struct strbuf *out, const char *name, const char *value)
{
    strbuf_printf(out, " --%s ", name);
    shell_word_add(out, value);
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
    if ((hints & CLI_HINT_STATE) && cli_given(cli, "manager"))
        add_flag(&text, "manager", s->manager);
    if ((hints & CLI_HINT_STATE) && s->state_dir[0])
        add_flag(&text, "state-dir", s->state_dir);
    snprintf(out, CLI_HINT_BYTES, "%s", strbuf_str(&text));
    strbuf_fini(&text);
    return out;
}

int cli_usage(struct error *err)
{
    return error_reason(err, REASON_USAGE);
}

int cli_need_state(const struct cli *cli, struct error *err)
{
    if (cli->state_dir[0])
        return 0;
    error_set(err, STATUS_INVALID_ARGUMENT,
              "--state-dir: neither XDG_STATE_HOME nor HOME is set; give --state-dir DIR");
    return cli_usage(err);
}

/* The name in models--ORG--NAME/snapshots/REVISION; else the last name. */
static const char *model_stem(const char *path, size_t *out_n)
{
    bool is_hub;
    const char *name = folder_model_name(path, out_n, &is_hub), *stem = name;
    for (const char *at = name; is_hub && at + 2 < name + *out_n; at++)
        if (at[0] == '-' && at[1] == '-')
            stem = at + 2;
    *out_n -= (size_t)(stem - name);
    return stem;
}

/* The length of the stem without ".gguf" and the number of a part. */
static size_t without_suffix(const char *stem, size_t n)
{
    size_t n_part = folder_part_suffix(stem, n, NULL);
    if (n_part)
        return n - n_part;
    return n > 5 && memcmp(stem + n - 5, ".gguf", 5) == 0 ? n - 5 : n;
}

void cli_model_name(const char *path, char out_name[64])
{
    char real[PATH_MAX];
    size_t n = 0, k = 0;
    const char *stem = model_stem(path, &n);
    if (n && strspn(stem, ".") >= n && realpath(path, real)) /* "." and ".." name no model */
        stem = model_stem(real, &n);
    n = without_suffix(stem, n);
    for (size_t i = 0; i < n && k < 63; i++) {
        unsigned char c = (unsigned char)tolower((unsigned char)stem[i]);
        bool plain = c < 0x80 && (isalnum(c) || c == '.' || c == '_' || c == '-');
        if (k == 0 && !(c < 0x80 && isalnum(c)))
            continue;
        out_name[k++] = plain ? (char)c : '-';
    }
    out_name[k] = '\0';
    if (!k)
        snprintf(out_name, 64, "model");
}

int cli_program_setting(const struct cli *cli, const char *section, const char *name, char *out,
                        size_t n_out, struct error *err)
{
    struct setting {
        const char *text;
    } setting = {""};
    const struct option_spec spec = {
        name, 0, OPTION_STRING, offsetof(struct setting, text), "", "TEXT", "", 0, 0};
    const char *config = options_config(cli->options);
    const char *argv[] = {"sluice", "--config", config, NULL};
    struct options *options = NULL;
    int rc = options_parse_some(section, &spec, 1, config[0] ? 3 : 1,
                                (char *const *)(uintptr_t)argv, &setting, &options, err);
    if (rc)
        return rc;
    snprintf(out, n_out, "%s", setting.text);
    options_destroy(options);
    return 0;
}

int cli_check_text(const char *what, const char *text, size_t n_bytes, struct error *err)
{
    size_t bad;
    const char *nul = n_bytes ? memchr(text, '\0', n_bytes) : NULL;
    if (nul)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s has a NUL byte at byte %zu; remove it",
                         what, (size_t)(nul - text));
    if (!utf8_valid(text, n_bytes, &bad))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is not UTF-8 at byte %zu; convert it to UTF-8", what, bad);
    return 0;
}

int cli_read_stdin(const char *what, struct strbuf *out, struct error *err)
{
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), stdin)) > 0)
        if (!strbuf_add(out, part, n))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s on stdin is too long; send at most %d bytes", what,
                             CLI_TEXT_MAX_BYTES);
    if (ferror(stdin))
        return error_errno(err, errno, "cannot read %s from stdin", what);
    if (out->n_bytes && out->data[out->n_bytes - 1] == '\n')
        out->data[--out->n_bytes] = '\0';
    if (!out->n_bytes)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s on stdin is empty; send at least one byte", what);
    return cli_check_text(what, out->data, out->n_bytes, err);
}
