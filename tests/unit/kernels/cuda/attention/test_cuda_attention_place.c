/* Tests whole partitions of CUDA's attention with the functions that map lanes to elements
 * (attention_place.h). Products of queries and keys, and of weights and values, are compared with
 * plain loops. Every score and result is computed once, every byte of a tile by one thread, with no
 * two lanes in a bank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/attention/attention_maths.h"
#include "kernels/cuda/attention/attention_place.h"
#include "tests/unit/kernels/support/support_mma.h"

enum { MAX_DIM = CUDA_TILED_MAX_DIM, MAX_SHARED = 128 << 10 };

/* Small whole numbers: every sum is exact, also as f16. */
static int q_at(uint32_t slot, uint32_t elem)
{
    return (int)((slot * 5 + elem * 3 + slot * elem) % 5) - 2;
}

static int k_at(uint32_t position, uint32_t elem)
{
    return (int)((position * 7 + elem + position * elem) % 7) - 3;
}

static int v_at(uint32_t position, uint32_t elem)
{
    return (int)((position * 3 + elem * 5 + position * elem) % 9) - 4;
}

static int weight_at(uint32_t slot, uint32_t position)
{
    return (int)((slot + position * 3) % 4);
}

static uint32_t half(int x)
{
    return maths_f32_to_f16((float)x);
}

/* A vector's element as the cache has it; codes are the bytes of numbers from −128 on. */
static void put(uint8_t *vector, uint32_t elem, uint32_t elem_bytes, int x)
{
    uint16_t bits = (uint16_t)half(x);
    if (elem_bytes == 1)
        vector[elem] = (uint8_t)(x + CUDA_KV_CODE_BIAS);
    else
        memcpy(vector + attention_elem_at(elem, elem_bytes), &bits, 2);
}

/* Four codes as f16: bytes 0 and 1, then 2 and 3. */
static void widen(uint32_t pairs[2], uint32_t codes)
{
    int x[4];
    for (uint32_t i = 0; i < 4; i++)
        x[i] = (int)(codes >> 8 * i & 0xFF) - CUDA_KV_CODE_BIAS;
    pairs[0] = fragment_pair(half(x[0]), half(x[1]));
    pairs[1] = fragment_pair(half(x[2]), half(x[3]));
}

/* --- path D --- */

struct decode {
    uint32_t dim, head_dim, elem_bytes, n_rows, n_loads, n_stages;
    bool split;
    struct decode_memory at;
    uint8_t *memory;
};

/* Loads a stage by all lanes into slot 0 of the ring. Checks that each byte is written once. */
static void load_stage(const struct decode *w, uint32_t stage, bool is_value)
{
    uint8_t *times = calloc(w->n_loads * MMA_LANES, 1);
    memset(w->memory, 0, w->n_loads * MMA_LANES * 16);
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        uint32_t g = fragment_group(lane), t = fragment_member(lane);
        uint32_t n_rows = is_value ? 4 : 2, n = w->n_loads / n_rows;
        for (uint32_t i = 0; i < n_rows; i++)
            for (uint32_t j = 0; j < n; j++) {
                uint32_t position =
                    decode_stage_begin(stage) +
                    (is_value ? decode_value_position(i, t) : decode_key_position(i, g));
                uint32_t first = is_value ? decode_value_elem(j, g, w->elem_bytes)
                                          : decode_key_elem(j, t, w->elem_bytes);
                uint32_t load = is_value ? decode_value_load(j, i)
                                         : decode_key_load(w->dim, w->elem_bytes, i, j);
                uint32_t at = decode_ring_at(w->at, w->n_loads, 0, load, lane);
                assert_true(at % 16 == 0 && at < w->at.scores && times[at / 16]++ == 0);
                assert_true(position < CUDA_PARTITION && first < w->dim);
                for (uint32_t e = 0; e < decode_chunk_elems(w->elem_bytes); e++) {
                    bool exists = first + e < w->head_dim;
                    int x = is_value ? v_at(position, first + e) : k_at(position, first + e);
                    put(w->memory + at, e, w->elem_bytes, exists ? x : 0);
                }
            }
    }
    for (uint32_t i = 0; i < w->n_loads * MMA_LANES; i++)
        assert_int_equal(times[i], 1);
    free(times);
    for (uint32_t load = 0; load < w->n_loads; load++) {
        uint32_t at[MMA_LANES];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            at[lane] = decode_ring_at(w->at, w->n_loads, 0, load, lane);
        mma_check_banks(at, 16);
    }
}

