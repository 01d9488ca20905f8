/* Tests of attention and the KV cache. All kernel sets give the same bits, for every head size, KV
 * type, block size, chunking, batch and thread count. Results are close to float64. Masked
 * positions have no influence. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tests/unit/kernels/support/support_attention_model.h"
#include "tests/unit/kernels/support/support_attention_tiles.h"

static const struct setup shapes[] = {
    {64, 9, 3, 16, DTYPE_BF16, 0, 0.0f, {300, 1, 129}, 0},
    {80, 4, 4, 32, DTYPE_BF16, 0, 0.0f, {140, 33, 0}, 0},
    {96, 6, 2, 8, DTYPE_BF16, 0, 30.0f, {130, 0, 0}, 0},
    {112, 2, 1, 64, DTYPE_BF16, 50, 0.0f, {257, 20, 0}, 0},
    {128, 8, 1, 16, DTYPE_BF16, 128, 0.0f, {400, 128, 0}, 0},
    {256, 4, 2, 16, DTYPE_BF16, 0, 50.0f, {131, 5, 0}, 0},
    {20, 3, 3, 1, DTYPE_BF16, 7, 0.0f, {40, 2, 0}, 0},
    {33, 5, 1, 4, DTYPE_BF16, 0, 0.0f, {137, 3, 0}, 0},
    {192, 4, 2, 16, DTYPE_BF16, 0, 0.0f, {150, 20, 0}, 128}, /* V narrower than K, and wider */
    {96, 5, 1, 32, DTYPE_BF16, 70, 0.0f, {139, 4, 0}, 48},
    {48, 6, 2, 16, DTYPE_BF16, 0, 20.0f, {200, 33, 0}, 80},
    {20, 3, 3, 1, DTYPE_BF16, 0, 0.0f, {131, 2, 0}, 37},
    {66, 4, 2, 4, DTYPE_BF16, 0, 0.0f, {140, 9, 0}, 30},
    {576, 5, 1, 16, DTYPE_BF16, 0, 0.0f, {260, 3, 0}, V_IN_K + 512}, /* a latent cache: V in K */
    {80, 9, 1, 32, DTYPE_BF16, 0, 0.0f, {141, 20, 0}, V_IN_K + 64},
    {48, 6, 2, 16, DTYPE_BF16, 33, 20.0f, {137, 1, 0}, V_IN_K + 16},
    {18, 3, 1, 16, DTYPE_BF16, 0, 0.0f, {139, 5, 0}, V_IN_K + 14},
    {80, 4, 1, 8, DTYPE_BF16, 0, 0.0f, {150, 2, 0}, V_IN_K + 64},
};
static const enum dtype kv_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]), N_SETUPS = 4 * N_SHAPES };

/* Slopes of ALiBi, steep to nearly flat. */
static const float slopes[9] = {0.5f,   0.25f,  0.70710678f, 0.00390625f, 0.0625f,
                                0.125f, 0.011f, 1.0f,        0.03125f};

/* Logits of sinks: without effect, like a key, and above all keys. */
static const float sinks[9] = {-80.0f, 0.0f, 3.0f, 40.0f, -1.5f, 7.0f, 0.25f, 120.0f, -20.0f};

/* Combines every shape with every type of cache. A walk over every second or third setup still
 * meets every type. */
static struct setup setup_at(int i)
{
    struct setup s = shapes[i / 4];
    s.kv_type = kv_types[(i + i / 4) % 4];
    return s;
}

/* Returns the vectors x with the precision of the cache. */
static double *stored(const float *x, size_t n_vectors, uint32_t n, enum dtype type)
{
    double *out = malloc(n_vectors * n * sizeof(*out));
    for (size_t i = 0; i < n_vectors * n; i += n) {
        double max = 0;
        for (uint32_t d = 0; d < n; d++)
            max = fmax(max, fabs((double)x[i + d]));
        for (uint32_t d = 0; d < n; d++)
            out[i + d] = type == DTYPE_F32   ? (double)x[i + d]
                         : type == DTYPE_F16 ? (double)dtype_f16_to_f32(dtype_f32_to_f16(x[i + d]))
                         : type == DTYPE_BF16
                             ? (double)dtype_bf16_to_f32(dtype_f32_to_bf16(x[i + d]))
                             : rint((double)x[i + d] * 127 / max) * max / 127;
    }
    return out;
}

