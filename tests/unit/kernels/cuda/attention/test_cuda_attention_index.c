/* Tests of shapes, sizes, places and expressions of the CUDA attention kernels, on the CPU. Loads
 * cover every element of every vector once, at the place where mma multiplies the element. Launches
 * and scratch depend on capacities alone. The softmax's 2^x is correct. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/attention/attention_index.h"
#include "kernels/cuda/attention/attention_maths.h"
#include "kernels/ops.h"

static void test_exp2_is_near_and_exact_where_it_must_be(void **state)
{
    (void)state;
    for (int i = 0; i <= 1300000; i++) {
        float x = -(float)i * 1e-4f, y = attention_exp2(x);
        double wanted = exp2((double)x);
        if (x > -126.0f)
            assert_true(fabs((double)y - wanted) <= wanted * 1.7e-7);
        else
            assert_true(y >= 0.0f && (double)y <= wanted * 2.0);
    }
    for (int n = 0; n <= 126; n++)
        assert_true(attention_exp2(-(float)n) == ldexpf(1.0f, -n));
    assert_true(attention_exp2(-127.0f) == 0.0f);
    assert_true(attention_exp2(-INFINITY) == 0.0f);
    assert_true(isnan(attention_exp2(NAN)));
    assert_true(attention_reference(-INFINITY) == 0.0f);
    assert_true(attention_reference(-3.0f) == -3.0f);
    assert_true(!signbit(attention_result(-0.0f, 1.0f)));
}

static void test_softcap_is_a_tanh(void **state)
{
    (void)state;
    for (float x = -200.0f; x <= 200.0f; x += 0.37f)
        for (float cap = 5.0f; cap < 100.0f; cap *= 3.0f) {
            double wanted = (double)cap * tanh((double)(x * 0.125f) / (double)cap);
            double found = (double)attention_score(x, 0.125f * ATTENTION_LOG2E, cap) * log(2.0);
            assert_true(fabs(found - wanted) < (double)cap * 1e-6);
        }
    assert_true(attention_score(3.0f, 2.0f, 0.0f) == 6.0f);
}

static void test_chunks_begin_at_their_multiples(void **state)
{
    (void)state;
    for (uint32_t position = 0; position < 700; position += 7)
        for (uint32_t window = 0; window < 300; window += 60)
            for (uint32_t chunk = 0; chunk < 400; chunk += 130) {
                struct attention_span span = attention_span_of(position, window, chunk);
                assert_int_equal(span.begin, attention_first(position, window, chunk));
                assert_int_equal(span.end, position + 1);
                assert_true(!chunk || span.begin / chunk == position / chunk);
            }
}

static void test_sinks_add_to_the_sum_alone(void **state)
{
    const float sinks[3] = {-100.0f, 1.0f, 50.0f};
    (void)state;
    struct attention_sunk none = attention_sunk_of(NULL, 2, 4.0f);
    assert_true(attention_sunk_result(none, 3.0f, 7.0f) == attention_result(3.0f, 7.0f));
    for (uint32_t h = 0; h < 3; h++) {
        struct attention_sunk sunk = attention_sunk_of(sinks, h, 2.0f);
        double x = 3.0, sum = 7.0, most = 2.0 * log(2.0);
        double wanted = x / (sum + exp((double)sinks[h] - most));
        assert_true(fabs((double)attention_sunk_result(sunk, 3.0f, 7.0f) - wanted) < 1e-6);
    }
}

static void test_spans_are_what_a_row_sees(void **state)
{
    (void)state;
    for (uint32_t position = 0; position < 1400; position += 13)
        for (uint32_t window = 0; window < 700; window += 129) {
            struct attention_span span = attention_span_of(position, window, 0);
            uint32_t n_groups = decode_group_count(1400), first, seen = 0;
            uint32_t end = decode_groups(span, n_groups, &first);
            for (uint32_t p = 0; p < 1500; p++)
                assert_int_equal(attention_sees(span, p),
                                 p <= position && (window == 0 || p + window > position));
            for (uint32_t g = first; g < end; g++) {
                uint32_t from, to;
                decode_partitions(span, g, &from, &to);
                assert_true(from < to && to <= CUDA_GROUP_PARTITIONS);
                for (uint32_t w = 0; w < CUDA_GROUP_PARTITIONS; w++) {
                    uint32_t base = g * CUDA_GROUP + w * CUDA_PARTITION;
                    struct attention_span part = attention_span_within(span, base, CUDA_PARTITION);
                    assert_int_equal(part.begin < part.end, w >= from && w < to);
                    seen += part.begin < part.end ? part.end - part.begin : 0;
                }
            }
            assert_int_equal(seen, span.end - span.begin);
            assert_true(prefill_partitions(span, span, &first) * CUDA_PARTITION >= span.end);
            assert_true(first * CUDA_PARTITION <= span.begin);
            for (uint32_t base = 0; base < 1500; base += CUDA_PARTITION)
                assert_int_equal(prefill_is_whole(span, span, base),
                                 attention_sees(span, base) && attention_sees(span, base + 127));
        }
}

/* Checks the elements of K and V that a warp's lanes load in one stage. Each element of 16
 * positions is loaded once, at the place that mma expects. */