/* Operand A of step k: head `slot` in row g, and in row g + 8 the next eight, or its low halves. */
static void query_of(const struct decode *w, uint32_t a[MMA_LANES][4], uint32_t k)
{
    memset(a, 0, MMA_LANES * sizeof(*a));
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        uint32_t elem = decode_step_elem(k, fragment_member(lane), w->elem_bytes);
        for (uint32_t r = 0; r < w->n_rows; r++)
            for (uint32_t pair = 0; pair < 2; pair++) {
                uint32_t i = elem + 2 * pair, slot = decode_slot(lane, r);
                bool exists = i < w->head_dim;
                a[lane][decode_query_register(r, pair)] = fragment_pair(
                    half(exists ? q_at(slot, i) : 0), half(exists ? q_at(slot, i + 1) : 0));
                if (w->split) /* the low halves: as much again, so that a sum shows both */
                    a[lane][decode_query_register(1, pair)] =
                        a[lane][decode_query_register(0, pair)];
            }
    }
}

static void score_stage(const struct decode *w, uint32_t stage, uint8_t *times)
{
    double d[2][MMA_LANES][4];
    memset(d, 0, sizeof(d));
    load_stage(w, stage, false);
    for (uint32_t j = 0; j < decode_key_loads(w->dim, w->elem_bytes); j++)
        for (uint32_t e = 0; e < decode_key_steps(w->elem_bytes); e++) {
            uint32_t a[MMA_LANES][4], b[MMA_LANES][2], words[4];
            query_of(w, a, decode_step(j, e, w->elem_bytes));
            for (uint32_t i = 0; i < 2; i++) {
                for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
                    uint32_t load = decode_key_load(w->dim, w->elem_bytes, i, j);
                    memcpy(words, w->memory + decode_ring_at(w->at, w->n_loads, 0, load, lane), 16);
                    if (w->elem_bytes == 1)
                        widen(b[lane], words[e]);
                    else
                        attention_keys(b[lane], words, e);
                }
                mma_k16(d[i], a, b, mma_f16);
            }
        }
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t r = 0; r < w->n_rows; r++) {
                    float sums[4];
                    uint32_t in = decode_score_position(i, fragment_member(lane), c);
                    uint32_t position = decode_stage_begin(stage) + in, slot = decode_slot(lane, r);
                    for (uint32_t s = 0; s < 4; s++)
                        sums[s] = (float)d[i][lane][s];
                    int wanted = 0;
                    for (uint32_t x = 0; x < w->head_dim; x++)
                        wanted += q_at(slot, x) * k_at(position, x);
                    assert_true(decode_sum_of(sums, w->split, r, c) ==
                                (float)(w->split ? 2 * wanted : wanted));
                    assert_int_equal(times[slot * CUDA_PARTITION + position]++, 0);
                }
}

/* Weights of a tile of eight positions where its scores were: word r the pair of row r. */
static void put_weights(const struct decode *w, uint32_t tile, uint8_t *times)
{
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        uint32_t at = decode_score_at(w->at, w->n_rows, tile, lane);
        assert_true(at >= w->at.scores && at + 8 * w->n_rows <= w->at.scores + w->n_stages);
        for (uint32_t word = 0; word < decode_score_words(w->n_rows); word++)
            assert_int_equal(times[at - w->at.scores + word * 4]++, 0);
        for (uint32_t r = 0; r < w->n_rows; r++) {
            int p[2];
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t position = decode_stage_begin(tile / 2) +
                                    decode_score_position(tile % 2, fragment_member(lane), c);
                assert_int_equal(decode_word_row(decode_score_word(r, c)), r);
                p[c] = weight_at(decode_slot(lane, r), position);
            }
            uint32_t pair = fragment_pair(half(p[0]), half(p[1]));
            memcpy(w->memory + at + 4 * r, &pair, 4);
            if (w->split) /* the low halves have the same values here */
                memcpy(w->memory + at + 4, &pair, 4);
        }
    }
}

