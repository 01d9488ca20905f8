/* Tests of the CUDA sampler on the CPU: the lines that nvcc compiles, against the CPU's sampler.
 * Blocks run one after the other in any order, by one thread or by several with a barrier. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/sample/sample_cpu.h"
#include "kernels/cpu/sample/sample_philox.h"
#include "kernels/cuda/sample/sample_layout.h"
#include "kernels/cuda/sample/sample_pass.h"
#include "tests/unit/kernels/support/support_block.h"
#include "tests/unit/kernels/support/support_kernels.h"

static void test_philox_equals_the_samplers(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t seed = 0x9E3779B97F4A7C15ull * (i + 1);
        uint32_t counter[4] = {i * 7, i % 3, 0, 0}, out[4];
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        sample_philox4x32_10(counter, key, out);
        assert_int_equal(sample_philox(i * 7, i % 3, 0, key[0], key[1], 0), out[0]);
        assert_int_equal(sample_philox(i * 7, i % 3, 0, key[0], key[1], 3), out[3]);
    }
}

/* A candidate's bin is never higher than the bin of an earlier candidate. */
static void test_bins_follow_the_order_of_keys(void **state)
{
    (void)state;
    const struct sample_frame frame = {.max = 9.0f, .log_sum = 2.0f, .entropy = 3.0f};
    struct random random = {7};
    float *values = random_floats(&random, 4000, 0.0f);
    for (int order = SAMPLE_BY_LOGIT; order <= SAMPLE_BY_TYPICAL; order++)
        for (uint32_t i = 1; i < 4000; i++) {
            float a = values[i - 1] * 3.0f, b = i % 3 ? values[i] * 3.0f : nextafterf(a, 9.0f);
            a = fminf(a, frame.max);
            b = fminf(b, frame.max);
            if (order != SAMPLE_BY_LOGIT) {
                a = sample_exp(-fabsf(a) * 4.0f);
                b = sample_exp(-fabsf(b) * 4.0f);
            }
            struct sample_key x = sample_key_of(order, &frame, a, i - 1);
            struct sample_key y = sample_key_of(order, &frame, b, i);
            uint32_t bin_a = sample_bin_of(order, &frame, a);
            uint32_t bin_b = sample_bin_of(order, &frame, b);
            assert_true(bin_a < SAMPLE_BINS && bin_b < SAMPLE_BINS);
            assert_true(sample_is_after(&x, &y) != sample_is_after(&y, &x));
            assert_true(sample_is_after(&x, &y) ? bin_a <= bin_b : bin_a >= bin_b);
        }
    assert_int_equal(sample_bin_of(SAMPLE_BY_LOGIT, &frame, 9.0f), SAMPLE_BINS - 1);
    assert_int_equal(sample_bin_of(SAMPLE_BY_LOGIT, &frame, -INFINITY), 0);
    assert_int_equal(sample_bin_of(SAMPLE_BY_WEIGHT, &frame, 1.0f), SAMPLE_BINS - 1);
    assert_int_equal(sample_bin_of(SAMPLE_BY_WEIGHT, &frame, 1e-30f), 0);
    free(values);
}

/* Tokens at equal distance from the entropy in f32. Typical's window grows along descending weights
 * all the same, so the smaller weight comes first on the likelier side. */
static void test_typical_keys_of_equal_distance_follow_the_weights(void **state)
{
    (void)state;
    const struct sample_frame frame = {.max = 0.0f, .log_sum = 2.0f, .entropy = 3.0f};
    for (int likelier = 0; likelier < 2; likelier++) {
        uint32_t n_equal = 0;
        float w = likelier ? 0.9f : 0.3f;
        for (uint32_t i = 0; i < 100; i++) {
            float above = nextafterf(w, 1.0f);
            struct sample_key low = sample_key_of(SAMPLE_BY_TYPICAL, &frame, w, i % 2);
            struct sample_key high = sample_key_of(SAMPLE_BY_TYPICAL, &frame, above, 1 - i % 2);
            if (low.words[0] == high.words[0]) {
                n_equal++;
                assert_true(likelier ? sample_is_after(&high, &low) : sample_is_after(&low, &high));
            }
            w = above;
        }
        assert_true(n_equal > 10);
    }
}

/* Limbs hold a weight of 2^-36 or more exactly. The limbs of a whole vocabulary add up without
 * overflow. */
