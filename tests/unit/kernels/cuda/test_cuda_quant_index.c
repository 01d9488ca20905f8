/* Tests of the places of quantized weights and activations on a GPU (quant_index.h), and of the
 * launches for a shape. Every place has one owner, no place lies outside, and plans respect the
 * machine's limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/quant_index.h"

enum { H100_SMS = 132, H100_SHARED = 227 * 1024, A100_SHARED = 163 * 1024, L40_SHARED = 99 * 1024 };

/* Marks bits [shift, shift + n) of a byte, which must not be marked yet. */
static void take(uint8_t *owned, size_t n_bytes, size_t byte, uint32_t shift, uint32_t n)
{
    uint32_t mask = ((1u << n) - 1) << shift;
    assert_true(byte < n_bytes && shift + n <= 8);
    assert_int_equal(owned[byte] & mask, 0);
    owned[byte] |= (uint8_t)mask;
}

static void take_bytes(uint8_t *owned, size_t n_bytes, size_t byte, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        take(owned, n_bytes, byte + i, 0, 8);
}

static void take_run(uint8_t *owned, const struct quant_layout *l, uint32_t run, uint32_t row)
{
    uint32_t form = l->form, bits = quant_bits(form), low = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
    size_t n = l->panel_bytes, pair = (size_t)(run / 2) * quant_pair_bytes(form);
    for (uint32_t column = 0; column < QUANT_RUN; column++) {
        struct quant_place p = quant_code_place(form, run % 2, row, column);
        take(owned, n, pair + p.byte, p.shift, low);
        if (quant_high_bytes(form) > 0) {
            p = quant_high_place(form, run % 2, row, column);
            take(owned, n, pair + p.byte, p.shift, bits - low);
        }
    }
    for (uint32_t sub = 0; sub < quant_subs(form); sub++) {
        uint32_t at = quant_scale_place(form, run % 2, row, sub);
        take_bytes(owned, n, pair + quant_scales_at(form) + at, quant_is_super(form) ? 1 : 2);
        if (quant_has_mins(form))
            take_bytes(owned, n, pair + quant_mins_at(form) + at, 1);
    }
    if (quant_is_super(form) && run % (1u << l->super_shift) == 0) {
        take_bytes(owned, n, quant_super_place(l, run, row), 2);
        if (quant_has_mins(form))
            take_bytes(owned, n, quant_super_place(l, run, row) + 32, 2);
    }
    if (quant_has_offsets(form)) {
        take_bytes(owned, n, quant_offset_place(l, run, row), 1);
        take_bytes(owned, n, quant_offset_place(l, run, row) + 8, 1);
    }
}

static void test_every_place_of_a_panel_has_one_owner(void **state)
{
    (void)state;
    static const uint32_t columns[] = {32, 64, 96, 256, 288, 576, 1024, 1056};
    for (uint32_t form = 0; form < N_QUANT_FORMS; form++)
        for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
            for (uint32_t super_runs = 1; super_runs <= (quant_is_super(form) ? 8u : 1u);
                 super_runs *= 2) {
                struct quant_layout l = quant_layout_of(form, columns[i], super_runs);
                uint8_t *owned = calloc(1, l.panel_bytes);
                size_t n_free = 0;
                for (uint32_t run = 0; run < l.n_runs; run++)
                    for (uint32_t row = 0; row < QUANT_ROWS; row++)
                        take_run(owned, &l, run, row);
                for (size_t b = 0; b < l.panel_bytes; b++)
                    n_free += owned[b] != 0xFF;
                /* only the padding of odd runs has no owner */
                if (l.n_runs % 4 == 0)
                    assert_int_equal(n_free, 0);
                assert_int_equal(l.panel_bytes % 16, 0);
                assert_true(n_free <= quant_pair_bytes(form) / 2 + 64 + quant_super_bytes(form) +
                                          (quant_has_offsets(form) ? QUANT_GROUP_BYTES : 0));
                free(owned);
            }
}

static void test_pairs_and_stages_are_whole_pieces_of_16_bytes(void **state)
{
    (void)state;
    static const uint32_t pair_bytes[N_QUANT_FORMS] = {576, 576, 1088, 704, 704, 704,
                                                       384, 448, 832,  576, 576, 544};
    for (uint32_t form = 0; form < N_QUANT_FORMS; form++) {
        assert_int_equal(quant_pair_bytes(form), pair_bytes[form]);
        for (uint32_t kernel = 0; kernel < N_QUANT_KERNELS; kernel++) {
            assert_int_equal(quant_stage_bytes(form, kernel) % 16, 0);
            assert_int_equal(quant_group_bytes(form, kernel) % 16, 0);
            assert_true(quant_n_stages(form, kernel) >= 3);
        }
    }
}

