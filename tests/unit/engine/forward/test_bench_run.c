#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/bench_run.h"
#include "engine/forward/executor.h"
#include "tests/unit/base/support_cmocka.h"

enum { BLOCK = 16, N_SEQS = 3, POSITIONS = 70 };

static volatile sig_atomic_t told_to_stop;

/* A loaded model, and a run on it. */
struct bench {
    struct checkpoint *ckpt;
    struct executor *executor;
    struct bench_run *run;
    uint32_t n_layers, vocab_size;
};

static void bench_open(struct bench *b)
{
    static const struct engine_bench_config config = {.block_size = BLOCK,
                                                      .max_rows = 40,
                                                      .chunk = 16,
                                                      .max_seqs = N_SEQS,
                                                      .max_positions = POSITIONS,
                                                      .stop = &told_to_stop};
    struct executor_config cfg = {.kernels = "auto",
                                  .n_threads = 1,
                                  .tp = 1,
                                  .kv_dtype = DTYPE_BF16,
                                  .kv_block_size = BLOCK,
                                  .kv_tokens = bench_run_kv_tokens(&config),
                                  .max_context_tokens = POSITIONS,
                                  .max_rows = config.max_rows,
                                  .max_seqs = N_SEQS};
    struct error err;
    memset(b, 0, sizeof(*b));
    assert_int_equal(cfg.kv_tokens, N_SEQS * 5 * BLOCK); /* blocks are whole */
    assert_int_equal(
        checkpoint_open(SLUICE_SOURCE_DIR "/tests/golden/tiny/q8_0.gguf", &b->ckpt, &err), 0);
    assert_int_equal(executor_open(b->ckpt, &cfg, NULL, NULL, NULL, &b->executor, &err), 0);
    assert_int_equal(bench_run_create(b->executor, &config, &b->run, &err), 0);
    b->n_layers = executor_model_info(b->executor)->n_layers;
    b->vocab_size = executor_model_info(b->executor)->vocab_size;
}

static void bench_close(struct bench *b)
{
    bench_run_destroy(b->run);
    executor_close(b->executor);
    checkpoint_close(b->ckpt);
}

static uint64_t n_steps(const struct bench *b)
{
    return executor_progress_counter(b->executor) / b->n_layers;
}

static void deepen(struct bench *b, uint32_t depth)
{
    struct error err;
    assert_int_equal(bench_run_deepen(b->run, depth, &err), 0);
}

/* Prompts run in pieces of 16, two sequences to a step of 40 rows. Two sequences take three steps,
 * and the third alone three more. */
static void test_steps_are_an_engines(void **state)
{
    (void)state;
    struct bench b;
    struct error err;
    int64_t ns = 0, step_ns[7] = {0};
    bench_open(&b);
    assert_int_equal(bench_run_prefill(b.run, N_SEQS, 40, &ns, &err), 0);
    assert_int_equal(n_steps(&b), 6);
    assert_true(ns > 0);
    deepen(&b, 50);
    assert_int_equal(n_steps(&b), 6 + 4);
    deepen(&b, 50);
    deepen(&b, 20); /* the positions exist already */
    assert_int_equal(n_steps(&b), 10);
    assert_int_equal(bench_run_decode(b.run, 2, 7, step_ns, &err), 0);
    assert_int_equal(n_steps(&b), 17);
    for (int i = 0; i < 7; i++)
        assert_true(step_ns[i] > 0);
    bench_close(&b);
}

/* Fills the context to each depth in turn. Returns the logits of the next token of every sequence.
 */
static float *decoded(const uint32_t *depths, size_t n_depths, uint32_t *out_n)
{
    struct bench b;
    struct error err;
    int64_t ns;
    bench_open(&b);
    for (size_t i = 0; i < n_depths; i++) {
        deepen(&b, depths[i]);
        /* A measurement at one depth must leave no positions for the next depth. */
        assert_int_equal(bench_run_prefill(b.run, N_SEQS, 10, &ns, &err), 0);
    }
    assert_int_equal(bench_run_decode(b.run, N_SEQS, 1, &ns, &err), 0);
    *out_n = N_SEQS * b.vocab_size;
    float *logits = malloc(*out_n * sizeof(*logits));
    assert_non_null(logits);
    for (uint32_t s = 0; s < N_SEQS; s++)
        memcpy(logits + (size_t)s * b.vocab_size, executor_logits(b.executor, s),
               b.vocab_size * sizeof(*logits));
    bench_close(&b);
    return logits;
}

/* To the bit: every sequence's own blocks hold the keys and values of the whole depth. */
static void test_a_context_filled_in_parts_is_the_same_context(void **state)
{
    (void)state;
    static const uint32_t whole[] = {37}, parts[] = {5, 16, 30, 37}, less[] = {36};
    uint32_t n;
    float *a = decoded(whole, 1, &n), *b = decoded(parts, 4, &n), *c = decoded(less, 1, &n);
    assert_memory_equal(a, b, n * sizeof(*a));
    for (uint32_t s = 0; s < N_SEQS; s++)
        assert_memory_not_equal(a + s * (n / N_SEQS), c + s * (n / N_SEQS),
                                n / N_SEQS * sizeof(*a));
    free(a);
    free(b);
    free(c);
}

static void test_it_stops_when_told(void **state)
{
    (void)state;
    struct bench b;
    struct error err;
    int64_t ns;
    bench_open(&b);
    told_to_stop = 1;
    assert_int_equal(bench_run_prefill(b.run, 1, 40, &ns, &err), STATUS_CANCELLED);
    assert_int_equal(bench_run_decode(b.run, 1, 1, &ns, &err), STATUS_CANCELLED);
    assert_int_equal(bench_run_deepen(b.run, 10, &err), STATUS_CANCELLED);
    told_to_stop = 0;
    assert_int_equal(n_steps(&b), 0);
    assert_int_equal(bench_run_decode(b.run, 1, 1, &ns, &err), 0);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_an_engines),
        cmocka_unit_test(test_a_context_filled_in_parts_is_the_same_context),
        cmocka_unit_test(test_it_stops_when_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
