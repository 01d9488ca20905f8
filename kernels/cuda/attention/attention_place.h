/* attention_place.h: who does what in the attention kernels: which element of Q, K, V, scores and
 * sums a lane has in which register, and where that lies in shared memory. Plain functions of
 * numbers, for the GPU and for the CPU, where tests/unit/kernels/cuda/test_cuda_attention_place.c
 * walks whole tiles by them. Shapes and sizes: attention_index.h; fragments: fragment.h. */
#pragma once

#include "kernels/cuda/attention/attention_index.h"
#include "kernels/cuda/fragment.h"

/* --- all kernels --- */

/* Row of the stream that a block works on. */
CUDA_HD uint32_t attention_row(const struct attention_cuda *a, uint32_t block)
{
    return a->row_begin + block;
}

/* What a block along the grid's second dimension has, of n_blocks: a KV head and the first slot of
 * a tile of its query heads. */
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

/* Element of a head in q or y. */
CUDA_HD size_t attention_elem_of(const struct attention_cuda *a, size_t stride, uint32_t row,
                                 uint32_t head, uint32_t elem)
{
    return attention_q_at(a, stride, row, head) + elem;
}

/* Byte of an element in a vector. */
CUDA_HD uint32_t attention_elem_at(uint32_t elem, uint32_t elem_bytes)
{
    return elem * elem_bytes;
}

/* Entry of a partition's table that a position within it has, and the first position of one. */
CUDA_HD uint32_t attention_entry_of(const struct attention_cuda *a, uint32_t position)
{
    return position >> a->block_shift;
}

CUDA_HD uint32_t attention_entry_begin(const struct attention_cuda *a, uint32_t i)
{
    return i << a->block_shift;
}

/* Group number i from the first one that a row sees. */
CUDA_HD uint32_t attention_group_of(uint32_t first, uint32_t i)
{
    return first + i;
}

/* First position of a warp's partition of a group. */
CUDA_HD uint32_t attention_partition_begin(uint32_t group, uint32_t warp)
{
    return group * CUDA_GROUP + warp * CUDA_PARTITION;
}

/* --- path D: one warp, one partition --- */

/* 16-byte loads of a vector of K by a lane; mma of one of them, four elements a lane each. */
ATTENTION_SIZE uint32_t decode_key_loads(uint32_t dim, uint32_t elem_bytes)
{
    return decode_stage_loads(dim, elem_bytes) / 2;
}

ATTENTION_SIZE uint32_t decode_key_steps(uint32_t elem_bytes)
{
    return decode_chunk_elems(elem_bytes) / 4;
}

/* mma along a vector of K: the operands that hold the query. */
ATTENTION_SIZE uint32_t decode_n_steps(uint32_t dim, uint32_t elem_bytes)
{
    return decode_key_loads(dim, elem_bytes) * decode_key_steps(elem_bytes);
}

CUDA_HD uint32_t decode_step(uint32_t load, uint32_t step, uint32_t elem_bytes)
{
    return load * decode_key_steps(elem_bytes) + step;
}

/* First of the four elements that lane column t has of mma `step` along a vector. */
CUDA_HD uint32_t decode_step_elem(uint32_t step, uint32_t t, uint32_t elem_bytes)
{
    uint32_t steps = decode_key_steps(elem_bytes);
    return decode_key_elem(step / steps, t, elem_bytes) + step % steps * 4;
}

/* Loads of a vector of V by a lane; elements in four bytes; mma of all, a column of eight lanes by
 * element each. */
ATTENTION_SIZE uint32_t decode_value_sets(uint32_t dim, uint32_t elem_bytes)
{
    return decode_stage_loads(dim, elem_bytes) / 4;
}

ATTENTION_SIZE uint32_t decode_word_elems(uint32_t elem_bytes)
{
    return 4 / elem_bytes;
}

ATTENTION_SIZE uint32_t decode_n_values(uint32_t dim, uint32_t elem_bytes)
{
    return decode_value_sets(dim, elem_bytes) * decode_chunk_elems(elem_bytes);
}

/* Number of the mma that takes element e of word `word` of a load. */
CUDA_HD uint32_t decode_value_tile(uint32_t set, uint32_t word, uint32_t e, uint32_t elem_bytes)
{
    return set * decode_chunk_elems(elem_bytes) + word * decode_word_elems(elem_bytes) + e;
}

/* Element of V whose sum is in column c (0..1) of lane column t, in mma number n. */
CUDA_HD uint32_t decode_sum_elem(uint32_t n, uint32_t t, uint32_t c, uint32_t elem_bytes)
{
    uint32_t elems = decode_chunk_elems(elem_bytes);
    return decode_value_elem(n / elems, t * 2 + c, elem_bytes) + n % elems;
}