static void check_against_float64(const struct world *w, const float *y, bool tiles)
{
    const struct setup *s = w->s;
    uint32_t first_of_seq = 0;
    /* |v| up to 5, f32 scores up to 60; queries and weights of 15 bits beside an int8 cache,
     * of 8 in tiles */
    double bound = s->kv_type == DTYPE_I8 ? 1e-3 : tiles ? 0.15 : 2e-5;
    double *k = stored(w->k, (size_t)w->n_tokens * s->n_kv, s->head_dim, s->kv_type),
           *v = w->v_in_k ? k : stored(w->v, (size_t)w->n_tokens * s->n_kv, w->v_dim, s->kv_type);
    uint32_t v_stride = w->v_in_k ? s->head_dim : w->v_dim;
    for (uint32_t t = 0; t < w->n_tokens; t++) {
        if (w->positions[t] == 0)
            first_of_seq = t;
        if (t % 17 != 0 && t + 1 != w->n_tokens)
            continue;
        for (uint32_t h = 0; h < s->n_heads; h++) {
            double p[MAX_TOKENS], max = -1e300, sum = 0, want[512] = {0};
            uint32_t g = h / (s->n_heads / s->n_kv), n = w->positions[t] + 1, begin = 0;
            while ((s->window > 0 && n - begin > s->window) ||
                   (w->chunk > 0 && begin / w->chunk < w->positions[t] / w->chunk))
                begin++;
            const float *q = w->q + ((size_t)t * s->n_heads + h) * s->head_dim;
            for (uint32_t j = begin; j < n; j++) {
                size_t at = ((size_t)(first_of_seq + j) * s->n_kv + g) * s->head_dim;
                double dot = 0;
                for (uint32_t d = 0; d < s->head_dim; d++)
                    dot += (double)q[d] * k[at + d];
                p[j] = dot / sqrt((double)s->head_dim);
                if (s->softcap > 0.0f)
                    p[j] = (double)s->softcap * tanh(p[j] / (double)s->softcap);
                if (w->slopes)
                    p[j] -= (double)w->slopes[h] * (n - 1 - j);
                max = fmax(max, p[j]);
            }
            if (w->sinks) {
                max = fmax(max, (double)w->sinks[h]);
                sum = exp((double)w->sinks[h] - max);
            }
            for (uint32_t j = begin; j < n; j++)
                sum += p[j] = exp(p[j] - max);
            for (uint32_t j = begin; j < n; j++) {
                size_t at = ((size_t)(first_of_seq + j) * s->n_kv + g) * v_stride;
                for (uint32_t d = 0; d < w->v_dim; d++)
                    want[d] += p[j] / sum * v[at + d];
            }
            for (uint32_t d = 0; d < w->v_dim; d++) {
                double got = (double)y[((size_t)t * s->n_heads + h) * w->v_dim + d];
                if (!(fabs(got - want[d]) < bound))
                    fail_msg("%s token %u head %u element %u: %g, float64 %g",
                             dtype_name(s->kv_type), t, h, d, got, want[d]);
            }
        }
    }
    if (v != k)
        free(v);
    free(k);
}

static void test_attention_has_one_result_whatever_the_set_chunk_and_threads(void **state)
{
    (void)state;
    struct random r = {11};
    for (int i = 0; i < N_SETUPS + N_SETUPS / 2; i++) { /* all, then every other with slopes */
        if (!grid_takes((size_t)i))
            continue;
        struct setup setup = setup_at(i < N_SETUPS ? i : 2 * (i - N_SETUPS));
        struct world w = make_world(&setup, &r);
        w.slopes = i < N_SETUPS ? NULL : slopes;
        w.sinks = i % 2 ? sinks : NULL;
        w.chunk = i % 5 == 3 ? 100 : 0;
        size_t n_bytes = (size_t)w.n_tokens * w.s->n_heads * w.v_dim * sizeof(float);
        float *first = run_world("ref", 1, &w, w.n_tokens);
        check_against_float64(&w, first, false);
        float *tiles = setup.kv_type == DTYPE_BF16 ? attend_in_tile_order(&w) : NULL;
        if (tiles != NULL)
            check_against_float64(&w, tiles, true);
        for (const char *const *set = linear_sets(); *set != NULL; set++) {
            static const uint32_t chunks[] = {5, 1, 100000, 64};
            for (int c = 0; c < 4; c += w.slopes ? 2 : 1) {
                char what[96];
                snprintf(what, sizeof(what), "%s setup %d chunk %u", *set, i, chunks[c]);
                float *y = run_world(*set, 1 + (uint32_t)c % 3, &w, chunks[c]);
                assert_same_bits(adds_in_tiles(*set, &setup) ? tiles : first, y, n_bytes, what);
                free(y);
            }
        }
        free(first);
        free(tiles);
        free_world(&w);
    }
}

