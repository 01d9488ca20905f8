/* attention_wgmma_index.h: the distribution of work and data in attention_wgmma_kernel.h: groups of
 * warps, shared memory, copies, operands. Plain functions of numbers, for the GPU and the CPU
 * (tests/unit/kernels/cuda/attention/test_cuda_attention_wgmma.c).
 *
 * A tile in shared memory has rows of `dim` halves, cut into columns of 64 (128 bytes). Each column
 * has all rows, 128 bytes apart, and the 16-byte chunks of a row are rotated by the row's number.
 * K, V and Q have the same layout. So rows lie along k for the scores (K, Q), and along n for the
 * values (V). */
#pragma once

#include "kernels/cuda/attention/attention_place.h"

enum {
    WGA_GROUP = 128,     /* threads of a group of four warps */
    WGA_GROUP_WARPS = 4, /* warps of a group */
    WGA_CONSUMERS = 2,   /* groups that compute; group 0 copies */
    WGA_TURN_THREADS = WGA_GROUP * WGA_CONSUMERS,
    WGA_THREADS = WGA_GROUP * (WGA_CONSUMERS + 1),
    WGA_QUERIES = 64,                    /* queries of a group */
    WGA_STAGES = 2,                      /* partitions of K, and of V, in a ring */
    WGA_CODE_SLOTS = 2,                  /* tiles of codes */
    WGA_SCALE_SLOTS = 4,                 /* partitions whose scales are kept */
    WGA_LINE = 128,                      /* bytes of a row in a column */
    WGA_LINE_CHUNKS = WGA_LINE / 16,     /* 16-byte chunks of these */
    WGA_LINE_STEPS = WGA_LINE / 32,      /* multiplications along these */
    WGA_EIGHT = 1024,                    /* bytes of eight rows, rotated together */
    WGA_SCORES = CUDA_PARTITION / 2,     /* scores of a partition per thread */
    WGA_WEIGHTS = CUDA_PARTITION / 4,    /* the same as pairs of halves */
    WGA_STEPS = CUDA_PARTITION / 16,     /* multiplications along a partition */
    WGA_REGISTERS = 168,                 /* per thread of a launch; a multiple of 8 */
    WGA_FULL_ARRIVALS = WGA_GROUP_WARPS, /* a lane per warp that copies */
    WGA_FREE_ARRIVALS = WGA_GROUP_WARPS * WGA_CONSUMERS, /* a lane per warp that computes */
};

/* Returns true if the kernel computes this cache and these scores. All of this is known when a
 * model is loaded. Vectors begin at multiples of 16 bytes (attention_is_tiled()). */
CUDA_HD bool wga_takes(const struct attention_cuda *a)
{
    return attention_is_tiled(&a->kv, a->heads_per_kv) && a->kv.head_dim <= 128 &&
           a->kv.v_dim == a->kv.head_dim && a->softcap == 0.0f && a->slopes == NULL &&
           a->sinks == NULL && a->factor > 0.0f;
}

/* Returns the head dimension of the kernel's arrays. */
ATTENTION_SIZE uint32_t wga_padded_dim(uint32_t head_dim)
{
    return head_dim <= 64 ? 64 : 128;
}

/* Returns the registers per thread of group 0. Codes are widened there. */
ATTENTION_SIZE uint32_t wga_copier_registers(uint32_t dim, uint32_t elem_bytes)
{
    return elem_bytes == 2 ? 40 : dim == 64 ? 72 : 56;
}

/* Returns the registers per thread of the other groups: all that group 0 leaves. */
ATTENTION_SIZE uint32_t wga_consumer_registers(uint32_t dim, uint32_t elem_bytes)
{
    return (WGA_REGISTERS * (WGA_CONSUMERS + 1) - wga_copier_registers(dim, elem_bytes)) /
           WGA_CONSUMERS;
}

/* --- shared memory --- */

/* Returns the bytes of a tile of n_rows. */
ATTENTION_SIZE uint32_t wga_tile_bytes(uint32_t dim, uint32_t n_rows)
{
    return n_rows * dim * 2;
}

