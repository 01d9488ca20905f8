/* Memory sizes of an engine: the plans of model and draft model together, and sizes chosen by free
 * memory. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/device_name.h"
#include "engine/core/engine_private.h"
#include "engine/draft/draft_model.h"
#include "engine/model/plan.h"
#include "kernels/backend.h"
#include "kernels/device.h"

static uint64_t bytes_left(uint64_t of, uint64_t taken)
{
    return of > taken ? of - taken : 0;
}

/* A GPU must hold one whole context and so many tokens of each other sequence. Otherwise layers
 * move to the CPU to make room. */
enum { MIN_SEQUENCE_TOKENS = 16 };

/* KV tokens of a model without attention, beyond one whole context. Its blocks take no KV bytes,
 * but the tables of blocks and of prefixes take a few bytes for each token. */
enum { TOKENS_WITHOUT_KV = 1 << 22 };

void engine_add_plan(struct executor_plan *sum, const struct executor_plan *draft)
{
    sum->weights_bytes += draft->weights_bytes;
    sum->kv_bytes += draft->kv_bytes;
    sum->kv_block_bytes += draft->kv_block_bytes;
    sum->state_bytes += draft->state_bytes;
    sum->workspace_bytes += draft->workspace_bytes;
    sum->huge_page_bytes += draft->huge_page_bytes;
    sum->draft_bytes = draft->weights_bytes;
    sum->draft_state_bytes = draft->state_bytes;
    sum->n_draft_slots = draft->n_state_slots;
    struct executor_device *head = &sum->devices[sum->n_devices - 1];
    head->weights_bytes += draft->weights_bytes;
    head->kv_bytes += draft->kv_bytes;
    head->kv_block_bytes += draft->kv_block_bytes;
    head->state_bytes += draft->state_bytes;
    head->draft_state_bytes = draft->state_bytes;
    head->workspace_bytes += draft->workspace_bytes;
    head->graph_bytes += draft->devices[draft->n_devices - 1].graph_bytes;
}

uint32_t engine_host_states(const struct executor_plan *plan, uint32_t max_seqs)
{
    uint32_t n = plan->n_running_states < max_seqs ? plan->n_running_states : max_seqs;
    return n < ENGINE_HOST_STATES ? n : (uint32_t)ENGINE_HOST_STATES;
}

void engine_add_host_states(struct executor_plan *plan, uint32_t max_seqs)
{
    uint64_t n_bytes = engine_host_states(plan, max_seqs) * plan->state_slot_bytes;
    if (plan->devices[0].is_gpu)
        return;
    plan->workspace_bytes += n_bytes;
    plan->devices[0].workspace_bytes += n_bytes;
}

int engine_plan(const struct engine_config *cfg, struct checkpoint *ckpt,
                struct executor_plan *out_plan, struct error *err)
{
    struct executor_plan plan, draft;
    struct executor_config own = cfg->executor;
    own.splits_windows = true;
    int rc = executor_plan(ckpt, &own, &plan, err);
    if (!rc)
        engine_add_host_states(&plan, cfg->executor.max_seqs);
    if (!rc && cfg->draft_path) {
        rc = draft_model_plan(cfg->draft_path, &cfg->executor, plan.context_tokens, &draft, err);
        if (!rc)
            engine_add_plan(&plan, &draft);
    }
    if (!rc)
        *out_plan = plan;
    return rc;
}

uint64_t engine_kv_tokens(const struct executor_plan *plan, uint64_t room, uint64_t most)
{
    return executor_kv_tokens(plan, room, most);
}

/* KV tokens for full contexts of all sequences, bounded by the range of KV slot numbers. */
static uint64_t tokens_wanted(const struct executor_config *cfg, const struct executor_plan *plan)
{
    uint64_t bs = cfg->kv_block_size, n_blocks = (plan->context_tokens + bs - 1) / bs;
    uint64_t wanted = cfg->max_seqs * n_blocks * bs, most = UINT32_MAX / bs * bs;
    if (!plan->kv_bytes)
        most = n_blocks * bs > TOKENS_WITHOUT_KV ? n_blocks * bs : TOKENS_WITHOUT_KV / bs * bs;
    return wanted < most ? wanted : most;
}

/* --- slots of recurrent states --- */

/* Bytes of a slot on the device. */
static uint64_t slot_bytes(const struct executor_plan *plan, const struct executor_device *device)
{
    return (device->state_bytes - device->draft_state_bytes) / plan->n_state_slots;
}

/* Slots in half of the memory that every device has beside weights, workspace and the states of the
 * draft model. */
