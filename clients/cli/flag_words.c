#include "clients/cli/flag_words.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/options.h"
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
    {"max_input_tokens", "max-input-tokens"},
    {"max_total_tokens", "max-total-tokens"},
    {"n_replicas", "replicas"},
    {"n_threads", "threads"},
    {"placement", "placement"},
    {"request_id", "request-id"},
    {"target_itl_ms", "target-itl-ms"},
    {"tp", "tp"},
    {"version", "version"},
    {"wake_on_demand", "wake-on-demand"},
    {"weight_format", "weight-format"},
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

void flag_words_add(const struct option_spec *specs, size_t n_specs, const char *message,
                    struct strbuf *out)
{
    static const char config[] = "config.";
    const char *at = message;
    while (*at) {
        bool prefixed = strncmp(at, config, sizeof(config) - 1) == 0;
        const char *word = prefixed ? at + sizeof(config) - 1 : at;
        size_t n = 0;
        while (is_word_char(word[n]))
            n++;
        bool is_field = prefixed || memchr(word, '_', n) || (at == message && word[n] == ':');
        const char *flag = is_field ? flag_of(specs, n_specs, word, n) : NULL;
        if (flag)
            strbuf_printf(out, "--%s", flag);
        else
            strbuf_add(out, at, (size_t)(word - at) + n);
        at = word + n;
        while (*at && !is_word_char(*at))
            strbuf_add_char(out, *at++);
    }
}
