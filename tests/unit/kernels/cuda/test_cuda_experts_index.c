/* Tests of the index arithmetic of experts and router on the CPU, from the lines that nvcc
 * compiles. The subjects are the table of tiles, the rows of the work memory, and the order of
 * pairs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/experts/experts_index.h"
#include "kernels/cuda/experts/heads_index.h"
#include "kernels/cuda/experts/router_index.h"
#include "kernels/cuda/linear_quant/quant_place.h"
#include "kernels/experts.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { UNWRITTEN = 0x2BABABAB, MAX_PAIRS = 700, MAX_TABLE = 2000 };

static const uint32_t tile_sizes[] = {EXPERTS_FEW_ROWS, EXPERTS_MANY_ROWS};

/* Numbers of experts and of pairs: odd, few, and many against each other. */
static const uint32_t shapes[][2] = {
    {1, 1},   {1, 33},  {2, 1},    {3, 97},  {5, 8},   {8, 64},  {8, 65},     {60, 4},  {60, 241},
    {128, 8}, {128, 7}, {17, 600}, {257, 3}, {1, 700}, {31, 31}, {1024, 699}, {64, 512}};

enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* Ways to spread pairs over experts. */
enum spread { SPREAD_RANDOM, SPREAD_EVEN, SPREAD_FIRST, SPREAD_LAST, SPREAD_MOST_TILES, N_SPREADS };

static uint32_t expert_of(struct random *random, enum spread spread, uint32_t i, uint32_t n_experts)
{
    switch (spread) {
    case SPREAD_RANDOM:
        return random_u32(random) % n_experts;
    case SPREAD_EVEN:
        return i % n_experts;
    case SPREAD_FIRST:
        return 0;
    case SPREAD_LAST:
        return n_experts - 1;
    default: /* a pair per expert; the rest goes to the last expert */
        return i < n_experts ? i : n_experts - 1;
    }
}

/* The tiles of a step as the kernels compute them. */
struct step {
    uint32_t n_experts, n_pairs, tile_rows, n_tiles;
    uint32_t begins[EXPERTS_MAX + 1];
    uint32_t table[MAX_TABLE];
};

static void fill_step(struct step *s, uint32_t shape, enum spread spread, uint32_t tile_rows)
{
    struct random random = {shape + 1};
    uint32_t n_experts = shapes[shape][0], n_pairs = shapes[shape][1];
    memset(s, 0, sizeof(*s));
    s->n_experts = n_experts;
    s->n_pairs = n_pairs;
    s->tile_rows = tile_rows;
    s->n_tiles = experts_max_tiles(n_pairs, n_experts, tile_rows);
    for (uint32_t i = 0; i < n_pairs; i++)
        s->begins[expert_of(&random, spread, i, n_experts) + 1]++;
    for (uint32_t e = 0; e < n_experts; e++)
        s->begins[e + 1] += s->begins[e];
    for (uint32_t i = 0; i < MAX_TABLE; i++)
        s->table[i] = UNWRITTEN;
    for (uint32_t e = n_experts + 1; e > 0; e--) /* threads run in any order */
        experts_fill(s->table, s->begins, n_experts, e - 1, tile_rows, s->n_tiles);
}

/* Calls `check` for every shape, spread and size of tiles. */
static void for_each_step(void (*check)(const struct step *s))
{
    struct step *s = malloc(sizeof(*s));
    for (uint32_t i = 0; i < N_SHAPES; i++)
        for (uint32_t spread = 0; spread < N_SPREADS; spread++)
            for (uint32_t t = 0; t < 2; t++) {
                fill_step(s, i, (enum spread)spread, tile_sizes[t]);
                check(s);
            }
    free(s);
}

/* --- the table --- */

static void check_table(const struct step *s)
{
    uint32_t tile = 0, n_words = s->n_experts + 1 + s->n_tiles;
    assert_true(n_words <= experts_table_words(s->n_experts, s->n_pairs));
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t n = s->begins[e + 1] - s->begins[e], n_tiles = 0;
        assert_int_equal(s->table[e], tile);
        while (tile < s->n_tiles && s->table[experts_tile_at(s->n_experts, 0, tile)] == e) {
            tile++;
            n_tiles++;
        }
        assert_true(n_tiles * s->tile_rows >= n);
        assert_true(n_tiles * s->tile_rows < n + s->tile_rows);
    }
    assert_int_equal(s->table[s->n_experts], tile);
    for (; tile < s->n_tiles; tile++)
        assert_int_equal(s->table[experts_tile_at(s->n_experts, 0, tile)], EXPERTS_NO_TILE);
    for (uint32_t i = n_words; i < MAX_TABLE; i++)
        assert_int_equal(s->table[i], UNWRITTEN);
}