/* Elements of a word of V at two positions as pairs, one per element. */
static void values_of(const struct decode *w, uint32_t *pairs, uint32_t x, uint32_t y)
{
    if (w->elem_bytes == 2) {
        pairs[0] = fragment_pair(x & 0xFFFF, y & 0xFFFF);
        pairs[1] = fragment_pair(x >> 16, y >> 16);
        return;
    }
    for (uint32_t e = 0; e < 4; e++)
        pairs[e] = fragment_pair(half((int)(x >> 8 * e & 0xFF) - CUDA_KV_CODE_BIAS),
                                 half((int)(y >> 8 * e & 0xFF) - CUDA_KV_CODE_BIAS));
}

static void value_stage(const struct decode *w, double (*d)[MMA_LANES][4], uint32_t stage)
{
    uint32_t a[MMA_LANES][4];
    load_stage(w, stage, true);
    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
        for (uint32_t part = 0; part < 2; part++) {
            uint32_t tile = decode_score_tile(stage, part);
            memcpy(&a[lane][2 * part], w->memory + decode_score_at(w->at, w->n_rows, tile, lane),
                   8);
        }
    for (uint32_t set = 0; set < decode_value_sets(w->dim, w->elem_bytes); set++)
        for (uint32_t word = 0; word < 4; word++)
            for (uint32_t e = 0; e < decode_word_elems(w->elem_bytes); e++) {
                uint32_t b[MMA_LANES][2];
                for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
                    uint32_t x[4], pairs[4];
                    for (uint32_t i = 0; i < 4; i++)
                        memcpy(&x[i],
                               w->memory +
                                   decode_ring_at(w->at, w->n_loads, 0, decode_value_load(set, i),
                                                  lane) +
                                   4 * word,
                               4);
                    values_of(w, pairs, x[0], x[1]);
                    b[lane][0] = pairs[e];
                    values_of(w, pairs, x[2], x[3]);
                    b[lane][1] = pairs[e];
                }
                mma_k16(d[decode_value_tile(set, word, e, w->elem_bytes)], a, b, mma_f16);
            }
}

static void check_values(const struct decode *w, double (*d)[MMA_LANES][4])
{
    uint32_t n_slots = w->split ? DECODE_SPLIT_HEADS : DECODE_HEADS;
    uint8_t *times = calloc(n_slots, w->dim);
    for (uint32_t n = 0; n < decode_n_values(w->dim, w->elem_bytes); n++)
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t r = 0; r < w->n_rows; r++) {
                    float sums[4];
                    uint32_t slot = decode_slot(lane, r);
                    uint32_t elem = decode_sum_elem(n, fragment_member(lane), c, w->elem_bytes);
                    uint32_t at = decode_result_at(w->dim, slot, elem);
                    for (uint32_t s = 0; s < 4; s++)
                        sums[s] = (float)d[n][lane][s];
                    int wanted = 0;
                    for (uint32_t p = 0; p < CUDA_PARTITION && elem < w->head_dim; p++)
                        wanted += weight_at(slot, p) * v_at(p, elem);
                    assert_true(at < n_slots * w->dim && times[at]++ == 0);
                    assert_true(4 * at < w->at.k_scales); /* where ring and scores were */
                    assert_true(decode_sum_of(sums, w->split, r, c) ==
                                (float)(w->split ? 2 * wanted : wanted));
                }
    for (uint32_t i = 0; i < n_slots * w->dim; i++)
        assert_int_equal(times[i], 1);
    free(times);
}

