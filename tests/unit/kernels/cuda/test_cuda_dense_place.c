/* Tests whole products of dense linears on CUDA, block by block. The functions under test map
 * threads to copies, products and results (dense_decode_index.h, dense_prompt_index.h). Over odd
 * shapes each result is computed once and right. Nothing outside the operands is read, every byte
 * of a stage has one writer, and there are no bank conflicts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/dense/dense_decode_index.h"
#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/dense/dense_prompt_index.h"
#include "kernels/cuda/dense/dense_ring_index.h"
#include "tests/unit/kernels/support/support_mma.h"

enum { MAX_STAGE = 64 << 10, MAX_K = 700 };

/* Small whole numbers, so that every sum is exact: [m][k] times [n][k]. */
static int x_at(uint32_t row, uint32_t k)
{
    return (int)((row * 13 + k * 7 + row * k) % 7) - 3;
}

static int w_at(uint32_t part, uint32_t row, uint32_t k)
{
    return (int)((part * 3 + row * 11 + k * 5 + row * k) % 5) - 2;
}

static void put(uint8_t *to, enum dense_form form, int value, bool is_weight)
{
    float x = (float)value;
    uint16_t half = form == DENSE_F16 ? maths_f32_to_f16(x) : maths_f32_to_bf16(x);
    if (form == DENSE_F32)
        memcpy(to, &x, 4);
    else if (form == DENSE_INT8 && is_weight)
        *to = (uint8_t)value;
    else if (form == DENSE_F8)
        *to = maths_f32_to_f8(x);
    else
        memcpy(to, &half, 2);
}

struct world {
    struct dense_job job;
    enum dense_form form;
    uint8_t *x, *w[DENSE_MAX_PARTS];
    size_t x_bytes, w_bytes[DENSE_MAX_PARTS];
    float *y[DENSE_MAX_PARTS];
    uint8_t *times[DENSE_MAX_PARTS]; /* how often each result was written */
};

static void world_open(struct world *world, enum dense_form form, uint32_t m, uint32_t k,
                       const uint32_t *n, uint32_t n_parts, bool gated, uint32_t n_slices)
{
    memset(world, 0, sizeof(*world));
    struct dense_job *job = &world->job;
    world->form = form;
    job->n_parts = n_parts, job->gated = gated, job->m = m, job->k = k;
    job->x_stride = dense_act_stride(k), job->w_row_bytes = dense_row_bytes(form, k);
    uint32_t bounds[CUDA_SEGMENTS + 1];
    for (uint32_t s = 0; s <= n_slices; s++)
        bounds[s] = n_slices == 1 ? s * k : cuda_segment_bound(k, s * CUDA_SEGMENTS / n_slices);
    job->slices = dense_slices_from(bounds, n_slices);
    world->x_bytes = m * job->x_stride * dense_act_bytes(form);
    world->x = aligned_alloc(64, cuda_round_up(world->x_bytes, 64));
    memset(world->x, 0, world->x_bytes);
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t i = 0; i < k; i++) {
            uint32_t at = form == DENSE_INT8 ? dense_paired_at(i) : i;
            put(world->x + (r * job->x_stride + at) * dense_act_bytes(form), form, x_at(r, i),
                false);
        }
    job->x = world->x;
    for (uint32_t p = 0; p < n_parts; p++) {
        struct dense_part *part = &job->parts[p];
        part->n = n[p];
        world->w_bytes[p] = n[p] * job->w_row_bytes;
        part->w = world->w[p] = aligned_alloc(64, world->w_bytes[p]);
        memset(world->w[p], 0, world->w_bytes[p]);
        for (uint32_t r = 0; r < n[p]; r++)
            for (uint32_t i = 0; i < k; i++)
                put(world->w[p] + r * job->w_row_bytes + (size_t)i * dense_weight_bytes(form), form,
                    w_at(p, r, i), true);
        world->y[p] = calloc((size_t)m * n[p], sizeof(float));
        world->times[p] = calloc((size_t)m, n[p]);
    }
}

static void world_close(struct world *world)
{
    free(world->x);
    for (uint32_t p = 0; p < world->job.n_parts; p++) {
        free(world->w[p]);
        free(world->y[p]);
        free(world->times[p]);
    }
}

/* Checks that every result is right and was written once. */
static void check_results(const struct world *world)
{
    const struct dense_job *job = &world->job;
    for (uint32_t p = 0; p < job->n_parts; p++)
        for (uint32_t r = 0; r < job->m; r++)
            for (uint32_t c = 0; c < job->parts[p].n; c++) {
                int wanted = 0;
                for (uint32_t k = 0; k < job->k; k++)
                    wanted += x_at(r, k) * w_at(p, c, k);
                size_t at = (size_t)r * job->parts[p].n + c;
                assert_int_equal(world->times[p][at], 1);
                assert_true(world->y[p][at] == (float)wanted);
            }
}

/* Copies 16 bytes from within the source, or writes zeros if not `valid`. */
static void copy(uint8_t *to, const uint8_t *from, bool valid, const uint8_t *begin, size_t n_bytes)
{
    memset(to, 0, DENSE_PIECE);
    if (!valid)
        return;
    assert_true(from >= begin && from + DENSE_PIECE <= begin + n_bytes);
    assert_int_equal((uintptr_t)from % DENSE_PIECE, 0);
    memcpy(to, from, DENSE_PIECE);
}

static void words_of(uint32_t words[4], const uint8_t *at)
{
    memcpy(words, at, 16);
}

