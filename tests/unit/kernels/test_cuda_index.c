/* Index arithmetic and the row kernels of the CUDA backend, on the CPU: the same lines that nvcc
 * compiles, run by one thread or by several that meet at a barrier, against the plain reference and
 * the CPU's sampler. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/ref.h"
#include "kernels/cpu/sample_cpu.h"
#include "kernels/cpu/sample_passes.h"
#include "kernels/cpu/sample_philox.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/sample_layout.h"
#include "kernels/cuda/sample_row.h"
#include "kernels/segments.h"
#include "support_kernels.h"

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
    static const uint32_t ranges[][2] = {{0, 0}, {5, 6}, {100, 228}, {100, 227}, {0, 1u << 20}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        uint32_t at = ranges[i][0], begin, end;
        for (uint32_t p = 0; p < SAMPLE_ROW_PIECES; p++) {
            cuda_piece(ranges[i][0], ranges[i][1], p, SAMPLE_ROW_PIECES, &begin, &end);
            assert_int_equal(begin, at);
            assert_true(end >= begin);
            at = end;
        }
        assert_int_equal(at, ranges[i][1]);
    }
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

/* A block of CPU threads. */
struct team {
    pthread_barrier_t barrier;
    struct block_shared shared;
    uint32_t n_threads;
    void (*work)(const struct block *block, void *job);
    void *job;
};

struct member {
    struct team *team;
    uint32_t tid;
};

static void meet(void *context)
{
    pthread_barrier_wait(context);
}

static void *run_member(void *arg)
{
    const struct member *m = arg;
    struct team *team = m->team;
    struct block block = {&team->shared, m->tid, team->n_threads, team->n_threads > 1 ? meet : NULL,
                          &team->barrier};
    team->work(&block, team->job);
    return NULL;
}

static void run_block(uint32_t n_threads, void (*work)(const struct block *, void *), void *job)
{
    struct team *team = calloc(1, sizeof(*team));
    struct member members[16];
    pthread_t threads[16];
    team->n_threads = n_threads;
    team->work = work;
    team->job = job;
    pthread_barrier_init(&team->barrier, NULL, n_threads);
    for (uint32_t i = 0; i < n_threads; i++) {
        members[i] = (struct member){team, i};
        if (i > 0)
            assert_int_equal(pthread_create(&threads[i], NULL, run_member, &members[i]), 0);
    }
    run_member(&members[0]);
    for (uint32_t i = 1; i < n_threads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&team->barrier);
    free(team);
}

struct norm_job {
    float *y;
    const float *x, *w;
    uint32_t n;
};

static void norm_work(const struct block *block, void *arg)
{
    const struct norm_job *job = arg;
    norm_row(block, job->y, job->x, job->w, job->n, 1e-5f);
}

static void test_rms_norm_has_the_references_bits(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 15, 16, 17, 100, 576, 4097};
    struct random random = {7};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        uint32_t n = dims[i];
        float *x = random_floats(&random, n, 0.01f), *w = random_floats(&random, n, 0.0f);
        float *wanted = poisoned(n), *y = poisoned(n);
        ref_rms_norm(wanted, x, w, n, 1e-5f);
        for (uint32_t n_threads = 1; n_threads <= 8; n_threads *= 2) {
            struct norm_job job = {y, x, w, n};
            run_block(n_threads, norm_work, &job);
            assert_same_bits(y, wanted, n * sizeof(float), "rms_norm");
        }
        struct norm_job in_place = {x, x, w, n};
        run_block(4, norm_work, &in_place);
        assert_same_bits(x, wanted, n * sizeof(float), "rms_norm in place");
        free(x);
        free(w);
        free(wanted);
        free(y);
    }
}

static void test_philox_equals_the_samplers(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t seed = 0x9E3779B97F4A7C15ull * (i + 1);
        uint32_t counter[4] = {i * 7, i % 3, 0, 0}, out[4];
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        philox4x32_10(counter, key, out);
        assert_int_equal(sample_row_philox(i * 7, i % 3, 0, key[0], key[1], 0), out[0]);
        assert_int_equal(sample_row_philox(i * 7, i % 3, 0, key[0], key[1], 3), out[3]);
    }
}

