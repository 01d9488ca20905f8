/* attention_place.h: the distribution of work and data in the attention kernels. The functions map
 * elements of Q, K, V, scores and sums to lanes, registers and places in shared memory. Plain
 * functions of numbers, for the GPU and for the CPU. On the CPU
 * tests/unit/kernels/cuda/attention/test_cuda_attention_place.c computes whole tiles with them.
 * Shapes and sizes: attention_index.h; fragments: fragment.h. */
#pragma once

#include "kernels/cuda/attention/attention_index.h"
#include "kernels/cuda/fragment.h"

/* --- all kernels --- */

/* Returns the row of the stream that a block computes. */
CUDA_HD uint32_t attention_row(const struct attention_cuda *a, uint32_t block)
{
    return a->row_begin + block;
}

/* The work of a block along the grid's second dimension: a KV head and the first slot of its query
 * heads. */
struct attention_tile {
    uint32_t i_kv, first_slot;
};

CUDA_HD struct attention_tile attention_tile_of(uint32_t block, uint32_t n_blocks,
                                                uint32_t n_kv_heads, uint32_t tile_heads)
{
    uint32_t n_tiles = n_blocks / n_kv_heads;
    struct attention_tile tile = {block / n_tiles, block % n_tiles * tile_heads};
    return tile;
}

/* Returns the index of a head's element in q. */
CUDA_HD size_t attention_input_of(const struct attention_cuda *a, uint32_t row, uint32_t head,
                                  uint32_t elem)
{
    return attention_q_at(a, row, head) + elem;
}

/* The same in y. */
CUDA_HD size_t attention_output_of(const struct attention_cuda *a, uint32_t row, uint32_t head,
                                   uint32_t elem)
{
    return attention_y_at(a, row, head) + elem;
}

/* Returns the byte offset of an element in a vector. */
CUDA_HD uint32_t attention_elem_at(uint32_t elem, uint32_t elem_bytes)
{
    return elem * elem_bytes;
}

/* Returns the index, among a partition's blocks, of the block that holds a position. Positions
 * count from the partition's beginning. */
CUDA_HD uint32_t attention_entry_of(const struct attention_cuda *a, uint32_t position)
{
    return position >> a->block_shift;
}

/* Returns the first position of a partition's block i. */
CUDA_HD uint32_t attention_entry_begin(const struct attention_cuda *a, uint32_t i)
{
    return i << a->block_shift;
}

/* Returns the index of group i, counted from the first visible group. */
CUDA_HD uint32_t attention_group_of(uint32_t first, uint32_t i)
{
    return first + i;
}

/* Returns the first position of a warp's partition in a group. */
CUDA_HD uint32_t attention_partition_begin(uint32_t group, uint32_t warp)
{
    return group * CUDA_GROUP + warp * CUDA_PARTITION;
}

/* --- path D: one warp, one partition --- */

/* Returns the number of 16-byte loads that a lane makes for a vector of K. */
ATTENTION_SIZE uint32_t decode_key_loads(uint32_t dim, uint32_t elem_bytes)
{
    return decode_stage_loads(dim, elem_bytes) / 2;
}

/* Returns the number of mma per load. An mma uses four elements of each lane. */
ATTENTION_SIZE uint32_t decode_key_steps(uint32_t elem_bytes)
{
    return decode_chunk_elems(elem_bytes) / 4;
}

/* Returns the number of mma along a vector of K. The query has as many operands. */
ATTENTION_SIZE uint32_t decode_n_steps(uint32_t dim, uint32_t elem_bytes)
{
    return decode_key_loads(dim, elem_bytes) * decode_key_steps(elem_bytes);
}

/* Returns the index of the mma, and of its query operand, for step `step` of load `load`. */
CUDA_HD uint32_t decode_step(uint32_t load, uint32_t step, uint32_t elem_bytes)
{
    return load * decode_key_steps(elem_bytes) + step;
}

/* Returns the first of the four elements that lane column t has in mma `step` along a vector. */
CUDA_HD uint32_t decode_step_elem(uint32_t step, uint32_t t, uint32_t elem_bytes)
{
    uint32_t steps = decode_key_steps(elem_bytes);
    return decode_key_elem(step / steps, t, elem_bytes) + step % steps * 4;
}

/* Returns the number of 16-byte loads that a lane makes for a vector of V. */
ATTENTION_SIZE uint32_t decode_value_sets(uint32_t dim, uint32_t elem_bytes)
{
    return decode_stage_loads(dim, elem_bytes) / 4;
}