/* Bytes 0 and 2 of a word as a pair of bf16: the sum of two, which is exact. */
static uint32_t add_pair(uint32_t low, uint32_t high)
{
    uint32_t pair = 0;
    for (uint32_t i = 0; i < 2; i++) {
        float sum = maths_bf16_to_f32((uint16_t)(low >> 16 * i)) +
                    maths_bf16_to_f32((uint16_t)(high >> 16 * i));
        assert_true(maths_bf16_to_f32(maths_f32_to_bf16(sum)) == sum);
        pair |= (uint32_t)maths_f32_to_bf16(sum) << 16 * i;
    }
    return pair;
}

static void widen(uint32_t out[2], uint32_t four)
{
    uint32_t odd = dense_odd_bytes(four);
    out[0] = add_pair(dense_widen_low(four), dense_widen_high(four));
    out[1] = add_pair(dense_widen_low(odd), dense_widen_high(odd));
}

static void test_every_int8_is_widened_exactly(void **state)
{
    (void)state;
    for (uint32_t q = 0; q < 256; q++) {
        uint32_t wide[2], four = fragment_four(q, (q + 1) & 255, (q + 2) & 255, (q + 3) & 255);
        widen(wide, four);
        for (uint32_t i = 0; i < 4; i++) /* (0, 2), (1, 3) */
            assert_true(mma_bf16(wide[i % 2] >> 16 * (i / 2) & 0xFFFF) ==
                        (double)(int8_t)((q + i) & 255));
    }
}

/* --- path D --- */

/* Copies a warp's next group into its stage, as the lanes do. */
static void fetch(uint8_t *stage, struct world *world, struct dense_tile tile,
                  struct decode_share share, struct decode_lane lanes[MMA_LANES])
{
    const enum dense_form form = world->form;
    const uint32_t R = tile.n_row_tiles;
    const struct dense_job *job = &world->job;
    memset(stage, 0xEE, dense_stage_bytes(form, tile));
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        struct decode_lane *at = &lanes[lane];
        uint8_t *slot = stage + decode_own_at(lane);
        bool inside = decode_is_inside(at, form, 0);
        for (uint32_t i = 0; i < dense_w_pieces(tile); i++) {
            uint32_t part = job->gated ? i / 2 % 2 : share.part;
            copy(slot + decode_weight_piece(i), decode_weights_at(at, i),
                 inside && cuda_bit(at->w_valid, i), world->w[part], world->w_bytes[part]);
        }
        decode_next_weights(at);
        for (uint32_t i = 0; i < tile.n_token_tiles; i++) {
            const uint8_t *x = decode_tokens_at(at, i);
            bool valid = inside && cuda_bit(at->x_valid, i);
            if (form == DENSE_INT8) {
                copy(slot + decode_int8_token_piece(R, i, 0), x, valid, world->x, world->x_bytes);
                copy(slot + decode_int8_token_piece(R, i, 1), x + DENSE_PIECE, valid, world->x,
                     world->x_bytes);
                continue;
            }
            copy(slot + decode_token_piece(R, i), x, valid, world->x, world->x_bytes);
            if (form == DENSE_F32) {
                uint32_t n = decode_n_floats(at, i);
                assert_int_equal(n > 0, valid);
                for (uint32_t c = n; c < 4; c++)
                    memset(slot + decode_token_piece(R, i) + 4 * c, 0, 4);
            }
        }
        decode_next_tokens(at, form);
    }
    /* every byte pair was written */
    for (uint32_t i = 0; i + 1 < dense_stage_bytes(form, tile); i += 2)
        assert_true(stage[i] != 0xEE || stage[i + 1] != 0xEE);
}

typedef double sums_of_tile[MMA_LANES][4];

static void multiply(sums_of_tile d[4][8], const uint8_t *stage, enum dense_form form,
                     struct dense_tile tile)
{
    const uint32_t R = tile.n_row_tiles, n = form == DENSE_INT8 ? 4 : 2;
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t i = 0; i < tile.n_token_tiles; i++)
            for (uint32_t c = 0; c < n; c++) {
                uint32_t a[MMA_LANES][4], b[MMA_LANES][2];
                for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
                    const uint8_t *slot = stage + decode_own_at(lane);
                    uint32_t low[4], high[4], x[4], y[4], both_a[2][4], both_b[2][2];
                    words_of(low, slot + decode_tile_piece(r, 0));
                    words_of(high, slot + decode_tile_piece(r, 1));
                    if (form == DENSE_INT8) {
                        uint32_t wide[2], all_b[4][2];
                        widen(wide, low[c]);
                        decode_int8_a(a[lane], wide, 0);
                        widen(wide, high[c]);
                        decode_int8_a(a[lane], wide, 1);
                        words_of(x, slot + decode_int8_token_piece(R, i, 0));
                        words_of(y, slot + decode_int8_token_piece(R, i, 1));
                        decode_int8_b(all_b, x, y);
                        memcpy(b[lane], all_b[c], 8);
                        continue;
                    }
                    words_of(x, slot + decode_token_piece(R, i));
                    if (form == DENSE_F8) {
                        decode_f8_a(a[lane], low + decode_f8_at(c) / 4, high + decode_f8_at(c) / 4);
                        memcpy(b[lane], x + decode_f8_at(c) / 4, 8);
                        continue;
                    }
                    decode_a(both_a, low, high);
                    decode_b(both_b, x);
                    memcpy(a[lane], both_a[c], 16);
                    memcpy(b[lane], both_b[c], 8);
                }
                if (form == DENSE_F8)
                    mma_k32(d[r][i], a, b, mma_f8, mma_f8);
                else
                    mma_k16(d[r][i], a, b, form == DENSE_F16 ? mma_f16 : mma_bf16);
            }
}

/* Stores a sum of a slice. Each float may be stored once. */
static void put_sum(float *out, uint8_t *times, uint32_t at, uint32_t n, double sum)
{
    assert_true(at < n && times[at] == 0);
    times[at]++;
    out[at] = (float)sum;
}

