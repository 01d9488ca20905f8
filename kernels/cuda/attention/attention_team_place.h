/* attention_team_place.h: sizes and places of attention_team_kernel.h. A team of four warps
 * computes a partition, four teams compute a group of 512 positions. Warp `part` of a team has 32
 * of the 128 positions (scores) and 32 of the 128 elements of a head (sums). Codes are of one byte.
 * Plain functions of numbers, for the GPU and the CPU. */
#pragma once

#include "kernels/cuda/attention/attention_place.h"

enum {
    TEAM_DIM = 128, /* elements of a vector in shared memory, and its bytes */
    TEAM_WARPS = 4, /* warps of a team */
    TEAM_THREADS = TEAM_WARPS * CUDA_WARP,
    TEAM_BLOCK = CUDA_GROUP_PARTITIONS * TEAM_THREADS, /* threads of a block */
    TEAM_POSITIONS =
        CUDA_PARTITION / TEAM_WARPS, /* positions of a warp, for the scores: one per lane */
    TEAM_STAGES = TEAM_POSITIONS / DECODE_STAGE,
    TEAM_STEPS = 8,       /* mma along a vector of K */
    TEAM_COPIES = 8,      /* 16-byte copies of V by a lane, and of K */
    TEAM_ELEMS = 4,       /* elements of V that a lane column has at a position: one per mma */
    TEAM_SMS = 132,       /* SMs of an H100 or H200: a block fills one */
    TEAM_GROUP_COST = 10, /* time of a group, … */
    TEAM_BLOCK_COST = 4   /* … and of a block's start */
};

/* Place of no vector. Places count units of 16 bytes. */
#define TEAM_NOWHERE 0xFFFFFFFFu

/* The shared memory of a team, then of the block; byte offsets. */
struct team_memory {
    uint32_t keys, values, k_scales, v_scales; /* a partition's */
    uint32_t weights, operands;                /* [tile][lane], 8 bytes: two floats; two operands */
    uint32_t sums;                             /* [slot][TEAM_DIM] */
    uint32_t maxima, units;                    /* [warp][slot] */
    uint32_t team_bytes;
    uint32_t queries, stats, n_bytes; /* the block's: operands of Q; [team][2][slot] */
};

ATTENTION_SIZE struct team_memory team_memory_of(void)
{
    struct team_memory m = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t slots = TEAM_WARPS * DECODE_SPLIT_HEADS * (uint32_t)sizeof(float);
    m.values = m.keys + CUDA_PARTITION * TEAM_DIM;
    m.k_scales = m.values + CUDA_PARTITION * TEAM_DIM;
    m.v_scales = m.k_scales + CUDA_PARTITION * (uint32_t)sizeof(float);
    m.weights = m.v_scales + CUDA_PARTITION * (uint32_t)sizeof(float);
    m.operands = m.weights + DECODE_SCORES * CUDA_WARP * 8;
    m.sums = m.operands + DECODE_SCORES * CUDA_WARP * 8;
    m.maxima = m.sums + DECODE_SPLIT_HEADS * TEAM_DIM * (uint32_t)sizeof(float);
    m.units = m.maxima + slots;
    m.team_bytes = m.units + slots;
    m.queries = CUDA_GROUP_PARTITIONS * m.team_bytes;
    m.stats = m.queries + TEAM_STEPS * CUDA_WARP * 16;
    m.n_bytes = m.stats + CUDA_GROUP_PARTITIONS * 2 * DECODE_SPLIT_HEADS * (uint32_t)sizeof(float);
    return m;
}

/* Returns true if the team kernel can compute a call. Vectors are codes, up to TEAM_DIM of them, as
 * many in V as in K. A
 * KV head has up to 8 heads. The places of the pool fit 32 bits. The caller checks
 * attention_is_tiled(). */
CUDA_HD bool team_is_possible(const struct attention_cuda *a)
{
    uint64_t units = (uint64_t)a->kv.n_blocks * a->kv.n_kv_heads * (a->k.page_bytes / 16);
    return kv_cuda_is_coded(&a->kv) && a->kv.head_dim <= TEAM_DIM &&
           a->kv.v_dim == a->kv.head_dim && a->heads_per_kv <= DECODE_SPLIT_HEADS &&
           units < TEAM_NOWHERE;
}

