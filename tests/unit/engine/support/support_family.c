#include "tests/unit/engine/support/support_family.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const double F32_BOUND = 2e-5;
static const double CONTRACT_BOUND = 5e-2;

enum { N_SEQS = 4, N_IDS = 60, MAX_PIECE = 13, VOCAB = 283, ROUNDS = 3 };

void family_check_logits(const struct family *families, size_t n)
{
    struct executor_config cfg = model_run_config("f32");
    for (size_t i = 0; i < n; i++) {
        const struct family *f = &families[i];
        struct match folder = match_golden(f->name, "", &cfg, 16);
        struct match gguf = f->has_gguf ? match_golden(f->name, ".gguf", &cfg, 16) : folder;
        print_message("%-18s folder %.1e, GGUF %.1e of %u rows\n", f->name, folder.error,
                      gguf.error, folder.n_rows);
        assert_true(folder.n_rows >= 16);
        if (!(folder.error <= F32_BOUND && gguf.error <= F32_BOUND))
            fail_msg("%s: relative error %.3g of the folder, %.3g of the GGUF", f->name,
                     folder.error, gguf.error);
    }
}

void family_check_bits(const struct family *families, size_t n)
{
    static const char *const sets[] = {"f32", "auto"};
    for (size_t i = 0; i < 2 * n; i++) {
        const struct family *f = &families[i / 2];
        struct executor_config cfg = model_run_config(sets[i % 2]);
        uint64_t whole = match_golden(f->name, "", &cfg, 1000).hash;
        if (match_golden(f->name, "", &cfg, 7).hash != whole)
            fail_msg("%s, kernels %s: pieces of 7 tokens differ", f->name, cfg.kernels);
        for (cfg.tp = 2; cfg.tp <= f->max_tp; cfg.tp *= 2)
            if (match_golden(f->name, "", &cfg, 16).hash != whole)
                fail_msg("%s, kernels %s: %u ranks differ", f->name, cfg.kernels, cfg.tp);
    }
}

void family_check_contract(const struct family *families, size_t n)
{
    static const char *const sets[] = {"ref", "auto"};
    for (size_t i = 0; i < 2 * n; i++) {
        const struct family *f = &families[i / 2];
        struct executor_config cfg = model_run_config(sets[i % 2]);
        double folder = match_golden(f->name, "", &cfg, 16).error;
        double gguf = f->has_gguf ? match_golden(f->name, ".gguf", &cfg, 16).error : 0;
        if (!(folder <= CONTRACT_BOUND && gguf <= CONTRACT_BOUND))
            fail_msg("%s, kernels %s: relative error %.3g of the folder, %.3g of the GGUF", f->name,
                     cfg.kernels, folder, gguf);
    }
}

/* --- rows beside others --- */

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

void family_check_batches(const char *name)
{
    static const char *const sets[] = {"f32", "auto"};
    for (size_t i = 0; i < 2; i++) {
        struct alone alone;
        char path[512];
        snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s.gguf", golden_source_dir(), name);
        run_alone(&alone, path, sets[i]);
        for (uint32_t round = 1; round <= ROUNDS; round++)
            check_together(&alone, path, sets[i], round);
        for (uint32_t s = 0; s < N_SEQS; s++)
            free(alone.logits[s]);
    }
}