static void check_stage(uint32_t dim, uint32_t bytes)
{
    uint32_t loads = decode_stage_loads(dim, bytes), elems = decode_chunk_elems(bytes);
    uint8_t *keys = calloc(DECODE_STAGE, dim), *values = calloc(DECODE_STAGE, dim);
    assert_int_equal(loads * 32 * elems, DECODE_STAGE * dim);
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t g = lane / 4, t = lane % 4;
        for (uint32_t load = 0; load < loads; load++)
            for (uint32_t e = 0; e < elems; e++) {
                uint32_t i = load / (loads / 2), j = load % (loads / 2);
                keys[decode_key_position(i, g) * dim + decode_key_elem(j, t, bytes) + e]++;
                values[decode_value_position(load % 4, t) * dim +
                       decode_value_elem(load / 4, g, bytes) + e]++;
            }
    }
    for (uint32_t i = 0; i < DECODE_STAGE * dim; i++)
        assert_true(keys[i] == 1 && values[i] == 1);
    free(keys);
    free(values);
}

static void test_lanes_load_every_element_once(void **state)
{
    (void)state;
    for (uint32_t bytes = 1; bytes <= 2; bytes++)
        for (uint32_t head_dim = 8; head_dim <= 256; head_dim += 8) {
            uint32_t dim = decode_padded_dim(head_dim, bytes);
            assert_true(dim >= head_dim && dim < head_dim + 128 / bytes);
            check_stage(dim, bytes);
        }
    /* scores of two positions meet the V of the same two */
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t c = 0; c < 2; c++)
                assert_int_equal(decode_score_position(i, t, c),
                                 decode_value_position(i * 2 + c, t));
}

static void test_shared_memory_fits_and_does_not_overlap(void **state)
{
    (void)state;
    for (uint32_t bytes = 1; bytes <= 2; bytes++)
        for (uint32_t dim = 64; dim <= 256; dim += 64) {
            for (uint32_t split = 0; split < 2 && (bytes == 2 || dim % 128 == 0); split++) {
                struct decode_memory m = decode_memory_of(dim, bytes, split);
                uint32_t stages = decode_ring_stages(dim, bytes);
                uint32_t heads = split ? DECODE_SPLIT_HEADS : DECODE_HEADS;
                assert_true(stages >= 2 && stages <= DECODE_STAGES);
                assert_true(m.scores >= stages * decode_stage_loads(dim, bytes) * 512);
                assert_true(m.k_scales >= m.scores + 16 * 32 * (split ? 8 : 16));
                assert_true(m.k_scales >= heads * dim * 4); /* the result lies before it */
                assert_true(m.blocks + CUDA_PARTITION * 4 <= m.n_bytes);
                assert_int_equal(m.n_bytes % 16, 0);
                assert_true(decode_shared_bytes(dim, bytes, split) <= SHARED_PER_BLOCK);
            }
            struct prefill_memory p = prefill_memory_of(dim, bytes);
            uint32_t tile = prefill_tile_positions(dim) * dim;
            assert_true(p.ring >= PREFILL_QUERIES * dim * 2);
            assert_true(p.wide >= p.ring + prefill_slots(dim, bytes) * tile * bytes);
            assert_true(prefill_slots(dim, bytes) >= 2);
            assert_int_equal(p.wide % 16 + p.ring % 16 + p.k_scales % 16, 0);
            assert_true(p.n_bytes <= SHARED_PER_BLOCK);
            /* the threads copy a tile in whole 16 bytes each */
            assert_int_equal(tile * bytes % (PREFILL_THREADS * 16), 0);
        }
}

