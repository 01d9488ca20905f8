/* attention_index.h: shapes, sizes and places of the attention kernels. Plain functions of numbers,
 * for the GPU and the CPU (tests/unit/kernels/cuda/attention/test_cuda_attention_index.c).
 * Terms: a partition is 128 positions aligned to 0, a group is 4 partitions. A tile is the queries
 * of one block: heads of one KV head. Path D has them in one row, path P in several packed rows. */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/kv_index.h"

/* Functions that also define the sizes of a kernel's arrays. */
#ifdef __cplusplus
#define ATTENTION_SIZE CUDA_HD constexpr
#else
#define ATTENTION_SIZE CUDA_HD
#endif

enum {
    CUDA_PARTITION = 128,
    CUDA_GROUP_PARTITIONS = 4, /* a warp per partition */
    CUDA_GROUP = CUDA_PARTITION * CUDA_GROUP_PARTITIONS,
    CUDA_TILED_MAX_DIM =
        256, /* head_dim and v_dim of the tiled kernels; larger heads use the plain kernel */
    CUDA_ATTENTION_MAX_DIM = 512,
    CUDA_MAX_HEADS_PER_KV = 128, /* limit of the tiled kernels */

    DECODE_THREADS = 32 * CUDA_GROUP_PARTITIONS,
    DECODE_STAGE = 16, /* positions of K or V covered by a lane's loads of one stage */
    DECODE_STAGES = CUDA_PARTITION / DECODE_STAGE,
    DECODE_SCORES = CUDA_PARTITION / 8, /* number of mma for a partition's scores */
    DECODE_SPLIT_HEADS = 8, /* heads of a tile if each takes two rows: high and low halves */
    DECODE_HEADS = 16,      /* heads of a tile if each takes one row */
    DECODE_RING = 24,       /* approximate 16-byte loads that a lane has in flight */

    PLAIN_HEADS = 8, /* heads of a tile of the plain kernel */

    PREFILL_THREADS = 256,
    PREFILL_QUERIES = 128, /* packed: row · heads_per_kv + head */

    COMBINE_THREADS = 128,
    COMBINE_CHUNK = 128,                   /* groups whose weights are computed at once */
    COMBINE_AHEAD = 16,                    /* groups whose sums a thread loads at once */
    COMBINE_BYTES = 2 * COMBINE_CHUNK * 4, /* shared memory for weights and sums */

    SHARED_WITHOUT_LEAVE = 48 << 10, /* a kernel may use this much without permission */
    SHARED_PER_BLOCK = 99 << 10,     /* the minimum of sm_80, sm_89, sm_90 */
    DECODE_BLOCKS = 2048,            /* approximate blocks of a launch, … */
    DECODE_MIN_STRIDES =
        8 /* … but at least this many per head of a row, if there are so many groups */
};

/* Limit in bytes for the results of groups; more rows take several passes. */
#define ATTENTION_SCRATCH_LIMIT ((size_t)64 << 20)

/* K or V of a layer. */
struct attention_plane {
    uint32_t vector_bytes; /* bytes of a vector without its scale */
    size_t page_bytes;     /* bytes of a block and KV head */
};

/* struct attention_rows and attention_params (ops.h) for kernels: pointers are device addresses. */
struct attention_cuda {
    struct kv_cuda kv;
    uint32_t block_shift; /* block_size = 1 << block_shift */
    struct attention_plane k, v;
    const float *q;
    float *y;
    size_t q_stride, y_stride;
    const uint32_t *positions, *seq_of_row, *block_tables;
    uint32_t table_stride, n_seqs;
    uint32_t row_begin, n_rows; /* rows of this launch */
    uint32_t n_heads, head_begin, kv_begin, heads_per_kv;
    uint32_t window, chunk;
    float factor; /* factor for q·k: the softmax's scale times log2 e */
    float softcap;
    const float *slopes; /* ALiBi: [n_heads]; NULL: none */
    const float *sinks;  /* logits [n_heads]; NULL: none */
    float *parts;        /* results of groups; NULL: n_groups is 1 and y is written directly */
    uint32_t n_groups;   /* maximum number of groups of a row */
};

/* The positions that a row attends to: [begin, end). */
struct attention_span {
    uint32_t begin, end;
};

CUDA_HD struct attention_span attention_span_of(uint32_t position, uint32_t window, uint32_t chunk)
{
    struct attention_span span = {0, position + 1};
    if (window > 0 && span.end > window)
        span.begin = span.end - window;
    if (chunk > 0 && position - position % chunk > span.begin)
        span.begin = position - position % chunk;
    return span;
}