/* Rows of different sequences in one batch, as decode has them, equal the rows run alone. */
static void test_decode_rows_of_many_sequences_equal_the_rows_alone(void **state)
{
    (void)state;
    struct random r = {12};
    for (int i = 0; i < N_SETUPS; i++) {
        if (!grid_takes((size_t)i))
            continue;
        struct setup setup = setup_at(i);
        struct world w = make_world(&setup, &r);
        const struct setup *s = w.s;
        w.slopes = i % 3 == 1 ? slopes : NULL;
        w.sinks = i % 3 == 2 ? sinks : NULL;
        uint32_t cols = s->n_heads * s->head_dim, y_cols = s->n_heads * w.v_dim, last[3], t = 0;
        for (uint32_t seq = 0; seq < w.n_seqs; seq++) {
            t += s->lengths[seq];
            last[seq] = t - 1;
        }
        for (const char *const *set = linear_sets(); *set != NULL; set++) {
            struct rig rig = rig_open(*set, 2);
            struct kv_layer kv = make_cache(&w);
            float *y = poisoned((size_t)w.n_tokens * y_cols);
            step(&rig, &w, &kv, 0, w.n_tokens, y);
            float *q = malloc(w.n_seqs * cols * sizeof(float)),
                  *out = poisoned((size_t)w.n_seqs * y_cols);
            uint32_t positions[3], seqs[3];
            for (uint32_t seq = 0; seq < w.n_seqs; seq++) {
                memcpy(q + seq * cols, w.q + (size_t)last[seq] * cols, cols * sizeof(float));
                positions[seq] = w.positions[last[seq]];
                seqs[seq] = seq;
            }
            struct tensor tq = tensor_view(q, DTYPE_F32, w.n_seqs, cols),
                          ty = tensor_view(out, DTYPE_F32, w.n_seqs, y_cols);
            struct attention_rows rows = {.positions = positions,
                                          .seq_of_row = seqs,
                                          .block_tables = w.tables,
                                          .table_stride = w.stride,
                                          .n_rows = w.n_seqs,
                                          .n_seqs = w.n_seqs};
            struct attention_params params = {.n_heads = s->n_heads,
                                              .heads_per_kv = s->n_heads / s->n_kv,
                                              .scale = 1.0f / sqrtf((float)s->head_dim),
                                              .window = s->window,
                                              .softcap = s->softcap,
                                              .slopes = w.slopes,
                                              .sinks = w.sinks};
            assert_int_equal(op_attention(rig.stream, &ty, &tq, &kv, &rows, &params), 0);
            for (uint32_t seq = 0; seq < w.n_seqs; seq++)
                assert_same_bits(out + seq * y_cols, y + (size_t)last[seq] * y_cols,
                                 y_cols * sizeof(float), *set);
            free(q);
            free(out);
            free(y);
            free_cache(&kv);
            rig_close(&rig);
        }
        free_world(&w);
    }
}