static void test_chunks_of_a_tile_are_apart_and_in_different_banks(void **state)
{
    (void)state;
    for (uint32_t n_chunks = 8; n_chunks <= 32; n_chunks += 8) {
        uint8_t *used = calloc(128, n_chunks);
        for (uint32_t row = 0; row < 128; row++)
            for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
                uint32_t at = prefill_chunk_at(row, chunk, n_chunks);
                assert_true(at % 16 == 0 && at / 16 < 128 * n_chunks);
                assert_int_equal(used[at / 16]++, 0);
            }
        for (uint32_t row = 0; row < 128; row += 8)
            for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
                uint32_t banks = 0; /* banks of 16 bytes */
                for (uint32_t i = 0; i < 8; i++)
                    banks |= 1u << prefill_chunk_at(row + i, chunk, n_chunks) / 16 % 8;
                assert_int_equal(banks, 0xFF);
            }
        free(used);
    }
}

static struct attention_cuda layer(enum dtype type, uint32_t head_dim, uint32_t v_dim,
                                   uint32_t block_size, uint32_t n_kv_heads)
{
    struct attention_cuda a = {
        .kv = {NULL, NULL, type, 5, block_size, n_kv_heads, head_dim, v_dim}};
    a.block_shift = attention_shift_of(block_size);
    a.k = attention_plane_of(&a.kv, head_dim);
    a.v = attention_plane_of(&a.kv, v_dim);
    return a;
}

/* Symptom: the tiled kernels copied from addresses that were not aligned. With four KV heads and
 * blocks of one or two codes, blocks are aligned to 16 bytes and pages are not. */
static void check_places(uint32_t n_kv_heads)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8_E4M3};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (uint32_t size = 1; size <= 128; size *= 2)
            for (uint32_t head_dim = 1; head_dim <= 256; head_dim += head_dim < 8 ? 7 : 8) {
                uint32_t dims[2] = {head_dim, head_dim > 8 ? head_dim - 8 : head_dim};
                struct attention_cuda a = layer(types[t], dims[0], dims[1], size, n_kv_heads);
                const struct attention_plane planes[2] = {a.k, a.v};
                assert_int_equal(1u << a.block_shift, size);
                for (uint32_t i = 0; i < 2 * n_kv_heads; i++)
                    for (uint32_t position = 0; position < 300; position += 37) {
                        uint32_t block = position % 5, slot = block * size + position % size;
                        uint32_t head = i / 2, dim = dims[i % 2];
                        struct attention_plane plane = planes[i % 2];
                        size_t page = attention_page_at(&a, plane, block, head);
                        assert_int_equal(page + attention_vector_in_page(&a, plane, position),
                                         kv_cuda_vector_at(&a.kv, dim, slot, head));
                        if (kv_cuda_is_coded(&a.kv))
                            assert_int_equal(page + attention_scale_in_page(&a, plane, position),
                                             kv_cuda_scale_at(&a.kv, dim, slot, head));
                        if (attention_is_tiled(&a.kv, 4))
                            assert_int_equal(kv_cuda_vector_at(&a.kv, dim, slot, head) % 16, 0);
                    }
                bool codes = kv_cuda_is_coded(&a.kv);
                assert_int_equal(attention_is_tiled(&a.kv, 4),
                                 types[t] != DTYPE_F32 && dims[0] % (codes ? 16 : 8) == 0 &&
                                     dims[1] % (codes ? 16 : 8) == 0 && (!codes || size >= 4));
                assert_false(attention_is_tiled(&a.kv, CUDA_MAX_HEADS_PER_KV + 1));
            }
}

