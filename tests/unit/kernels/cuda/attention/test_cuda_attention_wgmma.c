/* Tests the functions that distribute the work of prompt attention by wgmma
 * (attention_wgmma_index.h). Copies fill each tile once, descriptors find each element again,
 * parities follow the ring. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/attention/attention_wgmma_index.h"

enum { MAX_TILE = CUDA_PARTITION * 128 * 2 };

static const uint32_t dims[] = {64, 128};

/* Address of 16 bytes as the hardware finds them: the descriptor's distances, then the swizzle. */
static uint32_t hardware_at(uint64_t matrix, uint32_t eight, uint32_t line, uint32_t column,
                            uint32_t chunk)
{
    uint32_t at = (uint32_t)(matrix & 0x3FFF) << 4;
    at += eight * ((uint32_t)(matrix >> 32 & 0x3FFF) << 4) + line * 128;
    at += column * ((uint32_t)(matrix >> 16 & 0x3FFF) << 4) + chunk * 16;
    return at ^ (at >> 7 & 7) << 4;
}

/* Every chunk of a tile is copied by one lane, and its row is that of the copy. */
static void test_copies_when_a_group_copies_a_tile_then_each_chunk_is_written_once(void **state)
{
    static uint8_t seen[MAX_TILE / 16];
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        uint32_t n = wga_chunks(dims[d], 2), n_bytes = wga_tile_bytes(dims[d], CUDA_PARTITION);
        memset(seen, 0, sizeof(seen));
        for (uint32_t warp = 0; warp < WGA_GROUP_WARPS; warp++)
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t i = 0; i < n; i++) {
                    uint32_t row = wga_warp_row(warp, wga_copy_row(n, lane, i));
                    uint32_t at = wga_chunk_at(CUDA_PARTITION, row, wga_copy_chunk(n, lane));
                    assert_true(row < CUDA_PARTITION && at % 16 == 0 && at < n_bytes);
                    assert_int_equal(seen[at / 16]++, 0);
                }
        for (uint32_t i = 0; i < n_bytes / 16; i++)
            assert_int_equal(seen[i], 1);
    }
}

/* Codes lie in a place of their own per thread and copy, and are widened to each chunk once. */
static void test_codes_when_a_tile_is_widened_then_each_chunk_is_written_once(void **state)
{
    static uint8_t seen[MAX_TILE / 16], places[2 * MAX_TILE / 32];
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        uint32_t n = wga_chunks(dims[d], 1);
        memset(seen, 0, sizeof(seen));
        memset(places, 0, sizeof(places));
        for (uint32_t thread = 0; thread < WGA_GROUP; thread++)
            for (uint32_t i = 0; i < n; i++) {
                uint32_t lane = thread % 32, chunk = wga_copy_chunk(n, lane);
                uint32_t row = wga_warp_row(wga_warp_of(thread), wga_copy_row(n, lane, i));
                for (uint32_t turn = 0; turn < WGA_CODE_SLOTS; turn++)
                    assert_int_equal(places[wga_code_at(0, dims[d], turn, thread, i) / 16]++, 0);
                for (uint32_t half = 0; half < 2; half++) {
                    uint32_t at = wga_chunk_at(CUDA_PARTITION, row, wga_wide_chunk(chunk, half));
                    assert_int_equal(seen[at / 16]++, 0);
                }
            }
        for (uint32_t i = 0; i < wga_tile_bytes(dims[d], CUDA_PARTITION) / 16; i++)
            assert_int_equal(seen[i], 1);
    }
}

/* The product of scores finds element 16 · step + 8 · piece of each row of K and of Q. */
static void test_descriptors_when_rows_lie_along_k_then_they_find_each_chunk(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (uint32_t step = 0; step < wga_key_steps(dims[d]); step++)
            for (uint32_t piece = 0; piece < 2; piece++) {
                const uint32_t base = 3 * WGA_EIGHT, chunk = step * 2 + piece;
                uint64_t keys = wga_matrix(wga_matrix_low(base), wga_step_at(CUDA_PARTITION, step));
                assert_int_equal(keys >> 62, 1);
                for (uint32_t row = 0; row < CUDA_PARTITION; row++)
                    assert_int_equal(hardware_at(keys, row / 8, row % 8, 0, piece),
                                     base + wga_chunk_at(CUDA_PARTITION, row, chunk));
                for (uint32_t consumer = 0; consumer < WGA_CONSUMERS; consumer++) {
                    uint64_t q = wga_matrix(wga_matrix_low(wga_queries_at(base, consumer)),
                                            wga_step_at(PREFILL_QUERIES, step));
                    for (uint32_t row = 0; row < WGA_QUERIES; row++)
                        assert_int_equal(
                            hardware_at(q, row / 8, row % 8, 0, piece),
                            wga_query_chunk_at(base, consumer * WGA_QUERIES + row, chunk));
                }
            }
}