/* Byte offsets. `codes`: tiles of 8-bit types before they are widened, a thread's copies in their
 * order. `k_scales`: factors of a partition's products. `v_scales`: of its positions. `inputs`,
 * `outputs`: a query's place in q and in y, 8 bytes; all ones for no query. `rows`: a query's row,
 * 4 bytes; all ones for no query. `broken`: four words per stage, bit i of word w for position 32·w
 * + i. Barriers have 8 bytes: a K's or V's `full` and `free` per stage. */
struct wga_memory {
    uint32_t queries, keys, values, inputs, outputs, rows, broken;
    uint32_t codes, k_scales, v_scales;
    uint32_t full_keys, full_values, free_keys, free_values, n_bytes;
};

ATTENTION_SIZE struct wga_memory wga_memory_of(uint32_t dim, uint32_t elem_bytes)
{
    struct wga_memory m = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t ring = WGA_STAGES * wga_tile_bytes(dim, CUDA_PARTITION);
    m.keys = wga_tile_bytes(dim, PREFILL_QUERIES);
    m.values = m.keys + ring;
    m.inputs = m.values + ring;
    m.outputs = m.inputs + PREFILL_QUERIES * 8;
    m.rows = m.outputs + PREFILL_QUERIES * 8;
    m.broken = m.rows + PREFILL_QUERIES * 4;
    m.codes = m.broken + WGA_STAGES * WGA_GROUP_WARPS * 4;
    m.k_scales = m.codes + (elem_bytes == 1 ? WGA_CODE_SLOTS * CUDA_PARTITION * dim : 0);
    m.v_scales = m.k_scales + (elem_bytes == 1 ? WGA_SCALE_SLOTS * CUDA_PARTITION * 4 : 0);
    m.full_keys = m.v_scales + (elem_bytes == 1 ? WGA_SCALE_SLOTS * CUDA_PARTITION * 4 : 0);
    m.full_values = m.full_keys + WGA_STAGES * 8;
    m.free_keys = m.full_values + WGA_STAGES * 8;
    m.free_values = m.free_keys + WGA_STAGES * 8;
    m.n_bytes = m.free_values + WGA_STAGES * 8;
    return m;
}

/* Returns a block's shared memory; the first tile begins at a multiple of WGA_EIGHT. */
ATTENTION_SIZE uint32_t wga_shared_bytes(uint32_t dim, uint32_t elem_bytes)
{
    return wga_memory_of(dim, elem_bytes).n_bytes + WGA_EIGHT;
}

/* Returns the stage of partition `i`, counted from the block's first. */
CUDA_HD uint32_t wga_stage(uint32_t i)
{
    return i % WGA_STAGES;
}

/* Returns the parity of the barrier's phase in which partition i becomes full. */
CUDA_HD uint32_t wga_full_parity(uint32_t i)
{
    return i / WGA_STAGES % 2;
}

/* Returns the parity of the phase in which the stage was freed for partition i. */
CUDA_HD uint32_t wga_free_parity(uint32_t i)
{
    return 1 - i / WGA_STAGES % 2;
}

CUDA_HD uint32_t wga_stage_at(uint32_t ring, uint32_t dim, uint32_t i)
{
    return ring + wga_stage(i) * wga_tile_bytes(dim, CUDA_PARTITION);
}

CUDA_HD uint32_t wga_barrier_at(uint32_t barriers, uint32_t i)
{
    return barriers + wga_stage(i) * 8;
}

CUDA_HD uint32_t wga_broken_at(uint32_t broken, uint32_t i)
{
    return broken + wga_stage(i) * WGA_GROUP_WARPS * 4;
}

/* Returns the byte of a chunk of a row in a tile of n_rows. */
CUDA_HD uint32_t wga_chunk_at(uint32_t n_rows, uint32_t row, uint32_t chunk)
{
    return (chunk / WGA_LINE_CHUNKS * n_rows + row) * WGA_LINE +
           ((chunk % WGA_LINE_CHUNKS) ^ (row & 7)) * 16;
}