static void check_decode(uint32_t head_dim, uint32_t elem_bytes, bool split)
{
    uint32_t dim = decode_padded_dim(head_dim, elem_bytes), n_slots = split ? 8 : 16;
    struct decode w = {dim, head_dim, elem_bytes, split ? 1 : 2, 0, 0, split, {0}, NULL};
    w.n_loads = decode_stage_loads(dim, elem_bytes);
    w.at = decode_memory_of(dim, elem_bytes, split);
    w.n_stages = DECODE_SCORES * MMA_LANES * 8 * w.n_rows; /* bytes of all scores */
    w.memory = aligned_alloc(128, cuda_round_up(w.at.n_bytes, 128));
    uint8_t *times = calloc(n_slots, CUDA_PARTITION), *of_words = calloc(w.n_stages, 1);
    double(*d)[MMA_LANES][4] = calloc(decode_n_values(dim, elem_bytes), sizeof(*d));
    for (uint32_t stage = 0; stage < DECODE_STAGES; stage++)
        score_stage(&w, stage, times);
    for (uint32_t i = 0; i < n_slots * CUDA_PARTITION; i++)
        assert_int_equal(times[i], 1);
    for (uint32_t tile = 0; tile < DECODE_SCORES; tile++)
        put_weights(&w, tile, of_words);
    for (uint32_t stage = 0; stage < DECODE_STAGES; stage++)
        value_stage(&w, d, stage);
    check_values(&w, d);
    free(d);
    free(times);
    free(of_words);
    free(w.memory);
}

static void test_path_d_has_every_score_and_result_once(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 64, 72, 80, 128, 160, 192, 256};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 2; elem_bytes++) {
            check_decode(dims[i], elem_bytes, true);
            check_decode(dims[i], elem_bytes, false);
        }
}

/* A block's memory: warps side by side, then statistics; results by thread. */
static void test_path_d_blocks_keep_warps_apart(void **state)
{
    (void)state;
    struct decode_memory m = decode_memory_of(128, 2, true);
    for (uint32_t warp = 0; warp < CUDA_GROUP_PARTITIONS; warp++) {
        assert_int_equal(decode_warp_at(m, warp), warp * m.n_bytes);
        uint32_t end = warp + 1 < CUDA_GROUP_PARTITIONS ? decode_stats_at(m, warp + 1)
                                                        : decode_shared_bytes(128, 2, true);
        assert_true(decode_stats_at(m, warp) >= CUDA_GROUP_PARTITIONS * m.n_bytes);
        assert_int_equal(end - decode_stats_at(m, warp), 2 * DECODE_HEADS * 4);
        assert_int_equal(attention_partition_begin(3, warp), 3 * CUDA_GROUP + warp * 128);
    }
    for (uint32_t n = 1; n <= 4; n++)
        for (uint32_t tiles = 1; tiles <= 3; tiles++)
            for (uint32_t block = 0; block < n * tiles; block++) {
                struct attention_tile tile = attention_tile_of(block, n * tiles, n, 8);
                assert_int_equal(tile.i_kv * tiles + tile.first_slot / 8, block);
                assert_true(tile.i_kv < n && tile.first_slot % 8 == 0);
            }
    assert_int_equal(decode_n_items(8, 96), 8 * 96);
    for (uint32_t head_dim = 16; head_dim <= 96; head_dim += 16)
        for (uint32_t i = 0; i < decode_n_items(8, head_dim); i++)
            assert_int_equal(
                decode_item_slot(i, head_dim) * head_dim + decode_item_elem(i, head_dim), i);
    /* the arrays have exactly the used size */
    for (uint32_t elem_bytes = 1; elem_bytes <= 2; elem_bytes++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < decode_key_loads(128, elem_bytes); j++)
            for (uint32_t e = 0; e < decode_key_steps(elem_bytes); e++)
                assert_int_equal(decode_step(j, e, elem_bytes), n++);
        assert_int_equal(decode_n_steps(128, elem_bytes), n);
        assert_int_equal(decode_n_steps(128, elem_bytes) * 16, 128);
        assert_int_equal(decode_n_values(128, elem_bytes) * 8, 128);
    }
    assert_int_equal(attention_group_of(3, 2), 5);
    struct attention_cuda a = {.block_shift = 4, .row_begin = 7};
    assert_int_equal(attention_row(&a, 5), 12);
    for (uint32_t p = 0; p < CUDA_PARTITION; p++)
        assert_true(attention_entry_begin(&a, attention_entry_of(&a, p)) <= p &&
                    attention_entry_begin(&a, attention_entry_of(&a, p) + 1) > p);
}

/* --- path P --- */

struct prefill {
    uint32_t dim, head_dim, elem_bytes;
    struct prefill_memory at;
    uint8_t *shared;
};

