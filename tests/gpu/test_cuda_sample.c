/* Compares the sampler of the CUDA backend with the CPU's, through the op. Rows are random, of odd
 * vocabularies and of real ones, each with its own parameters. Calls have one to many rows, which
 * changes the number of blocks per row. Ids, log-probabilities and lists equal the CPU's bit for
 * bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/status.h"
#include "kernels/cpu/sample/sample_cpu.h"
#include "tests/gpu/support/support_gpu.h"

enum { MAX_ROWS = 160, N_KINDS = 6 };

static struct random random_rows_of;

static void fill_logits(float *logits, uint32_t vocab, uint32_t kind)
{
    float *noise = random_floats(&random_rows_of, vocab, 0.02f);
    uint32_t only = random_u32(&random_rows_of) % vocab;
    for (uint32_t i = 0; i < vocab; i++)
        logits[i] = kind == 0   ? noise[i] * 3.0f
                    : kind == 1 ? roundf(noise[i] * 4.0f) /* many ties */
                    : kind == 2 ? noise[i] * 0.01f        /* flat */
                    : kind == 3 ? noise[i] + (i % 1000 == 7 ? 30.0f : 0.0f)
                    : kind == 4 ? (i == only ? -3.0f : -INFINITY)
                                : 1.5f; /* all equal */
    free(noise);
}

/* Lists of a row's parameters: heavy penalties, biases with an id twice, a mask. */
struct lists {
    struct sample_count counts[64];
    struct sample_bias biases[8];
    uint32_t *mask;
};

static void fill_lists(struct lists *l, uint32_t vocab)
{
    size_t words = ((size_t)vocab + 31) / 32;
    for (uint32_t i = 0; i < 64; i++) /* distinct ids; some beyond the vocabulary */
        l->counts[i] = (struct sample_count){i * (vocab / 64 + 1), i % 3};
    for (uint32_t i = 0; i < 8; i++)
        l->biases[i] =
            (struct sample_bias){i / 2 * (vocab / 4 + 1), i == 5 ? -INFINITY : 0.1f * (float)i};
    l->mask = malloc(words * sizeof(uint32_t));
    for (size_t i = 0; i < words; i++) {
        uint32_t some = random_u32(&random_rows_of), others = random_u32(&random_rows_of);
        l->mask[i] = some | others | 1;
    }
}

static struct sample_params random_params(uint32_t vocab, const struct lists *l)
{
    static const uint32_t ks[] = {0, 0, 0, 1, 2, 50, 2048, 2049, 30000};
    static const float shares[] = {1.0f, 1.0f, 1e-9f, 0.5f, 0.9f, 0.999f, 0.99999994f};
    struct random *random = &random_rows_of;
    struct sample_params p = {.temperature = random_u32(random) % 5 ? 0.8f : 0.0f,
                              .top_k = ks[random_u32(random) % 9],
                              .top_p = shares[random_u32(random) % 7],
                              .typical_p = random_u32(random) % 4 ? 1.0f : 0.6f,
                              .min_p = random_u32(random) % 4 ? 0.0f : 0.05f,
                              .repetition_penalty = 1.0f,
                              .seed = (uint64_t)random_u32(random) << 32 | random_u32(random),
                              .position = random_u32(random) % 1000,
                              .want_logprob = random_u32(random) % 2,
                              .n_top = random_u32(random) % 3 ? 0 : random_u32(random) % 21,
                              .watermark = random_u32(random) % 6 == 0,
                              .previous_id = random_u32(random) % vocab};
    if (random_u32(random) % 3 == 0) {
        p.repetition_penalty = 1e30f;
        p.frequency_penalty = 2.0f;
        p.presence_penalty = 1.5f;
        p.counts = l->counts;
        p.n_counts = 64;
    }
    if (random_u32(random) % 3 == 0) {
        p.biases = l->biases;
        p.n_biases = 8;
    }
    if (random_u32(random) % 3 == 0)
        p.allowed_mask = l->mask;
    if (random_u32(random) % 10 == 0) {
        p.score = 1;
        p.score_id = random_u32(random) % (vocab + 1);
    }
    return p;
}