struct sample_job {
    struct sample_row row;
    struct sample_result *result;
};

static void sample_work(const struct block *block, void *arg)
{
    const struct sample_job *job = arg;
    struct sample_row row = job->row;
    row.block = *block;
    sample_row_run(&row, job->result);
}

static struct sample_result sample_by_block(const float *logits, uint32_t vocab,
                                            const struct sample_params *params, uint32_t n_threads)
{
    struct sample_result result = {0};
    float *x = poisoned(vocab);
    struct sample_job job = {.row = {.params = params, .logits = logits, .x = x, .vocab = vocab},
                             .result = &result};
    run_block(n_threads, sample_work, &job);
    free(x);
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

/* A chain with the stages that bit i of `stages` turns on. */
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

static void test_chains_draw_what_the_cpu_draws(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 31, 200, 1000, 5001};
    struct random random = {11};
    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++)
        for (uint32_t stages = 0; stages < 64; stages++)
            for (int repeat = 0; repeat < 4; repeat++) {
                float *logits = random_floats(&random, vocabs[v], 0.02f);
                for (uint32_t i = 0; i < vocabs[v]; i++) /* coarse: many ties */
                    logits[i] = repeat & 1 ? roundf(logits[i] * 4.0f) : logits[i] * 3.0f;
                struct sample_params p = chain(stages, &random);
                struct sample_result cpu = sample_by_cpu(logits, vocabs[v], &p);
                struct sample_result block = sample_by_block(logits, vocabs[v], &p, 1);
                assert_same_result(&block, &cpu);
                free(logits);
            }
}

static void test_results_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    enum { VOCAB = 700 };
    struct random random = {13};
    for (uint32_t stages = 0; stages < 64; stages += 3) {
        float *logits = random_floats(&random, VOCAB, 0.02f);
        struct sample_params p = chain(stages, &random);
        struct sample_result one = sample_by_block(logits, VOCAB, &p, 1);
        for (uint32_t n_threads = 2; n_threads <= 8; n_threads *= 4) {
            struct sample_result many = sample_by_block(logits, VOCAB, &p, n_threads);
            assert_same_result(&many, &one);
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
            struct sample_result block = sample_by_block(logits, VOCAB, &p, 2);
            assert_same_result(&block, &cpu);
        }
        p.allowed_mask = nothing;
        struct sample_result banned = sample_by_block(logits, VOCAB, &p, 1);
        assert_int_equal(banned.status, STATUS_FAILED_PRECONDITION);
        logits[50] = NAN;
        struct sample_result broken = sample_by_block(logits, VOCAB, &p, 1);
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
    assert_true(l.counts >= sizeof(params) && l.biases >= l.counts + 3 * sizeof(counts[0]) &&
                l.masks >= l.biases + sizeof(biases) && l.results >= l.masks + 6 * 4 &&
                l.n_bytes == l.results + ROWS * sizeof(struct sample_result));
    uint8_t *block = calloc(1, l.n_bytes); /* host and device alike: the pointers can be followed */
    sample_layout_fill(&l, params, ROWS, VOCAB, block, block);
    const struct sample_params *p = (const struct sample_params *)(const void *)block;
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
        cmocka_unit_test(test_blocks_cover_all_items_up_to_the_limit),
        cmocka_unit_test(test_segment_bounds_equal_the_contracts),
        cmocka_unit_test(test_pieces_are_adjacent_and_cover_the_range),
        cmocka_unit_test(test_strided_index_steps_over_the_padding),
        cmocka_unit_test(test_ordered_keys_sort_as_floats_do),
        cmocka_unit_test(test_tree_sum_equals_the_contracts_for_every_set_of_segments),
        cmocka_unit_test(test_rms_norm_has_the_references_bits),
        cmocka_unit_test(test_philox_equals_the_samplers),
        cmocka_unit_test(test_chains_draw_what_the_cpu_draws),
        cmocka_unit_test(test_results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(test_penalties_bias_masks_and_broken_rows_are_the_cpus),
        cmocka_unit_test(test_sample_layout_places_every_array_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
