/* Tests of attention over a bf16 cache in AMX tiles, over the model of their instructions. Tiles
 * and the FMAs that replace them give the same bits as the plain order. Skipped without AVX-512,
 * which the model's source needs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/cpu.h"
#include "tests/unit/kernels/support/support_amx_model.h"
#include "tests/unit/kernels/support/support_attention_model.h"
#include "tests/unit/kernels/support/support_attention_tiles.h"

static const struct setup shapes[] = {
    {64, 6, 1, 16, DTYPE_BF16, 0, 0.0f, {270, 1, 33}, 0},
    {32, 2, 2, 16, DTYPE_BF16, 40, 0.0f, {140, 0, 0}, 0},
    {48, 5, 1, 16, DTYPE_BF16, 0, 20.0f, {131, 0, 0}, 0},
    {80, 17, 1, 32, DTYPE_BF16, 0, 0.0f, {129, 2, 0}, 0},
    {33, 3, 1, 8, DTYPE_BF16, 0, 0.0f, {150, 0, 0}, 0}, /* untiled, odd */
    {96, 3, 1, 16, DTYPE_BF16, 0, 0.0f, {140, 0, 0}, 48},
    {48, 4, 2, 8, DTYPE_BF16, 0, 0.0f, {131, 0, 0}, 80},
    {17, 4, 2, 16, DTYPE_BF16, 9, 0.0f, {60, 0, 0}, 0}, /* the least that is padded to 32 */
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };
static const uint32_t least[] = {1, 3, UINT32_MAX}; /* queries from which tiles are taken */
enum { N_LEAST = 3 };

static bool has_model(void)
{
    if (cpu_features()->avx512_vnni)
        return true;
    skip();
    return false;
}

/* Compares the model's results for w, in steps of 1 row, of 7 rows and of all rows. */
static void check_all_ways(const struct world *w, const float *want)
{
    static const uint32_t chunks[] = {1, 7, 1000};
    size_t n_bytes = (size_t)w->n_tokens * w->s->n_heads * w->v_dim * sizeof(float);
    for (int i = 0; i < N_LEAST; i++)
        for (int c = 0; c < 3; c++) {
            char what[96];
            snprintf(what, sizeof(what), "head_dim %u, tiles from %u, chunk %u", w->s->head_dim,
                     least[i], chunks[c]);
            attention_model_tiles_from(least[i]);
            float *y = run_world(AMX_MODEL, 2, w, chunks[c]);
            attention_model_tiles_from(0);
            assert_same_bits(want, y, n_bytes, what);
            free(y);
        }
}

static void test_tiles_and_fmas_add_in_one_order(void **state)
{
    (void)state;
    struct random r = {21};
    for (int i = 0; i < N_SHAPES && has_model(); i++) {
        struct world w = make_world(&shapes[i], &r);
        float *want = attend_in_tile_order(&w);
        assert_true(adds_in_tiles(AMX_MODEL, &shapes[i]));
        check_all_ways(&w, want);
        free(want);
        free_world(&w);
    }
}

/* Tiles treat subnormal operands and results as 0, FMAs do not. So the kernels must avoid subnormal
 * numbers. */
static void test_what_is_nearly_0_is_the_same_in_tiles_and_fmas(void **state)
{
    (void)state;
    struct random r = {22};
    for (int round = 0; round < 3 && has_model(); round++) {
        struct world w = make_world(&shapes[round], &r);
        size_t n = (size_t)w.n_tokens * shapes[round].n_kv * shapes[round].head_dim,
               n_q = (size_t)w.n_tokens * shapes[round].n_heads * shapes[round].head_dim;
        for (size_t i = 0; i < n; i++) {
            w.k[i] = ldexpf(w.k[i], -(int)(random_u32(&r) % 140));
            w.v[i] = ldexpf(w.v[i], -(int)(random_u32(&r) % 140));
        }
        for (size_t i = 0; i < n_q; i++)
            w.q[i] = ldexpf(w.q[i], (int)(random_u32(&r) % 80) - 70);
        float *want = attend_in_tile_order(&w);
        check_all_ways(&w, want);
        free(want);
        free_world(&w);
    }
}

/* Puts infinities into V at an even and an odd position. Some queries of a tile do not see these
 * positions. */
static void test_an_infinity_spoils_those_who_see_it_alone(void **state)
{
    (void)state;
    static const uint32_t places[] = {40, 41};
    struct random r = {23};
    for (int i = 0; i < N_SHAPES && has_model(); i++) {
        const struct setup *s = &shapes[i];
        struct world w = make_world(s, &r);
        size_t cols = (size_t)s->n_heads * w.v_dim;
        float *good = attend_in_tile_order(&w);
        for (int l = 0; l < 2 * N_LEAST; l++) {
            uint32_t bad = places[l % 2];
            float *spoilt = w.v + (size_t)bad * s->n_kv * w.v_dim + 3, before = *spoilt;
            *spoilt = -INFINITY;
            attention_model_tiles_from(least[l / 2]);
            float *y = run_world(AMX_MODEL, 1, &w, 1000);
            *spoilt = before;
            attention_model_tiles_from(0);
            for (uint32_t t = 0; t < s->lengths[0]; t++) {
                bool sees = t >= bad && (s->window == 0 || t < bad + s->window);
                if (sees)
                    assert_false(isfinite(y[t * cols + 3]));
                else
                    assert_same_bits(good + t * cols, y + t * cols, cols * sizeof(float), "blind");
            }
            free(y);
        }
        free(good);
        free_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_and_fmas_add_in_one_order),
        cmocka_unit_test(test_what_is_nearly_0_is_the_same_in_tiles_and_fmas),
        cmocka_unit_test(test_an_infinity_spoils_those_who_see_it_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