static void check_plan(uint32_t form, uint32_t n_panels, uint32_t n_pairs, uint32_t m,
                       uint32_t max_shared)
{
    struct quant_plan p = quant_plan_of(form, n_panels, n_pairs, m, H100_SMS, max_shared);
    uint32_t group = quant_group_warps(p.kernel);
    uint32_t panels = quant_row_warps(p.kernel) * quant_panels(form, p.kernel);
    uint32_t tokens = quant_tile_warps(p.kernel) * quant_tiles(p.kernel) * QUANT_TILE;
    assert_true(p.kernel < N_QUANT_KERNELS && p.n_warps >= group && p.n_warps % group == 0);
    assert_true(p.n_warps <= quant_max_warps(form, p.kernel));
    assert_true(p.shared_bytes <= max_shared);
    assert_int_equal(p.shared_bytes, p.n_warps / group * quant_group_bytes(form, p.kernel));
    assert_true((uint64_t)p.row_blocks * panels >= n_panels &&
                (uint64_t)(p.row_blocks - 1) * panels < n_panels);
    assert_true((uint64_t)p.token_blocks * tokens >= m &&
                (uint64_t)(p.token_blocks - 1) * tokens < m && p.token_blocks <= 65535);
    assert_true(p.n_splits >= 1 && p.n_splits <= QUANT_MAX_SPLITS);
    if (p.n_splits > 1) {
        uint64_t plane = (uint64_t)m * n_panels * QUANT_ROWS * (quant_is_wide(form) ? 8 : 4);
        assert_true(plane * p.n_splits <= QUANT_SPLIT_BYTES);
        assert_true((uint64_t)p.row_blocks * p.token_blocks * p.n_splits <= H100_SMS);
        assert_true(n_pairs / p.n_splits >= QUANT_MIN_SPLIT_PAIRS);
    }
}

static void test_plans_cover_the_shape_within_the_machine(void **state)
{
    (void)state;
    static const uint32_t panels[] = {1, 2, 3, 36, 64, 256, 896, 8016},
                          pairs[] = {1, 2, 9, 64, 224, 2048};
    static const uint32_t rows[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130, 512, 8192};
    static const uint32_t shared[] = {L40_SHARED, A100_SHARED, H100_SHARED};
    for (uint32_t form = 0; form < N_QUANT_FORMS; form++)
        for (size_t n = 0; n < sizeof(panels) / sizeof(panels[0]); n++)
            for (size_t k = 0; k < sizeof(pairs) / sizeof(pairs[0]); k++)
                for (size_t m = 0; m < sizeof(rows) / sizeof(rows[0]); m++)
                    for (size_t s = 0; s < sizeof(shared) / sizeof(shared[0]); s++)
                        check_plan(form, panels[n], pairs[k], rows[m], shared[s]);
}

/* Shapes of a served model's steps on an H100. */
static void test_plans_of_common_shapes(void **state)
{
    (void)state;
    struct quant_plan p = quant_plan_of(QUANT_INT4, 256, 64, 1, H100_SMS, H100_SHARED);
    assert_int_equal(p.kernel, QUANT_ROWS_8);
    assert_int_equal(p.row_blocks, 128); /* 4096 rows: a block per SM, of 16 warps */
    assert_int_equal(p.n_warps, 16);
    assert_int_equal(p.n_splits, 1);
    p = quant_plan_of(QUANT_INT4, 1792, 64, 4, H100_SMS, H100_SHARED);
    assert_int_equal(p.n_warps, 8);
    assert_true(3 * (p.shared_bytes + 1024) <= 228 * 1024); /* three blocks an SM */
    p = quant_plan_of(QUANT_INT4, 256, 64, 512, H100_SMS, H100_SHARED);
    assert_int_equal(p.kernel, QUANT_LARGE);
    assert_int_equal(p.row_blocks * p.token_blocks, 128);
    p = quant_plan_of(QUANT_Q6_K, 64, 64, 128, H100_SMS, H100_SHARED);
    assert_int_equal(p.row_blocks, 16);
    assert_int_equal(p.n_splits, 8);
}

static void test_activations_planes_follow_each_other(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 32}, {1, 4096}, {9, 576}, {64, 14336}, {130, 1056}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        uint32_t m = shapes[i][0], k = shapes[i][1];
        struct quant_act_layout l = quant_act_layout_of(m, k);
        const size_t at[] = {l.lo,    l.hi,    l.sums,      l.hi_sums, l.digits,
                             l.scale, l.stats, l.all_stats, l.split,   l.total};
        size_t tiles = (m + 7) / 8, pairs = tiles * ((k + 63) / 64);
        for (size_t p = 0; p + 1 < sizeof(at) / sizeof(at[0]); p++)
            assert_true(at[p] < at[p + 1] && at[p] % 16 == 0);
        assert_true(l.hi - l.lo == pairs * 512 && l.hi_sums - l.sums >= pairs * 112);
        assert_true(l.scale - l.digits >= tiles * ((k + 1023) / 1024) * 768);
        assert_true(l.stats - l.scale >= m * sizeof(float));
        /* the layout of a smaller step fits */
        assert_true(quant_act_layout_of(m > 3 ? m - 3 : m, k - k / 3).total <= l.total);
    }
}

static void test_digits_give_the_sum_back(void **state)
{
    (void)state;
    for (int32_t a = -32 * 32001; a <= 32 * 32001; a += a > -5000 && a < 5000 ? 1 : 97) {
        int8_t d[QUANT_DIGITS];
        quant_digits(a, d);
        assert_int_equal(d[0] + 128 * d[1] + 16384 * d[2], a);
        if (a >= -4064 && a <= 4064)
            assert_int_equal(d[2], 0);
    }
}

