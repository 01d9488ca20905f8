/* attention_index.h: shapes, sizes and places of the attention kernels: plain functions of numbers,
 * for the GPU and the CPU (tests/unit/kernels/cuda/test_cuda_attention_index.c).
 *
 * Words: a partition is 128 positions aligned to 0, a group 4 partitions. A tile is what one block
 * holds of queries: heads of one KV head (path D: of one row; path P: of several rows, packed). */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/kv_index.h"

/* Functions that also give the sizes of a kernel's arrays. */
#ifdef __cplusplus
#define ATTENTION_SIZE CUDA_HD constexpr
#else
#define ATTENTION_SIZE CUDA_HD
#endif

enum {
    CUDA_PARTITION = 128,
    CUDA_GROUP_PARTITIONS = 4, /* one warp each */
    CUDA_GROUP = CUDA_PARTITION * CUDA_GROUP_PARTITIONS,
    CUDA_TILED_MAX_DIM = 256, /* the tiled kernels' head_dim; beyond it the plain one's */
    CUDA_ATTENTION_MAX_DIM = 512,
    CUDA_MAX_HEADS_PER_KV = 128, /* of the tiled kernels */

    DECODE_THREADS = 32 * CUDA_GROUP_PARTITIONS,
    DECODE_STAGE = 16, /* positions of K or V that a lane's loads of one stage cover */
    DECODE_STAGES = CUDA_PARTITION / DECODE_STAGE,
    DECODE_SCORES = CUDA_PARTITION / 8, /* mma of a partition's scores */
    DECODE_SPLIT_HEADS = 8, /* heads of a tile where each is two rows: high and low halves */
    DECODE_HEADS = 16,      /* heads of a tile where each is one row */
    DECODE_RING = 24,       /* 16-byte loads that a lane has under way, about */

    PLAIN_HEADS = 8, /* of a tile of the plain kernel */

    PREFILL_THREADS = 256,
    PREFILL_QUERIES = 128, /* packed: row · heads_per_kv + head */

    COMBINE_THREADS = 128,
    COMBINE_CHUNK = 128,                   /* groups whose weights are made at once */
    COMBINE_BYTES = 2 * COMBINE_CHUNK * 4, /* of shared memory: weights and sums */

    SHARED_WITHOUT_LEAVE = 48 << 10, /* that every kernel may have */
    SHARED_PER_BLOCK = 99 << 10,     /* the least of sm_80, sm_89, sm_90 */
    DECODE_BLOCKS = 2048,            /* a launch has about so many, … */
    DECODE_MIN_STRIDES = 8           /* … but a row at least so many per head, as groups allow */
};

/* Results of groups in flight at once, in bytes: more rows are more passes. */
#define ATTENTION_SCRATCH_LIMIT ((size_t)64 << 20)

/* struct attention_rows and attention_params (ops.h) for kernels: pointers are the device's. */
struct attention_cuda {
    struct kv_cuda kv;
    uint32_t block_shift;  /* block_size = 1 << block_shift */
    uint32_t vector_bytes; /* of a vector without its scale */
    size_t page_bytes;     /* of a block and KV head */
    const float *q;
    float *y;
    size_t q_stride, y_stride;
    const uint32_t *positions, *seq_of_row, *block_tables;
    uint32_t table_stride, n_seqs;
    uint32_t row_begin, n_rows; /* of this launch */
    uint32_t n_heads, head_begin, kv_begin, heads_per_kv;
    uint32_t window;
    float factor; /* of q·k: the softmax's scale times log2 e */
    float softcap;
    const float *slopes; /* ALiBi: [n_heads]; NULL: none */
    float *parts;        /* results of groups; NULL: n_groups is 1 and y is written at once */
    uint32_t n_groups;   /* that a row can have */
};

/* Positions that a row sees: [begin, end). */
struct attention_span {
    uint32_t begin, end;
};

CUDA_HD struct attention_span attention_span_of(uint32_t position, uint32_t window)
{
    struct attention_span span = {0, position + 1};
    if (window > 0 && span.end > window)
        span.begin = span.end - window;
    return span;
}

/* The part of a span within `size` positions from `base`, relative to it; empty: end ≤ begin. */
CUDA_HD struct attention_span attention_span_within(struct attention_span span, uint32_t base,
                                                    uint32_t size)
{
    struct attention_span part = {0, 0};
    part.begin = span.begin > base ? span.begin - base : 0;
    part.end = span.end > base ? span.end - base : 0;
    if (part.end > size)
        part.end = size;
    return part;
}

CUDA_HD bool attention_sees(struct attention_span span, uint32_t position)
{
    return position >= span.begin && position < span.end;
}