/* Returns the byte of a chunk of a query, in the tile of queries at `tile`. */
CUDA_HD uint32_t wga_query_chunk_at(uint32_t tile, uint32_t query, uint32_t chunk)
{
    return tile + wga_chunk_at(PREFILL_QUERIES, query, chunk);
}

/* --- groups --- */

CUDA_HD uint32_t wga_group_of(uint32_t thread)
{
    return thread / WGA_GROUP;
}

/* Returns the index, from 0, of a group that computes. */
CUDA_HD uint32_t wga_consumer_of(uint32_t thread)
{
    return thread / WGA_GROUP - 1;
}

CUDA_HD uint32_t wga_warp_of(uint32_t thread)
{
    return thread % WGA_GROUP / CUDA_WARP;
}

/* Returns the query, in the block's tile, of row r (0..1) of a consumer's thread. */
CUDA_HD uint32_t wga_query_of(uint32_t thread, uint32_t r)
{
    return wga_consumer_of(thread) * WGA_QUERIES + wga_warp_of(thread) * 16 +
           cuda_lane_of(thread) / 4 + 8 * r;
}

/* Returns the number of the barrier at which a consumer waits for its turn to multiply. */
CUDA_HD uint32_t wga_turn_of(uint32_t consumer)
{
    return 1 + consumer;
}

CUDA_HD uint32_t wga_other(uint32_t consumer)
{
    return 1 - consumer;
}

/* Returns the number of the barrier of a consumer's own warps. */
CUDA_HD uint32_t wga_own_barrier(uint32_t consumer)
{
    return 1 + WGA_CONSUMERS + consumer;
}

/* --- queries of a consumer: several threads load a query --- */

CUDA_HD uint32_t wga_in_group(uint32_t thread)
{
    return thread % WGA_GROUP;
}

/* Returns query i of a consumer, in the block's tile. */
CUDA_HD uint32_t wga_query_in(uint32_t consumer, uint32_t i)
{
    return consumer * WGA_QUERIES + i;
}

/* Returns the number of a thread's chunks of queries. */
ATTENTION_SIZE uint32_t wga_query_copies(uint32_t dim)
{
    return WGA_QUERIES * (dim / 8) / WGA_GROUP;
}

/* Returns the query, among the consumer's, of a thread's chunk k. */
CUDA_HD uint32_t wga_copied_query(uint32_t dim, uint32_t thread, uint32_t k)
{
    return thread % WGA_GROUP / (dim / 8) + k * (WGA_GROUP / (dim / 8));
}

/* Returns the place of a thread's chunks within their queries. */
CUDA_HD uint32_t wga_query_chunk(uint32_t dim, uint32_t thread)
{
    return thread % (dim / 8);
}

/* Returns the element of a query that begins at `from`. */
CUDA_HD size_t wga_elem_at(size_t from, uint32_t elem)
{
    return from + elem;
}

/* Returns true if rows `stride` elements apart are multiples of four floats apart. Heads are
 * multiples of eight. */
CUDA_HD bool wga_is_in_fours(size_t stride)
{
    return stride % 4 == 0;
}

/* --- copies: a warp has 32 rows of a tile; several lanes copy a row --- */

/* Returns the number of 16-byte chunks of a vector in the cache. */
ATTENTION_SIZE uint32_t wga_chunks(uint32_t dim, uint32_t elem_bytes)
{
    return dim * elem_bytes / 16;
}

/* Returns the row, among the warp's 32, of a lane's copy i. A lane has n_chunks copies. */
CUDA_HD uint32_t wga_copy_row(uint32_t n_chunks, uint32_t lane, uint32_t i)
{
    return i * (CUDA_WARP / n_chunks) + lane / n_chunks;
}

CUDA_HD uint32_t wga_copy_chunk(uint32_t n_chunks, uint32_t lane)
{
    return lane % n_chunks;
}

