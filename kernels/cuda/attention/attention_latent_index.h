/* attention_latent_index.h: shapes, sizes and places of the kernel for latent caches
 * (attention_latent_kernel.h). Plain functions of numbers, for the GPU and the CPU
 * (tests/unit/kernels/cuda/attention/test_cuda_attention_latent.c).
 * Terms: a stage is 32 positions aligned to 0. A tile is 32 queries: heads of one KV head, of one
 * row or of several rows. A quarter is every fourth mma along a vector. */
#pragma once

#include "kernels/cuda/attention/attention_place.h"

enum {
    CUDA_ATTENTION_MAX_KEY = 576, /* head_dim of the plain kernel and of this one */

    LATENT_DIM = CUDA_ATTENTION_MAX_KEY, /* elements of the kernel's vectors of K */
    LATENT_WARPS = 8,
    LATENT_THREADS = 32 * LATENT_WARPS,
    LATENT_QUERIES = 32,
    LATENT_ROW_TILES = LATENT_QUERIES / 16, /* operands A that hold the queries */
    LATENT_STAGE = 32,
    LATENT_GROUP_STAGES = CUDA_GROUP / LATENT_STAGE,
    LATENT_SLOTS = 2, /* stages in the ring */
    LATENT_QUARTERS = 4,
    LATENT_STEPS = LATENT_DIM / 16 / LATENT_QUARTERS,         /* mma of a quarter along a vector */
    LATENT_SETS = CUDA_ATTENTION_MAX_DIM / 16 / LATENT_WARPS, /* 16 elements of V each, per warp */
    LATENT_LANES = LATENT_THREADS / LATENT_STAGE,             /* threads that copy one vector */
    LATENT_OWN = LATENT_STAGE / LATENT_LANES, /* scores of a thread, all of one query */
    LATENT_CHUNKS = LATENT_DIM / 8,           /* 16-byte chunks of a vector of operands */
    LATENT_LINE = LATENT_STAGE + 8,           /* floats, or 16-bit weights, between queries */
};

/* Returns true if V lies in the vectors of K (kv_layer.v NULL, ops.h). */
CUDA_HD bool attention_is_latent(const struct kv_cuda *kv)
{
    return kv->v == kv->k;
}

/* Returns true if the kernel computes the cache. */
CUDA_HD bool latent_is_tiled(const struct kv_cuda *kv)
{
    return attention_is_latent(kv) && kv->dtype != DTYPE_F32 && kv->head_dim <= LATENT_DIM &&
           kv->v_dim <= CUDA_ATTENTION_MAX_DIM && attention_is_even(kv, kv->head_dim);
}

/* --- heads, rows and stages --- */

/* Returns the heads of a tile. */
CUDA_HD uint32_t latent_tile_heads(uint32_t heads_per_kv)
{
    return heads_per_kv < LATENT_QUERIES ? heads_per_kv : (uint32_t)LATENT_QUERIES;
}

/* Returns the most rows of a tile. */
CUDA_HD uint32_t latent_tile_rows(uint32_t heads_per_kv)
{
    return LATENT_QUERIES / latent_tile_heads(heads_per_kv);
}

/* Returns the tiles of a row. */
CUDA_HD uint32_t latent_n_tiles(uint32_t n_kv_heads, uint32_t heads_per_kv)
{
    return n_kv_heads * ((heads_per_kv + LATENT_QUERIES - 1) / LATENT_QUERIES);
}

/* Returns the row of a query, counted from the tile's first row. A query of no row has a number
 * beyond all rows. */
CUDA_HD uint32_t latent_query_row(uint32_t query, uint32_t heads_per_kv)
{
    return query / latent_tile_heads(heads_per_kv);
}

/* Returns the slot of a query's head among those of its KV head. */
CUDA_HD uint32_t latent_query_slot(uint32_t query, uint32_t heads_per_kv, uint32_t first_slot)
{
    return first_slot + query % latent_tile_heads(heads_per_kv);
}

/* Returns the stages [*out_first, end) with positions of a span. */
CUDA_HD uint32_t latent_stages(struct attention_span span, uint32_t *out_first)
{
    *out_first = span.begin / LATENT_STAGE;
    return (span.end - 1) / LATENT_STAGE + 1;
}

/* The same for the span's part in a group, which must not be empty. */
CUDA_HD uint32_t latent_group_stages(struct attention_span span, uint32_t group,
                                     uint32_t *out_first)
{
    uint32_t end = latent_stages(span, out_first), begin = group * LATENT_GROUP_STAGES;
    *out_first = *out_first > begin ? *out_first : begin;
    return end < begin + LATENT_GROUP_STAGES ? end : begin + LATENT_GROUP_STAGES;
}