static void assert_same(const struct sample_result *a, const struct sample_result *b,
                        uint32_t vocab, uint32_t n_rows, uint32_t row)
{
    if (a->status != b->status || a->id != b->id || a->n_top != b->n_top)
        fail_msg("vocabulary %u, row %u of %u: status %d, id %u, %u listed; by the CPU %d, %u, %u",
                 vocab, row, n_rows, a->status, a->id, a->n_top, b->status, b->id, b->n_top);
    assert_memory_equal(a->top_ids, b->top_ids, b->n_top * sizeof(b->top_ids[0]));
    assert_memory_equal(a->top_logprobs, b->top_logprobs, b->n_top * sizeof(b->top_logprobs[0]));
    if (isnan(b->logprob))
        assert_true(isnan(a->logprob));
    else
        assert_memory_equal(&a->logprob, &b->logprob, sizeof(b->logprob));
}

static void sample_and_compare(const float *logits, float *on_gpu, uint32_t vocab, uint32_t n_rows,
                               const struct sample_params *params)
{
    struct sample_result results[MAX_ROWS], wanted;
    void *scratch = aligned_alloc(64, (SAMPLE_SCRATCH_BYTES(vocab) + 63) / 64 * 64);
    struct tensor t = tensor_view(on_gpu, DTYPE_F32, n_rows, vocab);
    memset(results, 0xFF, sizeof(results));
    assert_int_equal(op_sample(gpu.stream, &t, params, results), 0);
    gpu_sync();
    for (uint32_t r = 0; r < n_rows; r++) {
        sample_row_cpu(logits + (size_t)r * vocab, vocab, &params[r], scratch, &wanted);
        assert_same(&results[r], &wanted, vocab, n_rows, r);
    }
    free(scratch);
}

static void test_rows_of_all_kinds_draw_what_the_cpu_draws(void **state)
{
    (void)state;
    static const struct {
        uint32_t vocab, n_rows;
    } calls[] = {{1, 3},     {2, 160},    {31, 160},   {257, 160},  {257, 1},    {5001, 70},
                 {49152, 1}, {49152, 12}, {49152, 40}, {128256, 1}, {128256, 14}};
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        uint32_t vocab = calls[c].vocab, n_rows = calls[c].n_rows;
        size_t n_bytes = (size_t)n_rows * vocab * sizeof(float);
        float *logits = malloc(n_bytes);
        struct sample_params params[MAX_ROWS];
        struct lists lists;
        fill_lists(&lists, vocab);
        for (uint32_t r = 0; r < n_rows; r++) {
            fill_logits(logits + (size_t)r * vocab, vocab, random_u32(&random_rows_of) % N_KINDS);
            params[r] = random_params(vocab, &lists);
        }
        if (n_rows > 10) { /* rows with NaN or infinity must not change other rows */
            logits[3 * (size_t)vocab + vocab / 2] = NAN;
            logits[5 * (size_t)vocab + vocab - 1] = INFINITY;
        }
        float *on_gpu = gpu_upload(logits, n_bytes);
        sample_and_compare(logits, on_gpu, vocab, n_rows, params);
        gpu_drop(on_gpu, n_bytes);
        free(lists.mask);
        free(logits);
    }
}

/* A row alone has up to 64 blocks, among 160 three: the same bits. */
static void test_a_row_draws_the_same_beside_any_others(void **state)
{
    (void)state;
    enum { VOCAB = 9000, ROWS = 160, TRIED = 12 };
    size_t n_bytes = (size_t)ROWS * VOCAB * sizeof(float);
    float *logits = malloc(n_bytes);
    struct sample_params params[ROWS];
    struct sample_result all[ROWS], one;
    struct lists lists;
    fill_lists(&lists, VOCAB);
    for (uint32_t r = 0; r < ROWS; r++) {
        fill_logits(logits + (size_t)r * VOCAB, VOCAB, r % 4);
        params[r] = random_params(VOCAB, &lists);
    }
    float *on_gpu = gpu_upload(logits, n_bytes);
    struct tensor t = tensor_view(on_gpu, DTYPE_F32, ROWS, VOCAB);
    assert_int_equal(op_sample(gpu.stream, &t, params, all), 0);
    gpu_sync();
    for (uint32_t i = 0; i < TRIED; i++) {
        uint32_t r = i * (ROWS / TRIED);
        struct tensor row = tensor_view(on_gpu + (size_t)r * VOCAB, DTYPE_F32, 1, VOCAB);
        assert_int_equal(op_sample(gpu.stream, &row, &params[r], &one), 0);
        gpu_sync();
        assert_same(&one, &all[r], VOCAB, ROWS, r);
    }
    gpu_drop(on_gpu, n_bytes);
    free(lists.mask);
    free(logits);
}