/* Loads a tile of K or V into its slot, by all threads. Each thread widens the codes that it
 * copied. Returns the place of the operands. */
static uint32_t load_tile(const struct prefill *w, uint32_t first_partition, uint32_t tile)
{
    uint32_t n = prefill_tile_positions(w->dim),
             base = prefill_slot_at(w->at, w->dim, w->elem_bytes, tile);
    uint32_t n_bytes = n * w->dim * w->elem_bytes;
    uint8_t *times = calloc(n_bytes / 16, 1), *wide = calloc(n * prefill_chunks(w->dim), 1);
    for (uint32_t thread = 0; thread < PREFILL_THREADS; thread++) {
        struct prefill_copy copy = prefill_copy_of(w->dim, first_partition, tile, thread);
        uint32_t row = prefill_copy_row(w->dim, thread);
        uint32_t in = prefill_copy_offset(w->dim, tile, thread);
        assert_int_equal(copy.position % CUDA_PARTITION, in);
        assert_int_equal(in % n, row);
        for (uint32_t i = 0; i < prefill_copies(w->dim, w->elem_bytes); i++) {
            uint8_t vector[16] = {0};
            uint32_t elems = 16 / w->elem_bytes, chunk = prefill_copy_chunk(w->dim, thread, i);
            uint32_t first = prefill_copy_byte(w->dim, thread, i) / w->elem_bytes;
            uint32_t at = w->elem_bytes == 1 ? prefill_codes_at(base, thread, i)
                                             : prefill_operand_at(base, w->dim, row, chunk);
            for (uint32_t e = 0; e < elems; e++) {
                int x =
                    copy.is_value ? v_at(copy.position, first + e) : k_at(copy.position, first + e);
                put(vector, e, w->elem_bytes, first + e < w->head_dim ? x : 0);
            }
            assert_true(at >= base && at + 16 <= base + n_bytes && times[(at - base) / 16]++ == 0);
            memcpy(w->shared + at, vector, 16);
            for (uint32_t part = 0; part < 2 && w->elem_bytes == 1; part++) {
                uint32_t to =
                    prefill_operand_at(w->at.wide, w->dim, row, prefill_wide_chunk(chunk, part));
                uint32_t words[4], codes[2];
                memcpy(codes, vector + 8 * part, 8);
                widen(words, codes[0]);
                widen(words + 2, codes[1]);
                assert_int_equal(wide[(to - w->at.wide) / 16]++, 0);
                memcpy(w->shared + to, words, 16);
            }
        }
    }
    for (uint32_t i = 0; i < n_bytes / 16; i++)
        assert_int_equal(times[i], 1);
    for (uint32_t i = 0; i < n * prefill_chunks(w->dim) && w->elem_bytes == 1; i++)
        assert_int_equal(wide[i], 1);
    free(times);
    free(wide);
    return w->elem_bytes == 1 ? w->at.wide : base;
}

static void load_queries(const struct prefill *w)
{
    uint8_t *times = calloc(prefill_n_chunks(w->dim), 1);
    for (uint32_t i = 0; i < prefill_n_chunks(w->dim); i++) {
        uint32_t query = prefill_chunk_query(w->dim, i), chunk = prefill_chunk_of(w->dim, i);
        uint32_t at = prefill_operand_at(w->at.queries, w->dim, query, chunk);
        assert_true(at + 16 <= w->at.ring && times[at / 16]++ == 0);
        for (uint32_t e = 0; e < 8; e++) {
            uint32_t elem = prefill_chunk_elem(chunk) + e;
            put(w->shared + at, e, 2, elem < w->head_dim ? q_at(query, elem) : 0);
        }
    }
    free(times);
}

