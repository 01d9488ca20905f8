#include "engine/engine_splits.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/system/cpu.h"
#include "engine/forward/executor.h"
#include "engine/forward/pipeline.h"
#include "engine/forward/stages.h"

enum { MOST_TP = 8, MOST_ROWS = 4 * STAGES_MAX };

struct splitting {
    const struct engine_config *cfg;
    struct checkpoint *ckpt;
    const struct device_spec *group;
    const struct engine_splits_use *use;
    uint32_t n_devices; /* GPUs of all machines, or cores of the machine */
    double kv_elements; /* K and V bytes of a token in a model with one rank */
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- prediction --- */

static struct engine_cost_device figures_of(const struct device_spec *group, uint32_t n_cores,
                                            const struct engine_cost_split *split)
{
    uint32_t n_ranks = split->tp * split->n_stages, n_threads = n_cores / n_ranks;
    bool one_machine = !group->is_gpu || n_ranks <= group->n_devices;
    struct engine_cost_device out = {
        .read_bytes_s = group->read_bytes_s,
        .ops_s = group->ops_s,
        .link_bytes_s = group->link_bytes_s,
        .latency_s = group->latency_s,
        .hop_bytes_s = one_machine ? group->link_bytes_s : group->net_bytes_s,
        .hop_latency_s = one_machine ? group->latency_s : group->net_latency_s,
        .step_s = group->step_s,
    };
    if (group->is_gpu)
        return out;
    double threads = n_threads ? n_threads : 1;
    out.read_bytes_s *= threads;
    out.ops_s *= threads;
    out.shared_bytes_s = group->shared_bytes_s;
    return out;
}

/* The parts of a step of prompts. A state has no place between parts, so such a step is whole. On a
 * GPU, a part reads its weights for as long as it computes so many rows of 16-bit weights. */
static uint32_t count_parts(const struct executor_plan *plan, const struct device_spec *group,
                            uint32_t n_rows)
{
    struct step_part parts[PIPELINE_MAX_PARTS];
    const struct pipeline_cut cut = {.n_stages = plan->cost.n_stages,
                                     .base_rows = group->is_gpu
                                                      ? (float)(group->ops_s / group->read_bytes_s)
                                                      : (float)PIPELINE_BASE_ROWS};
    const struct step_batch batch = {.n_rows = n_rows};
    return plan->n_state_slots ? 1 : pipeline_cut_step(&cut, &batch, parts);
}

void engine_splits_predict(const struct executor_plan *plan, const struct device_spec *group,
                           uint32_t n_cores, const struct engine_config *cfg, uint32_t n_seqs,
                           uint32_t depth_tokens, struct engine_cost *out)
{
    struct engine_cost_device device = figures_of(group, n_cores, &plan->cost);
    const struct engine_cost_use use = {
        .n_seqs = n_seqs ? n_seqs : 1,
        .depth_tokens = depth_tokens,
        .prompt_rows = cfg->prefill_chunk_tokens,
        .n_parts = count_parts(plan, group, cfg->prefill_chunk_tokens),
        /* as executor_max_flights(); stages on GPUs work one after the other */
        .in_flight = group->is_gpu ? 1 : plan->cost.n_stages,
    };
    engine_cost_predict(&plan->cost, &device, &use, out);
}

/* --- a split --- */

/* Limits of the group itself. */
static void check_group(const struct splitting *s, struct engine_split *row)
{
    const struct device_spec *group = s->group;
    uint32_t n_ranks = row->tp * row->pp;
    const char *what = group->is_gpu ? "devices" : "cores";
    if (n_ranks > s->n_devices)
        error_set(&row->refusal, STATUS_INVALID_ARGUMENT,
                  "tp %" PRIu32 " x pp %" PRIu32 " are %" PRIu32 " ranks; group %s has %" PRIu32
                  " %s",
                  row->tp, row->pp, n_ranks, group->name, s->n_devices, what);
    else if (group->is_gpu && row->tp > group->n_devices)
        error_set(&row->refusal, STATUS_INVALID_ARGUMENT,
                  "tp %" PRIu32 ": the ranks of a stage must share a machine, and a machine of "
                  "group %s has %" PRIu32 " %s",
                  row->tp, group->name, group->n_devices, what);
}

/* Sets the error of a load of this build, although the model could be divided so. */
static void check_built(const struct splitting *s, const struct executor_config *ranks,
                        struct engine_split *row)
{
    struct executor_config cfg = *ranks;
    const struct device_spec *group = s->group;
    if (group->is_gpu)
        cfg.device = "cuda:0";
    if (executor_check_ranks(&cfg, &row->not_built) != 0)
        return;
    if (group->is_gpu && row->tp * row->pp > group->n_devices)
        error_set(&row->not_built, STATUS_UNIMPLEMENTED,
                  "pp: stages on several machines are not supported");
}

/* Bytes of one token's K and V on all ranks of a plan. */
static double kv_bytes_of(const struct executor_plan *plan)
{
    return (double)(plan->kv_block_bytes + plan->window_block_bytes) / plan->block_size;
}

/* Tokens that fit beside `taken` bytes; the sizes are of a block. `missing` grows to the bytes that
 * one request lacks. */
static uint64_t tokens_in(const struct splitting *s, const struct executor_plan *plan,
                          const struct executor_device *sizes, double taken, double room,
                          uint64_t most, uint64_t *missing)
{
    uint64_t bs = plan->block_size, wanted = (s->use->depth_tokens + bs - 1) / bs * bs;
    double least =
        (double)engine_splits_kv_bytes(plan, sizes, s->cfg->executor.kv_tokens ? most : wanted);
    if (taken + least > room) {
        uint64_t lacks = (uint64_t)(taken + least - room);
        *missing = lacks > *missing ? lacks : *missing;
        return 0;
    }
    return executor_device_tokens(plan, sizes, (uint64_t)(room - taken), most);
}

uint64_t engine_splits_kv_bytes(const struct executor_plan *plan,
                                const struct executor_device *sizes, uint64_t n_tokens)
{
    uint64_t n_blocks = n_tokens / plan->block_size, n_windows = n_blocks;
    if (plan->most_window_blocks && n_windows > plan->most_window_blocks)
        n_windows = plan->most_window_blocks;
    return n_blocks * sizes->kv_block_bytes + n_windows * sizes->window_block_bytes;
}

/* Each GPU holds its rank. */
static void fit_devices(const struct splitting *s, struct engine_split *row, uint64_t most)
{
    const struct executor_plan *plan = &row->plan;
    uint64_t bs = plan->block_size, weights = plan->weights_bytes;
    double room = s->group->memory_bytes * EXECUTOR_GPU_TENTHS / 10;
    row->kv_tokens = most;
    for (uint32_t r = 0; r < plan->n_ranks; r++)
        weights -= plan->ranks[r].weights_bytes; /* the draft model's, on the first head rank */
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const struct executor_rank *rank = &plan->ranks[r];
        const struct executor_device sizes = {
            .kv_block_bytes = (uint64_t)plan->cost.ranks[r].kv_bytes * bs,
            .window_block_bytes = (uint64_t)plan->cost.ranks[r].window_bytes * bs};
        double taken = (double)(rank->weights_bytes + rank->state_bytes + rank->workspace_bytes) +
                       (double)(r + row->tp == plan->n_ranks ? weights : 0);
        uint64_t n = tokens_in(s, plan, &sizes, taken, room, most, &row->missing_bytes);
        row->kv_tokens = n < row->kv_tokens ? n : row->kv_tokens;
    }
}