static void slice_f32(float *out, uint8_t *times, struct world *world, struct dense_tile tile,
                      struct decode_share share, struct decode_lane lanes[MMA_LANES],
                      uint32_t n_groups)
{
    static uint8_t stage[MAX_STAGE];
    static float sums[MMA_LANES][16][32];
    memset(sums, 0, sizeof(sums));
    for (uint32_t g = 0; g < n_groups; g++) {
        fetch(stage, world, tile, share, lanes);
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t i = 0; i < dense_tile_tokens(tile); i++) {
                float x[4], w[4];
                memcpy(x, stage + decode_float_at(tile.n_row_tiles, i, lane), 16);
                for (uint32_t r = 0; r < dense_w_pieces(tile); r++) {
                    memcpy(w, stage + decode_own_at(lane) + decode_weight_piece(r), 16);
                    sums[lane][r][i] = dense_chain(sums[lane][r][i], w, x);
                }
            }
    }
    for (uint32_t r = 0; r < dense_w_pieces(tile); r++)
        for (uint32_t i = 0; i < dense_tile_tokens(tile); i++)
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                if (decode_puts_float(i, lane)) {
                    uint32_t first = lane / 4 * 4;
                    float sum = (sums[first][r][i] + sums[first + 1][r][i]) +
                                (sums[first + 2][r][i] + sums[first + 3][r][i]);
                    put_sum(out, times, decode_float_sum_at(tile, r, i, lane),
                            decode_slice_floats(tile), (double)sum);
                }
}

static void slice_mma(float *out, uint8_t *times, struct world *world, struct dense_tile tile,
                      struct decode_share share, struct decode_lane lanes[MMA_LANES],
                      uint32_t n_groups)
{
    static uint8_t stage[MAX_STAGE];
    static sums_of_tile d[4][8];
    memset(d, 0, sizeof(d));
    for (uint32_t g = 0; g < n_groups; g++) {
        fetch(stage, world, tile, share, lanes);
        multiply(d, stage, world->form, tile);
    }
    for (uint32_t r = 0; r < tile.n_row_tiles; r++)
        for (uint32_t i = 0; i < tile.n_token_tiles; i++)
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t at[MMA_LANES];
                for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
                    uint32_t to = decode_sum_at(tile, r, i, e, lane);
                    put_sum(out, times, to, decode_slice_floats(tile), d[r][i][lane][e]);
                    at[lane] = to * 4;
                }
                mma_check_banks(at, 4);
            }
}

static void decode_block(struct world *world, struct dense_tile tile, uint32_t token_block,
                         uint32_t row_block)
{
    const struct dense_job *job = &world->job;
    const uint32_t n_slices = job->slices.count, n_floats = decode_slice_floats(tile);
    float *sums = calloc((size_t)n_slices * n_floats, sizeof(float));
    struct decode_share share = {0, 0, 0, 0};
    for (uint32_t s = 0; s < n_slices; s++) {
        struct decode_lane lanes[MMA_LANES];
        uint8_t *times = calloc(n_floats, 1);
        share = decode_share_of(job, tile, token_block, row_block, s);
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            lanes[lane] = decode_lane_of(job, world->form, tile, share, lane);
        uint32_t n_groups = dense_slice_groups(&job->slices, s, dense_group(world->form));
        assert_true(decode_slice_sums(tile, s) + n_floats <= n_slices * n_floats);
        (world->form == DENSE_F32 ? slice_f32 : slice_mma)(sums + decode_slice_sums(tile, s), times,
                                                           world, tile, share, lanes, n_groups);
        /* each place but the padding was written once */
        for (uint32_t token = 0; token < dense_tile_tokens(tile); token++)
            for (uint32_t row = 0; row < tile.n_row_tiles * DENSE_W_ROWS; row++)
                assert_int_equal(times[token * dense_sums_pitch(tile) + row], 1);
        free(times);
    }
    for (uint32_t i = 0; i < decode_n_results(tile, job->gated); i++) {
        struct decode_result to = decode_result_of(tile, job->gated, share, i);
        if (to.token >= job->m || to.row >= job->parts[share.part].n)
            continue;
        for (uint32_t half = 0; half < (job->gated ? 2u : 1u); half++) {
            uint32_t part = job->gated ? half : share.part;
            size_t at = (size_t)to.token * job->parts[part].n + to.row;
            world->y[part][at] = dense_tree(sums + (half ? decode_up_at(to.at) : to.at), n_floats,
                                            job->slices.present);
            world->times[part][at]++;
        }
    }
    free(sums);
}

static void decode_all(enum dense_form form, uint32_t i_tile, uint32_t m, uint32_t k,
                       const uint32_t *n, uint32_t n_parts, bool gated, uint32_t n_slices)
{
    struct world world;
    world_open(&world, form, m, k, n, n_parts, gated, n_slices);
    struct dense_tile tile = dense_decode_tile(i_tile, n_slices);
    uint32_t n_blocks = 0, rows = dense_block_rows(tile, gated);
    for (uint32_t p = 0; p < (gated ? 1 : n_parts); p++)
        n_blocks += dense_n_blocks(n[p], rows);
    assert_true(dense_stage_bytes(form, tile) <= MAX_STAGE);
    for (uint32_t t = 0; t < dense_n_blocks(m, dense_tile_tokens(tile)); t++)
        for (uint32_t b = 0; b < n_blocks; b++)
            decode_block(&world, tile, t, b);
    check_results(&world);
    world_close(&world);
}