static void score_tile(const struct prefill *w, double (*s)[MMA_LANES][4], uint32_t base,
                       uint32_t warp, uint32_t i)
{
    for (uint32_t step = 0; step < prefill_steps(w->dim); step++) {
        uint32_t at[MMA_LANES], q[MMA_LANES][4], r[MMA_LANES][4], b[2][MMA_LANES][2];
        if (!prefill_has_step(step, w->head_dim))
            continue;
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            at[lane] = prefill_query_at(w->at.queries, w->dim, warp, step, lane);
        mma_load(q, w->shared, at);
        for (uint32_t n = 0; n < prefill_tile_pairs(w->dim); n++) {
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                at[lane] = prefill_key_at(base, w->dim, n, step, lane);
            mma_load(r, w->shared, at);
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                for (uint32_t two = 0; two < 2; two++)
                    memcpy(b[two][lane], &r[lane][2 * two], 8);
            mma_k16(s[prefill_score_of(w->dim, i, n)], q, b[0], mma_f16);
            mma_k16(s[prefill_score_of(w->dim, i, n) + 1], q, b[1], mma_f16);
        }
    }
}

static void value_tile(const struct prefill *w, double (*d)[MMA_LANES][4],
                       uint32_t p[PREFILL_WEIGHTS][MMA_LANES][4], uint32_t base, uint32_t i)
{
    for (uint32_t k = 0; k < prefill_tile_pairs(w->dim); k++)
        for (uint32_t n = 0; n < prefill_steps(w->dim); n++) {
            uint32_t at[MMA_LANES], r[MMA_LANES][4], b[2][MMA_LANES][2];
            if (!prefill_has_step(n, w->head_dim))
                continue;
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                at[lane] = prefill_value_at(base, w->dim, k, n, lane);
            mma_load_turned(r, w->shared, at);
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                for (uint32_t two = 0; two < 2; two++)
                    memcpy(b[two][lane], &r[lane][2 * two], 8);
            mma_k16(d[prefill_sum_of(n)], p[prefill_weight_of(w->dim, i, k)], b[0], mma_f16);
            mma_k16(d[prefill_sum_of(n) + 1], p[prefill_weight_of(w->dim, i, k)], b[1], mma_f16);
        }
}

/* Checks that each register holds the score of its query and position. Replaces the scores by
 * weights, and packs these into the operands p. */
static void weights_of(const struct prefill *w, double (*s)[MMA_LANES][4],
                       uint32_t p[PREFILL_WEIGHTS][MMA_LANES][4], uint32_t warp)
{
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        uint32_t t = fragment_member(lane);
        for (uint32_t n = 0; n < PREFILL_SCORES; n++)
            for (uint32_t r = 0; r < 2; r++)
                for (uint32_t c = 0; c < 2; c++) {
                    uint32_t query = prefill_query_of(warp, lane, r), i = prefill_register(r, c);
                    uint32_t position = prefill_position(1, prefill_column(n, t, c));
                    int wanted = 0;
                    for (uint32_t x = 0; x < w->head_dim; x++)
                        wanted += q_at(query, x) * k_at(position, x);
                    assert_true(s[n][lane][i] == wanted);
                    s[n][lane][i] = weight_at(query, position);
                }
        for (uint32_t k = 0; k < PREFILL_WEIGHTS; k++)
            for (uint32_t r = 0; r < 4; r++) {
                const double *two = &s[prefill_weight_tile(k, r)][lane][prefill_weight_register(r)];
                p[k][lane][r] = fragment_pair(half((int)two[0]), half((int)two[1]));
            }
    }
}