/* All ranks share the machine's memory. Without a given size, K and V take half of the rest. */
static void fit_machine(const struct splitting *s, struct engine_split *row, uint64_t most)
{
    const struct executor_plan *plan = &row->plan;
    const struct executor_device sizes = {.kv_block_bytes = plan->kv_block_bytes,
                                          .window_block_bytes = plan->window_block_bytes};
    double taken = (double)(plan->weights_bytes + plan->state_bytes + plan->workspace_bytes);
    double room = s->group->memory_bytes;
    if (room <= 0) {
        row->kv_tokens = most;
        return;
    }
    if (!s->cfg->executor.kv_tokens && room > taken)
        room -= (room - taken) / 2;
    row->kv_tokens = tokens_in(s, plan, &sizes, taken, room, most, &row->missing_bytes);
}

static void predict(const struct splitting *s, struct engine_split *row)
{
    uint32_t n_replicas = smaller(row->n_replicas, s->use->n_requests);
    uint64_t held = row->kv_tokens / s->use->depth_tokens;
    uint32_t n_seqs =
        smaller((s->use->n_requests + n_replicas - 1) / n_replicas, s->cfg->executor.max_seqs);
    if (row->plan.n_running_states)
        n_seqs = smaller(n_seqs, row->plan.n_running_states);
    n_seqs = held < n_seqs ? (uint32_t)held : n_seqs;
    n_seqs = n_seqs ? n_seqs : 1;
    row->n_at_once = smaller(n_seqs * n_replicas, s->use->n_requests);
    engine_splits_predict(&row->plan, s->group, s->n_devices, s->cfg, n_seqs, s->use->depth_tokens,
                          &row->cost);
    row->tokens_s = row->cost.tokens_s * row->n_at_once / n_seqs;
}