/* Returns the row of the tile that is row `row` of a warp. */
CUDA_HD uint32_t wga_warp_row(uint32_t warp, uint32_t row)
{
    return warp * CUDA_WARP + row;
}

CUDA_HD uint32_t wga_chunk_byte(uint32_t chunk)
{
    return chunk * 16;
}

/* Adds the rows of copy i to the bits of a warp's rows. `lanes`: bit per lane that found a broken
 * value in its copy. */
CUDA_HD uint32_t wga_broken_rows(uint32_t n_chunks, uint32_t rows, uint32_t lanes, uint32_t i)
{
    uint32_t of_row = 0xFFFFFFFFu >> (CUDA_WARP - n_chunks);
    for (uint32_t first = 0; first < CUDA_WARP; first += n_chunks)
        if ((lanes >> first & of_row) != 0)
            rows |= 1u << wga_copy_row(n_chunks, first, i);
    return rows;
}

/* --- codes of 8-bit types --- */

/* Returns the place of a thread's copy i of tile number `turn` of the block. */
CUDA_HD uint32_t wga_code_at(uint32_t codes, uint32_t dim, uint32_t turn, uint32_t thread,
                             uint32_t i)
{
    return codes + turn % WGA_CODE_SLOTS * (CUDA_PARTITION * dim) + (i * WGA_GROUP + thread) * 16;
}

/* Returns the chunk of operands that half (0, 1) of a chunk of codes is widened to. */
CUDA_HD uint32_t wga_wide_chunk(uint32_t chunk, uint32_t half)
{
    return 2 * chunk + half;
}

/* Returns the place of the scales of partition i, counted from the block's first. A slot is used
 * again after four partitions. Until then both groups have finished its softmax. */
CUDA_HD uint32_t wga_scales_at(uint32_t scales, uint32_t i)
{
    return scales + i % WGA_SCALE_SLOTS * CUDA_PARTITION * 4;
}

/* Returns the offset of a position's scale in the pools, from that of its vector. */
CUDA_HD size_t wga_scale_of(const struct attention_cuda *a, size_t vector, uint32_t position)
{
    return vector - attention_vector_in_page(a, a->k, position) +
           attention_scale_in_page(a, a->k, position);
}

/* --- operands --- */

ATTENTION_SIZE uint32_t wga_key_steps(uint32_t dim)
{
    return dim / 16;
}

/* Returns the place in a tile of n_rows of step `step` along a head. */
CUDA_HD uint32_t wga_step_at(uint32_t n_rows, uint32_t step)
{
    return step / WGA_LINE_STEPS * n_rows * WGA_LINE + step % WGA_LINE_STEPS * 32;
}

/* Returns the place of a consumer's queries in the tile of queries at `tile`. */
CUDA_HD uint32_t wga_queries_at(uint32_t tile, uint32_t consumer)
{
    return tile + consumer * WGA_QUERIES * WGA_LINE;
}

/* Returns the place in a tile of V of step `step` along the positions. */
CUDA_HD uint32_t wga_value_at(uint32_t step)
{
    return step * 16 * WGA_LINE;
}

/* The low word of a matrix descriptor for rows along k. Bits 0 to 13: the address. Bits 16 to 29: a
 * distance that this layout does not use. All distances and addresses are in units of 16 bytes.
 * Source: PTX ISA 8.x, "Matrix Descriptor", "Strides". */
CUDA_HD uint32_t wga_matrix_low(uint32_t address)
{
    return (address & 0x3FFFF) >> 4 | (uint32_t)1 << 16;
}

/* The same for rows along n, which have a distance from a column of 64 to the next. */
CUDA_HD uint32_t wga_turned_low(uint32_t address)
{
    return (address & 0x3FFFF) >> 4 | (uint32_t)(CUDA_PARTITION * WGA_LINE >> 4) << 16;
}

/* Returns the descriptor of the matrix that begins `at` bytes after that address. Bits 32 to 45:
 * the distance from eight rows of 128 bytes to the next. Bits 62 and 63: the 128-byte swizzle. */