/* Returns the number of elements in four bytes. */
ATTENTION_SIZE uint32_t decode_word_elems(uint32_t elem_bytes)
{
    return 4 / elem_bytes;
}

/* Returns the number of mma along a vector of V. The eight columns of an mma are one element from
 * each of eight lanes. */
ATTENTION_SIZE uint32_t decode_n_values(uint32_t dim, uint32_t elem_bytes)
{
    return decode_value_sets(dim, elem_bytes) * decode_chunk_elems(elem_bytes);
}

/* Returns the mma that uses element e of word `word` of a load. */
CUDA_HD uint32_t decode_value_tile(uint32_t set, uint32_t word, uint32_t e, uint32_t elem_bytes)
{
    return set * decode_chunk_elems(elem_bytes) + word * decode_word_elems(elem_bytes) + e;
}

/* Returns the element of V whose sum is in column c (0..1) of lane column t, in mma n. */
CUDA_HD uint32_t decode_sum_elem(uint32_t n, uint32_t t, uint32_t c, uint32_t elem_bytes)
{
    uint32_t elems = decode_chunk_elems(elem_bytes);
    return decode_value_elem(n / elems, t * 2 + c, elem_bytes) + n % elems;
}

/* Returns the index, among a lane's loads of a stage, of load j of the vector of K in row i. */
CUDA_HD uint32_t decode_key_load(uint32_t dim, uint32_t elem_bytes, uint32_t i, uint32_t j)
{
    return i * decode_key_loads(dim, elem_bytes) + j;
}

/* Returns the index, among a lane's loads of a stage, of load `set` of the vector of V in row i. */
CUDA_HD uint32_t decode_value_load(uint32_t set, uint32_t i)
{
    return set * 4 + i;
}

/* Returns the first position of a stage within the partition. */
CUDA_HD uint32_t decode_stage_begin(uint32_t stage)
{
    return stage * DECODE_STAGE;
}

/* Returns the head slot of row r of a lane's registers: rows g and g + 8 of the mma. With split
 * heads, row g + 8 holds the low halves of row g. */
CUDA_HD uint32_t decode_slot(uint32_t lane, uint32_t r)
{
    return fragment_a_row(lane, r);
}

/* Returns the register of operand A for row r and pair 0 or 1 of a lane's four elements. */
CUDA_HD uint32_t decode_query_register(uint32_t r, uint32_t pair)
{
    return 2 * pair + r;
}

/* Returns the sum of row r, column c of a lane; with split heads the sum of both halves. */
CUDA_HD float decode_sum_of(const float d[4], bool split, uint32_t r, uint32_t c)
{
    return split ? d[c] + d[c + 2] : d[c + 2 * r];
}

/* Returns the byte of a lane's load in the ring. */
CUDA_HD uint32_t decode_ring_at(struct decode_memory m, uint32_t n_loads, uint32_t slot,
                                uint32_t load, uint32_t lane)
{
    return m.ring + ((slot * n_loads + load) * 32 + lane) * 16;
}

/* Returns the index of a tile of eight positions: half 0 or 1 of a stage. */
CUDA_HD uint32_t decode_score_tile(uint32_t stage, uint32_t half)
{
    return stage * 2 + half;
}

/* Returns the number of words for a lane's scores of a tile: one per row and column. */
ATTENTION_SIZE uint32_t decode_score_words(uint32_t n_rows)
{
    return 2 * n_rows;
}

/* Returns the byte of a lane's scores of a tile. Later the weights, as operand A, overwrite the
 * first of these words. */
CUDA_HD uint32_t decode_score_at(struct decode_memory m, uint32_t n_rows, uint32_t tile,
                                 uint32_t lane)
{
    return m.scores + (tile * 32 + lane) * decode_score_words(n_rows) * 4;
}

/* Returns the word of row r, column c among a lane's scores of a tile. */
CUDA_HD uint32_t decode_score_word(uint32_t r, uint32_t c)
{
    return r * 2 + c;
}

/* Returns the row of such a word. */
CUDA_HD uint32_t decode_word_row(uint32_t word)
{
    return word / 2;
}

/* Returns the element of a warp's result, [slot][dim]. */
CUDA_HD uint32_t decode_result_at(uint32_t dim, uint32_t slot, uint32_t elem)
{
    return slot * dim + elem;
}

/* Returns the byte of a warp's memory within the block's shared memory. */
CUDA_HD uint32_t decode_warp_at(struct decode_memory m, uint32_t warp)
{
    return warp * m.n_bytes;
}