/* Compares the sampler of SLUICE_CUDA_GREEDY=`how` with the CPU: calls that are all greedy, and
 * others between them. NULL is the default. */
static void check_greedy(const char *how)
{
    static const struct {
        uint32_t vocab, n_rows;
    } calls[] = {{1, 3}, {31, 160}, {257, 1}, {5001, 70}, {49152, 12}, {128256, 1}, {49152, 1}};
    struct error err = {0};
    struct device *device = NULL;
    struct stream *stream = NULL, *own = gpu.stream;
    if (how != NULL)
        setenv("SLUICE_CUDA_GREEDY", how, 1);
    assert_int_equal(gpu.module.device_ops->open(0, &device, &err), 0);
    unsetenv("SLUICE_CUDA_GREEDY");
    assert_int_equal(gpu.module.device_ops->stream_create(device, 0, &stream, &err), 0);
    gpu.stream = stream;
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        uint32_t vocab = calls[c].vocab, n_rows = calls[c].n_rows;
        size_t n_bytes = (size_t)n_rows * vocab * sizeof(float);
        float *logits = malloc(n_bytes);
        struct sample_params params[MAX_ROWS];
        for (uint32_t r = 0; r < n_rows; r++) {
            fill_logits(logits + (size_t)r * vocab, vocab, random_u32(&random_rows_of) % N_KINDS);
            params[r] = (struct sample_params){.temperature = r % 3 ? 0.0f : 0.7f,
                                               .top_k = r % 3 ? 0 : 1,
                                               .top_p = 1.0f,
                                               .typical_p = 1.0f,
                                               .repetition_penalty = 1.0f};
        }
        if (n_rows > 10) {
            logits[3 * (size_t)vocab + vocab / 2] = NAN;
            logits[5 * (size_t)vocab + vocab - 1] = INFINITY;
            for (uint32_t i = 0; i < vocab; i++)
                logits[7 * (size_t)vocab + i] = -INFINITY;
        }
        float *on_gpu = gpu_upload(logits, n_bytes);
        sample_and_compare(logits, on_gpu, vocab, n_rows, params);
        /* the second call finds the tickets back in place */
        sample_and_compare(logits, on_gpu, vocab, n_rows, params);
        params[0].temperature = 0.9f; /* not greedy */
        params[0].top_k = 0;
        params[n_rows - 1].want_logprob = 1;
        sample_and_compare(logits, on_gpu, vocab, n_rows, params);
        gpu_drop(on_gpu, n_bytes);
        free(logits);
    }
    gpu.stream = own;
    gpu.module.device_ops->stream_destroy(stream);
    gpu.module.device_ops->close(device);
}

/* Rows that are greedy and want no more than the token are sampled in one launch, by default. */
static void test_greedy_rows_at_once_have_the_results_of_the_cpu(void **state)
{
    (void)state;
    check_greedy(NULL);
}

static void test_greedy_rows_by_phases_have_the_results_of_the_cpu(void **state)
{
    (void)state;
    check_greedy("phases");
}

static void test_device_when_opened_with_another_word_for_greedy_then_refuses(void **state)
{
    (void)state;
    struct error err = {0};
    struct device *device = NULL;
    setenv("SLUICE_CUDA_GREEDY", "one", 1);
    assert_int_equal(gpu.module.device_ops->open(0, &device, &err), STATUS_INVALID_ARGUMENT);
    unsetenv("SLUICE_CUDA_GREEDY");
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_all_kinds_draw_what_the_cpu_draws),
        cmocka_unit_test(test_a_row_draws_the_same_beside_any_others),
        cmocka_unit_test(test_greedy_rows_at_once_have_the_results_of_the_cpu),
        cmocka_unit_test(test_greedy_rows_by_phases_have_the_results_of_the_cpu),
        cmocka_unit_test(test_device_when_opened_with_another_word_for_greedy_then_refuses),
    };
    random_rows_of.state = (uint64_t)time(NULL);
    const char *seed = getenv("SLUICE_TEST_SEED");
    if (seed)
        random_rows_of.state = strtoull(seed, NULL, 10);
    print_message("SLUICE_TEST_SEED=%llu\n", (unsigned long long)random_rows_of.state);
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
