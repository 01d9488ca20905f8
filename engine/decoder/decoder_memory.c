#include "engine/decoder/decoder_memory.h"

enum { ALIGN = 256 };

static uint64_t aligned(uint64_t n_bytes)
{
    return (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Reserves n × 4 bytes; returns NULL while sizes are only planned. */
static void *place_array(struct decoder_memory *mem, unsigned char *base, uint64_t n)
{
    uint64_t at = mem->n_bytes;
    mem->n_bytes += aligned(n * 4);
    return base ? base + at : NULL;
}

static void place_experts(const struct rank_plan *plan, const struct model_shape *shape,
                          unsigned char *base, struct decoder_memory *mem)
{
    const struct model_experts *e = &shape->experts;
    uint64_t rows = plan->steps.max_rows;
    mem->n_pairs = experts_max_pairs(plan->steps.max_rows);
    uint64_t hidden = (uint64_t)mem->n_pairs * shape->hidden_dim;
    uint64_t ffn = (uint64_t)mem->n_pairs * plan->split.most.expert_ffn;
    mem->router_logits = place_array(mem, base, rows * e->n);
    mem->shared_gate = place_array(mem, base, rows);
    mem->routes = place_array(
        mem, base, (experts_routes_bytes(plan->steps.max_rows, e->n_used, e->n) + 3) / 4);
    mem->pair_rows = place_array(mem, base, hidden);
    mem->pair_gate = place_array(mem, base, ffn);
    mem->pair_up = place_array(mem, base, ffn);
    mem->pair_partial = place_array(mem, base, plan->rank.tp > 1 ? hidden : 0);
}

static bool has_bare_norm(const struct model_shape *shape)
{
    for (uint32_t i = 0; i < shape->n_layers; i++)
        if (shape->layers[i].mixer->bare_value_norm ||
            shape->layers[i].mixer->head_norms == ARCH_HEAD_NORMS_BARE)
            return true;
    return false;
}

static bool has_gate(const struct rank_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_places; i++)
        if (plan->places[i].slot == ARCH_ATTN_GATE)
            return true;
    return false;
}

void decoder_memory_layout(const struct rank_plan *plan, const struct model_shape *shape,
                           unsigned char *base, struct decoder_memory *out_memory)
{
    struct decoder_memory mem = {0};
    const struct step_sizes *steps = &plan->steps;
    uint64_t rows = steps->max_rows;
    uint64_t hidden = rows * shape->hidden_dim;
    const struct rank_most *most = &plan->split.most;
    uint64_t ffn = rows * most->ffn;
    mem.x = place_array(&mem, base, hidden);
    mem.h = place_array(&mem, base, hidden);
    mem.y_attention = place_array(&mem, base, hidden);
    mem.y_ffn = place_array(&mem, base, hidden);
    mem.partial = place_array(&mem, base, plan->rank.tp > 1 ? hidden : 0);
    mem.q = place_array(&mem, base, rows * most->queries);
    mem.mixed = place_array(&mem, base, rows * most->mixed);
    if (has_gate(plan))
        mem.attention_gate = place_array(&mem, base, rows * most->mixed);
    mem.k = place_array(&mem, base, rows * most->keys);
    mem.v = place_array(&mem, base, rows * most->values);
    mem.gate = place_array(&mem, base, ffn);
    mem.up = place_array(&mem, base, ffn);
    if (most->state_values) {
        mem.state_inputs = place_array(&mem, base, rows * most->state_inputs);
        mem.state_gate = place_array(&mem, base, rows * most->state_values);
        mem.state_values = place_array(&mem, base, rows * most->state_values);
        mem.state_dt = place_array(&mem, base, rows * most->state_heads);
        mem.state_beta = place_array(&mem, base, rows * most->state_heads);
    }
    if (shape->latent.kv_rank) {
        const struct model_latent *l = &shape->latent;
        mem.latent_q = place_array(&mem, base, rows * l->q_rank);
        mem.latent_nope = place_array(&mem, base, rows * most->n_heads * l->nope_dim);
        mem.latent_rope = place_array(&mem, base, rows * most->n_heads * l->n_rot);
        mem.latent_mixed = place_array(&mem, base, rows * most->n_heads * l->kv_rank);
    }
    if (shape->layer_embd_dim) {
        mem.layer_inputs = place_array(&mem, base, rows * shape->n_layers * shape->layer_embd_dim);
        mem.layer_embds = place_array(&mem, base, rows * shape->n_layers * shape->layer_embd_dim);
        mem.layer_gate = place_array(&mem, base, rows * shape->layer_embd_dim);
    }
    for (uint32_t i = 0; i < ARCH_MAX_ROPES; i++)
        mem.inv_freq[i] = place_array(
            &mem, base, decoder_rope_tables(&shape->ropes[i]) * shape->ropes[i].n_rot / 2);
    mem.has_ones = has_bare_norm(shape);
    mem.ones = place_array(&mem, base, mem.has_ones ? most->head_dim : 0);
    if (shape->temperature > 0)
        mem.n_temperature = (uint32_t)((shape->context_tokens + shape->temperature_offset) /
                                       shape->temperature_length) +
                            1;
    mem.temperature = place_array(&mem, base, mem.n_temperature);
    if (shape->experts.n)
        place_experts(plan, shape, base, &mem);
    mem.slopes = place_array(&mem, base, shape->alibi_bias > 0 ? most->n_heads : 0);
    mem.inputs_at = mem.n_bytes;
    mem.token_ids = place_array(&mem, base, rows);
    mem.positions = place_array(&mem, base, rows);
    mem.kv_slots = place_array(&mem, base, rows);
    mem.seq_of_row = place_array(&mem, base, rows);
    mem.rope_tables = shape->long_rope_after ? place_array(&mem, base, rows) : NULL;
    if (steps->n_state_slots) {
        mem.state_reads = place_array(&mem, base, rows);
        mem.state_writes = place_array(&mem, base, rows);
    }
    if (steps->n_window_blocks)
        mem.window_slots = place_array(&mem, base, rows);
    mem.sample_rows = place_array(&mem, base, steps->max_logits);
    mem.block_tables =
        place_array(&mem, base, (uint64_t)steps->max_seqs * steps->max_blocks_per_seq);
    if (steps->n_window_blocks)
        mem.window_tables =
            place_array(&mem, base, (uint64_t)steps->max_seqs * steps->max_blocks_per_seq);
    *out_memory = mem;
}

static const struct model_layer *layer_of(const struct rank_plan *plan,
                                          const struct model_shape *shape, uint32_t i_layer)
{
    return &shape->layers[plan->split.layer_begin + i_layer];
}

static uint64_t vectors_bytes(const struct rank_plan *plan, uint32_t n_kv_heads, uint32_t dim)
{
    return (uint64_t)n_kv_heads * plan->steps.block_size *
           ops_kv_vector_bytes(plan->steps.kv_dtype, dim);
}

/* True if the K and V that the layer reads could be in blocks for windows. */
static bool has_window(const struct rank_plan *plan, const struct model_shape *shape,
                       uint32_t i_layer)
{
    return plan_has_window(shape, &plan->steps, layer_of(plan, shape, i_layer)->kv_source);
}

bool decoder_memory_is_windowed(const struct rank_plan *plan, const struct model_shape *shape,
                                uint32_t i_layer)
{
    return plan->steps.n_window_blocks && has_window(plan, shape, i_layer);
}

static uint32_t blocks_of(const struct rank_plan *plan, const struct model_shape *shape,
                          uint32_t i_layer)
{
    return decoder_memory_is_windowed(plan, shape, i_layer) ? plan->steps.n_window_blocks
                                                            : plan->steps.n_blocks;
}

uint64_t decoder_memory_planes(const struct rank_plan *plan, const struct model_shape *shape,
                               uint32_t i_layer, struct decoder_plane out[DECODER_MAX_PLANES])
{
    uint64_t end = 0;
    for (uint32_t i = 0; i <= i_layer; i++) {
        const struct model_layer *layer = layer_of(plan, shape, i);
        bool own = layer->kv_source == plan->split.layer_begin + i;
        uint32_t n_heads = own ? plan->split.layers[i].n_kv_heads : 0;
        bool v_in_k = layer->mixer->mixing == ARCH_MIXING_LATENT;
        const uint32_t dims[DECODER_MAX_PLANES] = {layer->k_dim, v_in_k ? 0 : layer->v_dim};
        for (uint32_t p = 0; p < DECODER_MAX_PLANES; p++) {
            out[p].offset_bytes = end;
            out[p].block_bytes = n_heads ? vectors_bytes(plan, n_heads, dims[p]) : 0;
            end += aligned(out[p].block_bytes * blocks_of(plan, shape, i));
        }
    }
    return end;
}

uint64_t decoder_block_bytes(const struct rank_plan *plan, const struct model_shape *shape,
                             bool windows)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < plan->split.n_layers; i++) {
        struct decoder_plane planes[DECODER_MAX_PLANES];
        if (has_window(plan, shape, i) != windows)
            continue;
        decoder_memory_planes(plan, shape, i, planes);
        for (uint32_t p = 0; p < DECODER_MAX_PLANES; p++)
            n_bytes += aligned(planes[p].block_bytes);
    }
    return n_bytes;
}