static void test_path_d_multiplies_every_row_and_token_once(void **state)
{
    (void)state;
    static const uint32_t three[] = {37, 5, 64}, two[] = {41, 41}, one[] = {70};
    static const uint32_t columns[] = {33, 136, 300};
    for (int f = 0; f < N_DENSE_FORMS; f++)
        for (uint32_t i = 0; i < dense_n_tiles((enum dense_form)f); i++)
            for (uint32_t c = 0; c < 3; c++) {
                uint32_t m = (8u << i) + 3;
                decode_all((enum dense_form)f, i, m, columns[c], three, 3, false, 8);
                decode_all((enum dense_form)f, i, m - 5, columns[c], two, 2, true, c == 0 ? 2 : 8);
                decode_all((enum dense_form)f, i, 1, columns[c], one, 1, false, c == 1 ? 4 : 1);
            }
}

/* A ring has 16 bytes of each lane side by side. Reads and writes of a ring have no bank conflict.
 */
static void test_a_lane_reads_its_ring_without_meeting_others(void **state)
{
    (void)state;
    for (uint32_t piece = 0; piece < 4; piece++) {
        uint32_t at[MMA_LANES], half[MMA_LANES], token[MMA_LANES];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
            at[lane] = decode_own_at(lane) + decode_weight_piece(piece);
            half[lane] = decode_own_at(lane) + decode_weight_piece(piece) + decode_f8_at(0);
            token[lane] = decode_float_at(2, piece, lane);
        }
        mma_check_banks(at, 16);
        mma_check_banks(token, 16);
        (void)half; /* f8's halves are 16 bytes apart: two turns, as its two multiplications are */
    }
}

/* In a block's shared memory, the rings of the slices do not overlap. Neither do the slices' sums,
 * which later take the same place. */
static void test_slices_of_a_block_keep_apart(void **state)
{
    (void)state;
    for (int f = 0; f < N_DENSE_FORMS; f++)
        for (uint32_t i = 0; i < dense_n_tiles((enum dense_form)f); i++)
            for (uint32_t n = 1; n <= CUDA_SEGMENTS; n *= 2) {
                enum dense_form form = (enum dense_form)f;
                struct dense_tile tile = dense_decode_tile(i, n);
                uint32_t ring = tile.n_stages * dense_stage_bytes(form, tile);
                assert_int_equal(decode_slice_floats(tile) * sizeof(float), dense_sums_bytes(tile));
                for (uint32_t s = 0; s < n; s++) {
                    assert_int_equal(decode_slice_ring(form, tile, s), s * ring);
                    assert_true(decode_slice_ring(form, tile, s) + ring <=
                                dense_shared_bytes(form, tile, n));
                    assert_true((decode_slice_sums(tile, s) + decode_slice_floats(tile)) *
                                    sizeof(float) <=
                                dense_shared_bytes(form, tile, n));
                }
            }
}

/* --- path P --- */

/* Copies a stage by all threads. Checks that each byte is written once. */
static void prompt_stage(uint8_t *stage, struct world *world, uint32_t n_rows,
                         struct prompt_source at[PROMPT_THREADS])
{
    const enum dense_form form = world->form;
    const uint32_t n_pieces =
        (PROMPT_TILE * PROMPT_LINE + n_rows * prompt_w_line(form)) / DENSE_PIECE;
    uint8_t *times = calloc(n_pieces, 1);
    for (uint32_t thread = 0; thread < PROMPT_THREADS; thread++) {
        struct prompt_source *source = &at[thread];
        bool x_in = prompt_has_x(source, form, thread), w_in = prompt_has_w(source, form, thread);
        for (uint32_t i = 0; i < PROMPT_X_COPIES; i++) {
            uint32_t to = prompt_x_place(source, i);
            assert_true(to < PROMPT_TILE * PROMPT_LINE && times[to / 16]++ == 0);
            copy(stage + to, prompt_x_of(source, form) + prompt_row_step(i, source->x_step),
                 x_in && cuda_bit(source->x_valid, i), world->x, world->x_bytes);
        }
        for (uint32_t i = 0; i < prompt_w_copies(form, n_rows); i++) {
            uint32_t to = prompt_w_place(source, form, i);
            assert_true(to / 16 < n_pieces && times[to / 16]++ == 0);
            copy(stage + to, prompt_w_of(source, form) + prompt_row_step(i, source->w_step),
                 w_in && cuda_bit(source->w_valid, i), world->w[0], world->w_bytes[0]);
        }
        prompt_next(source, form, &world->job.slices);
    }
    for (uint32_t i = 0; i < n_pieces; i++)
        assert_int_equal(times[i], 1);
    free(times);
}

/* Loads the operands of a warp's four row tiles for multiplication c. */
static void prompt_operands_b(uint32_t b[4][MMA_LANES][2], const uint8_t *stage,
                              enum dense_form form, uint32_t warp, uint32_t c)
{
    const uint8_t *w = stage + prompt_warp_w(form, warp);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t at[MMA_LANES], r[MMA_LANES][4];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            at[lane] =
                form == DENSE_INT8 ? prompt_int8_at(i, c, lane) : prompt_b_at(i / 2, c, lane);
        if (form == DENSE_INT8) {
            mma_check_banks(at, 4);
            for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
                uint32_t word;
                memcpy(&word, w + at[lane], 4);
                widen(b[i][lane], word);
            }
        } else if (i % 2 == 0) {
            mma_load(r, w, at);
            for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
                uint32_t two[2][2];
                prompt_b(two, r[lane]);
                memcpy(b[i][lane], two[0], 8);
                memcpy(b[i + 1][lane], two[1], 8);
            }
        }
    }
}

