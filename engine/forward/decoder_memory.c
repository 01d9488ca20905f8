#include "engine/forward/decoder_memory.h"

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

void decoder_memory_layout(const struct rank_plan *plan, const struct model_shape *shape,
                           unsigned char *base, struct decoder_memory *out_memory)
{
    struct decoder_memory mem = {0};
    const struct step_sizes *steps = &plan->steps;
    uint64_t rows = steps->max_rows;
    uint64_t hidden = rows * shape->hidden_dim;
    uint64_t heads = rows * segments_len(&plan->split.heads);
    uint64_t kv = rows * plan->split.n_kv_heads * shape->head_dim;
    uint64_t ffn = rows * segments_len(&plan->split.ffn);
    mem.x = place_array(&mem, base, hidden);
    mem.h = place_array(&mem, base, hidden);
    mem.y_attention = place_array(&mem, base, hidden);
    mem.y_ffn = place_array(&mem, base, hidden);
    mem.partial = place_array(&mem, base, plan->rank.tp > 1 ? hidden : 0);
    mem.q = place_array(&mem, base, heads);
    mem.mixed = place_array(&mem, base, heads);
    mem.k = place_array(&mem, base, kv);
    mem.v = place_array(&mem, base, kv);
    mem.gate = place_array(&mem, base, ffn);
    mem.up = place_array(&mem, base, ffn);
    mem.inv_freq = place_array(&mem, base, shape->n_rot / 2);
    mem.slopes = place_array(&mem, base, shape->alibi_bias > 0 ? plan->split.n_heads : 0);
    mem.inputs_at = mem.n_bytes;
    mem.token_ids = place_array(&mem, base, rows);
    mem.positions = place_array(&mem, base, rows);
    mem.kv_slots = place_array(&mem, base, rows);
    mem.seq_of_row = place_array(&mem, base, rows);
    mem.sample_rows = place_array(&mem, base, steps->max_logits);
    mem.block_tables =
        place_array(&mem, base, (uint64_t)steps->max_seqs * steps->max_blocks_per_seq);
    *out_memory = mem;
}

static uint64_t pool_bytes(const struct rank_plan *plan, const struct model_shape *shape)
{
    return aligned((uint64_t)plan->steps.n_blocks * plan->steps.block_size *
                   plan->split.n_kv_heads *
                   ops_kv_vector_bytes(plan->steps.kv_dtype, shape->head_dim));
}

uint64_t decoder_kv_bytes(const struct rank_plan *plan, const struct model_shape *shape)
{
    return 2 * plan->split.n_layers * pool_bytes(plan, shape);
}

void decoder_memory_kv(const struct rank_plan *plan, const struct model_shape *shape,
                       unsigned char *base, uint32_t i_layer, struct kv_layer *out_kv)
{
    uint64_t bytes = pool_bytes(plan, shape);
    unsigned char *keys = base + 2 * i_layer * bytes;
    *out_kv = (struct kv_layer){
        .k = keys,
        .v = keys + bytes,
        .dtype = plan->steps.kv_dtype,
        .n_blocks = plan->steps.n_blocks,
        .block_size = plan->steps.block_size,
        .n_kv_heads = plan->split.n_kv_heads,
        .head_dim = shape->head_dim,
    };
}

uint32_t decoder_memory_max_k(const struct rank_plan *plan, const struct model_shape *shape)
{
    uint32_t most = shape->hidden_dim;
    if (segments_len(&plan->split.heads) > most)
        most = segments_len(&plan->split.heads);
    if (segments_len(&plan->split.ffn) > most)
        most = segments_len(&plan->split.ffn);
    return most;
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
           logits;
}
