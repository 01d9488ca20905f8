/* The work of each rank of a plan for a token: bytes, operations, messages (engine_cost.h). */
#include "base/error.h"
#include "engine/forward/executor_private.h"

/* Bytes of the two floats of a row that ranks exchange before they round activations to int8. */
enum { STATS_BYTES = 8 };

static bool has_output(const struct rank_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_places; i++)
        if (plan->places[i].slot == ARCH_OUTPUT)
            return true;
    return false;
}

/* True if the rank multiplies a row by the weight. Embeddings are only looked up, also tied ones
 * that another matrix, or another stage, multiplies by. */
static bool is_read(const struct rank_plan *plan, const struct weight_place *place, bool output)
{
    if (place->desc.role == WEIGHT_EMBEDDING)
        return false;
    return place->slot != ARCH_TOKEN_EMBD || (rank_is_last(&plan->rank) && !output);
}

/* Counts the messages of a matrix whose columns ranks share. Dense weights sum a plane of floats,
 * 4-bit weights a plane of integers, other quantized weights two. Ranks exchange statistics of
 * quantized inputs before. */
static void add_sums(const struct weight_place *place, uint32_t n_used,
                     struct engine_cost_rank *out)
{
    enum dtype type = place->desc.source;
    bool quantized = dtype_is_quantized(type);
    bool one_plane = !quantized || type == DTYPE_Q4_0 || type == DTYPE_Q4_1;
    double row = (double)place->desc.n_rows * sizeof(int32_t) * n_used;
    out->n_collectives += (one_plane ? 1 : 2) + (quantized ? 1 : 0);
    out->wire_bytes += row * (one_plane ? 1 : 2) + (quantized ? STATS_BYTES * n_used : 0);
}

static void add_place(const struct rank_plan *plan, const struct model_experts *experts,
                      const struct weight_place *place, struct engine_cost_rank *out)
{
    const struct weight_desc *desc = &place->desc;
    bool by_expert = model_has_experts(place->slot) && experts->n, row = false;
    double k = desc->k_total, share = by_expert ? (double)experts->n_used / experts->n : 1;
    if (desc->role == WEIGHT_LINEAR_ROW) {
        k = segments_len(&desc->k_segments);
        row = plan->rank.tp > 1 && (!by_expert || !place->expert);
    }
    if (desc->role != WEIGHT_VECTOR)
        out->multiplications += desc->n_rows * k * share;
    *(by_expert ? &out->expert_bytes : &out->dense_bytes) += (double)place->n_bytes;
    if (row)
        add_sums(place, by_expert ? experts->n_used : 1, out);
}

static void add_rank(const struct executor *ex, const struct rank_plan *plan,
                     struct engine_cost_rank *out)
{
    const struct model_shape *shape = &ex->model.shape;
    double bs = plan->steps.block_size;
    bool output = has_output(plan);
    *out = (struct engine_cost_rank){
        .kv_bytes = (double)decoder_block_bytes(plan, shape, false) / bs,
        .window_bytes = (double)decoder_block_bytes(plan, shape, true) / bs,
        .state_bytes = 2 * (double)decoder_state_bytes(plan, shape),
    };
    for (uint32_t i = 0; i < plan->n_places; i++)
        if (is_read(plan, &plan->places[i], output))
            add_place(plan, &shape->experts, &plan->places[i], out);
}

void executor_add_costs(struct executor *ex)
{
    const struct model_shape *shape = &ex->model.shape;
    struct engine_cost_split *split = &ex->actual.cost;
    split->tp = ex->tp;
    split->n_stages = ex->n_ranks / ex->tp;
    split->experts_used = shape->experts.n ? (double)shape->experts.n_used / shape->experts.n : 0;
    split->window_tokens = ex->actual.window_reach;
    split->hidden_bytes = (double)shape->hidden_dim * sizeof(float);
    for (uint32_t r = 0; r < ex->n_ranks; r++)
        add_rank(ex, &ex->plans[r], &split->ranks[r]);
}
