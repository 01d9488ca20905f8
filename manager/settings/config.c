#include "manager/settings/config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/device_name.h"
#include "base/utf8.h"
#include "manager/base/message.h"
#include "manager/host/cpu_share.h"

enum {
    MAX_THREADS = 4096,
    MAX_LAYERS = 1 << 16,
    MAX_CONCURRENT = 4096,
    MAX_QUEUED = 65536,
    MAX_BATCH_TOKENS = 1 << 16, /* as the worker's */
    MAX_CONTEXT = 1 << 24,
    MAX_TARGET_MS = 60000,
    MAX_TEMPLATE_BYTES = 1 << 20,
    MAX_DRAFT_TOKENS = 16,
    MAX_CPUS_BYTES = 4096,
    MIN_IDLE_MS = 1000, /* workers speak once a second */
    MAX_IDLE_MS = 24 * 3600 * 1000,
};

static int bad(const char *field, const char *member, struct error *err, const char *text)
{
    char name[ERROR_FIELD_BYTES];
    snprintf(name, sizeof(name), "%s.%s", field, member);
    return error_field(err, name, "%s", text);
}

static int not_built(const char *field, const char *member, struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    snprintf(name, sizeof(name), "%s.%s", field, member);
    error_field(err, name, "is not built yet");
    err->status = STATUS_UNIMPLEMENTED;
    return err->status;
}

static int check_range(const char *field, const char *member, int has, uint64_t value, uint64_t max,
                       struct error *err)
{
    char text[96];
    if (!has || (value >= 1 && value <= max))
        return 0;
    snprintf(text, sizeof(text), "%llu is not between 1 and %llu", (unsigned long long)value,
             (unsigned long long)max);
    return bad(field, member, err, text);
}

static int check_word(const char *field, const char *member, const char *value,
                      const char *const *words, struct error *err)
{
    char text[128] = "is none of";
    if (!*value)
        return 0;
    for (size_t i = 0; words[i]; i++) {
        if (strcmp(value, words[i]) == 0)
            return 0;
        size_t n = strlen(text);
        snprintf(text + n, sizeof(text) - n, "%s %s", i ? "," : "", words[i]);
    }
    return bad(field, member, err, text);
}

static int check_built(const char *field, const pb_config *config, struct error *err)
{
    if (config->has_default_temperature)
        return not_built(field, "default_temperature", err);
    if (config->has_default_top_p)
        return not_built(field, "default_top_p", err);
    if (config->has_default_top_k)
        return not_built(field, "default_top_k", err);
    if (config->has_default_max_tokens)
        return not_built(field, "default_max_tokens", err);
    return 0;
}

