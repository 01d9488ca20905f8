#include "clients/cli/shell/flag_words.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/settings/load_settings.h"
#include "base/settings/options.h"
#include "base/strbuf.h"

/* Fields with a flag, beside the load settings of load_settings.c. */
static const struct {
    const char *field, *flag;
} fields[] = {
    {"device", "devices"},
    {"device_group", "group"},
    {"devices", "devices"},
    {"expires_unix_ns", "expires"},
    {"grace_ms", "grace"},
    {"max_context_tokens", "context-length"},
    {"max_error_rate", "max-error-rate"},
    {"max_ttft_ms", "max-ttft-ms"},
    {"max_ttft_ratio", "max-ttft-ratio"},
    {"max_wait_ms", "max-wait"},
    {"min_answers", "min-answers"},
    {"n_replicas", "replicas"},
    {"pp", "pp"},
    {"request_id", "request-id"},
    {"step_ms", "step"},
    {"steps", "steps"},
    {"tp", "tp"},
    {"ttft_quantile", "ttft-quantile"},
    {"version", "version"},
};

/* Commands for the calls that error texts recommend. */
static const struct {
    const char *call, *command;
} calls[] = {
    {"CancelOperation", "sluice ops cancel"}, {"LoadModelVersion", "sluice load"},
    {"SetVersionPolicy", "sluice policy"},    {"UnloadModelVersion", "sluice unload"},
    {"WakeModelVersion", "sluice wake"},
};

static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

static bool has_flag(const struct option_spec *specs, size_t n_specs, const char *flag)
{
    for (size_t i = 0; i < n_specs; i++)
        if (strcmp(specs[i].name, flag) == 0)
            return true;
    return false;
}

static bool is_field(const char *field, const char *word, size_t n_bytes)
{
    return strlen(field) == n_bytes && memcmp(field, word, n_bytes) == 0;
}

/* Returns the command's flag for the field in the n_bytes at `word`. NULL: no flag. */
static const char *flag_of(const struct option_spec *specs, size_t n_specs, const char *word,
                           size_t n_bytes)
{
    const char *flag = NULL;
    for (size_t i = 0; !flag && i < sizeof(fields) / sizeof(fields[0]); i++)
        if (is_field(fields[i].field, word, n_bytes))
            flag = fields[i].flag;
    for (size_t i = 0; !flag && i < load_settings_count(); i++)
        if (is_field(load_setting_at(i)->field, word, n_bytes))
            flag = load_setting_at(i)->flag;
    return flag && has_flag(specs, n_specs, flag) ? flag : NULL;
}

static const char *command_of(const char *word, size_t n_bytes)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strlen(calls[i].call) == n_bytes && memcmp(calls[i].call, word, n_bytes) == 0)
            return calls[i].command;
    return NULL;
}

/* Returns the length of a leading "config." or "gates."; 0 if there is none. */
static size_t prefix_of(const char *at)
{
    static const char *const messages[] = {"config.", "gates."};
    for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++)
        if (strncmp(at, messages[i], strlen(messages[i])) == 0)
            return strlen(messages[i]);
    return 0;
}

void flag_words_add(const struct option_spec *specs, size_t n_specs, const char *message,
                    struct strbuf *out)
{
    const char *at = message;
    while (*at) {
        const char *end = *at == '"' ? strchr(at + 1, '"') : NULL;
        if (end) { /* quoted text is copied unchanged */
            strbuf_add(out, at, (size_t)(end - at) + 1);
            at = end + 1;
            continue;
        }
        size_t n_prefix = prefix_of(at);
        const char *word = at + n_prefix;
        size_t n = 0;
        while (is_word_char(word[n]))
            n++;
        bool of_message = n_prefix || memchr(word, '_', n) || (at == message && word[n] == ':');
        const char *flag = of_message ? flag_of(specs, n_specs, word, n) : NULL;
        /* Part of a longer path: keep the field's name. */
        bool is_path = at > message && (at[-1] == '/' || at[-1] == '.');
        const char *command = n_prefix || is_path ? NULL : command_of(word, n);
        if (flag)
            strbuf_printf(out, "--%s", flag);
        else if (command)
            strbuf_add_str(out, command);
        else
            strbuf_add(out, at, (size_t)(word - at) + n);
        at = word + n;
        while (*at && !is_word_char(*at) && *at != '"')
            strbuf_add_char(out, *at++);
        if (*at == '"' && !strchr(at + 1, '"'))
            strbuf_add_char(out, *at++);
    }
}