static void test_limbs_add_up_to_the_weights(void **state)
{
    (void)state;
    static const float weights[] = {1.0f, 0.99999994f, 0.3f, 1e-3f, 0x1.fffffep-36f, 0x1p-36f};
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
        uint32_t limbs[SAMPLE_LIMBS];
        for (uint32_t l = 0; l < SAMPLE_LIMBS; l++) {
            limbs[l] = sample_limb(sample_fixed(weights[i]), l);
            assert_true((uint64_t)limbs[l] * SAMPLE_CUDA_MAX_VOCAB <= UINT32_MAX);
        }
        assert_true(sample_mass(limbs) == (double)weights[i]);
        for (uint32_t l = 0; l < SAMPLE_LIMBS; l++)
            limbs[l] *= SAMPLE_CUDA_MAX_VOCAB;
        assert_true(sample_mass(limbs) == (double)weights[i] * SAMPLE_CUDA_MAX_VOCAB);
    }
    assert_true(sample_fixed(1.2e-38f) == 0);
}

static void test_parts_and_pieces_cover_the_row(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 31, 32, 33, 257, 49152, 128256, 151936, 1u << 20};
    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++) {
        for (uint32_t n = 1; n <= SAMPLE_MAX_PARTS; n *= 2) {
            assert_int_equal(sample_part_bound(vocabs[v], 0, n), 0);
            assert_int_equal(sample_part_bound(vocabs[v], n, n), vocabs[v]);
            for (uint32_t i = 0; i < n; i++)
                assert_true(sample_part_bound(vocabs[v], i, n) <=
                            sample_part_bound(vocabs[v], i + 1, n));
        }
        for (uint32_t s = 0; s < CUDA_SEGMENTS; s++)
            assert_true(cuda_segment_bound(vocabs[v], s + 1) - cuda_segment_bound(vocabs[v], s) <=
                        sample_n_pieces(vocabs[v]) * SAMPLE_PIECE);
    }
    assert_int_equal(sample_n_parts(1, 128256), 64);
    assert_int_equal(sample_n_parts(32, 128256), 16);
    assert_int_equal(sample_n_parts(128, 128256), 4);
    assert_int_equal(sample_n_parts(1000, 128256), 1);
    assert_int_equal(sample_n_parts(1, 1000), 1);
}

static void sample_work(const struct block *block, void *arg)
{
    struct sample_row row = *(const struct sample_row *)arg;
    row.block = *block;
    sample_run(&row);
}

/* Samples by blocks. The order of the blocks changes from launch to launch. */
static struct sample_result sample_by_blocks(const float *logits, uint32_t vocab,
                                             const struct sample_params *params, uint32_t n_parts,
                                             uint32_t n_threads)
{
    struct sample_result result;
    struct sample_state row_state = {0};
    struct sample_scratch at = sample_scratch_of(vocab);
    struct sample_shared *shared = malloc(sizeof(*shared));
    uint8_t *scratch = aligned_alloc(256, at.n_bytes);
    memset(&result, 0xFF, sizeof(result));
    memset(scratch, 0xFF, at.n_bytes);
    struct sample_row row = {.shared = shared,
                             .params = params,
                             .state = &row_state,
                             .out = &result,
                             .logits = logits,
                             .x = sample_is_adjusted(params) ? (const float *)(void *)scratch
                                                             : logits,
                             .scratch = scratch,
                             .at = at,
                             .vocab = vocab,
                             .n_parts = n_parts};
    uint32_t n_launches = sample_n_launches(params, vocab);
    for (uint32_t launch = 0; launch < n_launches; launch++)
        for (uint32_t i = 0; i < n_parts; i++) {
            memset(shared, 0xFF, sizeof(*shared));
            row.part = (i * 5 + launch * 3) % n_parts; /* n_parts is a power of two */
            run_block(n_threads, sample_work, &row);
        }
    assert_int_equal(row_state.phase, SAMPLE_DONE);
    free(scratch);
    free(shared);
    return result;
}

static struct sample_result sample_by_cpu(const float *logits, uint32_t vocab,
                                          const struct sample_params *params)
{
    struct sample_result result = {0};
    void *scratch = aligned_alloc(64, (SAMPLE_SCRATCH_BYTES(vocab) + 63) / 64 * 64);
    sample_row_cpu(logits, vocab, params, scratch, &result);
    free(scratch);
    return result;
}

