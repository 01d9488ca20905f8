#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/cpu.h"
#include "base/system/device_name.h"
#include "engine/forward/executor_private.h"
#include "engine/forward/stages.h"
#include "engine/load/loader_share.h"
#include "engine/model/arch/arch.h"
#include "kernels/backend.h"

uint32_t executor_thread_share(const struct executor_config *cfg, uint32_t rank)
{
    uint32_t n_threads = cfg->n_threads ? cfg->n_threads : (uint32_t)cpu_count();
    uint32_t n_ranks = executor_cpu_ranks(cfg);
    uint32_t share = n_threads / n_ranks + (rank < n_threads % n_ranks);
    return share ? share : 1;
}

/* --- devices --- */

static bool wants_gpu(const struct executor_config *cfg)
{
    return device_name_is_gpu(cfg->device);
}

int executor_check_ranks(const struct executor_config *cfg, struct error *err)
{
    if (cfg->tp != 1 && cfg->tp != 2 && cfg->tp != 4 && cfg->tp != 8)
        return error_field(err, "tp", "%u is not one of 1, 2, 4, 8", cfg->tp);
    if (cfg->pp > STAGES_MAX)
        return error_field(err, "pp", "%u is not in 1..%d", cfg->pp, STAGES_MAX);
    if (executor_cpu_ranks(cfg) > MAX_RANKS)
        return error_field(err, "pp", "%u stages of %u ranks are %u ranks; at most %d", cfg->pp,
                           cfg->tp, executor_cpu_ranks(cfg), MAX_RANKS);
    if (cfg->beside && executor_cpu_ranks(cfg) != 1)
        return error_field(err, cfg->tp != 1 ? "tp" : "pp",
                           "%u: a draft model runs on a single rank; use 1",
                           executor_cpu_ranks(cfg));
    if (wants_gpu(cfg) && executor_cpu_ranks(cfg) != 1)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "%s: %u ranks on GPUs are not supported; use one cuda device",
                         cfg->tp != 1 ? "tp" : "pp", executor_cpu_ranks(cfg));
    return 0;
}

/* The error for a device name that is not a GPU. */
static int no_gpu(const char *name, struct error *err)
{
    char meant[64] = "";
    bool known = device_name_meant(name, meant, sizeof(meant));
    if (known && strpbrk(meant, ",-"))
        return error_field(
            err, "device",
            "\"%.40s\" names several GPUs, but a process uses one; name a single GPU "
            "like cuda:0",
            name);
    return error_field(err, "device", "\"%.40s\" is not a single device like cuda:0%s%s", name,
                       known ? "; write " : "", meant);
}

/* Parses "cuda:N". */
static int parse_gpu(const char *name, uint32_t *out_index, struct error *err)
{
    char *end = NULL;
    unsigned long index = 0;
    if (strncmp(name, "cuda:", 5) == 0 && name[5] >= '0' && name[5] <= '9')
        index = strtoul(name + 5, &end, 10);
    if (!end || *end || index > UINT16_MAX)
        return no_gpu(name, err);
    *out_index = (uint32_t)index;
    return 0;
}

/* Checks FP8 on this GPU: the kernels' own limit is that of the machine's best device. */
static int check_f8(struct executor *ex, struct error *err)
{
    struct device_description device = {.compute_capability = ""};
    int rc = ex->gpu->ops->describe ? ex->gpu->ops->describe(ex->gpu, &device, err) : 0;
    if (rc || !*device.compute_capability || strtod(device.compute_capability, NULL) > 8.85)
        return rc;
    return error_set(err, STATUS_UNIMPLEMENTED,
                     "weight_format: fp8 needs compute capability 8.9 or higher; cuda:%" PRIu32
                     " has %s",
                     ex->gpu->index, device.compute_capability);
}

static int open_gpu(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    struct backend_module module;
    uint32_t index = 0;
    if (cfg->beside) {
        ex->gpu = cfg->beside->gpu;
        ex->ops[0] = cfg->beside->ops[head_rank(cfg->beside)];
        return 0;
    }
    int rc = parse_gpu(cfg->device, &index, err);
    if (!rc)
        rc = backend_cuda(&module, err);
    if (rc)
        return rc;
    ex->ops[0] = module.op_table;
    rc = module.device_ops->open(index, &ex->gpu, err);
    return rc || cfg->store != WEIGHT_STORE_F8 ? rc : check_f8(ex, err);
}