/* Returns position i of a stage. */
CUDA_HD uint32_t latent_position(uint32_t stage, uint32_t i)
{
    return stage * LATENT_STAGE + i;
}

/* Returns true if all rows of the range attend to the whole stage. `first` and `last` are the spans
 * of its first and last row. */
CUDA_HD bool latent_is_whole(struct attention_span first, struct attention_span last,
                             uint32_t stage)
{
    return latent_position(stage, 0) >= last.begin && first.end >= latent_position(stage + 1, 0);
}

/* --- shared memory --- */

/* Byte offsets. `wide`: the stage into which codes are widened. `dots`: the quarters' sums.
 * `weights`: operand A of the values. `keep`: factors of the running sums. `sums`: per query the
 * maximum, the sum of weights and the unit. */
struct latent_memory {
    uint32_t ring, wide, dots, weights, keep, scales, broken, sums, n_bytes;
};

ATTENTION_SIZE struct latent_memory latent_memory_of(uint32_t elem_bytes)
{
    struct latent_memory m = {0, 0, 0, 0, 0, 0, 0, 0, 0};
    m.wide = LATENT_SLOTS * LATENT_STAGE * LATENT_DIM * elem_bytes;
    m.dots = m.wide + (elem_bytes == 1 ? LATENT_STAGE * LATENT_DIM * 2 : 0);
    m.weights = m.dots + LATENT_QUARTERS * LATENT_QUERIES * LATENT_LINE * 4;
    m.keep = m.weights + LATENT_QUERIES * LATENT_LINE * 2;
    m.scales = m.keep + LATENT_QUERIES * 4;
    m.broken = m.scales + LATENT_STAGE * 4;
    m.sums = m.broken + LATENT_STAGE;
    m.n_bytes = m.sums + 3 * LATENT_QUERIES * 4;
    return m;
}

/* Returns the byte of a stage's slot in the ring. */
CUDA_HD uint32_t latent_slot_at(struct latent_memory m, uint32_t elem_bytes, uint32_t stage)
{
    return m.ring + stage % LATENT_SLOTS * (LATENT_STAGE * LATENT_DIM * elem_bytes);
}

/* Returns the byte of a chunk of a vector of operands; the vectors begin at `base`. The same chunk
 * of eight vectors lies in different banks. */
CUDA_HD uint32_t latent_chunk_at(uint32_t base, uint32_t row, uint32_t chunk)
{
    return base + prefill_chunk_at(row, chunk, LATENT_CHUNKS);
}

/* Returns the byte of a chunk of codes; the vectors begin at `base`. */
CUDA_HD uint32_t latent_codes_at(uint32_t base, uint32_t row, uint32_t chunk)
{
    return base + row * LATENT_DIM + chunk * 16;
}

/* --- copies: thread by thread --- */

/* Returns the vector of a stage that a thread copies. */
CUDA_HD uint32_t latent_copy_row(uint32_t thread)
{
    return thread / LATENT_LANES;
}

/* Returns the chunk of that vector in the thread's copy i. Eight threads copy 128 adjacent
 * bytes. */
CUDA_HD uint32_t latent_copy_chunk(uint32_t thread, uint32_t i)
{
    return thread % LATENT_LANES + i * LATENT_LANES;
}

/* Returns the byte of a chunk within its vector. */
CUDA_HD uint32_t latent_chunk_byte(uint32_t chunk)
{
    return chunk * 16;
}

/* Returns the copies of a thread. */
ATTENTION_SIZE uint32_t latent_copies(uint32_t elem_bytes)
{
    return (LATENT_DIM * elem_bytes / 16 + LATENT_LANES - 1) / LATENT_LANES;
}

/* Returns the bytes that products read of a vector of vector_bytes: whole mma. */
CUDA_HD uint32_t latent_used_bytes(uint32_t vector_bytes, uint32_t elem_bytes)
{
    return (vector_bytes + 16 * elem_bytes - 1) / (16 * elem_bytes) * (16 * elem_bytes);
}

/* --- scores: a warp has a quarter of the elements, and half of the positions --- */

CUDA_HD uint32_t latent_quarter_of(uint32_t warp)
{
    return warp % LATENT_QUARTERS;
}

CUDA_HD uint32_t latent_half_of(uint32_t warp)
{
    return warp / LATENT_QUARTERS;
}

/* Returns the number along a vector of mma i of a quarter. */
CUDA_HD uint32_t latent_step(uint32_t quarter, uint32_t i)
{
    return i * LATENT_QUARTERS + quarter;
}