static void test_the_table_has_every_tile_once_and_nothing_behind(void **state)
{
    (void)state;
    for_each_step(check_table);
}

static void test_the_bound_of_tiles_is_reached_and_never_passed(void **state)
{
    (void)state;
    struct step *s = malloc(sizeof(*s));
    for (uint32_t i = 0; i < N_SHAPES; i++)
        for (uint32_t t = 0; t < 2; t++) {
            for (uint32_t spread = 0; spread < N_SPREADS; spread++) {
                fill_step(s, i, (enum spread)spread, tile_sizes[t]);
                assert_true(s->table[s->n_experts] <= s->n_tiles);
            }
            fill_step(s, i, SPREAD_MOST_TILES, tile_sizes[t]);
            assert_int_equal(s->table[s->n_experts], s->n_tiles);
        }
    free(s);
}

static void test_tiles_are_large_for_many_rows_per_expert_alone(void **state)
{
    (void)state;
    assert_int_equal(experts_tile_rows(1, 1), EXPERTS_FEW_ROWS);
    assert_int_equal(experts_tile_rows(8 * 60, 60), EXPERTS_FEW_ROWS);
    assert_int_equal(experts_tile_rows(8 * 60 + 1, 60), EXPERTS_MANY_ROWS);
}

/* --- rows of the work memory --- */

/* Rows of all batches of `most` tiles: each pair has exactly one row, and other rows are unused. */
static void check_batches(const struct step *s, uint32_t most)
{
    static uint8_t seen[MAX_PAIRS];
    memset(seen, 0, sizeof(seen));
    for (uint32_t first = 0; first < s->n_tiles; first += most) {
        uint32_t n = s->n_tiles - first < most ? s->n_tiles - first : most;
        for (uint32_t slot = 0; slot < experts_n_slots(n, s->tile_rows); slot++) {
            uint32_t tile = experts_tile_of(slot, 1, s->tile_rows), pair, found;
            uint32_t e = s->table[experts_tile_at(s->n_experts, first, tile)];
            assert_true(tile < n);
            if (e == EXPERTS_NO_TILE ||
                !experts_find_pair(s->begins, e, s->table[e], first, s->tile_rows, slot, &pair))
                continue;
            assert_in_range(pair, s->begins[e], s->begins[e + 1] - 1);
            assert_int_equal(seen[pair]++, 0);
            uint32_t place = experts_slot(s->table[e], s->tile_rows, pair, s->begins[e]);
            assert_true(experts_find_slot(place, first, n, s->tile_rows, &found));
            assert_int_equal(found, slot);
        }
    }
    for (uint32_t pair = 0; pair < s->n_pairs; pair++)
        assert_int_equal(seen[pair], 1);
}

static void check_slots(const struct step *s)
{
    static const uint32_t sizes[] = {1, 2, 7, MAX_PAIRS};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        check_batches(s, sizes[i]);
}

static void test_every_pair_has_one_row_in_one_batch(void **state)
{
    (void)state;
    for_each_step(check_slots);
}

static void test_a_row_is_found_in_its_batch_alone(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t slot = 0; slot < 9 * tile_sizes[t]; slot++) {
            uint32_t n_found = 0;
            for (uint32_t first = 0; first < 9; first += 4) {
                uint32_t n = 9 - first < 4 ? 9 - first : 4, found;
                if (!experts_find_slot(slot, first, n, tile_sizes[t], &found))
                    continue;
                n_found++;
                assert_true(found < experts_n_slots(n, tile_sizes[t]));
                assert_int_equal(experts_n_slots(first, tile_sizes[t]) + found, slot);
            }
            assert_int_equal(n_found, 1);
        }
}

/* A block computes rows of a single tile; the blocks of a tile are adjacent. */
static void test_blocks_of_a_product_lie_within_their_tile(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{8, 8}, {8, 32}, {16, 32}, {32, 32}, {1, 8}, {1, 32}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (uint32_t block = 0; block < 300; block++)
            for (uint32_t row = 0; row < sizes[i][0]; row++)
                assert_int_equal(experts_tile_of(block, sizes[i][0], sizes[i][1]),
                                 (block * sizes[i][0] + row) / sizes[i][1]);
}

/* Quantized products: a block has as many rows as a tile, and takes the tile of its own number. */
static void test_a_block_of_quantized_experts_is_a_tile(void **state)
{
    (void)state;
    static const uint32_t kernels[2] = {QUANT_ROWS_8, QUANT_ROWS_32};
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t block = 0; block < 300; block++)
            assert_int_equal(
                experts_tile_of(quant_block_tile(kernels[t], block), QUANT_TILE, tile_sizes[t]),
                block);
}