/* Returns the time of a launch with `strides` blocks per row and tile. */
CUDA_HD uint64_t team_cost(uint64_t n_tiles, uint32_t n_groups, uint32_t strides)
{
    uint64_t waves = (n_tiles * strides + TEAM_SMS - 1) / TEAM_SMS;
    return waves * ((n_groups + strides - 1) / strides * TEAM_GROUP_COST + TEAM_BLOCK_COST);
}

/* Returns the blocks per row and tile that take least time. */
CUDA_HD uint32_t team_strides(const struct decode_plan *plan, uint32_t n_rows)
{
    uint64_t n_tiles = (uint64_t)n_rows * plan->n_tiles;
    uint32_t best = 1;
    for (uint32_t strides = 2; strides <= plan->n_groups && strides <= TEAM_SMS; strides++)
        if (team_cost(n_tiles, plan->n_groups, strides) < team_cost(n_tiles, plan->n_groups, best))
            best = strides;
    return best;
}

/* Returns true if any head of KV head i_kv is a head of the rank. */
CUDA_HD bool team_has_heads(const struct attention_cuda *a, uint32_t i_kv)
{
    uint64_t first = (uint64_t)(a->kv_begin + i_kv) * a->heads_per_kv;
    return first + a->heads_per_kv > a->head_begin && first < (uint64_t)a->head_begin + a->n_heads;
}

/* --- threads --- */

CUDA_HD uint32_t team_of(uint32_t thread)
{
    return thread / TEAM_THREADS;
}

CUDA_HD uint32_t team_part(uint32_t thread)
{
    return thread / CUDA_WARP % TEAM_WARPS;
}

/* Returns the number of the team's barrier; 0 is __syncthreads(). */
CUDA_HD uint32_t team_barrier(uint32_t team)
{
    return team + 1;
}

/* Returns the group that a block computes after `group`. */
CUDA_HD uint32_t team_next(uint32_t group, uint32_t n_strides)
{
    return group + n_strides;
}

/* --- positions and pages --- */

/* Returns position i (0..31) of a warp, within the partition. */
CUDA_HD uint32_t team_position(uint32_t part, uint32_t i)
{
    return part * TEAM_POSITIONS + i;
}

/* Returns true if a partition's rows see any position of the block that holds `position`. */
CUDA_HD bool team_needs_block(const struct attention_cuda *a, struct attention_span seen,
                              uint32_t position)
{
    uint32_t begin = attention_entry_begin(a, attention_entry_of(a, position));
    return begin < seen.end && begin + a->kv.block_size > seen.begin;
}

/* Returns the place of a block's page. */
CUDA_HD uint32_t team_page_place(const struct attention_cuda *a, uint32_t block, uint32_t i_kv)
{
    return (block * a->kv.n_kv_heads + i_kv) * (uint32_t)(a->k.page_bytes / 16);
}

/* Returns the place of a position's vector, given its page's. */
CUDA_HD uint32_t team_vector_place(const struct attention_cuda *a, uint32_t page, uint32_t position)
{
    return page + (position & (a->kv.block_size - 1)) * (a->k.vector_bytes / 16);
}

/* Returns the place of the scales of four positions, of which `position` is the first. */
CUDA_HD uint32_t team_scales_place(const struct attention_cuda *a, uint32_t page, uint32_t position)
{
    return page + attention_scale_in_page(a, a->k, position) / 16;
}

CUDA_HD size_t team_bytes_of(uint32_t place)
{
    return (size_t)place * 16;
}

/* --- keys: each lane copies what it multiplies --- */

/* Returns the warp's position of a lane's load row i (0..1) in stage s (0..1). */
CUDA_HD uint32_t team_key_position(uint32_t s, uint32_t i, uint32_t g)
{
    return s * DECODE_STAGE + decode_key_position(i, g);
}

CUDA_HD uint32_t team_key_at(struct team_memory m, uint32_t part, uint32_t s, uint32_t i,
                             uint32_t j, uint32_t lane)
{
    uint32_t load = (s * 2 + i) * 2 + j;
    return m.keys + ((part * TEAM_COPIES + load) * CUDA_WARP + lane) * 16;
}

/* Returns the warp's score tile of stage s, half i. */
CUDA_HD uint32_t team_tile(uint32_t part, uint32_t s, uint32_t i)
{
    return decode_score_tile(part * TEAM_STAGES + s, i);
}

