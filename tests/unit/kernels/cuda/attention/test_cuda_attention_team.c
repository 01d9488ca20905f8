/* Tests the places of the team kernel (attention_team_place.h). Every byte of a partition is copied
 * once, and read by the lanes that multiply it. No two lanes of a read share a bank. The areas of
 * shared memory lie apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/attention/attention_team_place.h"

enum { CHUNKS = TEAM_DIM / 16, HOPPER_SHARED = 227 << 10 };

/* [byte of the team's memory]: position · CHUNKS + chunk + 1 of the 16 bytes that begin here. */
static uint16_t held[256 << 10];

static void hold(uint32_t at, uint32_t begin, uint32_t end, uint32_t position, uint32_t chunk)
{
    assert_int_equal(at % 16, 0);
    assert_true(at >= begin && at + 16 <= end);
    assert_int_equal(held[at], 0);
    held[at] = (uint16_t)(position * CHUNKS + chunk + 1);
}

static void test_keys_are_copied_once_and_cover_the_partition(void **state)
{
    (void)state;
    struct team_memory m = team_memory_of();
    uint8_t seen[CUDA_PARTITION][CHUNKS] = {0};
    memset(held, 0, sizeof(held));
    for (uint32_t part = 0; part < TEAM_WARPS; part++)
        for (uint32_t lane = 0; lane < CUDA_WARP; lane++)
            for (uint32_t s = 0; s < TEAM_STAGES; s++)
                for (uint32_t i = 0; i < 2; i++)
                    for (uint32_t j = 0; j < 2; j++) {
                        uint32_t own = team_key_position(s, i, fragment_group(lane));
                        uint32_t chunk = decode_key_elem(j, fragment_member(lane), 1) / 16;
                        assert_true(own < TEAM_POSITIONS);
                        seen[team_position(part, own)][chunk]++;
                        hold(team_key_at(m, part, s, i, j, lane), m.keys, m.values,
                             team_position(part, own), chunk);
                    }
    for (uint32_t p = 0; p < CUDA_PARTITION; p++)
        for (uint32_t c = 0; c < CHUNKS; c++)
            assert_int_equal(seen[p][c], 1);
}

/* Scores have the positions of their keys, in the order that one warp would have. */
static void test_scores_have_the_positions_of_their_keys(void **state)
{
    (void)state;
    uint8_t seen[CUDA_PARTITION] = {0};
    for (uint32_t part = 0; part < TEAM_WARPS; part++)
        for (uint32_t s = 0; s < TEAM_STAGES; s++)
            for (uint32_t i = 0; i < 2; i++)
                for (uint32_t t = 0; t < 4; t++)
                    for (uint32_t c = 0; c < 2; c++) {
                        uint32_t position = team_score_position(part, s, i, t, c);
                        assert_int_equal(position, team_tile(part, s, i) * 8 + t * 2 + c);
                        /* column g of the mma is lane row g's key */
                        assert_int_equal(position,
                                         team_position(part, team_key_position(s, i, t * 2 + c)));
                        seen[position]++;
                    }
    for (uint32_t p = 0; p < CUDA_PARTITION; p++)
        assert_int_equal(seen[p], 1);
}

static void test_values_are_copied_once_and_read_without_conflicts(void **state)
{
    (void)state;
    struct team_memory m = team_memory_of();
    memset(held, 0, sizeof(held));
    for (uint32_t part = 0; part < TEAM_WARPS; part++)
        for (uint32_t lane = 0; lane < CUDA_WARP; lane++)
            for (uint32_t i = 0; i < TEAM_COPIES; i++) {
                uint32_t position = team_position(part, team_value_position(i, lane));
                hold(team_value_at(m, position, team_value_chunk(lane)), m.values, m.k_scales,
                     position, team_value_chunk(lane));
            }
    for (uint32_t part = 0; part < TEAM_WARPS; part++)
        for (uint32_t s = 0; s < DECODE_STAGES; s++)
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t banks = 0;
                for (uint32_t lane = 0; lane < CUDA_WARP; lane++) {
                    uint32_t g = fragment_group(lane), position = team_row(s, i, lane % 4);
                    uint32_t at = team_word_at(m, position, part, g);
                    uint32_t elem = part * 32 + g * TEAM_ELEMS; /* the lane's first */
                    assert_int_equal(held[at / 16 * 16], position * CHUNKS + elem / 16 + 1);
                    assert_int_equal(at % 16, elem % 16);
                    banks |= 1u << (at / 4 % 32);
                }
                assert_int_equal(banks, 0xFFFFFFFFu);
            }
}