int config_check(const char *field, const pb_config *config, struct error *err)
{
    static const char *const kv_dtypes[] = {"bf16", "f16", "f32", "int8", "fp8", NULL};
    static const char *const idle_actions[] = {"park", "unload", NULL};
    static const char *const placements[] = {"auto", "spread", "pack", NULL};
    static const char *const weight_formats[] = {"int8", "fp8", NULL};
    static const char *const kernel_sets[] = {"auto",   "f32",         "ref", "avx2",
                                              "avx512", "avx512_bf16", "amx", NULL};
    if (!config)
        return 0;
    if (check_built(field, config, err) != 0 ||
        check_word(field, "kv_dtype", config->kv_dtype, kv_dtypes, err) != 0 ||
        check_word(field, "idle_action", config->idle_action, idle_actions, err) != 0 ||
        check_range(field, "idle_after_ms", config->has_idle_after_ms, config->idle_after_ms,
                    MAX_IDLE_MS, err) != 0 ||
        check_word(field, "kernels", config->kernels, kernel_sets, err) != 0 ||
        check_word(field, "placement", config->placement, placements, err) != 0 ||
        check_word(field, "weight_format", config->weight_format, weight_formats, err) != 0 ||
        check_range(field, "gpu_layers", config->has_gpu_layers, config->gpu_layers, MAX_LAYERS,
                    err) != 0 ||
        check_range(field, "gpu_memory_bytes", config->has_gpu_memory_bytes,
                    config->gpu_memory_bytes, INT64_MAX, err) != 0 ||
        check_range(field, "context_length", config->has_context_length, config->context_length,
                    UINT32_MAX, err) != 0 ||
        check_range(field, "kv_bytes", config->has_kv_bytes, config->kv_bytes, INT64_MAX, err) !=
            0 ||
        check_range(field, "kv_tokens", config->has_kv_tokens, config->kv_tokens, INT64_MAX, err) !=
            0 ||
        check_range(field, "n_threads", config->has_n_threads, config->n_threads, MAX_THREADS,
                    err) != 0 ||
        check_range(field, "max_concurrent_requests", config->has_max_concurrent_requests,
                    config->max_concurrent_requests, MAX_CONCURRENT, err) != 0 ||
        check_range(field, "max_queued_requests", config->has_max_queued_requests,
                    config->max_queued_requests, MAX_QUEUED, err) != 0 ||
        check_range(field, "max_batch_tokens", config->has_max_batch_tokens,
                    config->max_batch_tokens, MAX_BATCH_TOKENS, err) != 0 ||
        check_range(field, "prefill_chunk_tokens", config->has_prefill_chunk_tokens,
                    config->prefill_chunk_tokens, MAX_BATCH_TOKENS, err) != 0 ||
        check_range(field, "max_input_tokens", config->has_max_input_tokens,
                    config->max_input_tokens, MAX_CONTEXT, err) != 0 ||
        check_range(field, "max_total_tokens", config->has_max_total_tokens,
                    config->max_total_tokens, MAX_CONTEXT, err) != 0 ||
        check_range(field, "target_itl_ms", config->has_target_itl_ms && config->target_itl_ms != 0,
                    config->target_itl_ms, MAX_TARGET_MS, err) != 0)
        return err->status;
    if (config->has_idle_after_ms && config->idle_after_ms < MIN_IDLE_MS)
        return bad(
            field, "idle_after_ms", err,
            "is less than 1000 ms (1s), how often workers say whether they are idle: give that "
            "or more, or leave it out to keep the version");
    if (*config->idle_action && !config->has_idle_after_ms)
        return bad(field, "idle_action", err,
                   "says what is done with an idle version, and not when: give idle_after_ms too, "
                   "or leave both out");
    if (config->has_max_batch_tokens && config->max_batch_tokens < 2)
        return bad(field, "max_batch_tokens", err,
                   "1 leaves prompts no row beside who decodes; 2 at least");
    if (config->has_max_total_tokens && config->max_total_tokens < 2)
        return bad(field, "max_total_tokens", err, "1 leaves no room for a prompt and an answer");
    if (config->has_kv_bytes && config->has_kv_tokens)
        return bad(field, "kv_tokens", err, "only one of kv_bytes and kv_tokens may be given");
    if (config->max_draft_tokens > MAX_DRAFT_TOKENS)
        return bad(field, "max_draft_tokens", err, "is more than 16");
    if (strlen(config->draft_model) >= PATH_MAX)
        return bad(field, "draft_model", err, "is longer than a path may be");
    char cpus_field[ERROR_FIELD_BYTES];
    snprintf(cpus_field, sizeof(cpus_field), "%s.cpus", field);
    if (strlen(config->cpus) > MAX_CPUS_BYTES)
        return bad(field, "cpus", err, "is longer than 4096 bytes");
    if (cpu_share_check(cpus_field, config->cpus, err) != 0)
        return err->status;
    if (strlen(config->chat_template) > MAX_TEMPLATE_BYTES)
        return bad(field, "chat_template", err, "is longer than 1 MiB");
    return 0;
}

int config_check_fits(const char *field, const pb_config *config, const pb_info *info,
                      struct error *err)
{
    char text[96];
    if (!config || !config->has_context_length || !info->trained_context_length ||
        config->context_length <= info->trained_context_length)
        return 0;
    snprintf(text, sizeof(text), "%u is more than the %u tokens the model was trained for",
             config->context_length, info->trained_context_length);
    return bad(field, "context_length", err, text);
}