/* Returns the byte of a warp's maxima and sums, [2][DECODE_HEADS]. */
CUDA_HD uint32_t decode_stats_at(struct decode_memory m, uint32_t warp)
{
    return CUDA_GROUP_PARTITIONS * m.n_bytes + warp * 2 * DECODE_HEADS * (uint32_t)sizeof(float);
}

/* A block's results: elements of its heads, distributed over threads. */
CUDA_HD uint32_t decode_n_items(uint32_t n_slots, uint32_t v_dim)
{
    return n_slots * v_dim;
}

CUDA_HD uint32_t decode_item_slot(uint32_t i, uint32_t v_dim)
{
    return i / v_dim;
}

CUDA_HD uint32_t decode_item_elem(uint32_t i, uint32_t v_dim)
{
    return i % v_dim;
}

/* --- path P: a block's tiles in shared memory --- */

enum {
    PREFILL_SCORES = CUDA_PARTITION / 8,   /* number of mma for a warp's scores of a partition */
    PREFILL_WEIGHTS = CUDA_PARTITION / 16, /* number of operands for the weights */
};

/* Returns the tiles of a partition, for K and for V each. */
ATTENTION_SIZE uint32_t prefill_n_tiles(uint32_t dim)
{
    return CUDA_PARTITION / prefill_tile_positions(dim);
}

/* Returns the number of 16-byte chunks of a row of operands. */
ATTENTION_SIZE uint32_t prefill_chunks(uint32_t dim)
{
    return dim / 8;
}

/* Returns the number of mma along a row of operands. */
ATTENTION_SIZE uint32_t prefill_steps(uint32_t dim)
{
    return dim / 16;
}

/* Returns how many of these operands of Q a warp keeps in registers. */
ATTENTION_SIZE uint32_t prefill_kept(uint32_t dim)
{
    return dim <= 128 ? prefill_steps(dim) : 1;
}

/* Returns true if mma `step` along a padded vector of `dim` elements has elements. */
CUDA_HD bool prefill_has_step(uint32_t step, uint32_t dim)
{
    return step * 16 < dim;
}

/* Returns the pairs of mma that cover a tile's positions. */
ATTENTION_SIZE uint32_t prefill_tile_pairs(uint32_t dim)
{
    return prefill_tile_positions(dim) / 16;
}

/* Returns the number of threads that copy one vector. */
ATTENTION_SIZE uint32_t prefill_lanes(uint32_t dim)
{
    return PREFILL_THREADS / prefill_tile_positions(dim);
}

/* Returns the number of 16-byte copies per thread. */
ATTENTION_SIZE uint32_t prefill_copies(uint32_t dim, uint32_t elem_bytes)
{
    return dim * elem_bytes / 16 / prefill_lanes(dim);
}

/* Returns the tiles of n partitions, K's and V's. */
CUDA_HD uint32_t prefill_tiles_of(uint32_t dim, uint32_t n_partitions)
{
    return n_partitions * 2 * prefill_n_tiles(dim);
}

/* Returns position i of a partition. */
CUDA_HD uint32_t prefill_position(uint32_t partition, uint32_t i)
{
    return partition * CUDA_PARTITION + i;
}

/* The copy of a thread for tile number `tile`, counted from a sequence's first partition. Each
 * partition has tiles of K, then of V. */
struct prefill_copy {
    bool is_value;
    uint32_t position;
};

CUDA_HD struct prefill_copy prefill_copy_of(uint32_t dim, uint32_t first_partition, uint32_t tile,
                                            uint32_t thread)
{
    uint32_t n = prefill_n_tiles(dim), partition = first_partition + tile / (2 * n);
    uint32_t part = tile % (2 * n);
    struct prefill_copy copy = {part >= n, 0};
    copy.position = prefill_position(partition, part % n * prefill_tile_positions(dim) +
                                                    thread / prefill_lanes(dim));
    return copy;
}

/* Returns the row of a tile that a thread copies. */
CUDA_HD uint32_t prefill_copy_row(uint32_t dim, uint32_t thread)
{
    return thread / prefill_lanes(dim);
}

/* Returns that row as a position within the partition. */
CUDA_HD uint32_t prefill_copy_offset(uint32_t dim, uint32_t tile, uint32_t thread)
{
    return tile % prefill_n_tiles(dim) * prefill_tile_positions(dim) +
           prefill_copy_row(dim, thread);
}