CUDA_HD uint64_t wga_matrix(uint32_t low, uint32_t at)
{
    return (uint64_t)(low + (at >> 4)) | (uint64_t)(WGA_EIGHT >> 4 | 1 << 30) << 32;
}

/* --- a thread's registers --- */

/* Returns the number of a thread's sums: two rows, a quarter of the columns. */
ATTENTION_SIZE uint32_t wga_sums(uint32_t dim)
{
    return dim / 2;
}

/* Returns the register of row r (0..1), column c (0..1) of tile n of eight columns. */
CUDA_HD uint32_t wga_register(uint32_t n, uint32_t r, uint32_t c)
{
    return n * 4 + r * 2 + c;
}

/* Returns the number of tiles of eight columns. */
ATTENTION_SIZE uint32_t wga_column_tiles(uint32_t n_registers)
{
    return n_registers / 4;
}

/* Returns that column: a position of the partition, or an element of the head. */
CUDA_HD uint32_t wga_column(uint32_t n, uint32_t lane, uint32_t c)
{
    return n * 8 + lane % 4 * 2 + c;
}

/* Returns the scores that become pair i of the weights: this one and the next. */
CUDA_HD uint32_t wga_pair(uint32_t i)
{
    return 2 * i;
}

/* Returns the first of the four pairs for step `step` along the positions. */
CUDA_HD uint32_t wga_pairs_at(uint32_t step)
{
    return step * 4;
}

/* Returns true if no position of a partition is marked in its four words. */
CUDA_HD bool wga_is_sound(const uint32_t *words)
{
    return (words[0] | words[1] | words[2] | words[3]) == 0;
}

/* Returns true if position `column` of a partition is marked in its four words. */
CUDA_HD bool wga_is_broken(const uint32_t *words, uint32_t column)
{
    return cuda_bit(words[column / 32], column % 32) != 0;
}

/* --- blocks of a grid: all heads of the longest rows first --- */

CUDA_HD uint32_t wga_block_head(uint32_t block, uint32_t n_kv_heads)
{
    return block % n_kv_heads;
}

CUDA_HD uint32_t wga_block_tile(uint32_t block, uint32_t n_kv_heads)
{
    return block / n_kv_heads;
}

CUDA_HD uint32_t wga_n_blocks(uint32_t n_tiles, uint32_t n_kv_heads)
{
    return n_tiles * n_kv_heads;
}

/* --- masks --- */

/* Partitions [begin, end), counted from the first partition of a range of rows. All rows of the
 * range attend to all of their positions. Empty if begin >= end. */
struct wga_whole {
    uint32_t begin, end;
};

CUDA_HD struct wga_whole wga_whole_of(struct attention_span first, struct attention_span last,
                                      uint32_t first_partition)
{
    struct wga_whole whole;
    uint32_t begin = (last.begin + CUDA_PARTITION - 1) / CUDA_PARTITION;
    uint32_t end = first.end / CUDA_PARTITION;
    whole.begin = begin - first_partition;
    whole.end = end > first_partition ? end - first_partition : 0;
    return whole;
}

CUDA_HD bool wga_is_masked(struct wga_whole whole, uint32_t i)
{
    return i < whole.begin || i >= whole.end;
}

/* Returns a row's span, counted from the range's first partition. */
CUDA_HD struct attention_span wga_span_from(struct attention_span span, uint32_t first_partition)
{
    return attention_span_within(span, first_partition * CUDA_PARTITION, UINT32_MAX);
}

/* Returns the part of such a span in partition i, relative to the partition. */
CUDA_HD struct attention_span wga_span_in(struct attention_span span, uint32_t i)
{
    return attention_span_within(span, i * CUDA_PARTITION, CUDA_PARTITION);
}

/* --- the softmax --- */

/* Returns the exponent of the factor for sums so far: exactly 0 if the maximum is unchanged. */
CUDA_HD float wga_keep_exponent(float old_max, float reference, float factor)
{
    return (old_max - reference) * factor;
}