/* Returns the part of a span within `size` positions from `base`, relative to `base`; empty if end
 * ≤ begin. */
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

/* Returns the plane of vectors of `dim` elements: head_dim or v_dim. */
CUDA_HD struct attention_plane attention_plane_of(const struct kv_cuda *kv, uint32_t dim)
{
    struct attention_plane plane = {(uint32_t)kv_cuda_vector_bytes(kv, dim),
                                    kv_cuda_page_at(kv, dim, 0, 1)};
    return plane;
}

/* Returns the wider of head_dim and v_dim. The arrays of a tiled kernel have this width. */
CUDA_HD uint32_t attention_width(const struct kv_cuda *kv)
{
    return kv->head_dim > kv->v_dim ? kv->head_dim : kv->v_dim;
}

/* Returns true if vectors of `dim` elements begin at multiples of 16 bytes. */
CUDA_HD bool attention_is_even(const struct kv_cuda *kv, uint32_t dim)
{
    size_t bytes = kv_cuda_vector_bytes(kv, dim);
    return bytes == (size_t)dim * (kv_cuda_is_coded(kv) ? 1 : 2) && bytes % 16 == 0 &&
           kv_cuda_page_at(kv, dim, 0, 1) % 16 == 0;
}

/* Returns true if the kernels can load 16 bytes at a time, so every vector starts at a multiple of
 * 16. Vectors above 256 elements have no instance, because sums of 512 per query do not fit a
 * thread's registers. */
CUDA_HD bool attention_is_tiled(const struct kv_cuda *kv, uint32_t heads_per_kv)
{
    return kv->dtype != DTYPE_F32 && attention_width(kv) <= CUDA_TILED_MAX_DIM &&
           attention_is_even(kv, kv->head_dim) && attention_is_even(kv, kv->v_dim) &&
           heads_per_kv <= CUDA_MAX_HEADS_PER_KV;
}

/* --- heads --- */

/* Returns the rank's query head in `slot` among the heads of its KV head i_kv; n_heads if there is
 * none. */
CUDA_HD uint32_t attention_head_at(const struct attention_cuda *a, uint32_t i_kv, uint32_t slot)
{
    uint64_t head = (uint64_t)(a->kv_begin + i_kv) * a->heads_per_kv + slot;
    if (slot >= a->heads_per_kv || head < a->head_begin || head - a->head_begin >= a->n_heads)
        return a->n_heads;
    return (uint32_t)(head - a->head_begin);
}

/* Returns true if any of n slots is a head of the rank. */
CUDA_HD bool attention_has_heads(const struct attention_cuda *a, uint32_t i_kv, uint32_t first_slot,
                                 uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (attention_head_at(a, i_kv, first_slot + i) < a->n_heads)
            return true;
    return false;
}

/* Returns the first element of a head in a row of q. */
CUDA_HD size_t attention_q_at(const struct attention_cuda *a, uint32_t row, uint32_t head)
{
    return row * a->q_stride + (size_t)head * a->kv.head_dim;
}

/* The same for y. */
CUDA_HD size_t attention_y_at(const struct attention_cuda *a, uint32_t row, uint32_t head)
{
    return row * a->y_stride + (size_t)head * a->kv.v_dim;
}

/* --- pages --- */

CUDA_HD uint32_t attention_shift_of(uint32_t block_size)
{
    uint32_t shift = 0;
    while (block_size >> (shift + 1) != 0)
        shift++;
    return shift;
}

/* Returns the index in the block tables of a position's block. A block number of n_blocks or more
 * means no block. */
CUDA_HD size_t attention_table_at(const struct attention_cuda *a, uint32_t seq, uint32_t position)
{
    return (size_t)seq * a->table_stride + (position >> a->block_shift);
}

/* Returns the byte offset of a KV head's page of a block; kv_cuda_page_at() with precomputed
 * factors. */
CUDA_HD size_t attention_page_at(const struct attention_cuda *a, struct attention_plane plane,
                                 uint32_t block, uint32_t i_kv)
{
    return ((size_t)block * a->kv.n_kv_heads + i_kv) * plane.page_bytes;
}

/* Returns the byte of a position's vector within its page. */
CUDA_HD uint32_t attention_vector_in_page(const struct attention_cuda *a,
                                          struct attention_plane plane, uint32_t position)
{
    return (position & (a->kv.block_size - 1)) * plane.vector_bytes;
}