/* Checks the result of partition 1, the first partition of the span, for two of the eight warps. */
static void check_prefill(uint32_t head_dim, uint32_t elem_bytes)
{
    struct prefill w = {prefill_padded_dim(head_dim), head_dim, elem_bytes, {0}, NULL};
    if (elem_bytes == 1 && w.dim == 64 && head_dim % 16 != 0)
        return;
    w.at = prefill_memory_of(w.dim, elem_bytes);
    w.shared = aligned_alloc(128, MAX_SHARED);
    assert_true(w.at.n_bytes <= MAX_SHARED);
    load_queries(&w);
    double(*s)[MMA_LANES][4] = calloc(2 * PREFILL_SCORES, sizeof(*s));
    double(*d)[MMA_LANES][4] = calloc(2 * prefill_chunks(w.dim), sizeof(*d));
    static uint32_t p[2][PREFILL_WEIGHTS][MMA_LANES][4];
    static const uint32_t warps[] = {0, 7};
    uint32_t n_tiles = prefill_n_tiles(w.dim);
    assert_int_equal(prefill_tiles_of(w.dim, 1), 2 * n_tiles);
    for (uint32_t i = 0; i < n_tiles; i++) {
        uint32_t base = load_tile(&w, 1, i);
        for (uint32_t x = 0; x < 2; x++)
            score_tile(&w, s + x * PREFILL_SCORES, base, warps[x], i);
    }
    for (uint32_t x = 0; x < 2; x++)
        weights_of(&w, s + x * PREFILL_SCORES, p[x], warps[x]);
    for (uint32_t i = 0; i < n_tiles; i++) {
        uint32_t base = load_tile(&w, 1, n_tiles + i);
        for (uint32_t x = 0; x < 2; x++)
            value_tile(&w, d + x * prefill_chunks(w.dim), p[x], base, i);
    }
    for (uint32_t x = 0; x < 2; x++)
        for (uint32_t n = 0; n < prefill_chunks(w.dim); n++)
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                for (uint32_t i = 0; i < 4; i++) {
                    uint32_t r = i / 2, c = i % 2;
                    uint32_t elem = prefill_column(n, fragment_member(lane), c);
                    uint32_t query = prefill_query_of(warps[x], lane, r);
                    int wanted = 0;
                    for (uint32_t at = 0; at < CUDA_PARTITION && elem < head_dim; at++)
                        wanted += weight_at(query, 128 + at) * v_at(128 + at, elem);
                    assert_true(d[x * prefill_chunks(w.dim) + n][lane][prefill_register(r, c)] ==
                                wanted);
                }
    free(s);
    free(d);
    free(w.shared);
}

static void test_path_p_has_every_score_and_result(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 64, 80, 128, 160, 192, 256};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 2; elem_bytes++)
            check_prefill(dims[i], elem_bytes);
}

static void test_path_p_blocks_cover_rows_scales_and_notes(void **state)
{
    (void)state;
    for (uint32_t heads = 1; heads <= 128; heads += 9)
        for (uint32_t n_rows = 1; n_rows < 400; n_rows += 57) {
            uint32_t tile = prefill_tile_rows(heads), n = prefill_n_blocks(n_rows, tile), seen = 0;
            for (uint32_t block = 0; block < n; block++) {
                uint32_t first = prefill_first_row(block, n, tile);
                assert_true(first < n_rows && first % tile == 0);
                seen += n_rows - first < tile ? n_rows - first : tile;
            }
            assert_int_equal(seen, n_rows);
            assert_int_equal(prefill_first_row(n - 1, n, tile), 0);
        }
    /* the arrays in registers have exactly the used size */
    for (uint32_t dim = 64; dim <= 256; dim += 64) {
        assert_int_equal(prefill_steps(dim) * 16, dim);
        assert_int_equal(prefill_kept(dim), dim <= 128 ? dim / 16 : 1);
        assert_int_equal(prefill_tile_pairs(dim) * 16, prefill_tile_positions(dim));
        assert_int_equal(prefill_n_tiles(dim) * prefill_tile_positions(dim), CUDA_PARTITION);
        assert_int_equal(prefill_lanes(dim) * prefill_copies(dim, 2) * 16, 2 * dim);
    }
    struct attention_cuda a = {.heads_per_kv = 7};
    for (uint32_t query = 0; query < PREFILL_QUERIES; query++)
        assert_int_equal(prefill_query_row(&a, query) * 7 + prefill_query_slot(&a, query), query);
    uint32_t keys = 0;
    for (uint32_t thread = 0; thread < PREFILL_THREADS; thread++) {
        assert_true(prefill_scale_of(thread) < CUDA_PARTITION);
        keys += prefill_brings_keys(thread);
    }
    assert_int_equal(keys, CUDA_PARTITION);
    assert_true(prefill_brings_keys(0) && !prefill_brings_keys(PREFILL_THREADS - 1));
    struct prefill_memory m = prefill_memory_of(128, 1);
    for (uint32_t partition = 0; partition < 5; partition++) {
        assert_int_equal(prefill_scales_at(m.k_scales, partition) - m.k_scales,
                         partition % 2 * CUDA_PARTITION * 4);
        assert_true(prefill_scales_at(m.v_scales, partition) + CUDA_PARTITION * 4 <= m.broken);
        assert_true(prefill_broken_at(m, partition) + CUDA_PARTITION <= m.n_bytes);
    }
}