static struct engine_config config_of(const struct splitting *s, uint32_t tp, uint32_t pp)
{
    struct engine_config cfg = *s->cfg;
    cfg.executor.device = "cpu";
    cfg.executor.tp = tp;
    cfg.executor.pp = pp;
    cfg.executor.thread_cpus = NULL;
    cfg.executor.rank_nodes = NULL;
    cfg.executor.packed_fds = NULL;
    cfg.executor.n_threads = s->group->is_gpu ? 0 : s->n_devices;
    cfg.executor.kv_tokens = cfg.executor.kv_block_size;
    if (!cfg.executor.state_slots)
        cfg.executor.state_slots = s->use->n_requests;
    return cfg;
}

static void make_row(const struct splitting *s, struct engine_split *row)
{
    const struct engine_config cfg = config_of(s, row->tp, row->pp);
    uint64_t bs = cfg.executor.kv_block_size, most = s->cfg->executor.kv_tokens;
    check_group(s, row);
    if (row->refusal.status || engine_plan(&cfg, s->ckpt, &row->plan, &row->refusal) != 0)
        return;
    check_built(s, &cfg.executor, row);
    uint32_t n_ranks = row->tp * row->pp;
    row->n_replicas = s->group->is_gpu ? s->n_devices / n_ranks : 1;
    row->kv_copies =
        s->kv_elements > 0 ? (uint32_t)(kv_bytes_of(&row->plan) / s->kv_elements + 0.999) : 1;
    if (!most)
        most = ((uint64_t)row->plan.context_tokens + bs - 1) / bs * bs * s->cfg->executor.max_seqs;
    most = most < UINT32_MAX / bs * bs ? most : UINT32_MAX / bs * bs;
    if (s->group->is_gpu)
        fit_devices(s, row, most);
    else
        fit_machine(s, row, most);
    row->kv_tokens = row->kv_tokens / bs * bs;
    row->fits = !row->missing_bytes;
    predict(s, row);
}

/* --- all splits --- */

static bool is_wanted(const struct splitting *s, uint32_t tp, uint32_t pp)
{
    bool both = s->use->tp && s->use->pp;
    if ((s->use->tp && tp != s->use->tp) || (s->use->pp && pp != s->use->pp))
        return false;
    return both || (tp * pp <= s->n_devices && s->n_devices % (tp * pp) == 0);
}

static void add_row(const struct splitting *s, uint32_t tp, uint32_t pp, struct engine_splits *out)
{
    if (!is_wanted(s, tp, pp) || out->n == MOST_ROWS)
        return;
    struct engine_split *row = &out->rows[out->n++];
    row->tp = tp;
    row->pp = pp;
    make_row(s, row);
}

/* Predictions within a percent are equal: then fewer ranks are simpler. */
static bool is_better(const struct engine_splits *splits, uint32_t i, uint32_t than)
{
    return than == splits->n || splits->rows[i].tokens_s > 1.01 * splits->rows[than].tokens_s;
}

static void choose(struct engine_splits *out)
{
    out->best = out->best_later = out->n;
    for (uint32_t i = 0; i < out->n; i++) {
        const struct engine_split *row = &out->rows[i];
        if (row->refusal.status || !row->fits)
            continue;
        if (is_better(out, i, out->best_later))
            out->best_later = i;
        if (!row->not_built.status && is_better(out, i, out->best))
            out->best = i;
    }
}

int engine_splits_make(const struct engine_config *cfg, struct checkpoint *ckpt,
                       const struct device_spec *group, const struct engine_splits_use *use,
                       struct engine_splits *out, struct error *err)
{
    struct splitting s = {.cfg = cfg, .ckpt = ckpt, .group = group, .use = use};
    struct executor_plan whole;
    *out = (struct engine_splits){.n = 0};
    s.n_devices = group->n_devices ? group->n_devices : (uint32_t)cpu_count();
    if (group->is_gpu)
        s.n_devices *= group->n_machines;
    const struct engine_config one = config_of(&s, 1, 1);
    int rc = engine_plan(&one, ckpt, &whole, err);
    if (rc && group->is_gpu) /* some limits are those of the CPU's kernels */
        return error_prefix(err, "group %s, with sizes of the CPU's layout", group->name);
    if (rc)
        return rc;
    s.kv_elements = kv_bytes_of(&whole);
    if (!(out->rows = calloc(MOST_ROWS, sizeof(*out->rows))))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the splits of a model");
    /* Fewer ranks first. A given tp may be one that no load takes: its row has the reason. */
    for (uint32_t n = 1; n <= MOST_TP * STAGES_MAX; n++)
        for (uint32_t tp = 1; tp <= MOST_TP; tp++)
            if (n % tp == 0 && n / tp <= STAGES_MAX && (!(tp & (tp - 1)) || use->tp == tp))
                add_row(&s, tp, n / tp, out);
    choose(out);
    return 0;
}

void engine_splits_fini(struct engine_splits *splits)
{
    free(splits->rows);
    splits->rows = NULL;
    splits->n = 0;
}
