/* routes: the choices of experts and the logits under the contract's kernels, beside those of f32.
 *
 *   routes KERNELS DIR NAME ...
 *
 * DIR/tests/golden/tiny holds NAME (a folder or a GGUF file) and NAME.bin, sequences and logits of
 * transformers (tests/golden/README.md). Prints a line per name: choices (rows × layers with
 * experts), and choices of other experts than f32's. Then three worst errors of logits follow. The
 * first is that of f32 against transformers, the second that of the kernels against f32. The third
 * is the second without rows from the first other choice on.
 * Errors are relative to the row's largest logit. tests/support/route_accuracy.py calls it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "tests/unit/engine/support/support_logits.h"
#include "tests/unit/engine/support/support_model.h"

enum { MAX_CHOICES = 1 << 14, CHUNK = 128 };

struct choices {
    uint32_t n, n_rows; /* n_rows: rows of a layer */
    uint64_t experts[MAX_CHOICES];
};

static struct choices *record;

int __real_op_router_topk(struct stream *s, struct expert_routes *routes,
                          const struct tensor *logits, const struct router_params *params);
int __wrap_op_router_topk(struct stream *s, struct expert_routes *routes,
                          const struct tensor *logits, const struct router_params *params);

/* Stands before the op, by the linker's option --wrap. */
int __wrap_op_router_topk(struct stream *s, struct expert_routes *routes,
                          const struct tensor *logits, const struct router_params *params)
{
    int rc = __real_op_router_topk(s, routes, logits, params);
    record->n_rows = routes->n_rows;
    for (uint32_t r = 0; !rc && r < routes->n_rows && record->n < MAX_CHOICES; r++) {
        uint64_t experts = 0;
        for (uint32_t j = 0; j < routes->n_used; j++)
            experts |= 1ULL << routes->ids[r * routes->n_used + j] % 64;
        record->experts[record->n++] = experts;
    }
    return rc;
}

/* Returns the logits of every position, run in one step. */
static float *run(const char *path, const char *kernels, const uint32_t *ids, uint32_t n,
                  struct choices *choices, uint32_t *out_vocab)
{
    struct executor_config cfg = model_run_config(kernels);
    struct model_run model;
    record = choices;
    choices->n = 0;
    model_run_open(&model, path, &cfg);
    *out_vocab = executor_model_info(model.ex)->vocab_size;
    float *all = malloc((size_t)n * *out_vocab * sizeof(float));
    assert_non_null(all);
    model_run_all(&model, ids, n, CHUNK, false, all);
    model_run_close(&model);
    return all;
}

struct totals {
    uint32_t n_choices, n_other;
    double f32, kernels, kept;
};

static void add_worst(double *worst, double error)
{
    if (!(error <= *worst))
        *worst = error;
}

/* The first row of a sequence whose choice differs in some layer; n_rows if there is none. */
static uint32_t first_other(const struct choices *a, const struct choices *b, struct totals *t)
{
    uint32_t first = a->n_rows;
    for (uint32_t i = 0; i < a->n; i++) {
        t->n_choices++;
        if (a->experts[i] == b->experts[i])
            continue;
        t->n_other++;
        first = i % a->n_rows < first ? i % a->n_rows : first;
    }
    return first;
}

static void measure(const char *kernels, const char *dir, const char *name)
{
    static struct choices exact, other;
    struct totals t = {0};
    struct logits_file file;
    char path[512];
    uint32_t vocab = 0;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", dir, name);
    logits_open(&file, name);
    for (uint32_t s = 0; s < file.n_seqs; s++) {
        struct logits_sequence seq;
        logits_next(&file, &seq);
        float *f32 = run(path, "f32", seq.ids, seq.n_ids, &exact, &vocab);
        float *got = run(path, kernels, seq.ids, seq.n_ids, &other, &vocab);
        uint32_t first = first_other(&exact, &other, &t);
        for (uint32_t r = 0; r < seq.n_rows; r++) {
            size_t row = logits_row(&file);
            add_worst(&t.f32, logits_row_error(&file, f32 + row * vocab, vocab));
        }
        for (uint32_t row = 0; row < seq.n_ids; row++) {
            size_t at = (size_t)row * vocab;
            double error = model_relative_error(got + at, f32 + at, vocab);
            add_worst(&t.kernels, error);
            if (row < first)
                add_worst(&t.kept, error);
        }
        free(f32);
        free(got);
        free(seq.ids);
    }
    logits_close(&file);
    printf("%s %u %u %.3e %.3e %.3e\n", name, t.n_choices, t.n_other, t.f32, t.kernels, t.kept);
}

int main(int argc, char **argv)
{
    if (argc < 4 || setenv("SLUICE_TEST_SOURCE_DIR", argv[2], 1) != 0) {
        fprintf(stderr, "usage: routes KERNELS DIR NAME ...\n");
        return 2;
    }
    for (int i = 3; i < argc; i++)
        measure(argv[1], argv[2], argv[i]);
    return 0;
}