static void assert_same_result(const struct sample_result *a, const struct sample_result *b)
{
    assert_int_equal(a->status, b->status);
    assert_int_equal(a->id, b->id);
    assert_int_equal(a->n_top, b->n_top);
    assert_memory_equal(a->top_ids, b->top_ids, a->n_top * sizeof(a->top_ids[0]));
    assert_memory_equal(a->top_logprobs, b->top_logprobs, a->n_top * sizeof(a->top_logprobs[0]));
    if (!isnan(b->logprob))
        assert_memory_equal(&a->logprob, &b->logprob, sizeof(a->logprob));
    else
        assert_true(isnan(a->logprob));
}

static const struct sample_params plain = {
    .temperature = 1.0f, .top_p = 1.0f, .typical_p = 1.0f, .repetition_penalty = 1.0f};

/* Returns sampling parameters. Bit i of `stages` turns stage i on. */
static struct sample_params chain(uint32_t stages, struct random *random)
{
    static const uint32_t top_k[] = {1, 2, 40, 400};
    static const float shares[] = {0.05f, 0.5f, 0.9f, 0.999f};
    struct sample_params p = plain;
    p.seed = ((uint64_t)random_u32(random) << 32) | random_u32(random);
    p.position = random_u32(random) % 1000;
    p.choice = random_u32(random) % 4;
    p.temperature = stages & 1 ? 0.3f : 1.2f;
    if (stages & 2)
        p.top_k = top_k[random_u32(random) % 4];
    if (stages & 4)
        p.top_p = shares[random_u32(random) % 4];
    if (stages & 8)
        p.min_p = 0.02f;
    if (stages & 16)
        p.typical_p = shares[random_u32(random) % 4];
    p.want_logprob = (stages & 32) != 0;
    p.n_top = stages & 32 ? 5 : 0;
    p.watermark = random_u32(random) % 4 == 0;
    p.score = random_u32(random) % 8 == 0;
    p.previous_id = random_u32(random) % 1000;
    return p;
}

/* Returns logits of one of four kinds. Coarse logits have many ties. */
static float *some_logits(struct random *random, uint32_t vocab, uint32_t kind)
{
    float *logits = random_floats(random, vocab, 0.02f);
    for (uint32_t i = 0; i < vocab; i++)
        logits[i] = kind == 0   ? logits[i] * 3.0f
                    : kind == 1 ? roundf(logits[i] * 4.0f)
                    : kind == 2 ? logits[i] * 0.01f                           /* flat */
                                : (i % 1000 == 7 ? 30.0f : 0.0f) + logits[i]; /* peaked */
    return logits;
}

static void test_chains_draw_what_the_cpu_draws(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 31, 257, 1000, 5001};
    static const uint32_t parts[] = {1, 2, 8, 64};
    struct random random = {11};
    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++)
        for (uint32_t stages = 0; stages < 64; stages++)
            for (uint32_t kind = 0; kind < 4; kind++) {
                float *logits = some_logits(&random, vocabs[v], kind);
                struct sample_params p = chain(stages, &random);
                struct sample_result cpu = sample_by_cpu(logits, vocabs[v], &p);
                struct sample_result blocks =
                    sample_by_blocks(logits, vocabs[v], &p, parts[(stages + kind) % 4], 1);
                assert_same_result(&blocks, &cpu);
                free(logits);
            }
}

/* Vocabularies of real models: some candidate lists do not fit, some cuts span a whole row, and a
 * segment has several tiles. */
static void test_large_rows_draw_what_the_cpu_draws(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {49152, 128256};
    struct random random = {19};
    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++)
        for (uint32_t i = 0; i < 48; i++) {
            float *logits = some_logits(&random, vocabs[v], i % 4);
            struct sample_params p = chain(random_u32(&random), &random);
            if (p.top_k == 400 && i % 8 < 4)
                p.top_k = 20000;
            struct sample_result cpu = sample_by_cpu(logits, vocabs[v], &p);
            struct sample_result blocks = sample_by_blocks(logits, vocabs[v], &p, 1u << i % 7, 1);
            assert_same_result(&blocks, &cpu);
            free(logits);
        }
}