/* Number of a lane's load in a stage: row i of K, load j of its vector; set and row i of V. */
CUDA_HD uint32_t decode_key_load(uint32_t dim, uint32_t elem_bytes, uint32_t i, uint32_t j)
{
    return i * decode_key_loads(dim, elem_bytes) + j;
}

CUDA_HD uint32_t decode_value_load(uint32_t set, uint32_t i)
{
    return set * 4 + i;
}

/* First position of a stage, within the partition. */
CUDA_HD uint32_t decode_stage_begin(uint32_t stage)
{
    return stage * DECODE_STAGE;
}

/* Slot of a tile's heads that row r of a lane's registers is: rows g and g + 8 of the mma. Where
 * heads are split, row g + 8 has the low halves of row g's. */
CUDA_HD uint32_t decode_slot(uint32_t lane, uint32_t r)
{
    return fragment_a_row(lane, r);
}

/* Register of operand A for row r and pair 0 or 1 of a lane's four elements. */
CUDA_HD uint32_t decode_query_register(uint32_t r, uint32_t pair)
{
    return 2 * pair + r;
}

/* Row r, column c of a lane's sums: split, what the halves give together. */
CUDA_HD float decode_sum_of(const float d[4], bool split, uint32_t r, uint32_t c)
{
    return split ? d[c] + d[c + 2] : d[c + 2 * r];
}

/* Byte of a lane's load in the ring. */
CUDA_HD uint32_t decode_ring_at(struct decode_memory m, uint32_t n_loads, uint32_t slot,
                                uint32_t load, uint32_t lane)
{
    return m.ring + ((slot * n_loads + load) * 32 + lane) * 16;
}

/* Tile of eight positions: the first or second of a stage. Its scores, a word for each row and
 * column of a lane; weights as operand A go where the first of them were. */
CUDA_HD uint32_t decode_score_tile(uint32_t stage, uint32_t half)
{
    return stage * 2 + half;
}

ATTENTION_SIZE uint32_t decode_score_words(uint32_t n_rows)
{
    return 2 * n_rows;
}

CUDA_HD uint32_t decode_score_at(struct decode_memory m, uint32_t n_rows, uint32_t tile,
                                 uint32_t lane)
{
    return m.scores + (tile * 32 + lane) * decode_score_words(n_rows) * 4;
}

CUDA_HD uint32_t decode_score_word(uint32_t r, uint32_t c)
{
    return r * 2 + c;
}

CUDA_HD uint32_t decode_word_row(uint32_t word)
{
    return word / 2;
}

/* Element of a warp's result, [slot][dim]. */
CUDA_HD uint32_t decode_result_at(uint32_t dim, uint32_t slot, uint32_t elem)
{
    return slot * dim + elem;
}

/* Byte of a warp's memory in the block's, and of its maxima and sums, [2][DECODE_HEADS]. */
CUDA_HD uint32_t decode_warp_at(struct decode_memory m, uint32_t warp)
{
    return warp * m.n_bytes;
}

CUDA_HD uint32_t decode_stats_at(struct decode_memory m, uint32_t warp)
{
    return CUDA_GROUP_PARTITIONS * m.n_bytes + warp * 2 * DECODE_HEADS * (uint32_t)sizeof(float);
}

/* A block's results: elements of its heads, by thread. */
CUDA_HD uint32_t decode_n_items(uint32_t n_slots, uint32_t head_dim)
{
    return n_slots * head_dim;
}

CUDA_HD uint32_t decode_item_slot(uint32_t i, uint32_t head_dim)
{
    return i / head_dim;
}

CUDA_HD uint32_t decode_item_elem(uint32_t i, uint32_t head_dim)
{
    return i % head_dim;
}

/* --- path P: a block's tiles in shared memory --- */

enum {
    PREFILL_SCORES = CUDA_PARTITION / 8,   /* mma of a warp's scores of a partition */
    PREFILL_WEIGHTS = CUDA_PARTITION / 16, /* operands of its weights */
};

/* Tiles of a partition, of K and of V each. */
ATTENTION_SIZE uint32_t prefill_n_tiles(uint32_t dim)
{
    return CUDA_PARTITION / prefill_tile_positions(dim);
}

/* 16-byte chunks of a row of operands; mma along it. */
ATTENTION_SIZE uint32_t prefill_chunks(uint32_t dim)
{
    return dim / 8;
}

ATTENTION_SIZE uint32_t prefill_steps(uint32_t dim)
{
    return dim / 16;
}

/* Of them, how many a warp keeps of Q in registers. */
ATTENTION_SIZE uint32_t prefill_kept(uint32_t dim)
{
    return dim <= 128 ? prefill_steps(dim) : 1;
}