static uint64_t slots_that_fit(const struct executor_plan *plan, uint64_t host_bytes)
{
    uint64_t most = UINT32_MAX;
    for (uint32_t i = 0; i < plan->n_devices; i++) {
        const struct executor_device *d = &plan->devices[i];
        uint64_t slot = slot_bytes(plan, d), room = host_bytes;
        if (d->is_gpu)
            room = bytes_left(d->budget_bytes, d->weights_bytes + d->kv_bytes + d->workspace_bytes);
        room = bytes_left(room, d->draft_state_bytes);
        uint64_t fits = slot ? room / 2 / slot : most;
        if (!fits && room >= slot)
            fits = 1;
        most = fits < most ? fits : most;
    }
    return most;
}

static int no_slot(const struct executor_plan *plan, uint64_t host_bytes, struct error *err)
{
    char state[32], room[32];
    const struct executor_device *d = &plan->devices[plan->n_devices - 1];
    uint64_t left =
        d->is_gpu ? bytes_left(d->budget_bytes, d->weights_bytes + d->workspace_bytes) : host_bytes;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "state of one sequence: %s (%" PRIu64 " bytes) in the recurrent layers; %s (%" PRIu64
              " bytes) are free beside the weights. Free memory, or use a smaller model",
              format_bytes(plan->state_slot_bytes, state), plan->state_slot_bytes,
              format_bytes(left, room), left);
    return error_reason(err, REASON_DEVICE_MEMORY);
}

static void set_slots(struct executor_plan *plan, uint32_t n_slots)
{
    plan->state_bytes = plan->state_slot_bytes * n_slots + plan->draft_state_bytes;
    for (uint32_t i = 0; i < plan->n_devices; i++) {
        struct executor_device *d = &plan->devices[i];
        d->state_bytes = slot_bytes(plan, d) * n_slots + d->draft_state_bytes;
    }
    plan->n_state_slots = n_slots;
}

int engine_choose_states(struct engine_config *cfg, struct executor_plan *plan, uint64_t host_bytes,
                         struct error *err)
{
    struct executor_config *ex = &cfg->executor;
    if (!plan->n_state_slots)
        return 0;
    if (!ex->state_slots) {
        uint64_t fits = slots_that_fit(plan, host_bytes);
        uint32_t wanted =
            plan_state_slots(cfg->max_concurrent, plan->state_slot_bytes, ex->snapshot_bytes);
        if (!fits)
            return no_slot(plan, host_bytes, err);
        ex->state_slots = fits < wanted ? (uint32_t)fits : wanted;
        set_slots(plan, ex->state_slots);
    }
    plan->n_running_states =
        plan_running_states(ex->state_slots, plan->state_slot_bytes, ex->snapshot_bytes);
    if (plan->n_running_states < cfg->max_concurrent)
        cfg->max_concurrent = plan->n_running_states;
    if (cfg->max_concurrent < ex->max_seqs)
        ex->max_seqs = cfg->max_concurrent;
    return 0;
}

/* Plans with one slot, chooses the slots, and plans again with these. Without KV tokens the plan
 * has one block. On a GPU, more slots than needed would push layers to the CPU. */
static int plan_with_states(struct engine_config *cfg, struct checkpoint *ckpt,
                            struct executor_plan *out_plan, uint64_t *out_free_bytes,
                            struct error *err)
{
    struct engine_config probe = *cfg;
    struct device_memory memory = {0};
    if (!probe.executor.kv_tokens)
        probe.executor.kv_tokens = probe.executor.kv_block_size;
    if (!probe.executor.state_slots)
        probe.executor.state_slots = 1;
    int rc = engine_plan(&probe, ckpt, out_plan, err);
    if (!rc)
        rc = backend_cpu_memory(&memory, err);
    if (rc)
        return rc;
    const struct executor_device *host = &out_plan->devices[0];
    uint64_t taken = host->weights_bytes + host->kv_bytes + host->workspace_bytes;
    *out_free_bytes = memory.free_bytes;
    rc = engine_choose_states(cfg, out_plan, bytes_left(memory.free_bytes, taken), err);
    if (rc || !out_plan->n_state_slots)
        return rc;
    probe.executor.state_slots = cfg->executor.state_slots;
    probe.executor.max_seqs = cfg->executor.max_seqs;
    return engine_plan(&probe, ckpt, out_plan, err);
}

/* --- sizes on the CPU --- */

/* Chooses kv_tokens where the config has none: full contexts for all sequences. At most half of the
 * memory that is free once the weights are loaded. */
static int choose_by_memory(struct checkpoint *ckpt, struct engine_config *engine_cfg,
                            struct error *err)
{
    struct executor_config *cfg = &engine_cfg->executor;
    struct executor_plan plan;
    uint64_t free_bytes = 0;
    cfg->kv_tokens = cfg->kv_block_size;
    int rc = plan_with_states(engine_cfg, ckpt, &plan, &free_bytes, err);
    if (rc)
        return rc;
    uint64_t taken = plan.weights_bytes + plan.state_bytes + plan.workspace_bytes;
    uint64_t room = bytes_left(free_bytes, taken) / 2;
    cfg->kv_tokens = executor_kv_tokens(&plan, room, tokens_wanted(cfg, &plan));
    if (cfg->kv_tokens < cfg->kv_block_size)
        return error_set(
            err, STATUS_RESOURCE_EXHAUSTED,
            "no memory for the KV pool: %llu bytes are free before the weights, which take "
            "%llu; use a smaller model or free memory",
            (unsigned long long)free_bytes, (unsigned long long)plan.weights_bytes);
    return 0;
}