/* Checks sums that blocks share. There is a place for each split, token, panel and row, and a
 * result for each token and row. A gated pair of panels has one result. */
static void check_shared_sums(uint32_t n_panels, uint32_t m, uint32_t n_splits)
{
    size_t plane = quant_split_elements(n_panels, m), n = plane * n_splits;
    uint8_t *taken = calloc(1, n);
    for (uint32_t split = 0; split < n_splits; split++)
        for (uint32_t token = 0; token < m; token++)
            for (uint32_t panel = 0; panel < n_panels; panel++)
                for (uint32_t row = 0; row < QUANT_ROWS; row++) {
                    size_t at = quant_split_at(n_panels, m, split, token, panel, row);
                    size_t first = quant_split_at(n_panels, m, 0, token, panel, row);
                    assert_true(at < n);
                    assert_int_equal(taken[at]++, 0);
                    assert_int_equal(quant_split_part(first, plane, split), at);
                    if (panel + 1 < n_panels)
                        assert_int_equal(quant_split_behind(at),
                                         quant_split_at(n_panels, m, split, token, panel + 1, row));
                }
    assert_null(memchr(taken, 0, n));
    free(taken);
}

static void check_results(uint32_t n_panels, uint32_t m, bool gated)
{
    size_t plane = quant_split_elements(n_panels, m), n = quant_n_items(n_panels, m, gated);
    uint8_t *taken = calloc(1, plane);
    assert_int_equal(n, gated ? plane / 2 : plane);
    for (size_t i = 0; i < n; i++) {
        struct quant_item item = quant_item_of(i, n_panels, gated);
        assert_true(item.row < QUANT_ROWS && item.panel < n_panels && item.token < m);
        size_t at = quant_split_at(n_panels, m, 0, item.token, item.panel, item.row);
        assert_int_equal(taken[at]++, 0);
        if (gated) {
            assert_int_equal(quant_gated_part(item.panel), 0);
            assert_int_equal(taken[quant_split_behind(at)]++, 0);
        }
    }
    assert_null(memchr(taken, 0, plane));
    free(taken);
}

static void test_shared_sums_and_results_have_places_of_their_own(void **state)
{
    (void)state;
    static const uint32_t panels[] = {2, 4, 6, 36}, rows[] = {1, 3, 8, 17};
    for (size_t p = 0; p < sizeof(panels) / sizeof(panels[0]); p++)
        for (size_t m = 0; m < sizeof(rows) / sizeof(rows[0]); m++) {
            check_shared_sums(panels[p], rows[m], 3);
            check_shared_sums(panels[p] - 1, rows[m], 2);
            check_results(panels[p], rows[m], true);
            check_results(panels[p], rows[m], false);
            check_results(panels[p] - 1, rows[m], false);
        }
    assert_true(quant_split_at(1u << 16, 1u << 12, 1, 0, 0, 0) == (size_t)1 << 32);
}

static void test_gated_panels_alternate(void **state)
{
    (void)state;
    for (uint32_t panel = 0; panel < 100; panel++)
        for (uint32_t part = 0; part < 2; part++) {
            assert_int_equal(quant_gated_panel(2 * panel + part), panel);
            assert_int_equal(quant_gated_part(2 * panel + part), part);
        }
    for (uint32_t n = 0; n < 100; n++)
        assert_int_equal(quant_row_of(n / QUANT_ROWS, n % QUANT_ROWS), n);
}

/* Adds the sums of eight ranks as 32-bit planes. */
static void test_planes_of_ranks_add_up(void **state)
{
    (void)state;
    static const int64_t sums[] = {
        0, 1, -1, 65535, 65536, -65536, -65537, (int64_t)1 << 40, -((int64_t)1 << 40) - 5};
    enum { N = sizeof(sums) / sizeof(sums[0]), RANKS = 8 };
    for (uint32_t i = 0; i < N * N; i++) {
        int64_t wanted = 0;
        int32_t low = 0, high = 0;
        for (uint32_t r = 0; r < RANKS; r++) {
            int64_t sum = sums[r % 2 ? i % N : i / N] + (int64_t)r;
            wanted += sum;
            low += quant_low_plane(sum);
            high += quant_high_plane(sum);
        }
        assert_true(quant_of_planes(low, high) == wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_place_of_a_panel_has_one_owner),
        cmocka_unit_test(test_pairs_and_stages_are_whole_pieces_of_16_bytes),
        cmocka_unit_test(test_plans_cover_the_shape_within_the_machine),
        cmocka_unit_test(test_plans_of_common_shapes),
        cmocka_unit_test(test_activations_planes_follow_each_other),
        cmocka_unit_test(test_digits_give_the_sum_back),
        cmocka_unit_test(test_shared_sums_and_results_have_places_of_their_own),
        cmocka_unit_test(test_gated_panels_alternate),
        cmocka_unit_test(test_planes_of_ranks_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