/* A rank that holds query heads 3..6 of 9 and the KV heads 1 and 2 they read. */
static void test_a_rank_with_part_of_the_heads_computes_the_same(void **state)
{
    (void)state;
    enum { D = 64, N = 150, HEADS = 9, BEGIN = 3, COUNT = 4, KV = 3, HELD = 2 };
    struct random r = {13};
    static const struct setup whole = {D, HEADS, KV, 16, DTYPE_BF16, 0, 0.0f, {N, 0, 0}, 0};
    struct world w = make_world(&whole, &r);
    w.slopes = slopes;
    w.sinks = sinks;
    for (const char *const *set = linear_sets(); *set != NULL; set++) {
        float *all = run_world(*set, 1, &w, N);
        struct rig rig = rig_open(*set, 2);
        static const struct setup part = {D, COUNT, HELD, 16, DTYPE_BF16, 0, 0.0f, {N, 0, 0}, 0};
        struct world held = w;
        held.s = &part;
        struct kv_layer kv = make_cache(&held);
        struct tensor k = {w.k + D, DTYPE_F32, N, HELD * D, KV * D},
                      v = {w.v + D, DTYPE_F32, N, HELD * D, KV * D},
                      q = {w.q + BEGIN * D, DTYPE_F32, N, COUNT * D, HEADS * D};
        float *y = poisoned(N * COUNT * D);
        struct tensor out = tensor_view(y, DTYPE_F32, N, COUNT * D);
        struct attention_rows rows = {w.positions, w.seqs, w.slots, w.tables, w.stride, N, 1, 0};
        struct attention_params params = {.n_heads = COUNT,
                                          .head_begin = BEGIN,
                                          .kv_begin = 1,
                                          .heads_per_kv = 3,
                                          .scale = 0.125f,
                                          .slopes = slopes + BEGIN,
                                          .sinks = sinks + BEGIN};
        assert_int_equal(op_kv_write(rig.stream, &kv, &k, &v, w.slots), 0);
        assert_int_equal(op_attention(rig.stream, &out, &q, &kv, &rows, &params), 0);
        for (uint32_t t = 0; t < N; t++)
            assert_same_bits(y + t * COUNT * D, all + (t * HEADS + BEGIN) * D,
                             COUNT * D * sizeof(float), *set);
        /* head BEGIN reads KV head 1, which a view from KV head 2 on does not hold */
        params.kv_begin = 2;
        assert_int_equal(op_attention(rig.stream, &out, &q, &kv, &rows, &params), STATUS_INTERNAL);
        free(y);
        free(all);
        free_cache(&kv);
        rig_close(&rig);
    }
    free_world(&w);
}

/* Few queries against a long context: partitions shared by members, folded in their order. */
static void test_one_long_context_has_one_result_however_it_is_shared(void **state)
{
    (void)state;
    static const struct setup longs[] = {
        {64, 9, 3, 16, DTYPE_BF16, 0, 0.0f, {1000, 0, 0}, 0},
        {64, 9, 3, 16, DTYPE_I8, 0, 0.0f, {1000, 0, 0}, 0},
        {80, 4, 1, 8, DTYPE_I8, 600, 20.0f, {1023, 0, 0}, 0}, /* untiled, a window, a soft cap */
        {128, 8, 1, 128, DTYPE_F16, 300, 0.0f, {897, 0, 0}, 0},
        {192, 4, 1, 16, DTYPE_BF16, 0, 0.0f, {700, 0, 0}, 128},
        {48, 4, 2, 16, DTYPE_I8, 0, 0.0f, {700, 0, 0}, 80},
        {576, 8, 1, 16, DTYPE_BF16, 0, 0.0f, {500, 0, 0}, V_IN_K + 512},
        {80, 8, 1, 16, DTYPE_I8, 0, 0.0f, {700, 0, 0}, V_IN_K + 64},
    };
    struct random r = {14};
    for (size_t i = 0; i < sizeof(longs) / sizeof(longs[0]); i++) {
        struct world w = make_world(&longs[i], &r);
        w.slopes = i % 2 ? slopes : NULL;
        w.sinks = i > 0 ? sinks : NULL;
        size_t cols = (size_t)longs[i].n_heads * w.v_dim;
        for (const char *const *set = linear_sets(); *set != NULL; set++) {
            float *whole = NULL;
            for (uint32_t threads = 1; threads <= 5; threads += 1 + (threads == 3)) {
                struct rig rig = rig_open(*set, threads);
                struct kv_layer kv = make_cache(&w);
                float *y = poisoned(w.n_tokens * cols), *last = y + (w.n_tokens - 3) * cols;
                uint32_t kv_cols = longs[i].n_kv * longs[i].head_dim;
                struct tensor k = tensor_view(w.k, DTYPE_F32, w.n_tokens, kv_cols),
                              v = tensor_view(w.v, DTYPE_F32, w.n_tokens, longs[i].n_kv * w.v_dim);
                assert_int_equal(op_kv_write(rig.stream, &kv, &k, w.v_in_k ? NULL : &v, w.slots),
                                 0);
                step(&rig, &w, &kv, w.n_tokens - 3, 1, y); /* a single row, then two: drafts */
                step(&rig, &w, &kv, w.n_tokens - 2, 2, y);
                if (whole != NULL)
                    assert_same_bits(whole, last, 3 * cols * sizeof(float), *set);
                else
                    memcpy(whole = malloc(3 * cols * sizeof(float)), last,
                           3 * cols * sizeof(float));
                free(y);
                free_cache(&kv);
                rig_close(&rig);
            }
            free(whole);
        }
        free_world(&w);
    }
}

