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

/* A full context for each sequence, in whole blocks. */
static uint64_t most_tokens(const struct executor_config *ex, uint32_t context_tokens)
{
    uint64_t bs = ex->kv_block_size, n_blocks = (context_tokens + bs - 1) / bs;
    uint64_t wanted = ex->max_seqs * n_blocks * bs, most = UINT32_MAX / bs * bs;
    return wanted < most ? wanted : most;
}

/* Plans with the given KV cache, else with a block, and chooses the slots of recurrent states.
 * *out_room: what is left of the replica's share of memory. */
static int plan_share(struct checkpoint *ckpt, const struct settings *settings,
                      struct engine_config *cfg, struct executor_plan *out_plan, uint64_t *out_room,
                      struct error *err)
{
    struct memory_limit limit;
    bool is_settled;
    do {
        struct engine_config probe = *cfg;
        if (!probe.executor.kv_tokens)
            probe.executor.kv_tokens = cfg->executor.kv_block_size;
        if (!probe.executor.state_slots)
            probe.executor.state_slots = 1;
        int rc = engine_plan(&probe, ckpt, out_plan, err);
        if (rc)
            return rc;
        uint64_t share = share_of(settings, out_plan, kv_size_available(settings, &limit));
        uint64_t taken = new_weights(settings, out_plan) + out_plan->workspace_bytes +
                         (cfg->executor.kv_tokens ? out_plan->kv_bytes : settings->config.kv_bytes);
        rc = engine_choose_states(cfg, out_plan, share > taken ? share - taken : 0, err);
        if (rc)
            return rc;
        taken += out_plan->state_bytes;
        *out_room = share > taken ? share - taken : 0;
        is_settled = probe.executor.state_slots == cfg->executor.state_slots &&
                     probe.executor.max_seqs == cfg->executor.max_seqs;
    } while (out_plan->n_state_slots && !is_settled); /* fewer sequences need less workspace */
    return 0;
}

int kv_size_resolve(struct checkpoint *ckpt, const struct settings *settings,
                    struct engine_config *cfg, struct error *err)
{
    struct executor_config *ex = &cfg->executor;
    struct executor_plan plan;
    uint64_t room = 0;
    int rc = 0;
    ex->max_rows = cfg->max_batch_tokens;
    ex->max_seqs = cfg->max_concurrent;
    if (ex->kv_tokens && ex->kv_tokens < ex->kv_block_size)
        return error_field(err, "kv_tokens",
                           "%" PRIu64 " is less than one block of %" PRIu32
                           " tokens, the least that holds a prompt and its answer; give %" PRIu32
                           " or more, or leave it out",
                           ex->kv_tokens, ex->kv_block_size, ex->kv_block_size);
    if (ex->kv_tokens || (engine_is_on_gpu(cfg) && !settings->config.kv_bytes)) {
        if (!engine_is_on_gpu(cfg))
            rc = plan_share(ckpt, settings, cfg, &plan, &room, err);
        return rc ? rc : engine_choose_sizes(cfg, ckpt, err);
    }
    rc = plan_share(ckpt, settings, cfg, &plan, &room, err);
    if (rc)
        return rc;
    if (!plan.kv_bytes) /* no layer has attention: no limit in bytes bounds the tokens */
        return engine_choose_sizes(cfg, ckpt, err);
    /* without a layer that grows: full contexts */
    uint64_t most = plan.kv_block_bytes
                        ? UINT32_MAX / ex->kv_block_size * (uint64_t)ex->kv_block_size
                        : most_tokens(ex, plan.context_tokens);
    if (settings->config.kv_bytes) {
        ex->kv_tokens = engine_kv_tokens(&plan, settings->config.kv_bytes, most);
        if (ex->kv_tokens >= ex->kv_block_size)
            return engine_choose_sizes(cfg, ckpt, err);
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--kv-bytes: %" PRIu64 " bytes hold less than one block of %" PRIu32
                         " tokens (%" PRIu64 " bytes)",
                         settings->config.kv_bytes, ex->kv_block_size, plan.kv_bytes);
    }
    ex->kv_tokens = engine_kv_tokens(&plan, room / 2, most_tokens(ex, plan.context_tokens));
    if (ex->kv_tokens < ex->kv_block_size)
        ex->kv_tokens = ex->kv_block_size;
    return 0;
}

enum { PARTS_TEXT = 256 };

/* Bytes of recurrent states, and the part that belongs to the draft model. */
struct state_bytes {
    uint64_t all, of_draft;
};

/* Names the parts of the needed memory, each in a unit that suits it. A device may have only
 * megabytes of a budget left. */