/* Returns the chunk of the row that copy i of a thread moves. */
CUDA_HD uint32_t prefill_copy_chunk(uint32_t dim, uint32_t thread, uint32_t i)
{
    return thread % prefill_lanes(dim) + i * prefill_lanes(dim);
}

/* Returns the byte of that chunk within the row. */
CUDA_HD uint32_t prefill_copy_byte(uint32_t dim, uint32_t thread, uint32_t i)
{
    return prefill_copy_chunk(dim, thread, i) * 16;
}

/* Returns the byte of a tile's slot in the ring. */
CUDA_HD uint32_t prefill_slot_at(struct prefill_memory m, uint32_t dim, uint32_t elem_bytes,
                                 uint32_t tile)
{
    return m.ring +
           tile % prefill_slots(dim, elem_bytes) * (prefill_tile_positions(dim) * dim * elem_bytes);
}

/* Returns the byte of a chunk of a row of operands that begin at `base`. */
CUDA_HD uint32_t prefill_operand_at(uint32_t base, uint32_t dim, uint32_t row, uint32_t chunk)
{
    return base + prefill_chunk_at(row, chunk, prefill_chunks(dim));
}

/* Returns the byte of codes that begin at `base`: copy i of a thread. Codes stay in the order of
 * the copies. */
CUDA_HD uint32_t prefill_codes_at(uint32_t base, uint32_t thread, uint32_t i)
{
    return base + (i * PREFILL_THREADS + thread) * 16;
}

/* Returns the chunk of operands that half (0, 1) of a chunk of codes is widened to. */
CUDA_HD uint32_t prefill_wide_chunk(uint32_t chunk, uint32_t half)
{
    return 2 * chunk + half;
}

/* Returns true if the thread loads a scale of K, false if it loads a scale of V. The threads below
 * 128 load those of K. */
CUDA_HD bool prefill_brings_keys(uint32_t thread)
{
    return thread < CUDA_PARTITION;
}

/* Returns the position in the partition whose scale the thread loads. */
CUDA_HD uint32_t prefill_scale_of(uint32_t thread)
{
    return thread % CUDA_PARTITION;
}

/* Returns the first element of a partition's scales and flags. Both arrays have room for two
 * partitions, which are used alternately. */
CUDA_HD uint32_t prefill_turn(uint32_t partition)
{
    return partition % 2 * CUDA_PARTITION;
}

/* Returns the byte of a partition's scales. */
CUDA_HD uint32_t prefill_scales_at(uint32_t base, uint32_t partition)
{
    return base + prefill_turn(partition) * (uint32_t)sizeof(float);
}

/* Returns the byte of a partition's flags. */
CUDA_HD uint32_t prefill_broken_at(struct prefill_memory m, uint32_t partition)
{
    return m.broken + prefill_turn(partition);
}

/* --- path P: a warp's 16 queries --- */

/* Returns the query of the block's tile in row r of a lane's registers. */
CUDA_HD uint32_t prefill_query_of(uint32_t warp, uint32_t lane, uint32_t r)
{
    return warp * 16 + fragment_a_row(lane, r);
}

/* Returns the row of a query, counted from the tile's first row. */
CUDA_HD uint32_t prefill_query_row(const struct attention_cuda *a, uint32_t query)
{
    return query / a->heads_per_kv;
}

/* Returns the head of a query, counted from the first of its KV head. */
CUDA_HD uint32_t prefill_query_slot(const struct attention_cuda *a, uint32_t query)
{
    return query % a->heads_per_kv;
}

/* Returns the number of chunks of all queries. The chunks are distributed over the threads in
 * order. */
CUDA_HD uint32_t prefill_n_chunks(uint32_t dim)
{
    return PREFILL_QUERIES * prefill_chunks(dim);
}

/* Returns the query of chunk i. */
CUDA_HD uint32_t prefill_chunk_query(uint32_t dim, uint32_t i)
{
    return i / prefill_chunks(dim);
}

/* Returns the place of chunk i within its query. */
CUDA_HD uint32_t prefill_chunk_of(uint32_t dim, uint32_t i)
{
    return i % prefill_chunks(dim);
}

/* Returns the first element of a chunk of a query. */
CUDA_HD uint32_t prefill_chunk_elem(uint32_t chunk)
{
    return chunk * 8;
}

/* Returns the byte that a lane passes to ldmatrix for Q: the operand of mma `step` of the 16
 * queries of a warp. */
CUDA_HD uint32_t prefill_query_at(uint32_t base, uint32_t dim, uint32_t warp, uint32_t step,
                                  uint32_t lane)
{
    return prefill_operand_at(base, dim, warp * 16 + fragment_load_a_row(lane),
                              step * 2 + fragment_load_a_piece(lane));
}

