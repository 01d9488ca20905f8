/* The bits of a row do not depend on the rows beside it, nor on the pieces of its prompt. Each kind
 * of mixer, rope and FFN has a checkpoint of tests/golden/tiny. Four sequences run alone, whole,
 * and then side by side in random pieces, past window and original context. The
 * keys of every second sequence are rotated by longrope's long table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_model.h"

enum { N_SEQS = 4, N_IDS = 60, MAX_PIECE = 13, VOCAB = 283, ROUNDS = 3 };

/* A checkpoint for each way in which rows of a sequence meet, and for each kind of FFN. */
static const char *const names[] = {
    "llama3",       /* rope with divisors */
    "qwen3",        /* norms of heads */
    "gemma2",       /* window, softcaps */
    "gemma3",       /* two ropes */
    "smollm3",      /* layers without positions */
    "olmo3",        /* norms over all heads, yarn */
    "cohere2",      /* parallel, window */
    "ministral3",   /* scores by position */
    "phi2",         /* partial rope */
    "phi3_long",    /* longrope: two tables in a step */
    "gpt2",         /* learned positions */
    "bloom",        /* ALiBi */
    "falcon",       /* a single KV head, joined Q, K and V */
    "mixtral",      /* experts */
    "gpt_oss",      /* sinks, window, experts with biases */
    "qwen2moe",     /* a shared expert */
    "glm4moe",      /* groups of experts, a dense layer */
    "ernie4_5_moe", /* a selection bias */
    "mimo2",        /* keys wider than values */
};

struct alone {
    uint32_t ids[N_SEQS][N_IDS];
    float *logits[N_SEQS]; /* [N_IDS × vocab], owned */
    uint32_t vocab;
};

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static struct executor_config config(const char *kernels)
{
    struct executor_config cfg = model_run_config(kernels);
    cfg.max_seqs = 64; /* a step may return the logits of this many rows */
    return cfg;
}

static void run_alone(struct alone *alone, const char *path, const char *kernels)
{
    struct executor_config cfg = config(kernels);
    uint32_t random = 11;
    for (uint32_t s = 0; s < N_SEQS; s++) {
        struct model_run run;
        model_run_open(&run, path, &cfg);
        alone->vocab = executor_model_info(run.ex)->vocab_size;
        for (uint32_t i = 0; i < N_IDS; i++)
            alone->ids[s][i] = next_random(&random) % VOCAB;
        alone->logits[s] = malloc((size_t)N_IDS * alone->vocab * sizeof(float));
        assert_non_null(alone->logits[s]);
        run.is_long = s % 2;
        model_run_all(&run, alone->ids[s], N_IDS, N_IDS, false, alone->logits[s]);
        model_run_close(&run);
    }
}

/* Compares the rows of a step, which has pieces of these lengths. Returns their number. */
static uint32_t check_step(const struct model_run *run, const struct alone *alone,
                           const uint32_t *n, const char *what)
{
    uint32_t row = 0;
    for (uint32_t s = 0; s < N_SEQS; s++)
        for (uint32_t i = 0; i < n[s]; i++, row++) {
            uint32_t at = run->seqs[s].n_done - n[s] + i;
            if (memcmp(executor_logits(run->ex, row), alone->logits[s] + (size_t)at * alone->vocab,
                       alone->vocab * sizeof(float)) != 0)
                fail_msg("%s: position %u of sequence %u has other bits", what, at, s);
        }
    return row;
}

static void check_together(const struct alone *alone, const char *path, const char *kernels,
                           uint32_t seed)
{
    struct executor_config cfg = config(kernels);
    struct model_run run;
    uint32_t random = seed, n_compared = 0;
    char what[640];
    snprintf(what, sizeof(what), "%s, kernels %s, round %u", path, kernels, seed);
    model_run_open(&run, path, &cfg);
    for (uint32_t s = 0; s < N_SEQS; s++)
        model_run_add(&run, alone->ids[s], N_IDS);
    for (bool more = true; more;) {
        uint32_t n[N_SEQS] = {0};
        more = false;
        for (uint32_t s = 0; s < N_SEQS; s++) {
            uint32_t left = N_IDS - run.seqs[s].n_done;
            n[s] = next_random(&random) % (MAX_PIECE + 1);
            n[s] = n[s] < left ? n[s] : left;
            run.generated = n[s] == 1;
            run.is_long = s % 2;
            if (n[s])
                model_run_push(&run, s, n[s], 2);
            more = more || left > n[s];
        }
        if (run.batch->n_rows)
            model_run_step(&run);
        n_compared += check_step(&run, alone, n, what);
    }
    assert_int_equal(n_compared, N_SEQS * N_IDS);
    model_run_close(&run);
}

static void test_rows_have_the_same_bits_beside_any_others(void **state)
{
    static const char *const sets[] = {"f32", "auto"};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof(names) / sizeof(names[0]); i++) {
        struct alone alone;
        char path[512];
        snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s.gguf", golden_source_dir(),
                 names[i / 2]);
        run_alone(&alone, path, sets[i % 2]);
        for (uint32_t round = 1; round <= ROUNDS; round++)
            check_together(&alone, path, sets[i % 2], round);
        for (uint32_t s = 0; s < N_SEQS; s++)
            free(alone.logits[s]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_have_the_same_bits_beside_any_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