/* Returns the byte of a position's scale within its page. */
CUDA_HD uint32_t attention_scale_in_page(const struct attention_cuda *a,
                                         struct attention_plane plane, uint32_t position)
{
    return a->kv.block_size * plane.vector_bytes + (position & (a->kv.block_size - 1)) * 4;
}

/* Returns the number of a partition's blocks. */
CUDA_HD uint32_t attention_partition_blocks(const struct attention_cuda *a)
{
    return CUDA_PARTITION >> a->block_shift;
}

/* --- path D --- */

ATTENTION_SIZE uint32_t decode_chunk_elems(uint32_t elem_bytes)
{
    return 16 / elem_bytes;
}

/* Returns the head dimension of the kernel's arrays, rounded up to whole loads of V by 8 lanes. */
ATTENTION_SIZE uint32_t decode_padded_dim(uint32_t head_dim, uint32_t elem_bytes)
{
    return (head_dim + 128 / elem_bytes - 1) / (128 / elem_bytes) * (128 / elem_bytes);
}

/* Returns a lane's 16-byte loads per stage. K: two positions (for 8 lanes), dim / 4 lanes each; V:
 * four positions. */
ATTENTION_SIZE uint32_t decode_stage_loads(uint32_t dim, uint32_t elem_bytes)
{
    return dim / (2 * decode_chunk_elems(elem_bytes));
}

/* Returns the number of stages in the ring. */
ATTENTION_SIZE uint32_t decode_ring_stages(uint32_t dim, uint32_t elem_bytes)
{
    return 2 * decode_stage_loads(dim, elem_bytes) >= DECODE_RING
               ? 2
               : DECODE_RING / decode_stage_loads(dim, elem_bytes);
}

/* Returns the first element of a vector of K in load `chunk` of lane column t. A load covers chunk
 * / 4 steps of an mma's k, four elements each; the sum over k has this order. */
CUDA_HD uint32_t decode_key_elem(uint32_t chunk, uint32_t t, uint32_t elem_bytes)
{
    return (chunk * 4 + t) * decode_chunk_elems(elem_bytes);
}

/* Returns the first element of a vector of V in load `set` of lane row g. Its e-th element is
 * column g of the mma (set, e). */
CUDA_HD uint32_t decode_value_elem(uint32_t set, uint32_t g, uint32_t elem_bytes)
{
    return (set * 8 + g) * decode_chunk_elems(elem_bytes);
}

/* Returns the position within a stage of load row i (0..1) of K. */
CUDA_HD uint32_t decode_key_position(uint32_t i, uint32_t g)
{
    return i * 8 + g;
}

/* Returns the position within a stage of load row i (0..3) of V. */
CUDA_HD uint32_t decode_value_position(uint32_t i, uint32_t t)
{
    return (i / 2) * 8 + t * 2 + i % 2;
}

/* Returns the position within a stage of score column c (0..1) of mma i (0..1). */
CUDA_HD uint32_t decode_score_position(uint32_t i, uint32_t t, uint32_t c)
{
    return i * 8 + t * 2 + c;
}

/* The shared memory of a warp, in this order: ring, scores (both 16 bytes per lane), scales of K
 * and V, block numbers. The warp's result later overwrites ring and scores. */
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

/* Returns the bytes of a block's shared memory: the warps' memory, then maximum and sum of each
 * warp and head. */
ATTENTION_SIZE uint32_t decode_shared_bytes(uint32_t dim, uint32_t elem_bytes, bool split)
{
    return CUDA_GROUP_PARTITIONS *
           (decode_memory_of(dim, elem_bytes, split).n_bytes + 2 * DECODE_HEADS * 4);
}

CUDA_HD uint32_t decode_tile_heads(uint32_t heads_per_kv)
{
    return heads_per_kv <= DECODE_SPLIT_HEADS ? DECODE_SPLIT_HEADS : DECODE_HEADS;
}

/* Returns the groups with positions that a row attends to: [*out_first, end). */
CUDA_HD uint32_t decode_groups(struct attention_span span, uint32_t n_groups, uint32_t *out_first)
{
    uint32_t end = (span.end - 1) / CUDA_GROUP + 1;
    *out_first = span.begin / CUDA_GROUP;
    return end < n_groups ? end : n_groups;
}