/* Whether mma `step` along the padded head has elements. */
CUDA_HD bool prefill_has_step(uint32_t step, uint32_t head_dim)
{
    return step * 16 < head_dim;
}

/* Pairs of mma that a tile's positions are. */
ATTENTION_SIZE uint32_t prefill_tile_pairs(uint32_t dim)
{
    return prefill_tile_positions(dim) / 16;
}

/* Threads that copy one vector, and 16-byte copies of each. */
ATTENTION_SIZE uint32_t prefill_lanes(uint32_t dim)
{
    return PREFILL_THREADS / prefill_tile_positions(dim);
}

ATTENTION_SIZE uint32_t prefill_copies(uint32_t dim, uint32_t elem_bytes)
{
    return dim * elem_bytes / 16 / prefill_lanes(dim);
}

/* Tiles that n partitions are, K's and V's. */
CUDA_HD uint32_t prefill_tiles_of(uint32_t dim, uint32_t n_partitions)
{
    return n_partitions * 2 * prefill_n_tiles(dim);
}

/* First position of a partition, and another of it. */
CUDA_HD uint32_t prefill_position(uint32_t partition, uint32_t i)
{
    return partition * CUDA_PARTITION + i;
}

/* What a thread copies of tile number `tile` from a sequence's first partition on: partition by
 * partition tiles of K, then of V. */
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

/* Row of a tile that a thread copies, that row within the partition, and its copy i: a chunk, as a
 * number and in bytes of the vector. */
CUDA_HD uint32_t prefill_copy_row(uint32_t dim, uint32_t thread)
{
    return thread / prefill_lanes(dim);
}

CUDA_HD uint32_t prefill_copy_offset(uint32_t dim, uint32_t tile, uint32_t thread)
{
    return tile % prefill_n_tiles(dim) * prefill_tile_positions(dim) +
           prefill_copy_row(dim, thread);
}

CUDA_HD uint32_t prefill_copy_chunk(uint32_t dim, uint32_t thread, uint32_t i)
{
    return thread % prefill_lanes(dim) + i * prefill_lanes(dim);
}

CUDA_HD uint32_t prefill_copy_byte(uint32_t dim, uint32_t thread, uint32_t i)
{
    return prefill_copy_chunk(dim, thread, i) * 16;
}

/* Byte of a tile's slot in the ring, and of chunk `chunk` of a row of operands that begin at
 * `base`. Codes lie as they were copied. */
CUDA_HD uint32_t prefill_slot_at(struct prefill_memory m, uint32_t dim, uint32_t elem_bytes,
                                 uint32_t tile)
{
    return m.ring +
           tile % prefill_slots(dim, elem_bytes) * (prefill_tile_positions(dim) * dim * elem_bytes);
}

CUDA_HD uint32_t prefill_operand_at(uint32_t base, uint32_t dim, uint32_t row, uint32_t chunk)
{
    return base + prefill_chunk_at(row, chunk, prefill_chunks(dim));
}

CUDA_HD uint32_t prefill_codes_at(uint32_t base, uint32_t thread, uint32_t i)
{
    return base + (i * PREFILL_THREADS + thread) * 16;
}

/* Chunk of operands that a half (0, 1) of a chunk of codes is widened to. */
CUDA_HD uint32_t prefill_wide_chunk(uint32_t chunk, uint32_t half)
{
    return 2 * chunk + half;
}

/* Threads below 128 bring the scales of K, the others those of V: whose, and of which position of
 * the partition. */
CUDA_HD bool prefill_brings_keys(uint32_t thread)
{
    return thread < CUDA_PARTITION;
}

CUDA_HD uint32_t prefill_scale_of(uint32_t thread)
{
    return thread % CUDA_PARTITION;
}

/* Scales and notes of two partitions in turn: elements to a partition's, and bytes. */
CUDA_HD uint32_t prefill_turn(uint32_t partition)
{
    return partition % 2 * CUDA_PARTITION;
}

CUDA_HD uint32_t prefill_scales_at(uint32_t base, uint32_t partition)
{
    return base + prefill_turn(partition) * (uint32_t)sizeof(float);
}

CUDA_HD uint32_t prefill_broken_at(struct prefill_memory m, uint32_t partition)
{
    return m.broken + prefill_turn(partition);
}

/* --- path P: a warp's 16 queries --- */

/* Query of the block's tile in row r of a lane's registers. */
CUDA_HD uint32_t prefill_query_of(uint32_t warp, uint32_t lane, uint32_t r)
{
    return warp * 16 + fragment_a_row(lane, r);
}

/* Its row from the tile's first, and its head. */
CUDA_HD uint32_t prefill_query_row(const struct attention_cuda *a, uint32_t query)
{
    return query / a->heads_per_kv;
}

CUDA_HD uint32_t prefill_query_slot(const struct attention_cuda *a, uint32_t query)
{
    return query % a->heads_per_kv;
}