/* --- sizes on a GPU --- */

static bool is_auto(const struct executor_config *cfg)
{
    return !cfg->gpu_layers || cfg->gpu_layers == EXECUTOR_GPU_LAYERS_AUTO;
}

/* Chooses gpu_layers: as many as leave room for the configured KV tokens. Without a configured
 * number: room for one whole context and MIN_SEQUENCE_TOKENS for each other sequence. */
static int choose_layers(struct checkpoint *ckpt, struct engine_config *cfg, struct error *err)
{
    struct engine_config probe = *cfg;
    struct executor_plan plan;
    uint64_t bs = cfg->executor.kv_block_size;
    int rc = 0;
    if (!probe.executor.kv_tokens) {
        probe.executor.kv_tokens = bs;
        rc = engine_plan(&probe, ckpt, &plan, err);
        if (rc)
            return rc;
        uint64_t wanted = tokens_wanted(&cfg->executor, &plan);
        uint64_t least = (plan.context_tokens + bs - 1) / bs * bs +
                         (uint64_t)cfg->executor.max_seqs * MIN_SEQUENCE_TOKENS;
        probe.executor.kv_tokens = least < wanted ? least : wanted;
    }
    rc = engine_plan(&probe, ckpt, &plan, err);
    if (!rc)
        cfg->executor.gpu_layers = plan.devices[plan.n_devices - 1].n_layers;
    return rc;
}

/* Chooses kv_tokens: all that the GPU's budget leaves. Layers on the CPU need KV for the same
 * tokens, in at most half of the CPU's free memory. */
static int choose_gpu_tokens(struct checkpoint *ckpt, struct engine_config *cfg, struct error *err)
{
    struct executor_plan plan;
    uint64_t free_bytes = 0;
    cfg->executor.kv_tokens = cfg->executor.kv_block_size;
    int rc = plan_with_states(cfg, ckpt, &plan, &free_bytes, err);
    if (rc)
        return rc;
    uint64_t tokens = executor_kv_room(&plan, tokens_wanted(&cfg->executor, &plan));
    const struct executor_device *gpu = &plan.devices[plan.n_devices - 1];
    if (plan.n_devices > 1) {
        const struct executor_device *host = &plan.devices[0];
        uint64_t taken = host->weights_bytes + host->state_bytes + host->workspace_bytes;
        uint64_t room = bytes_left(free_bytes, taken) / 2;
        tokens = executor_device_tokens(&plan, host, room, tokens);
    }
    cfg->executor.kv_tokens = tokens / cfg->executor.kv_block_size * cfg->executor.kv_block_size;
    if (cfg->executor.kv_tokens)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%s: no memory for the KV cache: the limit is %" PRIu64
              " bytes; weights take %" PRIu64 ", workspace %" PRIu64 ". Free are %" PRIu64
              ", promised to other replicas %" PRIu64
              " more. Lower gpu_layers (more layers run on the CPU) or max_batch_tokens",
              gpu->name, gpu->budget_bytes, gpu->weights_bytes, gpu->workspace_bytes,
              gpu->free_bytes, gpu->promised_bytes);
    return error_reason(err, REASON_DEVICE_MEMORY);
}

bool engine_is_on_gpu(const struct engine_config *cfg)
{
    return device_name_is_gpu(cfg->executor.device);
}

bool engine_gpu_memory(const struct engine *engine, uint64_t *out_total_bytes,
                       uint64_t *out_free_bytes)
{
    return executor_gpu_memory(engine->executor, out_total_bytes, out_free_bytes);
}

int engine_choose_sizes(struct engine_config *cfg, struct checkpoint *ckpt, struct error *err)
{
    struct executor_plan plan;
    uint64_t free_bytes;
    int rc = 0;
    if (cfg->executor.kv_tokens || engine_is_on_gpu(cfg))
        rc = plan_with_states(cfg, ckpt, &plan, &free_bytes, err);
    if (rc)
        return rc;
    if (!engine_is_on_gpu(cfg))
        return cfg->executor.kv_tokens ? 0 : choose_by_memory(ckpt, cfg, err);
    if (is_auto(&cfg->executor))
        rc = choose_layers(ckpt, cfg, err);
    if (!rc && !cfg->executor.kv_tokens)
        rc = choose_gpu_tokens(ckpt, cfg, err);
    return rc;
}