/* Gets the warps [*out_begin, *out_end) of a group whose partitions have such positions. */
CUDA_HD void decode_partitions(struct attention_span span, uint32_t group, uint32_t *out_begin,
                               uint32_t *out_end)
{
    struct attention_span part = attention_span_within(span, group * CUDA_GROUP, CUDA_GROUP);
    *out_begin = part.begin / CUDA_PARTITION;
    *out_end = (part.end - 1) / CUDA_PARTITION + 1;
}

/* Returns the place of a group's result for a row and head: v_dim sums, then maximum and sum of
 * weights. `row` counts from the launch's first row. */
CUDA_HD size_t decode_part_at(const struct attention_cuda *a, uint32_t row, uint32_t head,
                              uint32_t group)
{
    return (((size_t)row * a->n_heads + head) * a->n_groups + group) * (a->kv.v_dim + 2);
}

/* The launch of a call. The launch depends on capacities alone, never on the contents of rows. */
struct decode_plan {
    uint32_t n_groups, n_tiles, n_strides; /* blocks per row: n_tiles × n_strides */
    uint32_t pass_rows;                    /* rows per launch */
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

/* tile_heads: heads per block. max_positions: upper bound of a row's positions. */
CUDA_HD struct decode_plan decode_plan_of(uint32_t n_rows, uint32_t n_heads, uint32_t v_dim,
                                          uint32_t n_kv_heads, uint32_t heads_per_kv,
                                          uint32_t tile_heads, uint64_t max_positions)
{
    struct decode_plan plan = {0, 0, 0, 0, 0};
    plan.n_groups = decode_group_count(max_positions);
    plan.n_tiles = n_kv_heads * ((heads_per_kv + tile_heads - 1) / tile_heads);
    size_t row_bytes =
        plan.n_groups == 1 ? 0 : (size_t)n_heads * plan.n_groups * (v_dim + 2) * sizeof(float);
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

/* Returns the positions of K or V in one tile of shared memory. */
ATTENTION_SIZE uint32_t prefill_tile_positions(uint32_t dim)
{
    return dim > 192 ? 32 : 64;
}

/* Returns the number of tiles in the ring (for coded types: tiles of codes). */
ATTENTION_SIZE uint32_t prefill_slots(uint32_t dim, uint32_t elem_bytes)
{
    return dim <= 128 ? (elem_bytes == 1 && dim > 64 ? 3 : 4) : 2;
}

/* Returns the token rows of a tile. */
CUDA_HD uint32_t prefill_tile_rows(uint32_t heads_per_kv)
{
    return PREFILL_QUERIES / heads_per_kv;
}

/* Returns the byte offset of 16-byte chunk `chunk` of row `row` in a tile with n_chunks (a multiple
 * of 8) per row. The same column's chunks of eight rows lie in different banks. */
CUDA_HD uint32_t prefill_chunk_at(uint32_t row, uint32_t chunk, uint32_t n_chunks)
{
    return (row * n_chunks + (chunk ^ (row & 7))) * 16;
}

/* Shared memory of a block. `wide`: the tile into which codes are widened. */
struct prefill_memory {
    uint32_t queries, ring, wide, k_scales, v_scales, broken, n_bytes; /* byte offsets */
};

ATTENTION_SIZE struct prefill_memory prefill_memory_of(uint32_t dim, uint32_t elem_bytes)
{
    struct prefill_memory m = {0, 0, 0, 0, 0, 0, 0};
    uint32_t tile = prefill_tile_positions(dim) * dim;
    uint32_t scales = elem_bytes == 1 ? 2 * CUDA_PARTITION * 4 : 0; /* for two partitions */
    m.ring = PREFILL_QUERIES * dim * 2;
    m.wide = m.ring + prefill_slots(dim, elem_bytes) * tile * elem_bytes;
    m.k_scales = m.wide + (elem_bytes == 1 ? tile * 2 : 0);
    m.v_scales = m.k_scales + scales;
    m.broken = m.v_scales + scales;
    m.n_bytes = m.broken + 2 * CUDA_PARTITION; /* for two partitions */
    return m;
}

/* Returns the partitions [*out_first, end) that a range of rows attends to, from the spans of its
 * first and last row. */
CUDA_HD uint32_t prefill_partitions(struct attention_span first, struct attention_span last,
                                    uint32_t *out_first)
{
    *out_first = first.begin / CUDA_PARTITION;
    return (last.end - 1) / CUDA_PARTITION + 1;
}

/* Returns true if all rows of the range attend to the whole partition. */
CUDA_HD bool prefill_is_whole(struct attention_span first, struct attention_span last,
                              uint32_t base)
{
    return base >= last.begin && first.end >= base + CUDA_PARTITION;
}