static void prompt_multiply(sums_of_tile d[4][4], const uint8_t *stage, enum dense_form form,
                            uint32_t warp)
{
    for (uint32_t c = 0; c < PROMPT_WARP_STEPS; c++) {
        uint32_t a[MMA_LANES][4], b[4][MMA_LANES][2], at[MMA_LANES];
        prompt_operands_b(b, stage, form, warp, c);
        for (uint32_t i = 0; i < 4; i++) {
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                at[lane] = prompt_a_at(i, c, lane);
            mma_load(a, stage + prompt_warp_x(warp), at);
            for (uint32_t j = 0; j < 4; j++)
                if (form == DENSE_F8)
                    mma_k32(d[i][j], a, b[j], mma_f8, mma_f8);
                else
                    mma_k16(d[i][j], a, b[j], form == DENSE_F16 ? mma_f16 : mma_bf16);
        }
    }
}

static void put_result(struct world *world, uint32_t token, uint32_t row, double sum)
{
    if (token >= world->job.m || row >= world->job.parts[0].n)
        return;
    size_t at = (size_t)token * world->job.parts[0].n + row;
    world->y[0][at] = (float)sum;
    world->times[0][at]++;
}

static void prompt_put(struct world *world, sums_of_tile d[4][4], uint32_t warp, uint32_t token,
                       uint32_t row)
{
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t j = 0; j < 4; j++)
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                for (uint32_t e = 0; e < 4; e++)
                    put_result(world, token + prompt_result_token(warp, i, e, lane),
                               row + prompt_result_row(warp, j, e, lane), d[i][j][lane][e]);
}

/* Returns an element of an operand as the tensor core reads it by its descriptor. Rows have 128
 * bytes, groups of eight rows are `eight` bytes apart. Bits 4 to 6 of an address are XORed with
 * bits 7 to 9. */
static double wgmma_element(const uint8_t *shared, uint64_t matrix, uint32_t row, uint32_t k,
                            enum dense_form form)
{
    uint32_t begin = (uint32_t)(matrix & 0x3FFF) << 4, eight = (matrix >> 32 & 0x3FFF) << 4;
    uint32_t at = begin + row / 8 * eight + row % 8 * 128 + k * 2;
    uint16_t bits;
    memcpy(&bits, shared + (at ^ (at >> 7 & 7) << 4), 2);
    return form == DENSE_F16 ? mma_f16(bits) : mma_bf16(bits);
}

/* Sums of a block by wgmma, [token][weight row] as the ISA has D of m64n256: d[i] of warp w and
 * lane l is row 16w + l/4 + 8·(i/2 % 2), column 8·(i/4) + 2·(l % 4) + i % 2. */
static void wgmma_multiply(double (*sums)[WGMMA_ROWS], const uint8_t *shared, uint32_t stage,
                           enum dense_form form)
{
    for (uint32_t group = 0; group < PROMPT_THREADS / WGMMA_GROUP; group++)
        for (uint32_t c = 0; c < PROMPT_WARP_STEPS; c++) {
            uint64_t a = wgmma_matrix(wgmma_step_at(wgmma_x_at(stage, group), c));
            uint64_t b = wgmma_matrix(wgmma_step_at(wgmma_w_at(stage), c));
            double x[64][16], w[WGMMA_ROWS][16];
            for (uint32_t k = 0; k < 16; k++) {
                for (uint32_t row = 0; row < 64; row++)
                    x[row][k] = wgmma_element(shared, a, row, k, form);
                for (uint32_t row = 0; row < WGMMA_ROWS; row++)
                    w[row][k] = wgmma_element(shared, b, row, k, form);
            }
            for (uint32_t row = 0; row < 64; row++)
                for (uint32_t column = 0; column < WGMMA_ROWS; column++)
                    for (uint32_t k = 0; k < 16; k++)
                        sums[64 * group + row][column] += x[row][k] * w[column][k];
        }
}

static void wgmma_put(struct world *world, double (*sums)[WGMMA_ROWS], uint32_t token, uint32_t row)
{
    for (uint32_t thread = 0; thread < PROMPT_THREADS; thread++)
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t j = 0; j < WGMMA_ROW_TILES; j++)
                for (uint32_t two = 0; two < 2; two++) {
                    uint32_t i = wgmma_sum_at(half, j) + two, lane = thread % 32;
                    uint32_t group_row = thread % 128 / 32 * 16 + lane / 4 + 8 * (i / 2 % 2);
                    uint32_t column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
                    put_result(world, token + wgmma_result_token(thread, half),
                               row + wgmma_result_row(thread, j) + two,
                               sums[thread / 128 * 64 + group_row][column]);
                }
}

static void prompt_block(struct world *world, bool by_wgmma, uint32_t token_block,
                         uint32_t row_block)
{
    const uint32_t n_rows = by_wgmma ? WGMMA_ROWS : PROMPT_TILE;
    static struct prompt_source at[PROMPT_THREADS];
    static sums_of_tile d[8][4][4];
    static double sums[PROMPT_TILE][WGMMA_ROWS];
    uint8_t *shared = aligned_alloc(WGMMA_EIGHT, MAX_STAGE);
    uint32_t token = prompt_first(token_block, PROMPT_TILE), row = prompt_first(row_block, n_rows);
    memset(d, 0, sizeof(d));
    memset(sums, 0, sizeof(sums));
    for (uint32_t thread = 0; thread < PROMPT_THREADS; thread++) {
        at[thread] = prompt_source_of(&world->job, world->form, n_rows, token, row, thread);
        prompt_enter(&at[thread], &world->job.slices);
    }
    for (uint32_t s = 0; s < world->job.slices.count; s++) {
        uint32_t n = dense_slice_groups(&world->job.slices, s, prompt_step(world->form));
        for (uint32_t i = 0; i < n; i++) {
            prompt_stage(shared, world, n_rows, at);
            if (by_wgmma)
                wgmma_multiply(sums, shared, 0, world->form);
            for (uint32_t warp = 0; warp < 8 && !by_wgmma; warp++)
                prompt_multiply(d[warp], shared, world->form, warp);
        }
    }
    if (by_wgmma)
        wgmma_put(world, sums, token, row);
    for (uint32_t warp = 0; warp < 8 && !by_wgmma; warp++)
        prompt_put(world, d[warp], warp, token, row);
    free(shared);
}

