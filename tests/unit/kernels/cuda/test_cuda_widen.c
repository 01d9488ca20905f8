/* Tests of the places and integers of widened weights on a GPU (widen.h). A panel's lanes give
 * every weight once, with the integer that quant_weight_at() reads; each fits an f16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/linear_quant/widen.h"
#include "kernels/maths.h"

static uint32_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* Words of a lane in a pair, as widen.cu reads them. */
static void read_codes(uint32_t form, const uint8_t *pair, uint32_t lane, uint32_t a[2][4])
{
    for (uint32_t run = 0; run < 2; run++) {
        uint32_t codes[4] = {0}, high[2] = {0};
        uint32_t n = quant_bits(form) >= 4 ? 16 : 8;
        memcpy(codes, pair + quant_lane_codes(form, run, lane), n);
        if (quant_high_bytes(form) > 0)
            memcpy(high, pair + quant_lane_high(form, lane), quant_bits(form) == 6 ? 8 : 4);
        quant_fragment_a(form, run, a[run], codes, high);
    }
}

static int32_t read_scale(uint32_t form, const uint8_t *at, uint32_t lane, uint32_t run,
                          uint32_t sub, uint32_t half, bool is_signed)
{
    uint32_t words[2] = {0};
    memcpy(words, at + quant_lane_scales(form, lane), quant_scales_are_a_word(form) ? 4 : 8);
    if (quant_scales_are_a_word(form))
        words[1] = quant_second_run(words[0]);
    return quant_scale_of(form, words[run], sub, half, is_signed);
}

static uint32_t word_at(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

/* Stores a lane's weights of a pair in w[16][k]; each place is INT32_MIN before. */
static void widen_lane(const struct quant_layout *l, const uint8_t *panel, uint32_t i_pair,
                       uint32_t lane, uint32_t k, int32_t *w)
{
    uint32_t form = l->form, a[2][4];
    const uint8_t *pair = panel + widen_pair_at(form, i_pair);
    read_codes(form, pair, lane, a);
    for (uint32_t run = 0; run < 2; run++)
        for (uint32_t word = 0; word < WIDEN_WORDS; word++) {
            uint32_t sub = widen_sub(form, word), half = widen_half(word);
            int32_t offset = 0;
            int32_t factor =
                read_scale(form, pair + quant_scales_at(form), lane, run, sub, half, true);
            if (quant_is_super(form)) {
                const uint8_t *super = panel + widen_super_at(l, i_pair, run, lane);
                factor = quant_product_of(factor, quant_half(word_at(super), half));
                if (quant_has_mins(form))
                    offset = quant_product_of(
                        read_scale(form, pair + quant_mins_at(form), lane, run, sub, half, false),
                        quant_half(word_at(super + QUANT_ISM_AT), half));
            } else if (quant_has_offsets(form)) {
                const uint8_t *at = panel + widen_offsets_at(l, i_pair, lane);
                offset =
                    widen_offset(word_at(at + 4 * half), word_at(at + 8 + 4 * half), i_pair, run);
            }
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t row = widen_row(0, word, lane);
                uint32_t column = widen_column(i_pair, run, word, lane) + j;
                if (column >= k)
                    continue;
                assert_true(row < QUANT_ROWS && w[row * k + column] == INT32_MIN);
                w[row * k + column] = widen_integer(form, a[run][word], j, factor, offset);
            }
        }
}

static void check_panel(uint32_t form, uint32_t k, uint32_t super_runs)
{
    struct quant_layout l = quant_layout_of(form, k, super_runs);
    uint8_t *panel = malloc(l.panel_bytes);
    int32_t *w = malloc(sizeof(*w) * QUANT_ROWS * k);
    for (size_t i = 0; i < l.panel_bytes; i++)
        panel[i] = (uint8_t)draw(256);
    for (uint32_t i = 0; i < QUANT_ROWS * k; i++)
        w[i] = INT32_MIN;
    for (uint32_t block = 0; block < widen_n_blocks(l.n_pairs); block++)
        for (uint32_t thread = 0; thread < WIDEN_THREADS; thread++)
            for (uint32_t i = 0; i < WIDEN_PAIRS; i++) {
                uint32_t i_pair = widen_pair_of(block, thread, i);
                if (i_pair < l.n_pairs)
                    widen_lane(&l, panel, i_pair, cuda_lane_of(thread), k, w);
            }
    for (uint32_t row = 0; row < QUANT_ROWS; row++)
        for (uint32_t c = 0; c < k; c++)
            assert_int_equal(w[row * k + c], quant_weight_at(&l, panel, row, c));
    free(panel);
    free(w);
}

static void test_every_weight_is_widened_once(void **state)
{
    (void)state;
    static const uint32_t columns[] = {32, 64, 96, 256, 288, 1056, 1120};
    for (uint32_t form = 0; form < N_QUANT_FORMS; form++)
        for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
            for (uint32_t super_runs = 1; super_runs <= (quant_is_super(form) ? 8u : 1u);
                 super_runs *= 2)
                check_panel(form, columns[i], super_runs);
}

/* The largest W of each form (docs/house/numerics.md) is a finite f16, the smallest a normal one.
 * The integers of the forms of 4 bits are exact. */
static void test_integers_fit_an_f16(void **state)
{
    (void)state;
    for (uint32_t form = 0; form < N_QUANT_FORMS; form++) {
        bool is_4bit = form == QUANT_INT4 || form == QUANT_INT4_PLAIN;
        bool is_16bit = quant_is_signed(form) && form != QUANT_IQ4_XS;
        int32_t most = is_4bit ? 2037 : is_16bit ? 32640 : 33790000; /* 2^25.01 */
        uint16_t half = maths_f32_to_f16(widen_float(form, most));
        assert_true(half < 0x7C00);
        assert_true(maths_f32_to_f16(widen_float(form, 1)) >= 0x0400);
        for (int32_t w = 1; w <= most; w += is_4bit ? 1 : 1 + (int32_t)draw(5000)) {
            float exact = widen_float(form, w), rounded = maths_f16_to_f32(maths_f32_to_f16(exact));
            float apart = rounded > exact ? rounded - exact : exact - rounded;
            assert_true(is_4bit ? rounded == exact : apart <= exact * 0x1p-11f);
            assert_true(exact * widen_unit(form, 1.0f) == (float)w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_weight_is_widened_once),
        cmocka_unit_test(test_integers_fit_an_f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
