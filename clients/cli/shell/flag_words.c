#include "clients/cli/shell/flag_words.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/settings/options.h"
#include "base/strbuf.h"

static const struct {
    const char *field, *flag;
} fields[] = {
    {"context_length", "context-length"},
    {"cpus", "cpus"},
    {"deterministic", "no-deterministic"},
    {"device", "devices"},
    {"device_group", "group"},
    {"devices", "devices"},
    {"draft_model", "draft"},
    {"evictable", "evictable"},
    {"expires_unix_ns", "expires"},
    {"gpu_layers", "gpu-layers"},
    {"gpu_memory_bytes", "gpu-memory"},
    {"grace_ms", "grace"},
    {"idle_action", "idle-action"},
    {"idle_after_ms", "idle-after"},
    {"kernels", "kernels"},
    {"kv_dtype", "kv-dtype"},
    {"kv_tokens", "kv-tokens"},
    {"max_batch_tokens", "max-batch-tokens"},
    {"max_concurrent_requests", "max-concurrent"},
    {"max_draft_tokens", "speculate"},
    {"max_error_rate", "max-error-rate"},
    {"max_input_tokens", "max-input-tokens"},
    {"max_total_tokens", "max-total-tokens"},
    {"max_ttft_ms", "max-ttft-ms"},
    {"max_ttft_ratio", "max-ttft-ratio"},
    {"max_wait_ms", "max-wait"},
    {"min_answers", "min-answers"},
    {"n_replicas", "replicas"},
    {"n_threads", "threads"},
    {"placement", "placement"},
    {"request_id", "request-id"},
    {"step_ms", "step"},
    {"steps", "steps"},
    {"target_itl_ms", "target-itl-ms"},
    {"tp", "tp"},
    {"ttft_quantile", "ttft-quantile"},
    {"version", "version"},
    {"wake_on_demand", "wake-on-demand"},
    {"weight_format", "weight-format"},
};

/* Calls that an error advises. */
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

/* The flag of the field that is the n_bytes at `word`; NULL: none of the command's. */
static const char *flag_of(const struct option_spec *specs, size_t n_specs, const char *word,
                           size_t n_bytes)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (strlen(fields[i].field) == n_bytes && memcmp(fields[i].field, word, n_bytes) == 0)
            return has_flag(specs, n_specs, fields[i].flag) ? fields[i].flag : NULL;
    return NULL;
}

static const char *command_of(const char *word, size_t n_bytes)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strlen(calls[i].call) == n_bytes && memcmp(calls[i].call, word, n_bytes) == 0)
            return calls[i].command;
    return NULL;
}

/* Bytes of the message's name that the field lies in, "config." or "gates."; 0: none. */
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
        if (end) { /* what somebody called something stays as it is */
            strbuf_add(out, at, (size_t)(end - at) + 1);
            at = end + 1;
            continue;
        }
        size_t n_prefix = prefix_of(at);
        const char *word = at + n_prefix;
        size_t n = 0;
        while (is_word_char(word[n]))
            n++;
        bool is_field = n_prefix || memchr(word, '_', n) || (at == message && word[n] == ':');
        const char *flag = is_field ? flag_of(specs, n_specs, word, n) : NULL;
        bool is_path = at > message && (at[-1] == '/' || at[-1] == '.'); /* as it is on the wire */
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