/* Column 2t + c of mma e is element e of lane row g = 2t + c. */
static void test_sums_cover_the_head(void **state)
{
    (void)state;
    uint8_t seen[TEAM_DIM] = {0};
    for (uint32_t part = 0; part < TEAM_WARPS; part++)
        for (uint32_t t = 0; t < 4; t++)
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t e = 0; e < TEAM_ELEMS; e++) {
                    uint32_t elem = team_sum_elem(part, t, c) + e;
                    assert_int_equal(elem, part * 32 + (t * 2 + c) * TEAM_ELEMS + e);
                    seen[elem]++;
                }
    for (uint32_t i = 0; i < TEAM_DIM; i++)
        assert_int_equal(seen[i], 1);
}

static void test_scales_are_copied_once(void **state)
{
    (void)state;
    uint8_t seen[2][CUDA_PARTITION] = {{0}};
    for (uint32_t part = 0; part < TEAM_WARPS; part++)
        for (uint32_t lane = 0; lane < CUDA_WARP; lane++)
            if (team_copies_scales(lane))
                for (uint32_t i = 0; i < 4; i++)
                    seen[team_is_key_scale(lane)]
                        [team_position(part, team_scale_position(lane)) + i]++;
    for (uint32_t p = 0; p < CUDA_PARTITION; p++)
        assert_true(seen[0][p] == 1 && seen[1][p] == 1);
}

/* Places of vectors and scales are those of the cache's layout, in units of 16 bytes. */
static void test_places_are_those_of_the_cache(void **state)
{
    (void)state;
    for (uint32_t block_size = 4; block_size <= 128; block_size *= 2) {
        struct attention_cuda a = {
            .kv = {NULL, NULL, DTYPE_I8, 100, block_size, 3, 80, 80},
            .block_shift = attention_shift_of(block_size),
            .heads_per_kv = 4,
        };
        a.k = a.v = attention_plane_of(&a.kv, 80);
        assert_true(attention_is_tiled(&a.kv, 4) && team_is_possible(&a));
        for (uint32_t position = 0; position < CUDA_PARTITION; position += 4) {
            uint32_t slot = 7 * block_size + position % block_size;
            uint32_t page = team_page_place(&a, 7, 2);
            assert_int_equal(team_bytes_of(team_vector_place(&a, page, position)),
                             kv_cuda_vector_at(&a.kv, 80, slot, 2));
            assert_int_equal(team_bytes_of(team_scales_place(&a, page, position)),
                             kv_cuda_scale_at(&a.kv, 80, slot, 2));
        }
    }
}

/* The team kernel refuses pools whose offsets do not fit 32 bits, wide vectors and many heads.
 * Another kernel takes these. */
static void test_calls_that_teams_cannot_compute_are_refused(void **state)
{
    (void)state;
    struct attention_cuda a = {.kv = {NULL, NULL, DTYPE_F8_E4M3, 1000, 32, 8, 128, 128},
                               .k = {.page_bytes = 4224},
                               .heads_per_kv = 8};
    assert_true(team_is_possible(&a));
    a.kv.n_blocks = 2200000; /* 69 GiB */
    assert_false(team_is_possible(&a));
    a.kv.n_blocks = 1000;
    a.kv.head_dim = a.kv.v_dim = 256;
    assert_false(team_is_possible(&a));
    a.kv.head_dim = a.kv.v_dim = 128;
    a.kv.v_dim = 64; /* V narrower than K */
    assert_false(team_is_possible(&a));
    a.kv.v_dim = 128;
    a.heads_per_kv = 9;
    assert_false(team_is_possible(&a));
    a.heads_per_kv = 8;
    a.kv.dtype = DTYPE_BF16;
    assert_false(team_is_possible(&a));
}