/* Returns the byte that a lane passes to ldmatrix for K: the operands of mma `step` for 16
 * positions. The two mma of 8 positions each are pair n. */
CUDA_HD uint32_t prefill_key_at(uint32_t base, uint32_t dim, uint32_t n, uint32_t step,
                                uint32_t lane)
{
    return prefill_operand_at(base, dim, n * 16 + fragment_load_b_row(lane),
                              step * 2 + fragment_load_b_piece(lane));
}

/* Returns the byte that a lane passes to ldmatrix for V, transposed: positions from 16·k on,
 * elements from 16·n on. */
CUDA_HD uint32_t prefill_value_at(uint32_t base, uint32_t dim, uint32_t k, uint32_t n,
                                  uint32_t lane)
{
    return prefill_operand_at(base, dim, k * 16 + fragment_load_turned_row(lane),
                              n * 2 + fragment_load_turned_piece(lane));
}

/* Returns the index, among a partition's scores, of the first mma of pair n of tile i. */
CUDA_HD uint32_t prefill_score_of(uint32_t dim, uint32_t i, uint32_t n)
{
    return i * prefill_tile_positions(dim) / 8 + n * 2;
}

/* Returns the index, among the sums, of the first mma of pair n along the head. */
CUDA_HD uint32_t prefill_sum_of(uint32_t n)
{
    return n * 2;
}

/* Returns the index, among a partition's weights, of operand k of tile i. */
CUDA_HD uint32_t prefill_weight_of(uint32_t dim, uint32_t i, uint32_t k)
{
    return i * prefill_tile_pairs(dim) + k;
}

/* Returns the position within the partition, or the element of the head, in column c (0..1) of mma
 * n in lane column t. */
CUDA_HD uint32_t prefill_column(uint32_t n, uint32_t t, uint32_t c)
{
    return n * 8 + t * 2 + c;
}

/* Returns the register of row r (0..1) and column c. */
CUDA_HD uint32_t prefill_register(uint32_t r, uint32_t c)
{
    return r * 2 + c;
}

/* Returns the mma of scores whose weights become register r of operand k. */
CUDA_HD uint32_t prefill_weight_tile(uint32_t k, uint32_t r)
{
    return 2 * k + r / 2;
}

/* Returns the first of the two registers of this mma that become register r. */
CUDA_HD uint32_t prefill_weight_register(uint32_t r)
{
    return r % 2 * 2;
}

/* Returns a block's first row within the launch. The last rows have the longest contexts, so their
 * blocks start first. */
CUDA_HD uint32_t prefill_first_row(uint32_t block, uint32_t n_blocks, uint32_t n_rows)
{
    return (n_blocks - 1 - block) * n_rows;
}

CUDA_HD uint32_t prefill_n_blocks(uint32_t n_rows, uint32_t tile_rows)
{
    return (n_rows + tile_rows - 1) / tile_rows;
}

/* --- plain kernel, and combination of groups --- */

enum {
    PLAIN_ELEMS = 256, /* elements of V summed at once */
    PLAIN_SLOTS = PLAIN_ELEMS / 32,
    PLAIN_POSITIONS = CUDA_PARTITION / 32
};

/* Returns item i of a lane: a position, or an element of the current ones. */
CUDA_HD uint32_t plain_item(uint32_t i, uint32_t lane)
{
    return i * 32 + lane;
}

/* Returns the number of elements per thread of attention_combine. */
ATTENTION_SIZE uint32_t combine_elems(uint32_t dim)
{
    return dim / COMBINE_THREADS;
}

/* Returns element i of a thread. */
CUDA_HD uint32_t combine_elem(uint32_t i, uint32_t thread)
{
    return i * COMBINE_THREADS + thread;
}

/* Returns the place of an element within a group's result, for a row and head. Elements are
 * followed by the maximum and the sum of weights. */
CUDA_HD size_t combine_part_at(uint32_t group, uint32_t v_dim, uint32_t elem)
{
    return (size_t)group * (v_dim + 2) + elem;
}

/* Returns i, or the last number below `end`. */
CUDA_HD uint32_t combine_within(uint32_t i, uint32_t end)
{
    return i < end ? i : end - 1;
}

/* Returns how many of [from, end) follow `from`, at most `most`. */
CUDA_HD uint32_t combine_left(uint32_t end, uint32_t from, uint32_t most)
{
    return end - from < most ? end - from : most;
}