/* Where the kernels load 16 bytes at a time: every vector starts at a multiple of 16. Vectors above
 * 256 elements have no instance: sums of 512 a query do not fit a thread's registers. */
CUDA_HD bool attention_is_tiled(const struct kv_cuda *kv, uint32_t heads_per_kv)
{
    return kv->dtype != DTYPE_F32 && kv->head_dim <= CUDA_TILED_MAX_DIM &&
           kv_cuda_vector_bytes(kv) == (size_t)kv->head_dim * (kv_cuda_is_coded(kv) ? 1 : 2) &&
           kv_cuda_vector_bytes(kv) % 16 == 0 && kv_cuda_page_at(kv, 1, 0) % 16 == 0 &&
           heads_per_kv <= CUDA_MAX_HEADS_PER_KV;
}

/* --- heads --- */

/* Query head (of the rank) in `slot` of what reads the rank's KV head i_kv; n_heads: none. */
CUDA_HD uint32_t attention_head_at(const struct attention_cuda *a, uint32_t i_kv, uint32_t slot)
{
    uint64_t head = (uint64_t)(a->kv_begin + i_kv) * a->heads_per_kv + slot;
    if (slot >= a->heads_per_kv || head < a->head_begin || head - a->head_begin >= a->n_heads)
        return a->n_heads;
    return (uint32_t)(head - a->head_begin);
}

/* Whether any of n slots is a head of the rank. */
CUDA_HD bool attention_has_heads(const struct attention_cuda *a, uint32_t i_kv, uint32_t first_slot,
                                 uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (attention_head_at(a, i_kv, first_slot + i) < a->n_heads)
            return true;
    return false;
}

/* First element of a head in a row of q or y. */
CUDA_HD size_t attention_q_at(const struct attention_cuda *a, size_t stride, uint32_t row,
                              uint32_t head)
{
    return row * stride + (size_t)head * a->kv.head_dim;
}

/* --- pages --- */

CUDA_HD uint32_t attention_shift_of(uint32_t block_size)
{
    uint32_t shift = 0;
    while (block_size >> (shift + 1) != 0)
        shift++;
    return shift;
}

/* The block of a sequence's position; n_blocks and above: there is none. */
CUDA_HD size_t attention_table_at(const struct attention_cuda *a, uint32_t seq, uint32_t position)
{
    return (size_t)seq * a->table_stride + (position >> a->block_shift);
}

/* Byte offset of a KV head's page of a block: kv_cuda_page_at() without its multiplications. */
CUDA_HD size_t attention_page_at(const struct attention_cuda *a, uint32_t block, uint32_t i_kv)
{
    return ((size_t)block * a->kv.n_kv_heads + i_kv) * a->page_bytes;
}

/* Byte offset of a position's vector, and of its scale, within the page. */
CUDA_HD uint32_t attention_vector_in_page(const struct attention_cuda *a, uint32_t position)
{
    return (position & (a->kv.block_size - 1)) * a->vector_bytes;
}

CUDA_HD uint32_t attention_scale_in_page(const struct attention_cuda *a, uint32_t position)
{
    return a->kv.block_size * a->vector_bytes + (position & (a->kv.block_size - 1)) * 4;
}

/* Entries of the table that a partition has. */
CUDA_HD uint32_t attention_partition_blocks(const struct attention_cuda *a)
{
    return CUDA_PARTITION >> a->block_shift;
}

/* --- path D --- */

ATTENTION_SIZE uint32_t decode_chunk_elems(uint32_t elem_bytes)
{
    return 16 / elem_bytes;
}

/* Head dimension that the kernel's arrays hold: whole loads of 8 lanes of V. */
ATTENTION_SIZE uint32_t decode_padded_dim(uint32_t head_dim, uint32_t elem_bytes)
{
    return (head_dim + 128 / elem_bytes - 1) / (128 / elem_bytes) * (128 / elem_bytes);
}

/* 16-byte loads of a lane per stage: of K two positions (8 lanes) by dim / 4 lanes; of V four. */
ATTENTION_SIZE uint32_t decode_stage_loads(uint32_t dim, uint32_t elem_bytes)
{
    return dim / (2 * decode_chunk_elems(elem_bytes));
}

/* Stages in the ring. */
ATTENTION_SIZE uint32_t decode_ring_stages(uint32_t dim, uint32_t elem_bytes)
{
    return 2 * decode_stage_loads(dim, elem_bytes) >= DECODE_RING
               ? 2
               : DECODE_RING / decode_stage_loads(dim, elem_bytes);
}

/* Element of a vector of K at which lane column t's load `chunk` starts. Such a load is chunk / 4
 * steps of an mma's k, four elements each: the sum over k is in this order. */