static const char *parts_text(uint64_t weights, uint64_t kv, struct state_bytes states,
                              uint64_t workspace, char out[PARTS_TEXT])
{
    char sizes[5][32], of_states[96] = "";
    if (states.of_draft)
        snprintf(of_states, sizeof(of_states), ", states %s (draft model %s)",
                 format_bytes(states.all, sizes[2]), format_bytes(states.of_draft, sizes[4]));
    else if (states.all)
        snprintf(of_states, sizeof(of_states), ", states %s", format_bytes(states.all, sizes[2]));
    snprintf(out, PARTS_TEXT, "weights %s, KV cache %s%s, workspace %s",
             format_bytes(weights, sizes[0]), format_bytes(kv, sizes[1]), of_states,
             format_bytes(workspace, sizes[3]));
    return out;
}

/* Settings that lower the need. The slots of the draft model's states follow from max_concurrent.
 */
static const char *what_to_lower(struct state_bytes states)
{
    if (states.all > states.of_draft)
        return "kv_tokens, state_slots or context_length";
    return states.all ? "kv_tokens, max_concurrent or context_length"
                      : "kv_tokens or context_length";
}

/* `free_text` describes the free memory of a CPU. */
static int does_not_fit(const struct executor_device *d, uint64_t needed, uint64_t available,
                        const char *free_text, uint64_t promised_bytes, struct error *err)
{
    char sizes[4][32], gpu_free[40], parts[PARTS_TEXT];
    const struct state_bytes states = {d->state_bytes, d->draft_state_bytes};
    parts_text(d->weights_bytes, d->kv_bytes, states, d->workspace_bytes, parts);
    if (d->is_gpu) {
        format_bytes(d->free_bytes + d->promised_bytes, sizes[3]);
        snprintf(gpu_free, sizeof(gpu_free), "%s free", sizes[3]);
        free_text = gpu_free;
    }
    if (d->is_gpu && available < d->free_bytes) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s: %s (%" PRIu64 " bytes) of memory needed for %" PRIu32
                  " layers (%s), %s (%" PRIu64
                  " bytes) allowed, while %s are free; raise gpu_memory, or lower gpu_layers, %s",
                  d->name, format_bytes(needed, sizes[0]), needed, d->n_layers, parts,
                  format_bytes(available, sizes[1]), available,
                  format_bytes(d->free_bytes, sizes[2]), what_to_lower(states));
        return error_reason(err, REASON_DEVICE_MEMORY);
    }
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%s: %s of memory needed for %" PRIu32
              " layers (%s), %s available (%s, of which %s are promised to other replicas); lower "
              "gpu_layers, %s, or unload something",
              d->name, format_bytes(needed, sizes[0]), d->n_layers, parts,
              format_bytes(available, sizes[1]), free_text, format_bytes(promised_bytes, sizes[2]),
              what_to_lower(states));
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
        uint64_t needed =
            d->weights_bytes - held + d->kv_bytes + d->state_bytes + d->workspace_bytes;
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
    const struct state_bytes states = {out_plan->state_bytes, out_plan->draft_state_bytes};
    uint64_t weights = new_weights(settings, out_plan);
    uint64_t needed = weights + out_plan->kv_bytes + states.all + out_plan->workspace_bytes;
    uint64_t available = kv_size_available(settings, &limit);
    bool is_budget = settings->memory_limit && settings->memory_limit == available;
    uint64_t left = kv_size_budget_left(settings);
    char sizes[4][32], parts[PARTS_TEXT];
    if (!settings->config.kv_tokens && !settings->config.kv_bytes)
        available = share_of(settings, out_plan, available);
    if (needed <= available)
        return 0;
    format_bytes(needed, sizes[0]);
    format_bytes(available, sizes[1]);
    format_bytes(left, sizes[2]);
    parts_text(weights, out_plan->kv_bytes, states, out_plan->workspace_bytes, parts);
    if (is_budget && available < left)
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s of memory needed (%s), a replica's share of the %s that the manager's "
                  "memory_budget leaves is %s; lower %s, load fewer replicas, or unload something",
                  sizes[0], parts, sizes[2], sizes[1], what_to_lower(states));
    else if (is_budget)
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s of memory needed (%s), the manager's memory_budget leaves %s; lower %s, or "
                  "unload something",
                  sizes[0], parts, sizes[2], what_to_lower(states));
    else
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s of memory needed (%s), %s available (%s, of which %s are promised to other "
                  "replicas); lower %s, or unload something",
                  sizes[0], parts, sizes[1], memory_limit_text(&limit, free_text),
                  format_bytes(settings->memory_promised, sizes[3]), what_to_lower(states));
    return error_reason(err, REASON_DEVICE_MEMORY);
}