/* The chunks of all queries, one after the other by thread. */
CUDA_HD uint32_t prefill_n_chunks(uint32_t dim)
{
    return PREFILL_QUERIES * prefill_chunks(dim);
}

CUDA_HD uint32_t prefill_chunk_query(uint32_t dim, uint32_t i)
{
    return i / prefill_chunks(dim);
}

CUDA_HD uint32_t prefill_chunk_of(uint32_t dim, uint32_t i)
{
    return i % prefill_chunks(dim);
}

CUDA_HD uint32_t prefill_chunk_elem(uint32_t chunk)
{
    return chunk * 8;
}

/* Bytes that a lane gives ldmatrix: mma `step` of a warp's queries; the same of 16 positions (pair
 * `n` of mma) of K; positions `k` · 16 and on, elements n · 16 and on of V, to be transposed. */
CUDA_HD uint32_t prefill_query_at(uint32_t base, uint32_t dim, uint32_t warp, uint32_t step,
                                  uint32_t lane)
{
    return prefill_operand_at(base, dim, warp * 16 + fragment_load_a_row(lane),
                              step * 2 + fragment_load_a_piece(lane));
}

CUDA_HD uint32_t prefill_key_at(uint32_t base, uint32_t dim, uint32_t n, uint32_t step,
                                uint32_t lane)
{
    return prefill_operand_at(base, dim, n * 16 + fragment_load_b_row(lane),
                              step * 2 + fragment_load_b_piece(lane));
}

CUDA_HD uint32_t prefill_value_at(uint32_t base, uint32_t dim, uint32_t k, uint32_t n,
                                  uint32_t lane)
{
    return prefill_operand_at(base, dim, k * 16 + fragment_load_turned_row(lane),
                              n * 2 + fragment_load_turned_piece(lane));
}

/* First of pair n of tile i's mma among a partition's scores; of pair n along the head among the
 * sums; operand k of tile i among the weights. */
CUDA_HD uint32_t prefill_score_of(uint32_t dim, uint32_t i, uint32_t n)
{
    return i * prefill_tile_positions(dim) / 8 + n * 2;
}

CUDA_HD uint32_t prefill_sum_of(uint32_t n)
{
    return n * 2;
}

CUDA_HD uint32_t prefill_weight_of(uint32_t dim, uint32_t i, uint32_t k)
{
    return i * prefill_tile_pairs(dim) + k;
}

/* Position within the partition, or element of the head, of column c (0..1) of mma n in lane column
 * t. */
CUDA_HD uint32_t prefill_column(uint32_t n, uint32_t t, uint32_t c)
{
    return n * 8 + t * 2 + c;
}

/* Register of row r (0..1) and column c. */
CUDA_HD uint32_t prefill_register(uint32_t r, uint32_t c)
{
    return r * 2 + c;
}

/* The mma of scores, and the first of two of its registers, whose weights are register r of operand
 * k. */
CUDA_HD uint32_t prefill_weight_tile(uint32_t k, uint32_t r)
{
    return 2 * k + r / 2;
}

CUDA_HD uint32_t prefill_weight_register(uint32_t r)
{
    return r % 2 * 2;
}

/* First row of a block, from the launch's. The last rows see most: their blocks begin first. */
CUDA_HD uint32_t prefill_first_row(uint32_t block, uint32_t n_blocks, uint32_t n_rows)
{
    return (n_blocks - 1 - block) * n_rows;
}

CUDA_HD uint32_t prefill_n_blocks(uint32_t n_rows, uint32_t tile_rows)
{
    return (n_rows + tile_rows - 1) / tile_rows;
}

/* --- by fused multiply-adds, and the groups' combination --- */

enum {
    PLAIN_ELEMS = 256, /* of V that are summed at once */
    PLAIN_SLOTS = PLAIN_ELEMS / 32,
    PLAIN_POSITIONS = CUDA_PARTITION / 32
};

/* Position, or element of those at hand, number i of a lane. */
CUDA_HD uint32_t plain_item(uint32_t i, uint32_t lane)
{
    return i * 32 + lane;
}

/* Elements of a thread of attention_combine, and one of them. */
ATTENTION_SIZE uint32_t combine_elems(uint32_t dim)
{
    return dim / COMBINE_THREADS;
}

CUDA_HD uint32_t combine_elem(uint32_t i, uint32_t thread)
{
    return i * COMBINE_THREADS + thread;
}

/* A group's result among a row and head's, from their first: of an element, and of the maximum,
 * which the sum of weights is behind. */
CUDA_HD size_t combine_part_at(uint32_t group, uint32_t head_dim, uint32_t elem)
{
    return (size_t)group * (head_dim + 2) + elem;
}