static void prompt_all(enum dense_form form, bool by_wgmma, uint32_t m, uint32_t n, uint32_t k,
                       uint32_t n_slices)
{
    struct world world;
    world_open(&world, form, m, k, &n, 1, false, n_slices);
    for (uint32_t t = 0; t < dense_n_blocks(m, PROMPT_TILE); t++)
        for (uint32_t b = 0; b < dense_n_blocks(n, by_wgmma ? WGMMA_ROWS : PROMPT_TILE); b++)
            prompt_block(&world, by_wgmma, t, b);
    check_results(&world);
    world_close(&world);
}

static void test_path_p_multiplies_every_row_and_token_once(void **state)
{
    (void)state;
    for (int f = DENSE_F16; f < N_DENSE_FORMS; f++) {
        prompt_all((enum dense_form)f, false, 1, 3, 33, 1);
        prompt_all((enum dense_form)f, false, 130, 129, 200, 8);
        prompt_all((enum dense_form)f, false, 77, 140, 136, 2);
    }
}

static void test_wgmma_multiplies_every_row_and_token_once(void **state)
{
    (void)state;
    for (int f = DENSE_F16; f <= DENSE_BF16; f++) {
        prompt_all((enum dense_form)f, true, 1, 3, 33, 1);
        prompt_all((enum dense_form)f, true, 130, 257, 136, 8);
    }
}

/* A warp writes its sums to shared memory and reads groups of four columns. Checks that every sum
 * is read once, at its own place. */
static void check_fours(uint32_t per_token, uint32_t n_columns)
{
    static int32_t put[PROMPT_TILE * WGMMA_PITCH];
    uint32_t n_read = 0;
    memset(put, -1, sizeof(put));
    for (uint32_t thread = 0; thread < PROMPT_THREADS; thread++)
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t j = 0; j < WGMMA_ROW_TILES; j++)
                for (uint32_t two = 0; two < 2; two++) {
                    uint32_t at = wgmma_warp_at(thread / 32) + wgmma_put_at(thread % 32, half, j);
                    assert_int_equal(put[at + two], -1);
                    put[at + two] = (int32_t)(wgmma_result_token(thread, half) * WGMMA_ROWS +
                                              wgmma_result_row(thread, j) + two);
                }
    for (uint32_t thread = 0; thread < PROMPT_THREADS; thread++)
        for (uint32_t i = 0; i < per_token * WGMMA_WARP_TOKENS; i++)
            for (uint32_t e = 0; e < 4; e++, n_read++) {
                struct wgmma_four four = wgmma_four_of(i, per_token, thread / 32, thread % 32);
                const int32_t *own = put + wgmma_warp_at(thread / 32);
                int32_t wanted = (int32_t)(four.token * WGMMA_ROWS + four.column + e);
                assert_true(four.column + e < n_columns);
                assert_int_equal(own[four.at + e], wanted);
                if (per_token == 1)
                    assert_int_equal(own[wgmma_up_at(four.at) + e], wanted + WGMMA_PAIR_ROWS);
            }
    assert_int_equal(n_read, PROMPT_TILE * n_columns);
}

static void test_wgmma_hands_every_sum_over_in_shared_memory(void **state)
{
    (void)state;
    check_fours(WGMMA_LINES, WGMMA_ROWS);
    check_fours(1, WGMMA_PAIR_ROWS);
    assert_true(wgmma_sums_bytes() <= WGMMA_STAGES * wgmma_stage_bytes());
}

static void test_ring_tiles_cover_all_results_once(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{1, 1}, {128, 256}, {129, 257}, {300, 1100}, {2048, 768}};
    for (size_t c = 0; c < sizeof(sizes) / sizeof(sizes[0]); c++) {
        uint32_t m = sizes[c][0], n = sizes[c][1], before = 0;
        uint8_t times[64][8] = {{0}};
        for (uint32_t i = 0; i < ring_n_tiles(m, n, WGMMA_ROWS); i++) {
            struct ring_tile tile = ring_tile_of(i, m, WGMMA_ROWS);
            assert_true(tile.token < m && tile.row < n && tile.row >= before);
            assert_int_equal(times[tile.token / PROMPT_TILE][tile.row / WGMMA_ROWS]++, 0);
            struct dense_part part = {.n = n, .y_stride = n + n % 2};
            assert_int_equal(ring_is_whole(tile, &part), tile.row + WGMMA_ROWS <= n);
            assert_int_equal(ring_rows_left(tile.row, n), n - tile.row);
            assert_int_equal(ring_rows_left(n, n), 0);
            part.y_stride++;
            assert_false(ring_is_whole(tile, &part));
            part.sum = &(float){0}, part.sum_stride = 2;
            assert_int_equal(ring_is_whole(tile, &part),
                             tile.row + WGMMA_ROWS <= n && (uintptr_t)part.sum % 8 == 0);
            before = tile.row;
        }
        for (uint32_t t = 0; t * PROMPT_TILE < m; t++)
            for (uint32_t r = 0; r * WGMMA_ROWS < n; r++)
                assert_int_equal(times[t][r], 1);
    }
}