int config_check_devices(const char *field, const pb_config *config, const pb_group *group,
                         struct error *err)
{
    char text[128];
    if (!config || !group->n_devices)
        return 0;
    if (device_name_is_gpu(group->devices[0]))
        return 0;
    const char *member = strcmp(config->kv_dtype, "fp8") == 0                  ? "kv_dtype"
                         : config->has_gpu_layers                              ? "gpu_layers"
                         : config->has_gpu_memory_bytes                        ? "gpu_memory_bytes"
                         : *config->weight_format                              ? "weight_format"
                         : config->has_deterministic && !config->deterministic ? "deterministic"
                                                                               : NULL;
    if (!member)
        return 0;
    snprintf(text, sizeof(text), "%s only for GPUs; device group %.64s has none",
             strcmp(member, "kv_dtype") == 0 ? "fp8 is" : "is", group->name);
    return bad(field, member, err, text);
}

static size_t pack(const pb_config *config, uint8_t **out_bytes)
{
    size_t n = config ? protobuf_c_message_get_packed_size(&config->base) : 0;
    *out_bytes = malloc(n ? n : 1);
    if (*out_bytes && n)
        protobuf_c_message_pack(&config->base, *out_bytes);
    return n;
}

bool config_equal(const pb_config *a, const pb_config *b)
{
    uint8_t *bytes_a, *bytes_b;
    size_t n_a = pack(a, &bytes_a), n_b = pack(b, &bytes_b);
    bool equal = bytes_a && bytes_b && n_a == n_b && memcmp(bytes_a, bytes_b, n_a) == 0;
    free(bytes_a);
    free(bytes_b);
    return equal;
}

#define MERGE_NUMBER(field)                                                                        \
    do {                                                                                           \
        if (over->has_##field) {                                                                   \
            merged->has_##field = 1;                                                               \
            merged->field = over->field;                                                           \
        }                                                                                          \
    } while (0)

pb_config *config_merge(const pb_config *under, const pb_config *over)
{
    pb_config *merged = under
                            ? MESSAGE_COPY(pb_config, under)
                            : MESSAGE_NEW(pb_config, sluice__manager__v1__model_config__descriptor);
    if (!merged || !over)
        return merged;
    MERGE_NUMBER(context_length);
    MERGE_NUMBER(n_threads);
    MERGE_NUMBER(max_concurrent_requests);
    MERGE_NUMBER(max_queued_requests);
    MERGE_NUMBER(max_batch_tokens);
    MERGE_NUMBER(prefill_chunk_tokens);
    MERGE_NUMBER(max_input_tokens);
    MERGE_NUMBER(max_total_tokens);
    MERGE_NUMBER(target_itl_ms);
    MERGE_NUMBER(prefix_cache);
    MERGE_NUMBER(gpu_layers);
    MERGE_NUMBER(gpu_memory_bytes);
    MERGE_NUMBER(deterministic);
    MERGE_NUMBER(max_draft_tokens);
    MERGE_NUMBER(idle_after_ms);
    MERGE_NUMBER(evictable);
    MERGE_NUMBER(wake_on_demand);
    if (over->has_kv_bytes || over->has_kv_tokens)
        merged->has_kv_bytes = merged->has_kv_tokens =
            0; /* one way of saying it replaces the other */
    MERGE_NUMBER(kv_bytes);
    MERGE_NUMBER(kv_tokens);
    if ((!*over->kv_dtype || message_set(&merged->kv_dtype, over->kv_dtype)) &&
        (!*over->idle_action || message_set(&merged->idle_action, over->idle_action)) &&
        (!*over->cpus || message_set(&merged->cpus, over->cpus)) &&
        (!*over->placement || message_set(&merged->placement, over->placement)) &&
        (!*over->weight_format || message_set(&merged->weight_format, over->weight_format)) &&
        (!*over->kernels || message_set(&merged->kernels, over->kernels)) &&
        (!*over->draft_model || message_set(&merged->draft_model, over->draft_model)) &&
        (!*over->chat_template || message_set(&merged->chat_template, over->chat_template)))
        return merged;
    message_free(&merged->base);
    return NULL;
}