CUDA_HD uint32_t decode_key_elem(uint32_t chunk, uint32_t t, uint32_t elem_bytes)
{
    return (chunk * 4 + t) * decode_chunk_elems(elem_bytes);
}

/* Element of a vector of V at which lane row g's load of `set` starts: its e-th element is column g
 * of the mma (set, e). */
CUDA_HD uint32_t decode_value_elem(uint32_t set, uint32_t g, uint32_t elem_bytes)
{
    return (set * 8 + g) * decode_chunk_elems(elem_bytes);
}

/* Position within a stage of load row i (0..1) of K, and (0..3) of V. */
CUDA_HD uint32_t decode_key_position(uint32_t i, uint32_t g)
{
    return i * 8 + g;
}

CUDA_HD uint32_t decode_value_position(uint32_t i, uint32_t t)
{
    return (i / 2) * 8 + t * 2 + i % 2;
}

/* Position within a stage of score column c (0..1) of mma i (0..1). */
CUDA_HD uint32_t decode_score_position(uint32_t i, uint32_t t, uint32_t c)
{
    return i * 8 + t * 2 + c;
}

/* A warp's shared memory, in this order: ring, scores (both 16 bytes a lane), scales of K and V and
 * block numbers. The warp's result lies where the ring and the scores were. */
struct decode_memory {
    uint32_t ring, scores, k_scales, v_scales, blocks, n_bytes; /* byte offsets */
};

ATTENTION_SIZE struct decode_memory decode_memory_of(uint32_t dim, uint32_t elem_bytes, bool split)
{
    struct decode_memory m = {0, 0, 0, 0, 0, 0};
    uint32_t ring = decode_ring_stages(dim, elem_bytes) * decode_stage_loads(dim, elem_bytes) * 512;
    uint32_t scores = 2 * DECODE_STAGES * 32 * (split ? 8 : 16);
    uint32_t result = (split ? DECODE_SPLIT_HEADS : DECODE_HEADS) * dim * (uint32_t)sizeof(float);
    m.scores = ring;
    m.k_scales = ring + scores > result ? ring + scores : result;
    m.v_scales = m.k_scales + (elem_bytes == 1 ? CUDA_PARTITION * 4 : 0);
    m.blocks = m.v_scales + (elem_bytes == 1 ? CUDA_PARTITION * 4 : 0);
    m.n_bytes = m.blocks + CUDA_PARTITION * 4;
    return m;
}

/* After the warps' memory: maximum and sum of each warp and head. */
ATTENTION_SIZE uint32_t decode_shared_bytes(uint32_t dim, uint32_t elem_bytes, bool split)
{
    return CUDA_GROUP_PARTITIONS *
           (decode_memory_of(dim, elem_bytes, split).n_bytes + 2 * DECODE_HEADS * 4);
}

CUDA_HD uint32_t decode_tile_heads(uint32_t heads_per_kv)
{
    return heads_per_kv <= DECODE_SPLIT_HEADS ? DECODE_SPLIT_HEADS : DECODE_HEADS;
}

/* Groups of a row that are not wholly out of its sight: [*out_first, end). */
CUDA_HD uint32_t decode_groups(struct attention_span span, uint32_t n_groups, uint32_t *out_first)
{
    uint32_t end = (span.end - 1) / CUDA_GROUP + 1;
    *out_first = span.begin / CUDA_GROUP;
    return end < n_groups ? end : n_groups;
}

/* Its warps [*out_begin, *out_end) whose partitions are not. */
CUDA_HD void decode_partitions(struct attention_span span, uint32_t group, uint32_t *out_begin,
                               uint32_t *out_end)
{
    struct attention_span part = attention_span_within(span, group * CUDA_GROUP, CUDA_GROUP);
    *out_begin = part.begin / CUDA_PARTITION;
    *out_end = (part.end - 1) / CUDA_PARTITION + 1;
}

/* A group's result for a row and head: head_dim sums, then maximum and sum of weights. `row` counts
 * from the launch's first. */
CUDA_HD size_t decode_part_at(const struct attention_cuda *a, uint32_t row, uint32_t head,
                              uint32_t group)
{
    return (((size_t)row * a->n_heads + head) * a->n_groups + group) * (a->kv.head_dim + 2);
}

/* How a call is launched: by capacities alone, never by what the rows hold. */
struct decode_plan {
    uint32_t n_groups, n_tiles, n_strides; /* blocks of a row: n_tiles × n_strides */
    uint32_t pass_rows;                    /* rows of a launch */
    size_t scratch_bytes;
};

CUDA_HD uint32_t decode_group_count(uint64_t max_positions)
{
    uint64_t n = (max_positions + CUDA_GROUP - 1) / CUDA_GROUP;
    return n == 0 ? 1 : (uint32_t)n;
}

