/* Memory sizes of an engine: the plans of model and draft model together, and sizes chosen by free
 * memory. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/system/device_name.h"
#include "engine/core/engine_private.h"
#include "engine/draft/draft_model.h"
#include "engine/model/plan.h"
#include "kernels/backend.h"
#include "kernels/device.h"

/* A GPU must hold one whole context and so many tokens of each other sequence. Otherwise layers
 * move to the CPU to make room. */
enum { MIN_SEQUENCE_TOKENS = 16 };

void engine_add_plan(struct executor_plan *sum, const struct executor_plan *draft)
{
    sum->weights_bytes += draft->weights_bytes;
    sum->kv_bytes += draft->kv_bytes;
    sum->state_bytes += draft->state_bytes;
    sum->workspace_bytes += draft->workspace_bytes;
    sum->huge_page_bytes += draft->huge_page_bytes;
    sum->draft_bytes = draft->weights_bytes;
    struct executor_device *head = &sum->devices[sum->n_devices - 1];
    head->weights_bytes += draft->weights_bytes;
    head->kv_bytes += draft->kv_bytes;
    head->state_bytes += draft->state_bytes;
    head->workspace_bytes += draft->workspace_bytes;
    head->graph_bytes += draft->devices[draft->n_devices - 1].graph_bytes;
}

int engine_plan(const struct engine_config *cfg, struct checkpoint *ckpt,
                struct executor_plan *out_plan, struct error *err)
{
    struct executor_plan plan, draft;
    int rc = executor_plan(ckpt, &cfg->executor, &plan, err);
    if (!rc && cfg->draft_path) {
        rc = draft_model_plan(cfg->draft_path, &cfg->executor, plan.context_tokens, &draft, err);
        if (!rc)
            engine_add_plan(&plan, &draft);
    }
    if (!rc)
        *out_plan = plan;
    return rc;
}

/* KV tokens for full contexts of all sequences, bounded by the range of KV slot numbers. */
static uint64_t tokens_wanted(const struct executor_config *cfg, const struct executor_plan *plan)
{
    uint64_t bs = cfg->kv_block_size, n_blocks = (plan->context_tokens + bs - 1) / bs;
    uint64_t wanted = cfg->max_seqs * n_blocks * bs, most = UINT32_MAX / bs * bs;
    return wanted < most ? wanted : most;
}

/* Chooses the slots of states where the config has no number. The slots take
 * at most half of the memory that is free once the weights are loaded. The plan gets their bytes.
 */
static int choose_state_slots(struct executor_config *cfg, struct executor_plan *plan,
                              uint64_t free_bytes, struct error *err)
{
    uint64_t taken = plan->weights_bytes + plan->workspace_bytes;
    uint64_t room = free_bytes > taken ? (free_bytes - taken) / 2 : 0;
    if (!plan->n_state_slots || cfg->state_slots)
        return 0;
    uint64_t fits = room / plan->state_slot_bytes;
    if (!fits)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "no memory for the state of a sequence: it takes %" PRIu64
                         " bytes, and %" PRIu64 " are left beside the weights; use a smaller model "
                         "or free memory",
                         plan->state_slot_bytes, room);
    uint32_t wanted = plan_state_slots(cfg->max_seqs);
    cfg->state_slots = fits < wanted ? (uint32_t)fits : wanted;
    plan->n_state_slots = cfg->state_slots;
    plan->state_bytes = plan->state_slot_bytes * cfg->state_slots;
    return 0;
}

/* Chooses kv_tokens where the config has none: full contexts for all sequences. At most half of the
 * memory that is free once the weights are loaded. */
static int choose_by_memory(struct checkpoint *ckpt, struct engine_config *engine_cfg,
                            struct error *err)
{
    struct executor_config *cfg = &engine_cfg->executor;
    struct executor_plan plan;
    struct device_memory memory;
    cfg->kv_tokens = cfg->kv_block_size;
    int rc = engine_plan(engine_cfg, ckpt, &plan, err);
    if (rc)
        return rc;
    rc = backend_cpu_memory(&memory, err);
    if (rc)
        return rc;
    rc = choose_state_slots(cfg, &plan, memory.free_bytes, err);
    if (rc)
        return rc;
    uint64_t per_token = plan.kv_bytes / plan.kv_tokens;
    uint64_t taken = plan.weights_bytes + plan.state_bytes + plan.workspace_bytes;
    uint64_t room = memory.free_bytes > taken ? (memory.free_bytes - taken) / 2 : 0;
    uint64_t wanted = tokens_wanted(cfg, &plan);
    uint64_t fits = per_token ? room / per_token : wanted;
    cfg->kv_tokens = wanted < fits ? wanted : fits;
    if (cfg->kv_tokens < cfg->kv_block_size)
        return error_set(
            err, STATUS_RESOURCE_EXHAUSTED,
            "no memory for the KV pool: %llu bytes are free before the weights, which take "
            "%llu; use a smaller model or free memory",
            (unsigned long long)memory.free_bytes, (unsigned long long)plan.weights_bytes);
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
    struct device_memory memory;
    cfg->executor.kv_tokens = cfg->executor.kv_block_size;
    int rc = engine_plan(cfg, ckpt, &plan, err);
    if (rc)
        return rc;
    uint64_t tokens = executor_kv_room(&plan, tokens_wanted(&cfg->executor, &plan));
    const struct executor_device *gpu = &plan.devices[plan.n_devices - 1];
    if (plan.n_devices > 1) {
        rc = backend_cpu_memory(&memory, err);
        if (rc)
            return rc;
        const struct executor_device *host = &plan.devices[0];
        uint64_t taken = host->weights_bytes + host->state_bytes + host->workspace_bytes;
        uint64_t room = memory.free_bytes > taken ? (memory.free_bytes - taken) / 2 : 0;
        uint64_t per_token = host->kv_bytes / plan.kv_tokens;
        uint64_t fits = per_token ? room / per_token : tokens;
        tokens = fits < tokens ? fits : tokens;
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
    int rc = 0;
    if (!engine_is_on_gpu(cfg))
        return cfg->executor.kv_tokens ? 0 : choose_by_memory(ckpt, cfg, err);
    if (is_auto(&cfg->executor))
        rc = choose_layers(ckpt, cfg, err);
    if (!rc && !cfg->executor.kv_tokens)
        rc = choose_gpu_tokens(ckpt, cfg, err);
    return rc;
}