static void test_results_do_not_depend_on_blocks_and_threads(void **state)
{
    (void)state;
    enum { VOCAB = 700 };
    struct random random = {13};
    for (uint32_t stages = 0; stages < 64; stages += 3) {
        float *logits = some_logits(&random, VOCAB, stages % 4);
        struct sample_params p = chain(stages, &random);
        struct sample_result one = sample_by_blocks(logits, VOCAB, &p, 1, 1);
        for (uint32_t n_threads = 1; n_threads <= 8; n_threads *= 8)
            for (uint32_t n_parts = 1; n_parts <= 4; n_parts *= 2) {
                struct sample_result many = sample_by_blocks(logits, VOCAB, &p, n_parts, n_threads);
                assert_same_result(&many, &one);
            }
        free(logits);
    }
}

/* Cuts at their limits: one token, all tokens, exactly equal shares, or a single finite logit. */
static void test_extreme_rows_are_the_cpus(void **state)
{
    (void)state;
    enum { VOCAB = 3000 };
    static const struct {
        uint32_t top_k;
        float top_p, min_p, typical_p, temperature;
    } rows[] = {
        {1, 1.0f, 0.0f, 1.0f, 1.0f},      {0, 1e-9f, 0.0f, 1.0f, 1.0f},
        {0, 0.5f, 0.0f, 1.0f, 1.0f},      {0, 0.9999999f, 0.0f, 1.0f, 1.0f},
        {2999, 1.0f, 0.0f, 1.0f, 1.0f},   {3000, 1.0f, 0.0f, 1.0f, 1.0f},
        {2500, 0.5f, 0.0f, 1.0f, 1.0f},   {2500, 0.5f, 0.1f, 0.9f, 1.0f},
        {0, 1.0f, 1.0f, 1.0f, 1.0f},      {0, 1.0f, 0.5f, 0.2f, 1.0f},
        {0, 1.0f, 0.0f, 1e-6f, 1.0f},     {0, 0.5f, 0.5f, 0.999f, 1.0f},
        {5, 1.0f, 0.0f, 1.0f, 1e-5f},     {0, 0.99f, 0.0f, 0.3f, 1.0f},
        {0, 1.0f, 0.0f, 1.0f, 1000.0f},   {2200, 0.99f, 0.0f, 1.0f, 1000.0f},
        {0, 0.9999f, 0.01f, 1.0f, 50.0f}, {2048, 0.9999f, 0.0f, 1.0f, 50.0f},
    };
    struct random random = {23};
    for (uint32_t kind = 0; kind < 7; kind++) {
        float *logits = some_logits(&random, VOCAB, kind % 4);
        for (uint32_t i = 0; i < VOCAB && kind >= 4; i++)
            logits[i] = kind == 4   ? 1.5f /* all equal: ties to the lower id */
                        : kind == 5 ? (i == 1234 ? -3.0f : -INFINITY)
                                    : (i % 2 ? logits[i] : -INFINITY);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
            for (uint32_t position = 0; position < 3; position++) {
                struct sample_params p = plain;
                p.top_k = rows[i].top_k;
                p.top_p = rows[i].top_p;
                p.min_p = rows[i].min_p;
                p.typical_p = rows[i].typical_p;
                p.temperature = rows[i].temperature;
                p.position = position;
                p.want_logprob = 1;
                p.n_top = position * 10;
                struct sample_result cpu = sample_by_cpu(logits, VOCAB, &p);
                struct sample_result blocks = sample_by_blocks(logits, VOCAB, &p, 4, 1);
                assert_same_result(&blocks, &cpu);
            }
        free(logits);
    }
}

