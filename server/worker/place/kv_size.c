#include "server/worker/place/kv_size.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/memory_limit.h"
#include "engine/engine_config.h"
#include "engine/engine_stats.h"
#include "server/worker/base/settings.h"

uint64_t kv_size_available(const struct settings *settings, struct memory_limit *out_limit)
{
    (void)memory_limit_read("", 0, out_limit);
    uint64_t left = out_limit->free_bytes > settings->memory_promised
                        ? out_limit->free_bytes - settings->memory_promised
                        : 0;
    return settings->memory_limit && settings->memory_limit < left ? settings->memory_limit : left;
}

uint64_t kv_size_budget_left(const struct settings *settings)
{
    return settings->memory_limit > 1 ? settings->memory_limit : 0; /* 1: an exhausted budget, since
                                                                     * 0 means no limit */
}

/* Returns the bytes of weights that this replica adds to memory. If another replica holds the
 * model's weights, these are the draft model's only. */
static uint64_t new_weights(const struct settings *settings, const struct executor_plan *plan)
{
    uint64_t own = plan->weights_bytes - plan->shared_bytes;
    return settings->weights_held ? plan->draft_bytes : own;
}

/* Returns the memory that a replica may use. Shared weights count once for all replicas. */
static uint64_t share_of(const struct settings *settings, const struct executor_plan *plan,
                         uint64_t available_bytes)
{
    uint64_t once = settings->weights_shared ? new_weights(settings, plan) - plan->draft_bytes : 0;
    uint64_t rest = available_bytes > once ? available_bytes - once : 0;
    return rest / (settings->replicas ? settings->replicas : 1) + once;
}

int kv_size_resolve(struct checkpoint *ckpt, const struct settings *settings,
                    struct engine_config *cfg, struct error *err)
{
    struct executor_config *ex = &cfg->executor;
    struct engine_config probe;
    struct executor_plan plan;
    struct memory_limit limit;
    ex->max_rows = cfg->max_batch_tokens;
    ex->max_seqs = cfg->max_concurrent;
    if (ex->kv_tokens && ex->kv_tokens < ex->kv_block_size)
        return error_field(err, "kv_tokens",
                           "%" PRIu64 " is less than one block of %" PRIu32
                           " tokens, the least that holds a prompt and its answer; give %" PRIu32
                           " or more, or leave it out",
                           ex->kv_tokens, ex->kv_block_size, ex->kv_block_size);
    if (ex->kv_tokens || (engine_is_on_gpu(cfg) && !settings->config.kv_bytes))
        return engine_choose_sizes(cfg, ckpt, err);
    probe = *cfg;
    probe.executor.kv_tokens = ex->kv_block_size;
    int rc = engine_plan(&probe, ckpt, &plan, err);
    if (rc)
        return rc;
    uint64_t token_bytes = plan.kv_bytes / plan.kv_tokens;
    if (settings->config.kv_bytes) {
        ex->kv_tokens = settings->config.kv_bytes / token_bytes;
        if (ex->kv_tokens >= ex->kv_block_size)
            return engine_choose_sizes(cfg, ckpt, err);
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--kv-bytes: %" PRIu64 " bytes hold less than one block of %" PRIu32
                         " tokens (%" PRIu64 " bytes)",
                         settings->config.kv_bytes, ex->kv_block_size,
                         token_bytes * ex->kv_block_size);
    }
    uint64_t share = share_of(settings, &plan, kv_size_available(settings, &limit));
    uint64_t taken = new_weights(settings, &plan) + plan.workspace_bytes;
    uint64_t fits = (share > taken ? (share - taken) / 2 : 0) / token_bytes;
    uint64_t most = UINT32_MAX / ex->kv_block_size * (uint64_t)ex->kv_block_size;
    uint64_t n_blocks = (plan.context_tokens + ex->kv_block_size - 1) / ex->kv_block_size;
    ex->kv_tokens = ex->max_seqs * n_blocks * ex->kv_block_size; /* a full context for each
                                                                  * sequence */
    if (ex->kv_tokens > fits)
        ex->kv_tokens = fits > ex->kv_block_size ? fits : ex->kv_block_size;
    if (ex->kv_tokens > most)
        ex->kv_tokens = most;
    return 0;
}

/* Formats each size in a unit that suits it, since a device may have only megabytes of a budget
 * left. `free_text` describes the free memory of a CPU. */