/* --- by fused multiply-adds, combination, words --- */

static void test_lanes_and_threads_have_every_element(void **state)
{
    (void)state;
    uint8_t times[CUDA_ATTENTION_MAX_DIM] = {0};
    assert_int_equal(combine_elems(CUDA_ATTENTION_MAX_DIM) * COMBINE_THREADS,
                     CUDA_ATTENTION_MAX_DIM);
    for (uint32_t i = 0; i < combine_elems(CUDA_ATTENTION_MAX_DIM); i++)
        for (uint32_t thread = 0; thread < COMBINE_THREADS; thread++)
            times[combine_elem(i, thread)]++;
    for (uint32_t i = 0; i < CUDA_ATTENTION_MAX_DIM; i++)
        assert_int_equal(times[i], 1);
    memset(times, 0, sizeof(times));
    for (uint32_t i = 0; i < PLAIN_SLOTS; i++)
        for (uint32_t lane = 0; lane < 32; lane++)
            times[plain_item(i, lane)]++;
    for (uint32_t i = 0; i < PLAIN_ELEMS; i++)
        assert_int_equal(times[i], 1);
    struct attention_cuda a = {.n_heads = 3,
                               .n_groups = 5,
                               .q_stride = 300,
                               .y_stride = 200,
                               .kv = {.head_dim = 80, .v_dim = 96}};
    assert_int_equal(decode_part_at(&a, 2, 1, 0) + combine_part_at(4, 96, 97),
                     decode_part_at(&a, 2, 1, 4) + 97);
    assert_int_equal(attention_input_of(&a, 2, 1, 5), 2 * 300 + 80 + 5);
    assert_int_equal(attention_output_of(&a, 2, 1, 5), 2 * 200 + 96 + 5);
}

static void test_words_are_widened_and_mended(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        if ((code & 0x7F) == 0x7F) /* NaN: none is in a cache */
            continue;
        uint32_t pair = attention_f8_halves(code << 8 | code << 24);
        float value = maths_f8_to_f32((uint8_t)code);
        assert_true(maths_f16_to_f32((uint16_t)pair) * 256.0f == value);
        assert_true(maths_f16_to_f32((uint16_t)(pair >> 16)) * 256.0f == value);
    }
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        bool f16 = !(fabsf(maths_f16_to_f32((uint16_t)bits)) <= 65504.0f);
        bool bf16 = !(fabsf(maths_bf16_to_f32((uint16_t)bits)) <= 3.4e38f);
        uint32_t word = fragment_pair(0x1234, bits);
        assert_int_equal(attention_broken(word, ATTENTION_F16_EXPONENT), f16 ? 0xFFFF0000u : 0);
        assert_int_equal(attention_broken(bits, ATTENTION_F16_EXPONENT), f16 ? 0xFFFFu : 0);
        assert_int_equal(attention_broken(word, ATTENTION_BF16_EXPONENT), bf16 ? 0xFFFF0000u : 0);
        assert_int_equal(attention_without(word, 0xFFFF0000u), 0x1234);
        assert_int_equal(attention_bf16_high(word), bits << 16);
        assert_int_equal(attention_bf16_low(word), 0x12340000u);
    }
    assert_true(attention_coded_weight(0.0f, NAN) == 0.0f);
    assert_true(attention_coded_weight(0.5f, 4.0f) == 2.0f);
    assert_true(attention_inverse(0.0f) == 0.0f && attention_inverse(4.0f) == 0.25f);
    assert_true(attention_worth(3.0f, 3.0f) == 1.0f && attention_worth(0.0f, 0.0f) == 0.0f);
    assert_true(attention_key_factor(0.5f, 3.0f, 256.0f) == 384.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_d_has_every_score_and_result_once),
        cmocka_unit_test(test_path_d_blocks_keep_warps_apart),
        cmocka_unit_test(test_path_p_has_every_score_and_result),
        cmocka_unit_test(test_path_p_blocks_cover_rows_scales_and_notes),
        cmocka_unit_test(test_lanes_and_threads_have_every_element),
        cmocka_unit_test(test_words_are_widened_and_mended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