static void test_penalties_bias_masks_and_broken_rows_are_the_cpus(void **state)
{
    (void)state;
    enum { VOCAB = 100 };
    struct random random = {17};
    struct sample_count counts[] = {{3, 0}, {7, 4}, {99, 1}, {100, 5}};
    struct sample_bias biases[] = {{5, 2.0f}, {5, 1.0f}, {7, -INFINITY}, {200, 1.0f}};
    uint32_t mask[4] = {0xFFFF00FFu, 0xFFFFFFFFu, 0x0F0F0F0Fu, 0xFu}, nothing[4] = {0};
    for (int greedy = 0; greedy < 2; greedy++) {
        float *logits = random_floats(&random, VOCAB, 0.05f);
        /* token 5 is drawn by its two biases, not by a large logit */
        for (uint32_t i = 0; i < VOCAB; i++)
            logits[i] = i == 5 ? 0.0f : logits[i] * 0.05f;
        struct sample_params p = plain;
        p.temperature = greedy ? 0.0f : 0.8f;
        p.repetition_penalty = 1.3f;
        p.presence_penalty = 0.5f;
        p.frequency_penalty = 0.25f;
        p.counts = counts;
        p.n_counts = 4;
        p.biases = biases;
        p.n_biases = 4;
        p.allowed_mask = mask;
        p.want_logprob = 1;
        p.n_top = 20;
        for (uint32_t step = 0; step < 20; step++) {
            p.position = step;
            struct sample_result cpu = sample_by_cpu(logits, VOCAB, &p);
            struct sample_result blocks = sample_by_blocks(logits, VOCAB, &p, 2, 2);
            assert_same_result(&blocks, &cpu);
        }
        p.allowed_mask = nothing;
        struct sample_result banned = sample_by_blocks(logits, VOCAB, &p, 2, 1);
        assert_int_equal(banned.status, STATUS_FAILED_PRECONDITION);
        logits[50] = NAN;
        struct sample_result broken = sample_by_blocks(logits, VOCAB, &p, 2, 1);
        assert_int_equal(broken.status, STATUS_DATA_LOSS);
        free(logits);
    }
}

static void test_sample_layout_places_every_array_apart(void **state)
{
    (void)state;
    enum { VOCAB = 70, ROWS = 3 };
    struct sample_count counts[] = {{1, 2}, {3, 4}};
    struct sample_bias biases[] = {{5, 6.0f}};
    uint32_t mask[3] = {1, 2, 3};
    struct sample_params params[ROWS] = {plain, plain, plain};
    params[0].counts = params[2].counts = counts;
    params[0].n_counts = 2;
    params[2].n_counts = 1;
    params[1].biases = biases;
    params[1].n_biases = 1;
    params[1].allowed_mask = params[2].allowed_mask = mask;
    struct sample_layout l = sample_layout_of(params, ROWS, VOCAB);
    assert_int_equal(sample_mask_words(VOCAB), 3);
    assert_true(l.states >= sizeof(params) &&
                l.counts >= l.states + ROWS * sizeof(struct sample_state) &&
                l.biases >= l.counts + 3 * sizeof(counts[0]) &&
                l.masks >= l.biases + sizeof(biases) && l.results >= l.masks + 6 * 4 &&
                l.n_bytes == l.results + ROWS * sizeof(struct sample_result));
    /* the same block as host and device memory, so that the test can follow the pointers */
    uint8_t *block = malloc(l.n_bytes);
    memset(block, 0xFF, l.n_bytes);
    sample_layout_fill(&l, params, ROWS, VOCAB, block, block);
    const struct sample_params *p = (const struct sample_params *)(const void *)block;
    const struct sample_state zero = {0};
    for (uint32_t r = 0; r < ROWS; r++)
        assert_memory_equal(block + l.states + r * sizeof(zero), &zero, sizeof(zero));
    assert_memory_equal(p[0].counts, counts, sizeof(counts));
    assert_memory_equal(p[2].counts, counts, sizeof(counts[0]));
    assert_memory_equal(p[1].biases, biases, sizeof(biases));
    assert_null(p[0].allowed_mask);
    assert_memory_equal(p[1].allowed_mask, mask, sizeof(mask));
    assert_memory_equal(p[2].allowed_mask, mask, sizeof(mask));
    assert_ptr_not_equal(p[1].allowed_mask, p[2].allowed_mask);
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_equals_the_samplers),
        cmocka_unit_test(test_bins_follow_the_order_of_keys),
        cmocka_unit_test(test_typical_keys_of_equal_distance_follow_the_weights),
        cmocka_unit_test(test_limbs_add_up_to_the_weights),
        cmocka_unit_test(test_parts_and_pieces_cover_the_row),
        cmocka_unit_test(test_chains_draw_what_the_cpu_draws),
        cmocka_unit_test(test_large_rows_draw_what_the_cpu_draws),
        cmocka_unit_test(test_results_do_not_depend_on_blocks_and_threads),
        cmocka_unit_test(test_extreme_rows_are_the_cpus),
        cmocka_unit_test(test_penalties_bias_masks_and_broken_rows_are_the_cpus),
        cmocka_unit_test(test_sample_layout_places_every_array_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