uint64_t decoder_kv_bytes(const struct rank_plan *plan, const struct model_shape *shape)
{
    struct decoder_plane planes[DECODER_MAX_PLANES];
    return plan->split.n_layers
               ? decoder_memory_planes(plan, shape, plan->split.n_layers - 1, planes)
               : 0;
}

void decoder_memory_kv(const struct rank_plan *plan, const struct model_shape *shape,
                       unsigned char *base, uint32_t i_layer, struct kv_layer *out_kv)
{
    struct decoder_plane planes[DECODER_MAX_PLANES];
    uint32_t source = layer_of(plan, shape, i_layer)->kv_source - plan->split.layer_begin;
    decoder_memory_planes(plan, shape, source, planes);
    unsigned char *keys = base + planes[0].offset_bytes, *values = base + planes[1].offset_bytes;
    *out_kv = (struct kv_layer){
        .k = keys,
        .v = layer_of(plan, shape, source)->mixer->mixing == ARCH_MIXING_LATENT ? NULL : values,
        .dtype = plan->steps.kv_dtype,
        .n_blocks = blocks_of(plan, shape, source),
        .block_size = plan->steps.block_size,
        .n_kv_heads = plan->split.layers[source].n_kv_heads,
        .head_dim = layer_of(plan, shape, source)->k_dim,
        .v_dim = layer_of(plan, shape, source)->v_dim,
    };
}