/* --- the router --- */

static void test_groups_have_every_expert_once(void **state)
{
    (void)state;
    static const uint32_t groups[][2] = {{1, 1}, {6, 3}, {256, 8}, {60, 60}, {1024, 64}, {35, 7}};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        uint32_t size = router_group_size(groups[i][0], groups[i][1]), expert = 0;
        for (uint32_t g = 0; g < groups[i][1]; g++)
            for (uint32_t j = 0; j < size; j++, expert++) {
                assert_int_equal(router_expert_at(g, size, j), expert);
                assert_int_equal(router_group_of(expert, size), g);
            }
        assert_int_equal(expert, groups[i][0]);
    }
}

/* The sum of a row needs each of its elements once among the contract's lanes. */
static void test_lanes_of_a_sum_are_the_contracts_in_both_halves_of_a_warp(void **state)
{
    (void)state;
    for (uint32_t thread = 0; thread < CUDA_WARP; thread++) {
        assert_true(router_lane_of(thread) < CUDA_LANES);
        assert_int_equal(router_lane_of(thread), router_lane_of(thread ^ CUDA_LANES));
        if (thread < CUDA_LANES)
            assert_int_equal(router_lane_of(thread), thread);
    }
}

/* Threads order pairs as in order_pairs(): by expert, then by row, each place taken once. */
static void test_threads_place_every_pair_once_in_order(void **state)
{
    (void)state;
    enum { THREADS = 128, EXPERTS = 9 };
    static const uint32_t rows_used[][2] = {{1, 1}, {1, 8}, {13, 3}, {100, 7}, {129, 1}, {64, 2}};
    for (size_t r = 0; r < sizeof(rows_used) / sizeof(rows_used[0]); r++) {
        uint32_t n_used = rows_used[r][1], n_pairs = router_n_pairs(rows_used[r][0], n_used);
        uint32_t *rows = malloc(n_pairs * sizeof(*rows)), place = 0;
        assert_int_equal(n_pairs, rows_used[r][0] * n_used);
        for (uint32_t expert = 0; expert < EXPERTS; expert++) {
            uint32_t first = place, next = 0;
            for (uint32_t t = 0; t < THREADS; t++) {
                uint32_t begin, end;
                router_share(n_pairs, t, THREADS, &begin, &end);
                assert_int_equal(begin, next);
                next = end;
                for (uint32_t i = begin; i < end; i++)
                    if ((i % n_used + router_row_of(i, n_used)) % EXPERTS == expert)
                        rows[place++] = router_row_of(i, n_used);
            }
            assert_int_equal(next, n_pairs);
            for (uint32_t i = first; i < place; i++) {
                assert_true(rows[i] < rows_used[r][0]);
                assert_true(i == first || rows[i] > rows[i - 1]);
            }
        }
        assert_int_equal(place, n_pairs);
        free(rows);
    }
}

/* Blocks of a product of heads: each head has the same number, one after the other. */
static void test_blocks_of_heads_are_adjacent(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 5; n++)
        for (uint32_t heads = 1; heads <= 4; heads++) {
            assert_int_equal(heads_n_blocks(7, n, heads), n * heads);
            for (uint32_t block = 0; block < n * heads; block++)
                assert_int_equal(heads_head_of(block, n) * n + heads_block_of(block, n), block);
        }
    assert_int_equal(heads_n_blocks(7, 0, 3), 7); /* experts */
    assert_int_equal(heads_tile_rows(EXPERTS_FEW_ROWS), EXPERTS_FEW_ROWS);
    assert_int_equal(heads_tile_rows(EXPERTS_FEW_ROWS + 1), EXPERTS_MANY_ROWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_table_has_every_tile_once_and_nothing_behind),
        cmocka_unit_test(test_the_bound_of_tiles_is_reached_and_never_passed),
        cmocka_unit_test(test_tiles_are_large_for_many_rows_per_expert_alone),
        cmocka_unit_test(test_every_pair_has_one_row_in_one_batch),
        cmocka_unit_test(test_a_row_is_found_in_its_batch_alone),
        cmocka_unit_test(test_blocks_of_a_product_lie_within_their_tile),
        cmocka_unit_test(test_a_block_of_quantized_experts_is_a_tile),
        cmocka_unit_test(test_groups_have_every_expert_once),
        cmocka_unit_test(test_lanes_of_a_sum_are_the_contracts_in_both_halves_of_a_warp),
        cmocka_unit_test(test_threads_place_every_pair_once_in_order),
        cmocka_unit_test(test_blocks_of_heads_are_adjacent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