static void test_ring_stages_and_barriers_keep_apart(void **state)
{
    (void)state;
    struct ring_place at = {0, 0};
    for (uint32_t i = 0; i < 5 * RING_STAGES; i++, ring_next(&at)) {
        assert_int_equal(at.stage, i % RING_STAGES);
        assert_int_equal(at.parity, i / RING_STAGES % 2);
        assert_int_equal(ring_parity_before(at), (i / RING_STAGES + 1) % 2);
    }
    assert_int_equal(ring_zeros_at(), RING_STAGES * wgmma_stage_bytes());
    uint32_t next = ring_zeros_at();
    for (uint32_t i = 0; i < RING_ZERO_PIECES; i++, next += 16)
        assert_int_equal(ring_zero_at(i), next);
    assert_int_equal(next, ring_zeros_at() + 64 * 128);
    for (uint32_t i = 0; i < RING_STAGES; i++, next += 8)
        assert_int_equal(ring_full_at(i), next);
    for (uint32_t i = 0; i < RING_STAGES; i++, next += 8)
        assert_int_equal(ring_empty_at(i), next);
    for (uint32_t warp = 0; warp < RING_WARPS; warp++, next += 16 * RING_PAIR_PITCH * 4)
        assert_int_equal(ring_pairs_at(warp), next);
    assert_true(next + WGMMA_EIGHT <= ring_shared_bytes() && ring_shared_bytes() <= 227 << 10);
    assert_int_equal(ring_half_sum_at(0), 0);
    assert_int_equal(ring_half_sum_at(RING_HALVES), WGMMA_SUMS);
    struct dense_slices slices = dense_slices_of(700);
    for (uint32_t s = 0; s < CUDA_SEGMENTS; s++) {
        assert_int_equal(ring_columns_of(&slices, s).begin, slices.bounds[s]);
        assert_int_equal(ring_columns_of(&slices, s).end, slices.bounds[s + 1]);
    }
    assert_int_equal(ring_half_at(wgmma_w_at(0), 0), wgmma_w_at(0));
    assert_int_equal(ring_half_at(wgmma_w_at(0), RING_HALVES), wgmma_stage_bytes());
}

/* The gates and ups of a tile pass through the floats of the warps. Each is read once, and a gate
 * and its up meet in one lane. */
static void test_ring_hands_every_gate_to_the_lane_of_its_up(void **state)
{
    (void)state;
    static uint8_t times[PROMPT_TILE][RING_PAIR_ROWS];
    memset(times, 0, sizeof(times));
    struct ring_tile tile = {256, 384};
    assert_int_equal(ring_n_tiles(129, 385, RING_PAIR_ROWS), 2 * 4);
    assert_int_equal(ring_tile_of(3, 129, RING_PAIR_ROWS).row, RING_PAIR_ROWS);
    assert_int_equal(ring_half_row(tile, 1, true), 384);
    assert_int_equal(ring_half_row(tile, 1, false), 384 + RING_HALF_ROWS);
    for (uint32_t warp = 0; warp < RING_WARPS; warp++)
        for (uint32_t i = 0; i < RING_PAIR_CHUNKS; i++) {
            int32_t put[16 * RING_PAIR_PITCH];
            memset(put, -1, sizeof(put));
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t e = 0; e < 16; e++) { /* e counts half, j, is_up and two */
                    uint32_t half = e / 8, j = e / 4 % 2, is_up = e / 2 % 2, two = e % 2;
                    uint32_t thread = warp * 32 + lane;
                    uint32_t row = wgmma_result_row(thread, ring_pair_tile(i, j, is_up)) + two;
                    uint32_t at = ring_pair_at(lane, half, j, is_up) + two;
                    assert_int_equal(put[at], -1);
                    put[at] = (int32_t)(wgmma_result_token(thread, half) * WGMMA_ROWS + row);
                }
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t turn = 0; turn < RING_PAIR_TURNS; turn++)
                    for (uint32_t e = 0; e < 2; e++) {
                        struct ring_two two = ring_two_of(turn, lane);
                        uint32_t token = ring_warp_token(warp) + two.token;
                        uint32_t column = ring_chunk_column(i) + two.column + e;
                        int32_t gate = (int32_t)(token * WGMMA_ROWS + column);
                        assert_int_equal(put[two.gate_at + e], gate);
                        assert_int_equal(put[two.up_at + e], gate + RING_PAIR_ROWS);
                        assert_int_equal(times[token][column]++, 0);
                    }
        }
    for (uint32_t t = 0; t < PROMPT_TILE; t++)
        for (uint32_t c = 0; c < RING_PAIR_ROWS; c++)
            assert_int_equal(times[t][c], 1);
}

/* Multiplies every column of a segment, and zeros in place of the columns after it. */
static void test_ring_zeros_take_the_place_of_tokens_after_a_segment(void **state)
{
    (void)state;
    static const enum dense_form forms[] = {DENSE_F16, DENSE_BF16, DENSE_F8};
    for (uint32_t f = 0; f < 3; f++) {
        uint32_t step = prompt_step(forms[f]), columns = step / RING_STEPS;
        assert_int_equal(ring_x_byte(forms[f], 3 * step), 3 * PROMPT_LINE);
        assert_int_equal(ring_w_byte(forms[f], 3 * step), 3 * PROMPT_LINE);
        for (uint32_t left = columns; left < 2 * step; left += columns) {
            struct ring_operands of = {4096, 0, 1024, ring_n_steps(forms[f], left)};
            for (uint32_t c = 0; c < RING_STEPS; c++)
                assert_int_equal(ring_x_at(&of, c),
                                 wgmma_step_at((c + 1) * columns <= left ? of.x : of.zeros, c));
            assert_int_equal(ring_n_steps(forms[f], left - 1), of.n_steps); /* K's end */
        }
    }
}

/* --- numbers --- */