/* Returns the position of column c of such a tile. */
CUDA_HD uint32_t team_score_position(uint32_t part, uint32_t s, uint32_t i, uint32_t t, uint32_t c)
{
    return team_position(part, s * DECODE_STAGE + decode_score_position(i, t, c));
}

/* Returns the operands of Q of a lane for mma `step`. */
CUDA_HD uint32_t team_query_at(struct team_memory m, uint32_t step, uint32_t lane)
{
    return m.queries + (step * CUDA_WARP + lane) * 16;
}

/* --- values: shared by the team --- */

/* Returns the warp's position that a lane copies a piece of, in copy i. */
CUDA_HD uint32_t team_value_position(uint32_t i, uint32_t lane)
{
    return i * 4 + lane / 8;
}

CUDA_HD uint32_t team_value_chunk(uint32_t lane)
{
    return lane % 8;
}

/* Returns the byte of a chunk of a position's vector. Rows 0, 2, 4 and 6 of eight lie in different
 * banks. So a warp reads a word of four positions and eight columns without a conflict. */
CUDA_HD uint32_t team_value_at(struct team_memory m, uint32_t position, uint32_t chunk)
{
    return m.values + position * TEAM_DIM + (chunk ^ (position & 6)) * 16;
}

/* Returns the byte of the elements of lane row g: a word of its warp's 32 elements. */
CUDA_HD uint32_t team_word_at(struct team_memory m, uint32_t position, uint32_t part, uint32_t g)
{
    return team_value_at(m, position, 2 * part + g / 4) + g % 4 * 4;
}

/* Returns the position within the partition of a lane's row i (0..3) in stage s (0..7). */
CUDA_HD uint32_t team_row(uint32_t s, uint32_t i, uint32_t t)
{
    return decode_stage_begin(s) + decode_value_position(i, t);
}

/* Returns the first of the four elements whose sums a lane has in column c of its four mma. */
CUDA_HD uint32_t team_sum_elem(uint32_t part, uint32_t t, uint32_t c)
{
    return (part * 8 + t * 2 + c) * TEAM_ELEMS;
}

CUDA_HD uint32_t team_sum_at(struct team_memory m, uint32_t slot, uint32_t elem)
{
    return m.sums + (slot * TEAM_DIM + elem) * (uint32_t)sizeof(float);
}

/* --- scales, weights, maxima --- */

/* A lane below 16 copies four scales: those of K by the first eight lanes, those of V by the
 * others. */
CUDA_HD bool team_copies_scales(uint32_t lane)
{
    return lane < 16;
}

CUDA_HD bool team_is_key_scale(uint32_t lane)
{
    return lane < 8;
}

/* Returns the warp's first position of a lane's four scales. */
CUDA_HD uint32_t team_scale_position(uint32_t lane)
{
    return lane % 8 * 4;
}

CUDA_HD uint32_t team_scale_at(uint32_t base, uint32_t position)
{
    return base + position * (uint32_t)sizeof(float);
}

/* Returns the byte of a lane's 8 bytes of a tile. */
CUDA_HD uint32_t team_tile_at(uint32_t base, uint32_t tile, uint32_t lane)
{
    return base + (tile * CUDA_WARP + lane) * 8;
}

/* Returns the byte of a warp's value for a slot. */
CUDA_HD uint32_t team_slot_at(uint32_t base, uint32_t part, uint32_t slot)
{
    return base + (part * DECODE_SPLIT_HEADS + slot) * (uint32_t)sizeof(float);
}

/* Returns the byte of a team's memory within the block's. */
CUDA_HD uint32_t team_at(struct team_memory m, uint32_t team)
{
    return team * m.team_bytes;
}

/* Returns the byte of a team's maximum of a slot, or of its sum. */
CUDA_HD uint32_t team_stat_at(struct team_memory m, uint32_t team, bool is_sum, uint32_t slot)
{
    return m.stats +
           ((team * 2 + (is_sum ? 1 : 0)) * DECODE_SPLIT_HEADS + slot) * (uint32_t)sizeof(float);
}

/* A block's results: item i of slots and elements. */
CUDA_HD uint32_t team_item_slot(uint32_t i)
{
    return i / TEAM_DIM;
}

CUDA_HD uint32_t team_item_elem(uint32_t i)
{
    return i % TEAM_DIM;
}
