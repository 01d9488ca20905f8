/* Tests of the CUDA backend's index arithmetic on the CPU: the lines that nvcc compiles must follow
 * the contract. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/sample/sample_passes.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/sample/sample_state.h"
#include "kernels/segments.h"
#include "tests/unit/kernels/support/support_kernels.h"

static void test_blocks_cover_all_items_up_to_the_limit(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        uint32_t size, limit, blocks;
    } rows[] = {
        {1, 256, 10, 1},     {256, 256, 10, 1},        {257, 256, 10, 2},
        {2560, 256, 10, 10}, {2561, 256, 10, 10},      {1ull << 40, 256, 4096, 4096},
        {7, 1, 65535, 7},    {70000, 1, 65535, 65535},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(cuda_n_blocks(rows[i].n, rows[i].size, rows[i].limit), rows[i].blocks);
}

static void test_segment_bounds_equal_the_contracts(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 31, 32, 33, 255, 256, 576, 1536, 49152, 128256, 1u << 20};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        struct segments seg;
        struct sample_segments vocab;
        struct error err = {0};
        assert_int_equal(segments_init(&seg, dims[i], 1, 1, 0, &err), 0);
        sample_segments_init(&vocab, dims[i]);
        for (uint32_t s = 0; s <= CUDA_SEGMENTS; s++) {
            assert_int_equal(cuda_segment_bound(dims[i], s), seg.bounds[s]);
            assert_int_equal(cuda_segment_bound(dims[i], s), vocab.bounds[s]);
        }
    }
}

static void test_pieces_are_adjacent_and_cover_the_range(void **state)
{
    (void)state;
    enum { PIECES = 128 };
    static const uint32_t ranges[][2] = {{0, 0}, {5, 6}, {100, 228}, {100, 227}, {0, 1u << 20}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        uint32_t at = ranges[i][0], begin, end;
        for (uint32_t p = 0; p < PIECES; p++) {
            cuda_piece(ranges[i][0], ranges[i][1], p, PIECES, &begin, &end);
            assert_int_equal(begin, at);
            assert_true(end >= begin);
            at = end;
        }
        assert_int_equal(at, ranges[i][1]);
    }
}

/* Threads walk a grid as in kernels. They visit every item once, for any number of blocks and
 * threads. */
static void test_threads_of_a_grid_take_every_item_once(void **state)
{
    (void)state;
    static const uint32_t grids[][3] = {/* items, blocks, threads */
                                        {1, 1, 1},    {7, 3, 2},     {255, 1, 256}, {257, 2, 256},
                                        {1000, 3, 7}, {1000, 5, 64}, {4097, 3, 128}};
    for (size_t i = 0; i < sizeof(grids) / sizeof(grids[0]); i++) {
        uint32_t n = grids[i][0], blocks = grids[i][1], threads = grids[i][2];
        uint8_t *taken = calloc(2, n), *wide = taken + n;
        for (uint32_t b = 0; b < blocks; b++)
            for (uint32_t t = 0; t < threads; t++) {
                for (uint32_t k = cuda_item(b, threads, t); k < n;
                     k += cuda_grid_items(blocks, threads))
                    assert_int_equal(taken[k]++, 0);
                for (uint64_t k = cuda_wide_item(b, threads, t); k < n;
                     k += cuda_wide_grid_items(blocks, threads))
                    assert_int_equal(wide[k]++, 0);
            }
        assert_null(memchr(taken, 0, 2 * (size_t)n));
        free(taken);
    }
    assert_true(cuda_wide_item(1u << 31, 256, 3) == ((uint64_t)1 << 39) + 3);
    assert_true(cuda_wide_grid_items(1u << 31, 256) == (uint64_t)1 << 39);
}

static void test_warps_have_32_lanes(void **state)
{
    (void)state;
    uint32_t thread = 0;
    for (uint32_t warp = 0; warp < 8; warp++)
        for (uint32_t lane = 0; lane < 32; lane++, thread++) {
            assert_int_equal(cuda_warp_of(thread), warp);
            assert_int_equal(cuda_lane_of(thread), lane);
        }
}