uint32_t decoder_memory_max_k(const struct rank_plan *plan, const struct model_shape *shape)
{
    const struct rank_most *most = &plan->split.most;
    uint32_t k = shape->hidden_dim;
    k = shape->layer_embd_dim > k ? shape->layer_embd_dim : k;
    k = most->mixed > k ? most->mixed : k;
    k = most->state_values > k ? most->state_values : k;
    k = shape->latent.q_rank > k ? shape->latent.q_rank : k;
    k = shape->latent.kv_rank > k ? shape->latent.kv_rank : k;
    k = shape->latent.nope_dim > k ? shape->latent.nope_dim : k;
    return most->ffn > k ? most->ffn : k;
}

uint32_t decoder_memory_expert_k(const struct rank_plan *plan, const struct model_shape *shape)
{
    uint32_t ffn = plan->split.most.expert_ffn;
    return ffn > shape->hidden_dim ? ffn : shape->hidden_dim;
}

uint64_t decoder_memory_expert_act(const struct rank_plan *plan, const struct model_shape *shape,
                                   const struct op_table *ops)
{
    if (!shape->experts.n)
        return 0;
    return ops->act_bytes(experts_max_pairs(plan->steps.max_rows),
                          decoder_memory_expert_k(plan, shape));
}

uint64_t decoder_workspace_bytes(const struct rank_plan *plan, const struct model_shape *shape,
                                 const struct op_table *ops)
{
    struct decoder_memory mem;
    decoder_memory_layout(plan, shape, NULL, &mem);
    uint64_t logits = plan->rank.index == 0 && rank_is_last(&plan->rank)
                          ? aligned((uint64_t)plan->steps.n_logits * shape->vocab_size * 4)
                          : 0;
    return mem.n_bytes + ops->act_bytes(plan->steps.max_rows, decoder_memory_max_k(plan, shape)) +
           decoder_memory_expert_act(plan, shape, ops) + logits;
}