/* Chooses the CPU's kernel set. A stream has one kernel set, so a guest must use its host's. */
static int choose_cpu_ops(const struct executor_config *cfg, const struct op_table **out_ops,
                          struct error *err)
{
    int rc = op_table_cpu(cfg->kernels ? cfg->kernels : "auto", out_ops, err);
    if (rc || !cfg->beside || cfg->beside->ops[0] == *out_ops)
        return rc;
    return error_field(err, "kernels",
                       "%s: the draft model must use the kernels of its target (%s)",
                       (*out_ops)->name, cfg->beside->ops[0]->name);
}

static uint64_t subtract_to_zero(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Free memory that nobody else was promised. A process may not have taken its promised memory yet.
 * A process that ended leaves memory free for a moment, but its successor will take it. */
static uint64_t unpromised_bytes(const struct executor_config *cfg,
                                 const struct device_memory *memory)
{
    uint64_t to_come = subtract_to_zero(cfg->gpu_promised_bytes, cfg->gpu_held_bytes);
    uint64_t of_free = subtract_to_zero(memory->free_bytes, to_come);
    uint64_t of_total = subtract_to_zero(memory->total_bytes, cfg->gpu_promised_bytes);
    return of_free < of_total ? of_free : of_total;
}

/* Fills the device's memory figures and the limit for this load. */
static int gpu_budget(const struct executor *ex, const struct executor_config *cfg,
                      struct executor_device *device, struct error *err)
{
    struct device_memory memory;
    int rc = ex->gpu->ops->memory(ex->gpu, &memory, err);
    if (rc)
        return rc;
    device->free_bytes = unpromised_bytes(cfg, &memory);
    device->promised_bytes = memory.free_bytes - device->free_bytes;
    device->budget_bytes =
        subtract_to_zero(cfg->gpu_memory_bytes ? cfg->gpu_memory_bytes
                                               : device->free_bytes / 10 * EXECUTOR_GPU_TENTHS,
                         cfg->other_bytes);
    device->limit_bytes = subtract_to_zero(device->free_bytes, cfg->other_bytes);
    if (cfg->gpu_memory_bytes && device->budget_bytes < device->limit_bytes)
        device->limit_bytes = device->budget_bytes;
    return 0;
}

/* --- ranks --- */

static bool rank_device_is_gpu(const struct executor *ex, uint32_t r)
{
    return r >= ex->n_cpu_ranks;
}

/* Counts a matrix whose prompts are computed in 16 bit. */
static void widen_needs(struct op_needs *needs, const struct weight_desc *desc)
{
    uint32_t n = desc->n_rows, k = desc->k_total;
    if (desc->role == WEIGHT_LINEAR_ROW)
        k = segments_len(&desc->k_segments);
    if ((uint64_t)n * k <= (uint64_t)needs->widened_n * needs->widened_k)
        return;
    needs->widened_n = n;
    needs->widened_k = k;
}

static struct op_needs needs_of(const struct executor *ex, const struct rank_plan *plan,
                                bool on_gpu)
{
    const struct rank_split *split = &plan->split;
    const struct rank_most *largest = &split->most;
    uint32_t hidden = ex->model.shape.hidden_dim, heads = largest->queries, ffn = largest->ffn;
    uint32_t most = heads > ffn ? heads : ffn;
    most = hidden > most ? hidden : most;
    most = largest->state_values > most ? largest->state_values : most;
    struct op_needs needs = {
        .max_row_n = hidden,
        .max_rows = plan->steps.max_rows,
        .max_logits = plan->steps.max_logits,
        .max_n = most,
        .max_k = most,
        .vocab_size = segments_len(&split->vocab),
        .n_heads = largest->n_heads,
        .n_kv_heads = largest->n_kv_heads,
        .head_dim = largest->head_dim,
        .max_positions = plan->steps.max_blocks_per_seq * plan->steps.block_size,
    };
    for (uint32_t i = 0; i < plan->n_places; i++) {
        const struct weight_desc *desc = &plan->places[i].desc;
        if (desc->role != WEIGHT_LINEAR_COLUMN && desc->role != WEIGHT_LINEAR_ROW)
            continue;
        needs.has_dense |= (desc->source == DTYPE_F16 || desc->source == DTYPE_BF16) &&
                           desc->store == WEIGHT_STORE_SOURCE;
        if (on_gpu && ex->prompts_f16 && dtype_is_quantized(desc->source) &&
            plan->places[i].slot >= ARCH_FIRST_LAYER_SLOT)
            widen_needs(&needs, desc);
    }
    return needs;
}

static int plan_rank(struct executor *ex, uint32_t r, const struct rank *rank,
                     const struct executor_config *cfg, const struct step_sizes *steps,
                     struct error *err)
{
    plan_rank_fini(&ex->plans[r]);
    int rc =
        plan_rank_init(&ex->plans[r], &ex->model, ex->ops[r], rank,
                       rank_device_is_gpu(ex, r) ? cfg->store : WEIGHT_STORE_SOURCE, steps, err);
    if (!rc) {
        ex->plans[r].kv_bytes = decoder_kv_bytes(&ex->plans[r], &ex->model.shape);
        ex->plans[r].state_bytes =
            decoder_state_bytes(&ex->plans[r], &ex->model.shape) * steps->n_state_slots;
        ex->plans[r].workspace_bytes =
            decoder_workspace_bytes(&ex->plans[r], &ex->model.shape, ex->ops[r]);
    }
    ex->plans[r].needs = needs_of(ex, &ex->plans[r], rank_device_is_gpu(ex, r));
    if (!rc && rank_device_is_gpu(ex, r) && ex->gpu->ops->capture_begin) {
        ex->plans[r].graph_bytes = decoder_graphs_bytes(&ex->plans[r]);
        ex->plans[r].workspace_bytes += ex->plans[r].graph_bytes;
    }
    if (!rc && ex->ops[r]->stream_bytes)
        ex->plans[r].workspace_bytes += ex->ops[r]->stream_bytes(&ex->plans[r].needs);
    return rc;
}

/* Checks that the CPU can hold this KV type: layers on the CPU keep their part of the cache
 * there. */
static int check_cpu_cache(const struct op_table *ops, enum dtype kv_dtype, struct error *err)
{
    if (ops->kv_dtypes >> kv_dtype & 1)
        return 0;
    return error_field(err, "kv_dtype",
                       "%s needs all layers on the GPU: the CPU's KV cache does not support it",
                       dtype_name(kv_dtype));
}

/* Plans the GPU's last n layers, and the layers before them on the CPU. */
static int plan_stages(struct executor *ex, const struct executor_config *cfg,
                       const struct step_sizes *steps, uint32_t n, struct error *err)
{
    uint32_t n_layers = ex->model.shape.n_layers;
    const struct op_table *gpu_ops = ex->ops[ex->n_ranks ? ex->n_ranks - 1 : 0], *cpu_ops = NULL;
    bool whole = n >= n_layers;
    int rc = whole ? 0 : choose_cpu_ops(cfg, &cpu_ops, err);
    if (!rc && !whole)
        rc = check_cpu_cache(cpu_ops, steps->kv_dtype, err);
    if (rc)
        return rc;
    ex->n_cpu_ranks = whole ? 0 : 1;
    ex->n_ranks = ex->n_cpu_ranks + 1;
    ex->ops[0] = whole ? gpu_ops : cpu_ops;
    ex->ops[ex->n_ranks - 1] = gpu_ops;
    if (whole) {
        struct rank rank = {.tp = 1, .n_stages = 1};
        return plan_rank(ex, 0, &rank, cfg, steps, err);
    }
    struct rank first = {.tp = 1, .n_stages = 2, .n_layers = n_layers - n};
    struct rank last = {
        .tp = 1, .n_stages = 2, .stage = 1, .layer_begin = n_layers - n, .n_layers = n};
    rc = plan_rank(ex, 0, &first, cfg, steps, err);
    return rc ? rc : plan_rank(ex, 1, &last, cfg, steps, err);
}

static uint64_t bytes_of(const struct rank_plan *plan)
{
    return plan->weights_bytes + plan->kv_bytes + plan->state_bytes + plan->workspace_bytes;
}

/* The next smaller number of layers that a GPU may have; 0 without one. */
static uint32_t fewer_layers(const struct model_shape *shape, uint32_t n)
{
    while (n > 1)
        if (rank_may_cut(shape, shape->n_layers - --n))
            return n;
    return 0;
}

/* Plans the GPU with the most layers whose weights and KV cache fit; at least one layer. */
static int plan_gpu(struct executor *ex, const struct executor_config *cfg,
                    const struct step_sizes *steps, struct error *err)
{
    uint32_t n = cfg->gpu_layers, n_layers = ex->model.shape.n_layers;
    struct executor_device device;
    if (n && n != EXECUTOR_GPU_LAYERS_AUTO)
        return plan_stages(ex, cfg, steps, n, err);
    int rc = gpu_budget(ex, cfg, &device, err);
    if (!rc)
        rc = plan_stages(ex, cfg, steps, n_layers, err);
    if (rc || ex->is_guest)
        return rc;
    n = fewer_layers(&ex->model.shape, n_layers);
    while (!rc && n && bytes_of(&ex->plans[ex->n_ranks - 1]) > device.budget_bytes) {
        rc = plan_stages(ex, cfg, steps, n, err);
        n = fewer_layers(&ex->model.shape, n);
    }
    return rc;
}

/* Chooses the layers of n stages. */
static int choose_stages(struct executor *ex, uint32_t n, const struct step_sizes *steps,
                         uint32_t bounds[STAGES_MAX + 1], struct error *err)
{
    const struct rank all = {.tp = 1, .n_stages = 1};
    struct rank_plan whole;
    bounds[0] = 0;
    bounds[1] = ex->model.shape.n_layers;
    if (n == 1)
        return 0;
    int rc = plan_rank_init(&whole, &ex->model, ex->ops[0], &all, WEIGHT_STORE_SOURCE, steps, err);
    if (!rc)
        rc = stages_split(&whole, &ex->model, n, bounds, err);
    plan_rank_fini(&whole);
    return rc;
}

static int plan_cpu(struct executor *ex, const struct executor_config *cfg,
                    const struct step_sizes *steps, struct error *err)
{
    const struct op_table *ops = ex->ops[0];
    uint32_t n_ranks = executor_cpu_ranks(cfg), bounds[STAGES_MAX + 1];
    int rc = choose_stages(ex, n_ranks / cfg->tp, steps, bounds, err);
    for (uint32_t r = 0; !rc && r < n_ranks; r++) {
        uint32_t stage = r / cfg->tp;
        struct rank rank = {.index = r % cfg->tp,
                            .tp = cfg->tp,
                            .stage = stage,
                            .n_stages = n_ranks / cfg->tp,
                            .layer_begin = bounds[stage],
                            .n_layers = bounds[stage + 1] - bounds[stage]};
        ex->n_ranks = ex->n_cpu_ranks = r + 1;
        ex->ops[r] = ops;
        rc = plan_rank(ex, r, &rank, cfg, steps, err);
    }
    return rc;
}

/* --- sums over ranks --- */

static void add_device(struct executor *ex, const char *name, uint32_t begin, uint32_t end)
{
    struct executor_device *device = &ex->actual.devices[ex->actual.n_devices++];
    const struct rank_split *split = &ex->plans[begin].split;
    snprintf(device->name, sizeof(device->name), "%s", name);
    device->layer_begin = split->layer_begin;
    for (uint32_t r = begin; r < end; r++) {
        const struct rank *rank = &ex->plans[r].rank;
        device->n_layers += rank->index ? 0 : ex->plans[r].split.n_layers;
        ex->actual.n_stages = rank->n_stages;
        device->weights_bytes += ex->plans[r].weights_bytes;
        device->kv_bytes += ex->plans[r].kv_bytes;
        device->kv_block_bytes += decoder_block_bytes(&ex->plans[r], &ex->model.shape, false);
        device->window_block_bytes += decoder_block_bytes(&ex->plans[r], &ex->model.shape, true);
        device->state_bytes += ex->plans[r].state_bytes;
        device->workspace_bytes += ex->plans[r].workspace_bytes;
        device->graph_bytes += ex->plans[r].graph_bytes;
    }
}

static void add_rank(struct executor *ex, const struct rank_plan *plan)
{
    ex->actual.ranks[ex->actual.n_ranks++] = (struct executor_rank){
        .stage = plan->rank.stage,
        .layer_begin = plan->split.layer_begin,
        .n_layers = plan->split.n_layers,
        .weights_bytes = plan->weights_bytes,
        .kv_bytes = plan->kv_bytes,
        .state_bytes = plan->state_bytes,
        .workspace_bytes = plan->workspace_bytes,
    };
}

static int add_devices(struct executor *ex, const struct executor_config *cfg, struct error *err)
{
    char name[16];
    if (ex->n_cpu_ranks)
        add_device(ex, "cpu", 0, ex->n_cpu_ranks);
    for (uint32_t r = 0; r < ex->n_cpu_ranks; r++)
        add_rank(ex, &ex->plans[r]);
    if (!ex->gpu)
        return 0;
    snprintf(name, sizeof(name), "cuda:%u", ex->gpu->index);
    add_device(ex, name, ex->n_cpu_ranks, ex->n_ranks);
    struct executor_device *device = &ex->actual.devices[ex->actual.n_devices - 1];
    device->is_gpu = true;
    struct device_description about = {.name = ""};
    if (ex->gpu->ops->describe && ex->gpu->ops->describe(ex->gpu, &about, err) == 0)
        snprintf(device->product, sizeof(device->product), "%s", about.name);
    error_clear(err);
    return gpu_budget(ex, cfg, device, err);
}

static void add_scratch(struct executor *ex, const struct executor_config *cfg)
{
    for (uint32_t r = 0; r < ex->n_cpu_ranks && !ex->is_guest; r++)
        if (ex->ops[r]->scratch_bytes)
            ex->scratch_bytes += executor_thread_share(cfg, r) *
                                 ex->ops[r]->scratch_bytes(ex->model.shape.vocab_size,
                                                           ex->plans[r].split.most.head_dim);
    if (!ex->n_cpu_ranks)
        return;
    ex->actual.devices[0].workspace_bytes += ex->scratch_bytes;
    if (cfg->tp > 1)
        ex->actual.devices[0].workspace_bytes += 2 * (uint64_t)ex->n_cpu_ranks * COMM_BYTES;
}

static bool takes_store(const struct executor *ex)
{
    const struct rank_plan *plan = &ex->plans[head_rank(ex)];
    for (uint32_t i = 0; i < plan->n_places; i++)
        if (plan->places[i].desc.store != WEIGHT_STORE_SOURCE)
            return true;
    return false;
}

static bool computes_f16(enum prompt_arithmetic arithmetic)
{
    if (arithmetic == PROMPT_ARITHMETIC_DEFAULT)
        arithmetic = EXECUTOR_PROMPT_ARITHMETIC;
    return arithmetic == PROMPT_ARITHMETIC_F16;
}

int executor_prepare(struct executor *ex, const struct checkpoint *ckpt, const struct arch *arch,
                     const struct executor_config *cfg, struct error *err)
{
    struct step_sizes steps;
    uint32_t context;
    ex->tp = cfg->tp;
    ex->is_guest = cfg->beside != NULL;
    ex->mix_roles = cfg->mix_roles;
    bool gpu = ex->is_guest ? cfg->beside->gpu != NULL : wants_gpu(cfg);
    ex->prompts_f16 = gpu && computes_f16(cfg->prompt_arithmetic);
    int rc = executor_check_ranks(cfg, err);
    if (!rc)
        rc = gpu ? open_gpu(ex, cfg, err) : choose_cpu_ops(cfg, &ex->ops[0], err);
    if (!rc)
        rc = model_init(&ex->model, ckpt, arch, err);
    if (!rc)
        rc = plan_steps(&ex->model.shape, cfg, ex->ops[0], &steps, &context, err);
    if (!rc)
        rc = gpu ? plan_gpu(ex, cfg, &steps, err) : plan_cpu(ex, cfg, &steps, err);
    if (!rc)
        rc = add_devices(ex, cfg, err);
    if (rc)
        return rc;
    if (cfg->store != WEIGHT_STORE_SOURCE && !ex->is_guest && !takes_store(ex))
        return error_field(err, "weight_format",
                           "not applicable: every matrix on the GPU is quantized already");
    add_scratch(ex, cfg);
    executor_add_costs(ex);
    for (uint32_t i = 0; i < ex->actual.n_devices; i++) {
        ex->actual.weights_bytes += ex->actual.devices[i].weights_bytes;
        ex->actual.kv_bytes += ex->actual.devices[i].kv_bytes;
        ex->actual.kv_block_bytes += ex->actual.devices[i].kv_block_bytes;
        ex->actual.window_block_bytes += ex->actual.devices[i].window_block_bytes;
        ex->actual.state_bytes += ex->actual.devices[i].state_bytes;
        ex->actual.workspace_bytes += ex->actual.devices[i].workspace_bytes;
    }
    struct error why;
    /* The CPU ranks' memfds come first, the GPU's park copy follows. */
    if (cfg->packed_fds && ex->n_cpu_ranks &&
        cfg->n_packed_fds == ex->n_cpu_ranks + (ex->gpu ? 1 : 0) &&
        loader_share_check(cfg->packed_fds, ex->plans, ex->n_cpu_ranks, &why) == LOADER_SHARE_MAP)
        ex->actual.shared_bytes = ex->actual.devices[0].weights_bytes;
    ex->n_sampled = cfg->n_sampled && cfg->n_sampled < ex->model.shape.vocab_size
                        ? cfg->n_sampled
                        : ex->model.shape.vocab_size;
    ex->actual.n_state_slots = steps.n_state_slots;
    if (steps.n_state_slots)
        ex->actual.state_slot_bytes = ex->actual.state_bytes / steps.n_state_slots;
    ex->actual.n_running_states =
        plan_running_states(steps.n_state_slots, ex->actual.state_slot_bytes, cfg->snapshot_bytes);
    ex->actual.n_blocks = steps.n_blocks;
    ex->actual.block_size = steps.block_size;
    ex->actual.n_window_blocks = steps.n_window_blocks;
    ex->actual.window_reach = steps.window_reach;
    ex->actual.windows_are_chunks = steps.windows_are_chunks;
    ex->actual.most_window_blocks = steps.most_window_blocks;
    ex->actual.kv_tokens = (uint64_t)steps.n_blocks * steps.block_size;
    ex->actual.context_tokens = context;
    return 0;
}

int executor_plan(struct checkpoint *ckpt, const struct executor_config *cfg,
                  struct executor_plan *out_plan, struct error *err)
{
    struct executor *ex = calloc(1, sizeof(*ex));
    if (!ex)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a plan");
    int rc = executor_prepare(ex, ckpt, NULL, cfg, err);
    if (!rc)
        *out_plan = ex->actual;
    executor_close(ex);
    return rc;
}

/* Tokens whose blocks fit into `room` bytes. The two sizes are those of a block. */
static uint64_t tokens_in(const struct executor_plan *plan, uint64_t block_bytes,
                          uint64_t window_bytes, uint64_t room, uint64_t most)
{
    uint64_t bs = plan->block_size, both = block_bytes / bs + window_bytes / bs;
    uint64_t all_windows = plan->most_window_blocks * window_bytes;
    uint64_t fits = both ? room / both : most;
    if (window_bytes && fits > plan->most_window_blocks * bs)
        fits = block_bytes / bs ? (room - all_windows) / (block_bytes / bs) : most;
    return fits < most ? fits : most;
}

uint64_t executor_kv_tokens(const struct executor_plan *plan, uint64_t room, uint64_t most)
{
    return tokens_in(plan, plan->kv_block_bytes, plan->window_block_bytes, room, most);
}

uint64_t executor_device_tokens(const struct executor_plan *plan,
                                const struct executor_device *device, uint64_t room, uint64_t most)
{
    return tokens_in(plan, device->kv_block_bytes, device->window_block_bytes, room, most);
}

uint64_t executor_kv_room(const struct executor_plan *plan, uint64_t most)
{
    for (uint32_t i = 0; i < plan->n_devices; i++) {
        const struct executor_device *device = &plan->devices[i];
        uint64_t taken = device->weights_bytes + device->state_bytes + device->workspace_bytes;
        if (device->is_gpu)
            most = executor_device_tokens(plan, device,
                                          subtract_to_zero(device->budget_bytes, taken), most);
    }
    return most;
}