static void test_areas_of_shared_memory_lie_apart(void **state)
{
    (void)state;
    struct team_memory m = team_memory_of();
    const uint32_t ends[][2] = {
        {m.k_scales, team_scale_at(m.k_scales, CUDA_PARTITION)},
        {m.v_scales, team_scale_at(m.v_scales, CUDA_PARTITION)},
        {m.weights, team_tile_at(m.weights, DECODE_SCORES, 0)},
        {m.operands, team_tile_at(m.operands, DECODE_SCORES, 0)},
        {m.sums, team_sum_at(m, DECODE_SPLIT_HEADS, 0)},
        {m.maxima, team_slot_at(m.maxima, TEAM_WARPS, 0)},
        {m.units, team_slot_at(m.units, TEAM_WARPS, 0)},
        {team_at(m, CUDA_GROUP_PARTITIONS), team_at(m, CUDA_GROUP_PARTITIONS)},
        {m.queries, team_query_at(m, TEAM_STEPS, 0)},
        {m.stats, team_stat_at(m, CUDA_GROUP_PARTITIONS, false, 0)},
    };
    enum { N = sizeof(ends) / sizeof(ends[0]) };
    for (uint32_t i = 0; i < N; i++)
        if (i != 6 && i + 1 < N) /* the team's memory ends with its units */
            assert_int_equal(ends[i][1], ends[i + 1][0]);
    assert_int_equal(ends[6][1], m.team_bytes);
    assert_int_equal(m.team_bytes % 16, 0);
    assert_int_equal(ends[N - 1][1], m.n_bytes);
    assert_true(m.n_bytes <= HOPPER_SHARED);
}

/* The groups of a single row are spread over the SMs. A large batch keeps its blocks long. */
static void test_strides_follow_the_rows_and_groups(void **state)
{
    (void)state;
    struct decode_plan plan = {.n_groups = 16, .n_tiles = 8};
    assert_int_equal(team_strides(&plan, 1), 16);
    assert_int_equal(team_strides(&plan, 8), 2);
    assert_int_equal(team_strides(&plan, 20), 4);
    assert_int_equal(team_strides(&plan, 32), 1);
    assert_int_equal(team_strides(&plan, 1000), 1);
    plan.n_groups = 1;
    assert_int_equal(team_strides(&plan, 1), 1);
}

/* A rank's heads may begin and end within those of a KV head. */
static void test_heads_are_found_as_one_by_one(void **state)
{
    (void)state;
    for (uint32_t heads_per_kv = 1; heads_per_kv <= 8; heads_per_kv++)
        for (uint32_t begin = 0; begin < 12; begin++)
            for (uint32_t n = 1; n < 12; n++)
                for (uint32_t i_kv = 0; i_kv < 4; i_kv++) {
                    struct attention_cuda a = {.n_heads = n,
                                               .head_begin = begin,
                                               .kv_begin = begin / heads_per_kv,
                                               .heads_per_kv = heads_per_kv};
                    assert_int_equal(team_has_heads(&a, i_kv),
                                     attention_has_heads(&a, i_kv, 0, DECODE_SPLIT_HEADS));
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_are_copied_once_and_cover_the_partition),
        cmocka_unit_test(test_scores_have_the_positions_of_their_keys),
        cmocka_unit_test(test_values_are_copied_once_and_read_without_conflicts),
        cmocka_unit_test(test_sums_cover_the_head),
        cmocka_unit_test(test_scales_are_copied_once),
        cmocka_unit_test(test_places_are_those_of_the_cache),
        cmocka_unit_test(test_calls_that_teams_cannot_compute_are_refused),
        cmocka_unit_test(test_areas_of_shared_memory_lie_apart),
        cmocka_unit_test(test_strides_follow_the_rows_and_groups),
        cmocka_unit_test(test_heads_are_found_as_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