static int does_not_fit(const struct executor_device *d, uint64_t needed, uint64_t available,
                        const char *free_text, uint64_t promised_bytes, struct error *err)
{
    char sizes[6][32], gpu_free[40];
    if (d->is_gpu) {
        format_bytes(d->free_bytes + d->promised_bytes, sizes[5]);
        snprintf(gpu_free, sizeof(gpu_free), "%s free", sizes[5]);
        free_text = gpu_free;
    }
    if (d->is_gpu && available < d->free_bytes) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s: %s (%" PRIu64 " bytes) of memory needed for %" PRIu32
                  " layers (weights %s, KV cache %s, workspace %s), %s (%" PRIu64
                  " bytes) allowed, while %s are free; raise gpu_memory, or lower gpu_layers, "
                  "kv_tokens or context_length",
                  d->name, format_bytes(needed, sizes[0]), needed, d->n_layers,
                  format_bytes(d->weights_bytes, sizes[1]), format_bytes(d->kv_bytes, sizes[2]),
                  format_bytes(d->workspace_bytes, sizes[3]), format_bytes(available, sizes[4]),
                  available, format_bytes(d->free_bytes, sizes[5]));
        return error_reason(err, REASON_DEVICE_MEMORY);
    }
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%s: %s of memory needed for %" PRIu32
              " layers (weights %s, KV cache %s, workspace %s), %s available (%s, of which %s "
              "are promised to other replicas); lower gpu_layers, kv_tokens or context_length, or "
              "unload something",
              d->name, format_bytes(needed, sizes[0]), d->n_layers,
              format_bytes(d->weights_bytes, sizes[1]), format_bytes(d->kv_bytes, sizes[2]),
              format_bytes(d->workspace_bytes, sizes[3]), format_bytes(available, sizes[4]),
              free_text, format_bytes(promised_bytes, sizes[5]));
    return error_reason(err, REASON_DEVICE_MEMORY);
}

/* Checks that each device of the plan has enough memory. */
static int check_devices(const struct settings *settings, const struct executor_plan *plan,
                         struct error *err)
{
    for (uint32_t i = 0; i < plan->n_devices; i++) {
        const struct executor_device *d = &plan->devices[i];
        uint64_t held = d->is_gpu ? 0 : plan->shared_bytes;
        struct memory_limit limit;
        char free_text[MEMORY_LIMIT_TEXT];
        uint64_t needed = d->weights_bytes - held + d->kv_bytes + d->workspace_bytes;
        uint64_t machine = kv_size_available(settings, &limit);
        uint64_t available = d->is_gpu ? d->limit_bytes : machine;
        if (needed > available)
            return does_not_fit(d, needed, available, memory_limit_text(&limit, free_text),
                                d->is_gpu ? d->promised_bytes : settings->memory_promised, err);
    }
    return 0;
}

int kv_size_check(struct checkpoint *ckpt, const struct settings *settings,
                  const struct engine_config *cfg, struct executor_plan *out_plan,
                  struct error *err)
{
    struct memory_limit limit;
    char free_text[MEMORY_LIMIT_TEXT];
    int rc = engine_plan(cfg, ckpt, out_plan, err);
    if (rc || engine_is_on_gpu(cfg))
        return rc ? rc : check_devices(settings, out_plan, err);
    uint64_t weights = new_weights(settings, out_plan);
    uint64_t needed = weights + out_plan->kv_bytes + out_plan->workspace_bytes;
    uint64_t available = kv_size_available(settings, &limit);
    bool is_budget = settings->memory_limit && settings->memory_limit == available;
    uint64_t left = kv_size_budget_left(settings);
    char sizes[8][32];
    if (!settings->config.kv_tokens && !settings->config.kv_bytes)
        available = share_of(settings, out_plan, available);
    if (needed <= available)
        return 0;
    format_bytes(needed, sizes[0]);
    format_bytes(weights, sizes[1]);
    format_bytes(out_plan->kv_bytes, sizes[2]);
    format_bytes(out_plan->workspace_bytes, sizes[3]);
    format_bytes(available, sizes[4]);
    format_bytes(left, sizes[7]);
    if (is_budget && available < left)
        error_set(
            err, STATUS_RESOURCE_EXHAUSTED,
            "%s of memory needed (weights %s, KV cache %s, workspace %s), a replica's share of "
            "the %s that the manager's memory_budget leaves is %s; lower kv_tokens or "
            "context_length, load fewer replicas, or unload something",
            sizes[0], sizes[1], sizes[2], sizes[3], sizes[7], sizes[4]);
    else if (is_budget)
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s of memory needed (weights %s, KV cache %s, workspace %s), the manager's "
                  "memory_budget leaves %s; lower kv_tokens or context_length, or unload something",
                  sizes[0], sizes[1], sizes[2], sizes[3], sizes[7]);
    else
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s of memory needed (weights %s, KV cache %s, workspace %s), %s available (%s, "
                  "of which %s are promised to other replicas); lower kv_tokens or "
                  "context_length, or unload something",
                  sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                  memory_limit_text(&limit, free_text),
                  format_bytes(settings->memory_promised, sizes[6]));
    return error_reason(err, REASON_DEVICE_MEMORY);
}
