#include "server/worker/kv_size.h"

#include <inttypes.h>

#include "base/error.h"
#include "engine/engine.h"
#include "server/worker/process.h"
#include "server/worker/settings.h"

uint64_t kv_size_available(const struct settings *settings, uint64_t *out_free_bytes)
{
    uint64_t total_bytes, free_bytes;
    process_machine_memory(&total_bytes, &free_bytes);
    *out_free_bytes = free_bytes;
    return free_bytes > settings->memory_promised ? free_bytes - settings->memory_promised : 0;
}

/* Of the weights what this replica brings into memory: only a draft model's where another has
 * brought the model's. */
static uint64_t new_weights(const struct settings *settings, const struct executor_plan *plan)
{
    uint64_t own = plan->weights_bytes - plan->shared_bytes;
    return settings->weights_held ? plan->draft_bytes : own;
}

/* What one of the replicas may take. Where they share their weights, those are taken once. */
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
    uint64_t free_bytes;
    ex->max_rows = cfg->max_batch_tokens;
    ex->max_seqs = cfg->max_concurrent;
    if (ex->kv_tokens)
        return 0;
    probe = *cfg;
    probe.executor.kv_tokens = ex->kv_block_size;
    int rc = engine_plan(&probe, ckpt, &plan, err);
    if (rc)
        return rc;
    uint64_t token_bytes = plan.kv_bytes / plan.kv_tokens;
    if (settings->kv_bytes) {
        ex->kv_tokens = settings->kv_bytes / token_bytes;
        if (ex->kv_tokens >= ex->kv_block_size)
            return 0;
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--kv-bytes: %" PRIu64 " bytes hold less than one block of %" PRIu32
                         " tokens (%" PRIu64 " bytes)",
                         settings->kv_bytes, ex->kv_block_size, token_bytes * ex->kv_block_size);
    }
    uint64_t share = share_of(settings, &plan, kv_size_available(settings, &free_bytes));
    uint64_t taken = new_weights(settings, &plan) + plan.workspace_bytes;
    uint64_t fits = (share > taken ? (share - taken) / 2 : 0) / token_bytes;
    uint64_t most = UINT32_MAX / ex->kv_block_size * (uint64_t)ex->kv_block_size;
    ex->kv_tokens = (uint64_t)ex->max_seqs * plan.context_tokens;
    if (ex->kv_tokens > fits)
        ex->kv_tokens = fits > ex->kv_block_size ? fits : ex->kv_block_size;
    if (ex->kv_tokens > most)
        ex->kv_tokens = most;
    return 0;
}

static double gib(uint64_t n_bytes)
{
    return (double)n_bytes / (double)(1ULL << 30);
}

int kv_size_check(struct checkpoint *ckpt, const struct settings *settings,
                  const struct engine_config *cfg, struct executor_plan *out_plan,
                  struct error *err)
{
    uint64_t free_bytes;
    int rc = engine_plan(cfg, ckpt, out_plan, err);
    if (rc)
        return rc;
    uint64_t weights = new_weights(settings, out_plan);
    uint64_t needed = weights + out_plan->kv_bytes + out_plan->workspace_bytes;
    uint64_t available = kv_size_available(settings, &free_bytes);
    if (!settings->kv_tokens && !settings->kv_bytes)
        available = share_of(settings, out_plan, available);
    if (needed <= available)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%.2f GiB of memory needed (weights %.2f, KV cache %.2f, workspace %.2f), %.2f GiB "
              "available (%.2f GiB free, of which %.2f GiB are promised to other replicas); lower "
              "kv_tokens or context_length, or unload something",
              gib(needed), gib(weights), gib(out_plan->kv_bytes), gib(out_plan->workspace_bytes),
              gib(available), gib(free_bytes), gib(settings->memory_promised));
    return error_reason(err, "DEVICE_MEMORY");
}