static void test_places_in_pages_are_those_of_kv_write(void **state)
{
    (void)state;
    check_places(3);
    check_places(4);
}

/* Each query head of a rank is in exactly one slot of its KV head. */
static void test_heads_of_any_rank_are_found_once(void **state)
{
    (void)state;
    for (uint32_t per_kv = 1; per_kv <= 32; per_kv++)
        for (uint32_t begin = 0; begin < 2 * per_kv; begin++)
            for (uint32_t n = 1; n <= 2 * per_kv; n += per_kv) {
                struct attention_cuda a = {
                    .n_heads = n, .head_begin = begin, .heads_per_kv = per_kv};
                uint8_t found[64] = {0};
                a.kv_begin = begin / per_kv;
                for (uint32_t i_kv = 0; i_kv < 4; i_kv++)
                    for (uint32_t slot = 0; slot < per_kv + 20; slot++) {
                        uint32_t head = attention_head_at(&a, i_kv, slot);
                        if (head == n)
                            continue;
                        assert_int_equal(found[head]++, 0);
                        assert_int_equal((begin + head) / per_kv, a.kv_begin + i_kv);
                        assert_true(attention_has_heads(&a, i_kv, slot, 1));
                    }
                for (uint32_t head = 0; head < n; head++)
                    assert_int_equal(found[head], 1);
            }
}

static void test_scratch_holds_every_result_of_a_pass(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 3, 64, 257, 65536}, dims[] = {64, 128, 256};
    static const uint64_t contexts[] = {0, 1, 512, 513, 8192, 131072, 1u << 20};
    for (size_t r = 0; r < 5; r++)
        for (size_t d = 0; d < 3; d++)
            for (size_t c = 0; c < 7; c++)
                for (uint32_t per_kv = 1; per_kv <= 16; per_kv += 5) {
                    struct decode_plan plan = decode_plan_of(rows[r], 4 * per_kv, dims[d], 4,
                                                             per_kv, DECODE_HEADS, contexts[c]);
                    struct attention_cuda a = {.n_heads = 4 * per_kv, .n_groups = plan.n_groups};
                    a.kv.v_dim = dims[d];
                    assert_true(plan.n_groups >= 1 && plan.n_strides >= 1);
                    assert_true(plan.n_strides <= plan.n_groups && plan.pass_rows >= 1);
                    assert_true(plan.pass_rows <= rows[r]);
                    assert_int_equal(plan.n_tiles, 4);
                    assert_true((uint64_t)plan.n_groups * CUDA_GROUP >= contexts[c]);
                    if (plan.n_groups == 1) {
                        assert_int_equal(plan.scratch_bytes, 0);
                        continue;
                    }
                    assert_int_equal(plan.scratch_bytes,
                                     decode_part_at(&a, plan.pass_rows, 0, 0) * sizeof(float));
                    assert_true(plan.scratch_bytes <= ATTENTION_SCRATCH_LIMIT ||
                                plan.pass_rows == 1);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp2_is_near_and_exact_where_it_must_be),
        cmocka_unit_test(test_softcap_is_a_tanh),
        cmocka_unit_test(test_spans_are_what_a_row_sees),
        cmocka_unit_test(test_chunks_begin_at_their_multiples),
        cmocka_unit_test(test_sinks_add_to_the_sum_alone),
        cmocka_unit_test(test_lanes_load_every_element_once),
        cmocka_unit_test(test_shared_memory_fits_and_does_not_overlap),
        cmocka_unit_test(test_chunks_of_a_tile_are_apart_and_in_different_banks),
        cmocka_unit_test(test_places_in_pages_are_those_of_kv_write),
        cmocka_unit_test(test_heads_of_any_rank_are_found_once),
        cmocka_unit_test(test_scratch_holds_every_result_of_a_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