CUDA_HD uint32_t decode_pass_rows(uint32_t n_rows, size_t row_bytes)
{
    size_t rows = row_bytes == 0 ? n_rows : ATTENTION_SCRATCH_LIMIT / row_bytes;
    return rows == 0 ? 1 : rows < n_rows ? (uint32_t)rows : n_rows;
}

/* tile_heads: of one block. max_positions: that any row can see. */
CUDA_HD struct decode_plan decode_plan_of(uint32_t n_rows, uint32_t n_heads, uint32_t head_dim,
                                          uint32_t n_kv_heads, uint32_t heads_per_kv,
                                          uint32_t tile_heads, uint64_t max_positions)
{
    struct decode_plan plan = {0, 0, 0, 0, 0};
    plan.n_groups = decode_group_count(max_positions);
    plan.n_tiles = n_kv_heads * ((heads_per_kv + tile_heads - 1) / tile_heads);
    size_t row_bytes =
        plan.n_groups == 1 ? 0 : (size_t)n_heads * plan.n_groups * (head_dim + 2) * sizeof(float);
    plan.pass_rows = decode_pass_rows(n_rows, row_bytes);
    plan.scratch_bytes = plan.pass_rows * row_bytes;
    uint64_t tiles = (uint64_t)plan.pass_rows * plan.n_tiles;
    uint64_t strides = (DECODE_BLOCKS + tiles - 1) / tiles;
    if (strides < DECODE_MIN_STRIDES)
        strides = DECODE_MIN_STRIDES;
    plan.n_strides = strides < plan.n_groups ? (uint32_t)strides : plan.n_groups;
    return plan;
}

/* --- path P --- */

ATTENTION_SIZE uint32_t prefill_padded_dim(uint32_t head_dim)
{
    return (head_dim + 63) / 64 * 64;
}

/* Positions of K or V that lie in shared memory as one tile. */
ATTENTION_SIZE uint32_t prefill_tile_positions(uint32_t dim)
{
    return dim > 192 ? 32 : 64;
}

/* Tiles in the ring (of codes: as codes). */
ATTENTION_SIZE uint32_t prefill_slots(uint32_t dim, uint32_t elem_bytes)
{
    return dim <= 128 ? (elem_bytes == 1 && dim > 64 ? 3 : 4) : 2;
}

/* Token rows of a tile. */
CUDA_HD uint32_t prefill_tile_rows(uint32_t heads_per_kv)
{
    return PREFILL_QUERIES / heads_per_kv;
}

/* Byte offset of 16-byte chunk `chunk` of row `row` in a tile of n_chunks (a multiple of 8) a row:
 * eight rows' chunks of one column lie in different banks. */
CUDA_HD uint32_t prefill_chunk_at(uint32_t row, uint32_t chunk, uint32_t n_chunks)
{
    return (row * n_chunks + (chunk ^ (row & 7))) * 16;
}

/* A block's shared memory. codes: the tile that codes are widened into. */
struct prefill_memory {
    uint32_t queries, ring, wide, k_scales, v_scales, broken, n_bytes; /* byte offsets */
};

ATTENTION_SIZE struct prefill_memory prefill_memory_of(uint32_t dim, uint32_t elem_bytes)
{
    struct prefill_memory m = {0, 0, 0, 0, 0, 0, 0};
    uint32_t tile = prefill_tile_positions(dim) * dim;
    uint32_t scales = elem_bytes == 1 ? 2 * CUDA_PARTITION * 4 : 0; /* of two partitions */
    m.ring = PREFILL_QUERIES * dim * 2;
    m.wide = m.ring + prefill_slots(dim, elem_bytes) * tile * elem_bytes;
    m.k_scales = m.wide + (elem_bytes == 1 ? tile * 2 : 0);
    m.v_scales = m.k_scales + scales;
    m.broken = m.v_scales + scales;
    m.n_bytes = m.broken + 2 * CUDA_PARTITION; /* of two partitions */
    return m;
}

/* Partitions [*out_first, end) that rows from the first one's to the last one's span see. */
CUDA_HD uint32_t prefill_partitions(struct attention_span first, struct attention_span last,
                                    uint32_t *out_first)
{
    *out_first = first.begin / CUDA_PARTITION;
    return (last.end - 1) / CUDA_PARTITION + 1;
}

/* Whether all rows from the first one's to the last one's span see the whole partition. */
CUDA_HD bool prefill_is_whole(struct attention_span first, struct attention_span last,
                              uint32_t base)
{
    return base >= last.begin && first.end >= base + CUDA_PARTITION;
}