/* A value in K or V that is not finite shows in the answer, in every set; zeros and tiny values do
 * not. */
static void test_an_int8_cache_of_strange_values_answers_alike_in_every_set(void **state)
{
    (void)state;
    static const struct setup setup = {64, 3, 1, 16, DTYPE_I8, 0, 0.0f, {200, 0, 0}, 0};
    struct random r = {15};
    static const float strange[] = {0.0f, 1e-38f, 1e-42f, 3e38f, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
        struct world w = make_world(&setup, &r);
        for (uint32_t d = 0; d < 64; d++) /* the V of token 150 */
            w.v[150 * 64 + d] = i < 3 || d == 7 ? strange[i] : 1.0f;
        float *first = NULL;
        for (const char *const *set = linear_sets(); *set != NULL; set++) {
            float *y = run_world(*set, 1, &w, w.n_tokens);
            if (first == NULL)
                first = y;
            for (uint32_t t = 0; t < w.n_tokens; t++)
                for (uint32_t d = 0; d < 192; d++) {
                    float a = first[t * 192 + d], b = y[t * 192 + d];
                    if (i >= 4 && t >= 150)
                        assert_true(isnan(a) && isnan(b));
                    else if (isnan(a) || memcmp(&a, &b, sizeof(a)) != 0)
                        fail_msg("%s: token %u element %u: %g, %g", *set, t, d, (double)a,
                                 (double)b);
                }
            if (y != first)
                free(y);
        }
        free(first);
        free_world(&w);
    }
}

/* A value that is not finite spoils only the answers that see the value. Symptom: 0 · infinity made
 * answers NaN before the position and behind the window. These rows shared a pass with a row that
 * saw the value. */
static void test_a_value_that_is_not_finite_is_blind_to_who_does_not_see_it(void **state)
{
    (void)state;
    enum { BAD = 150, N = 200, WINDOW = 21, COLS = 6 * 64 };
    struct random r = {16};
    for (int i = 0; i < 8; i++) {
        struct setup setup = {64,   6,         2, i < 4 ? 16 : 20, kv_types[i % 4], WINDOW,
                              0.0f, {N, 0, 0}, 0};
        struct world w = make_world(&setup, &r);
        for (const char *const *set = linear_sets(); *set != NULL; set++)
            for (uint32_t chunk = 1; chunk <= N; chunk += N - 1) {
                w.v[BAD * 128 + 7] = 1.0f;
                float *good = run_world(*set, 2, &w, chunk);
                w.v[BAD * 128 + 7] = INFINITY;
                float *bad = run_world(*set, 2, &w, chunk);
                for (uint32_t t = 0; t < N; t++) {
                    bool sees = t >= BAD && t < BAD + WINDOW;
                    if (sees)
                        assert_false(isfinite(bad[t * COLS + 7]));
                    else if (memcmp(bad + t * COLS, good + t * COLS, COLS * sizeof(float)) != 0)
                        fail_msg("%s, %s, chunk %u: token %u sees token %u", *set,
                                 dtype_name(setup.kv_type), chunk, t, (uint32_t)BAD);
                }
                free(good);
                free(bad);
            }
        free_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_has_one_result_whatever_the_set_chunk_and_threads),
        cmocka_unit_test(test_decode_rows_of_many_sequences_equal_the_rows_alone),
        cmocka_unit_test(test_a_rank_with_part_of_the_heads_computes_the_same),
        cmocka_unit_test(test_one_long_context_has_one_result_however_it_is_shared),
        cmocka_unit_test(test_a_value_that_is_not_finite_is_blind_to_who_does_not_see_it),
        cmocka_unit_test(test_an_int8_cache_of_strange_values_answers_alike_in_every_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