/* Returns true if mma `step` along a vector of n elements has elements. */
CUDA_HD bool latent_has_step(uint32_t step, uint32_t n)
{
    return step * 16 < n;
}

/* Returns the query in row r (0..1) of a lane's registers, in operand `tile`. */
CUDA_HD uint32_t latent_query_of(uint32_t tile, uint32_t lane, uint32_t r)
{
    return tile * 16 + fragment_a_row(lane, r);
}

/* Returns the first of the two elements of a query in register r (0..3) of operand A of a step. */
CUDA_HD uint32_t latent_query_elem(uint32_t step, uint32_t lane, uint32_t r)
{
    return step * 16 + fragment_a_halves(lane, r);
}

/* Returns the byte that a lane passes to ldmatrix for the operands of a step. They are those of 16
 * positions, in half 0 or 1 of the stage. */
CUDA_HD uint32_t latent_key_at(uint32_t base, uint32_t half, uint32_t step, uint32_t lane)
{
    return latent_chunk_at(base, half * 16 + fragment_load_b_row(lane),
                           step * 2 + fragment_load_b_piece(lane));
}

/* Returns the position within the stage of column c (0..1) of a lane's mma n (0..1). */
CUDA_HD uint32_t latent_score_position(uint32_t half, uint32_t n, uint32_t lane, uint32_t c)
{
    return half * 16 + n * 8 + fragment_sum_column(lane, c);
}

/* Returns the register of row r (0..1) and column c. */
CUDA_HD uint32_t latent_register(uint32_t r, uint32_t c)
{
    return r * 2 + c;
}

/* Returns the place of a quarter's sum in the floats at latent_memory.dots. */
CUDA_HD uint32_t latent_dot_at(uint32_t quarter, uint32_t query, uint32_t position)
{
    return (quarter * LATENT_QUERIES + query) * LATENT_LINE + position;
}

/* Returns the sum of the quarters, in a fixed order. */
CUDA_HD float latent_dot(const float quarters[LATENT_QUARTERS])
{
    return (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
}

/* --- the softmax: eight threads have a query, each four positions --- */

CUDA_HD uint32_t latent_own_query(uint32_t thread)
{
    return thread / LATENT_LANES;
}

/* Returns position i (0..3) of a thread, within the stage. */
CUDA_HD uint32_t latent_own_position(uint32_t thread, uint32_t i)
{
    return thread % LATENT_LANES * LATENT_OWN + i;
}

/* Returns true for the first of a query's threads. */
CUDA_HD bool latent_is_first(uint32_t thread)
{
    return thread % LATENT_LANES == 0;
}

/* Returns the byte of a thread's four weights. */
CUDA_HD uint32_t latent_weights_at(uint32_t base, uint32_t thread)
{
    return base + (latent_own_query(thread) * LATENT_LINE + latent_own_position(thread, 0)) * 2;
}

/* Returns the place in latent_memory.sums of a query's number i: the maximum, the sum of weights,
 * the unit. */
CUDA_HD uint32_t latent_sum_at(uint32_t query, uint32_t i)
{
    return i * LATENT_QUERIES + query;
}

/* --- values: a warp has every eighth set of 16 elements --- */

CUDA_HD uint32_t latent_set_of(uint32_t warp, uint32_t i)
{
    return i * LATENT_WARPS + warp;
}

/* Returns the byte that a lane passes to ldmatrix for operand A: 16 queries, 16 positions from 16·k
 * on. */
CUDA_HD uint32_t latent_weight_at(uint32_t base, uint32_t tile, uint32_t k, uint32_t lane)
{
    return base + (tile * 16 + fragment_load_a_row(lane)) * (LATENT_LINE * 2) +
           (k * 2 + fragment_load_a_piece(lane)) * 16;
}

/* Returns the byte that a lane passes to ldmatrix for V, transposed: positions from 16·k on, the
 * elements of a set. */
CUDA_HD uint32_t latent_value_at(uint32_t base, uint32_t k, uint32_t set, uint32_t lane)
{
    return latent_chunk_at(base, k * 16 + fragment_load_turned_row(lane),
                           set * 2 + fragment_load_turned_piece(lane));
}

/* Returns the index, among a warp's sums, of mma n (0..1) of its set i. */
ATTENTION_SIZE uint32_t latent_value_sum(uint32_t i, uint32_t n)
{
    return i * 2 + n;
}

/* Returns the element of V in column c (0..1) of a lane's mma n of a set. */
CUDA_HD uint32_t latent_value_elem(uint32_t set, uint32_t n, uint32_t lane, uint32_t c)
{
    return set * 16 + n * 8 + fragment_sum_column(lane, c);
}