/* The product of values finds the positions of a step as rows along k, the head along n. */
static void test_descriptors_when_rows_lie_along_n_then_they_find_each_chunk(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (uint32_t step = 0; step < WGA_STEPS; step++) {
            const uint32_t base = 5 * WGA_EIGHT;
            uint64_t values = wga_matrix(wga_turned_low(base), wga_value_at(step));
            for (uint32_t k = 0; k < 16; k++)
                for (uint32_t chunk = 0; chunk < wga_chunks(dims[d], 2); chunk++)
                    assert_int_equal(hardware_at(values, k / 8, k % 8, chunk / 8, chunk % 8),
                                     base + wga_chunk_at(CUDA_PARTITION, step * 16 + k, chunk));
        }
}

/* Both groups' threads have each query in one row of four lanes. */
static void test_queries_when_both_groups_compute_then_each_has_four_lanes(void **state)
{
    uint32_t seen[PREFILL_QUERIES] = {0};
    (void)state;
    for (uint32_t thread = WGA_GROUP; thread < WGA_THREADS; thread++)
        for (uint32_t r = 0; r < 2; r++)
            seen[wga_query_of(thread, r)]++;
    for (uint32_t i = 0; i < PREFILL_QUERIES; i++)
        assert_int_equal(seen[i], 4);
}

/* The threads of a group load each chunk of its queries once. */
static void test_queries_when_a_group_loads_them_then_each_chunk_is_written_once(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        uint8_t seen[PREFILL_QUERIES * 128 * 2 / 16] = {0};
        for (uint32_t thread = WGA_GROUP; thread < WGA_THREADS; thread++)
            for (uint32_t k = 0; k < wga_query_copies(dims[d]); k++) {
                uint32_t i =
                    wga_query_in(wga_consumer_of(thread), wga_copied_query(dims[d], thread, k));
                uint32_t at = wga_query_chunk_at(0, i, wga_query_chunk(dims[d], thread));
                assert_true(at < wga_tile_bytes(dims[d], PREFILL_QUERIES));
                assert_int_equal(seen[at / 16]++, 0);
            }
        for (uint32_t i = 0; i < wga_tile_bytes(dims[d], PREFILL_QUERIES) / 16; i++)
            assert_int_equal(seen[i], 1);
    }
}

/* Two stages: a stage's phases alternate, and the first wait for a free stage ends at once. */
static void test_parities_when_the_ring_turns_then_they_follow_its_phases(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 9; i++) {
        assert_int_equal(wga_full_parity(i), i / WGA_STAGES % 2);
        assert_int_equal(wga_free_parity(i), (i / WGA_STAGES + 1) % 2);
        assert_int_equal(wga_stage(i), i % WGA_STAGES);
    }
}

static void test_broken_rows_when_a_lane_found_one_then_its_row_alone_is_marked(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        uint32_t n = wga_chunks(dims[d], 2);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t lane = 0; lane < 32; lane++)
                assert_int_equal(wga_broken_rows(n, 0, 1u << lane, i),
                                 1u << wga_copy_row(n, lane, i));
    }
    const uint32_t words[4] = {0, 0, 1u << 5, 0};
    for (uint32_t column = 0; column < CUDA_PARTITION; column++)
        assert_int_equal(wga_is_broken(words, column), column == 69);
    assert_false(wga_is_sound(words));
}

/* A partition is whole if all rows of the range attend to all of its positions. */
static void test_masks_when_partitions_are_whole_then_they_need_none(void **state)
{
    static const uint32_t windows[] = {0, 1, 100, 128, 300};
    (void)state;
    for (size_t w = 0; w < sizeof(windows) / sizeof(windows[0]); w++)
        for (uint32_t from = 0; from < 600; from += 37)
            for (uint32_t n = 1; n < 140; n += 23) {
                struct attention_span first = attention_span_of(from, windows[w], 0);
                struct attention_span last = attention_span_of(from + n - 1, windows[w], 0);
                uint32_t begin, end = prefill_partitions(first, last, &begin);
                struct wga_whole whole = wga_whole_of(first, last, begin);
                for (uint32_t p = begin; p < end; p++) {
                    struct attention_span in = wga_span_in(wga_span_from(last, begin), p - begin);
                    struct attention_span wanted =
                        attention_span_within(last, p * CUDA_PARTITION, CUDA_PARTITION);
                    assert_int_equal(wga_is_masked(whole, p - begin),
                                     !prefill_is_whole(first, last, p * CUDA_PARTITION));
                    for (uint32_t i = 0; i < CUDA_PARTITION; i++)
                        assert_int_equal(attention_sees(in, i), attention_sees(wanted, i));
                }
            }
}