static void test_elements_have_a_row_and_a_column(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 1}, {3, 5, 5}, {7, 33, 40}, {2, 576, 577}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        uint32_t m = shapes[i][0], n = shapes[i][1], stride = shapes[i][2], element = 0;
        size_t at = 0;
        for (uint32_t row = 0; row < m; row++, at += stride - n) {
            assert_int_equal(cuda_row(row, stride), at);
            for (uint32_t column = 0; column < n; column++, element++, at++) {
                assert_int_equal(cuda_row_of(element, n), row);
                assert_int_equal(cuda_column_of(element, n), column);
                assert_int_equal(cuda_element(row, stride, column), at);
            }
        }
        assert_int_equal(cuda_n_elements(m, n), element);
    }
    assert_true(cuda_row(1u << 31, 6) == (size_t)6 << 31);
    assert_true(cuda_element(1u << 31, 6, 5) == ((size_t)6 << 31) + 5);
    assert_true(cuda_n_elements(1u << 20, 1u << 20) == (uint64_t)1 << 40);
    assert_int_equal(cuda_row_of(((uint64_t)5 << 32) + 3, 1u << 31), 10);
    assert_int_equal(cuda_column_of(((uint64_t)5 << 32) + 3, 1u << 31), 3);
    assert_int_equal(cuda_column_of(1000ull * 10000000 + 7, 1000), 7);
}

static void test_the_probes_ops_do_not_commute(void **state)
{
    (void)state;
    for (uint32_t word = 0; word < 1000; word += 7) {
        uint32_t there = overlap_probe_next(overlap_probe_next(word, 1), 2);
        assert_int_not_equal(there, overlap_probe_next(overlap_probe_next(word, 2), 1));
    }
    assert_int_equal(overlap_probe_next(5, 4), 19);
}

static void test_strided_index_steps_over_the_padding(void **state)
{
    (void)state;
    assert_int_equal(cuda_strided(0, 3, 5), 0);
    assert_int_equal(cuda_strided(2, 3, 5), 2);
    assert_int_equal(cuda_strided(3, 3, 5), 5);
    assert_int_equal(cuda_strided(8, 3, 5), 12);
    assert_true(cuda_strided(1ull << 33, 1u << 16, 1u << 17) == (size_t)1 << 34);
}

static void test_ordered_keys_sort_as_floats_do(void **state)
{
    (void)state;
    static const float sorted[] = {-INFINITY, -3e38f, -1.0f, -1e-40f, 0.0f,
                                   1e-45f,    1e-38f, 0.5f,  1.0f,    INFINITY};
    for (size_t i = 1; i < sizeof(sorted) / sizeof(sorted[0]); i++)
        assert_true(cuda_ordered_key(sorted[i - 1]) < cuda_ordered_key(sorted[i]));
    assert_int_equal(cuda_ordered_key(-0.0f), cuda_ordered_key(0.0f));
}

static void test_tree_sum_equals_the_contracts_for_every_set_of_segments(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= 8; count *= 2)
        for (uint32_t present = 1; present < 1u << count; present++) {
            float a[8], b[8];
            uint32_t bounds[9] = {0};
            for (uint32_t i = 0; i < 8; i++)
                a[i] = b[i] = 1.0f / (float)(i + 3);
            for (uint32_t i = 0; i < count; i++)
                bounds[i + 1] = bounds[i] + (present >> i & 1) * 32;
            float x = cuda_tree_sum(a, present, count), y = tree_sum(b, bounds, count);
            assert_memory_equal(&x, &y, sizeof(x));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_cover_all_items_up_to_the_limit),
        cmocka_unit_test(test_segment_bounds_equal_the_contracts),
        cmocka_unit_test(test_pieces_are_adjacent_and_cover_the_range),
        cmocka_unit_test(test_threads_of_a_grid_take_every_item_once),
        cmocka_unit_test(test_warps_have_32_lanes),
        cmocka_unit_test(test_elements_have_a_row_and_a_column),
        cmocka_unit_test(test_the_probes_ops_do_not_commute),
        cmocka_unit_test(test_strided_index_steps_over_the_padding),
        cmocka_unit_test(test_ordered_keys_sort_as_floats_do),
        cmocka_unit_test(test_tree_sum_equals_the_contracts_for_every_set_of_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