static void test_the_tree_in_registers_is_the_contracts(void **state)
{
    (void)state;
    for (uint32_t present = 1; present < 256; present++) {
        float planes[CUDA_SEGMENTS * 3], parts[CUDA_SEGMENTS];
        for (uint32_t s = 0; s < CUDA_SEGMENTS; s++)
            parts[s] = planes[s * 3] = 1.0f / (float)(3 + 7 * s + present);
        assert_true(dense_tree(planes, 3, present) == cuda_tree_sum(parts, present, CUDA_SEGMENTS));
    }
}

static void test_activations_are_bounded_and_scaled(void **state)
{
    (void)state;
    static const float scale[] = {0.5f, 4.0f};
    assert_true(dense_scaled(3.0f, NULL, NULL, 1, 1) == 3.0f);
    assert_true(dense_scaled(3.0f, scale, NULL, 1, 0) == 12.0f);
    assert_true(dense_scaled(3.0f, scale, scale, 0, 1) == 6.0f);
    assert_true(dense_scaled_by(3.0f, scale[0], scale[1]) == 6.0f);
    assert_int_equal(act_half(1e6f, DENSE_F16), maths_f32_to_f16(65504.0f));
    assert_int_equal(act_half(-1e6f, DENSE_F16), maths_f32_to_f16(-65504.0f));
    assert_int_equal(act_half(1e6f, DENSE_BF16), maths_f32_to_bf16(1e6f));
    static const float tops[] = {1e-3f, 0.37f, 1.0f, 448.0f, 9.7e5f};
    for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
        float top = tops[i];
        assert_int_equal(act_f8_code(top, act_f8_inverse(top)), 0x7E); /* 448 */
        assert_int_equal(act_f8_code(-top, act_f8_inverse(top)), 0xFE);
        assert_true(act_f8_unit(top) * 448.0f >= top * 0.999999f);
    }
    /* each thread takes four columns, and the threads take the whole row */
    for (uint32_t k = 1; k < 1500; k += 37) {
        uint32_t next = 0;
        for (uint32_t block = 0; block <= k / ACT_BLOCK_COLUMNS; block++)
            for (uint32_t thread = 0; thread < ACT_THREADS; thread++, next += ACT_COLUMNS)
                assert_int_equal(act_column(block, thread), next);
        assert_true(next >= k);
    }
}

/* Tiles of several parts: every row of every part has one tile, and prompt_take_part() reads it. */
static void test_tiles_of_parts_cover_every_row_once(void **state)
{
    (void)state;
    static const uint32_t sizes[][DENSE_MAX_PARTS] = {
        {256, 256, 256}, {4096, 1024, 1024}, {1, 257, 255}, {300, 17, 0}, {7, 0, 0}};
    for (size_t c = 0; c < sizeof(sizes) / sizeof(sizes[0]); c++) {
        struct dense_job job = {.k = 64, .w_row_bytes = 128, .m = 1, .x_stride = 64};
        uint32_t covered[DENSE_MAX_PARTS] = {0};
        while (job.n_parts < DENSE_MAX_PARTS && sizes[c][job.n_parts] > 0) {
            job.parts[job.n_parts].n = sizes[c][job.n_parts];
            job.parts[job.n_parts].w = (const void *)(uintptr_t)((job.n_parts + 1) << 24);
            job.n_parts++;
        }
        for (uint32_t i = 0; i < wgmma_n_tiles(&job); i++) {
            struct wgmma_tile tile = wgmma_tile_of(&job, i);
            assert_true(tile.part < job.n_parts && tile.row == covered[tile.part]);
            covered[tile.part] += WGMMA_ROWS;
            const struct dense_part *part = &job.parts[tile.part];
            for (uint32_t thread = 0; thread < PROMPT_THREADS; thread += 37) {
                struct prompt_source at =
                    prompt_source_of(&job, DENSE_BF16, WGMMA_ROWS, 0, tile.row, thread);
                struct dense_job alone = job;
                alone.parts[0] = *part;
                struct prompt_source wanted =
                    prompt_source_of(&alone, DENSE_BF16, WGMMA_ROWS, 0, tile.row, thread);
                prompt_take_part(&at, &job, part, DENSE_BF16, WGMMA_ROWS, tile.row, thread);
                assert_true(at.w == wanted.w && at.w_valid == wanted.w_valid);
                assert_true(at.w_step == wanted.w_step && at.w_at == wanted.w_at);
            }
        }
        for (uint32_t p = 0; p < job.n_parts; p++)
            assert_true(covered[p] >= job.parts[p].n && covered[p] < job.parts[p].n + WGMMA_ROWS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_of_parts_cover_every_row_once),
        cmocka_unit_test(test_every_int8_is_widened_exactly),
        cmocka_unit_test(test_path_d_multiplies_every_row_and_token_once),
        cmocka_unit_test(test_a_lane_reads_its_ring_without_meeting_others),
        cmocka_unit_test(test_slices_of_a_block_keep_apart),
        cmocka_unit_test(test_path_p_multiplies_every_row_and_token_once),
        cmocka_unit_test(test_wgmma_multiplies_every_row_and_token_once),
        cmocka_unit_test(test_wgmma_hands_every_sum_over_in_shared_memory),
        cmocka_unit_test(test_ring_tiles_cover_all_results_once),
        cmocka_unit_test(test_ring_stages_and_barriers_keep_apart),
        cmocka_unit_test(test_ring_hands_every_gate_to_the_lane_of_its_up),
        cmocka_unit_test(test_ring_zeros_take_the_place_of_tokens_after_a_segment),
        cmocka_unit_test(test_the_tree_in_registers_is_the_contracts),
        cmocka_unit_test(test_activations_are_bounded_and_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