static void test_memory_when_laid_out_then_it_fits_and_tiles_are_aligned(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 2; elem_bytes++) {
            struct wga_memory m = wga_memory_of(dims[d], elem_bytes);
            assert_int_equal(m.keys % WGA_EIGHT, 0);
            assert_int_equal(m.values % WGA_EIGHT, 0);
            assert_int_equal(m.codes % 16, 0);
            assert_int_equal(m.full_keys % 8, 0);
            assert_true(wga_shared_bytes(dims[d], elem_bytes) <= 227 << 10);
            assert_int_equal(wga_stage_at(m.keys, dims[d], WGA_STAGES - 1) +
                                 wga_tile_bytes(dims[d], CUDA_PARTITION),
                             m.values);
        }
}

/* The registers of a launch are enough for all three groups. */
static void test_registers_when_shared_among_groups_then_they_fit_the_processor(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 2; elem_bytes++) {
            uint32_t copier = wga_copier_registers(dims[d], elem_bytes);
            uint32_t consumer = wga_consumer_registers(dims[d], elem_bytes);
            assert_int_equal(copier % 8 + consumer % 8, 0);
            assert_true(copier + WGA_CONSUMERS * consumer <= (WGA_CONSUMERS + 1) * WGA_REGISTERS);
        }
}

static void test_kernel_when_a_model_needs_more_then_it_is_not_taken(void **state)
{
    (void)state;
    float slope = 1.0f;
    struct attention_cuda a = {.kv = {.dtype = DTYPE_BF16,
                                      .block_size = 32,
                                      .n_kv_heads = 2,
                                      .head_dim = 128,
                                      .v_dim = 128},
                               .heads_per_kv = 4,
                               .factor = 0.1f};
    assert_true(wga_takes(&a));
    struct attention_cuda other = a;
    other.kv.dtype = DTYPE_F32;
    assert_false(wga_takes(&other));
    other = a;
    other.kv.head_dim = other.kv.v_dim = 192;
    assert_false(wga_takes(&other));
    other = a;
    other.kv.v_dim = 64; /* V narrower than K */
    assert_false(wga_takes(&other));
    other = a;
    other.softcap = 20.0f;
    assert_false(wga_takes(&other));
    other = a;
    other.slopes = &slope;
    assert_false(wga_takes(&other));
    other = a;
    other.window = 100;
    other.kv.dtype = DTYPE_F16;
    other.kv.head_dim = other.kv.v_dim = 80;
    assert_true(wga_takes(&other));
    other.kv.dtype = DTYPE_F8_E4M3;
    assert_true(wga_takes(&other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_when_a_group_copies_a_tile_then_each_chunk_is_written_once),
        cmocka_unit_test(test_codes_when_a_tile_is_widened_then_each_chunk_is_written_once),
        cmocka_unit_test(test_descriptors_when_rows_lie_along_k_then_they_find_each_chunk),
        cmocka_unit_test(test_descriptors_when_rows_lie_along_n_then_they_find_each_chunk),
        cmocka_unit_test(test_queries_when_both_groups_compute_then_each_has_four_lanes),
        cmocka_unit_test(test_queries_when_a_group_loads_them_then_each_chunk_is_written_once),
        cmocka_unit_test(test_parities_when_the_ring_turns_then_they_follow_its_phases),
        cmocka_unit_test(test_broken_rows_when_a_lane_found_one_then_its_row_alone_is_marked),
        cmocka_unit_test(test_masks_when_partitions_are_whole_then_they_need_none),
        cmocka_unit_test(test_memory_when_laid_out_then_it_fits_and_tiles_are_aligned),
        cmocka_unit_test(test_registers_when_shared_among_groups_then_they_fit_the_processor),
        cmocka_unit_test(test_kernel_when_a_model_needs_more_then_it_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
