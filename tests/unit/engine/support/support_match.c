#include "tests/unit/engine/support/support_match.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_logits.h"
#include "tests/unit/engine/support/support_model.h"

enum { FIRST_PROMPT = 20 }; /* ids of the prompt of a family's first sequence */

double match_worse(double a, double b)
{
    return isnan(a) || isnan(b) ? (double)NAN : fmax(a, b);
}

uint64_t match_hash(uint64_t hash, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        hash = (hash ^ bits) * 1099511628211u;
    }
    return hash;
}

/* Logits of all positions by each table of longrope that some length has. `all` is malloc'ed; NULL
 * for a table that none has. */
static void run_tables(struct model_run *run, const uint32_t *ids, uint32_t n_ids, uint32_t chunk,
                       float *all[2])
{
    const struct model_info *info = executor_model_info(run->ex);
    bool crosses = info->long_rope_after && n_ids > info->long_rope_after;
    all[1] = NULL;
    for (uint32_t table = 0; table < 1u + crosses; table++) {
        all[table] = malloc((size_t)n_ids * info->vocab_size * sizeof(float));
        assert_non_null(all[table]);
        run->is_long = table;
        model_run_all(run, ids, n_ids, chunk, false, all[table]);
    }
}

/* The golden file may have columns of padding that the model lacks. A row behind the prompt belongs
 * to a sequence that ends with it, the others to the whole prompt. */
static void match_sequence(struct model_run *run, struct logits_file *file, bool first,
                           uint32_t chunk, struct match *match)
{
    struct logits_sequence seq;
    uint32_t vocab = executor_model_info(run->ex)->vocab_size;
    uint32_t border = executor_model_info(run->ex)->long_rope_after;
    logits_next(file, &seq);
    uint32_t n_prompt = first ? FIRST_PROMPT : seq.n_ids;
    float *all[2];
    run_tables(run, seq.ids, seq.n_ids, chunk, all);
    assert_true(vocab <= file->columns.n_all);
    for (uint32_t r = 0; r < seq.n_rows; r++) {
        uint32_t row = logits_row(file), length = row < n_prompt ? n_prompt : row + 1;
        const float *logits = all[border && length > border] + (size_t)row * vocab;
        double error = logits_row_error(file, logits, vocab);
        match->error = match_worse(match->error, error);
        match->sum += error;
        match->n_rows++;
    }
    for (uint32_t table = 0; table < 2; table++) {
        if (all[table])
            match->hash = match_hash(match->hash, all[table], (size_t)seq.n_ids * vocab);
        free(all[table]);
    }
    free(seq.ids);
}

struct match match_path(const char *path, const char *name, const struct executor_config *cfg,
                        uint32_t chunk)
{
    struct match match = {0};
    struct logits_file file;
    struct model_run run;
    model_run_open(&run, path, cfg);
    logits_open(&file, name);
    for (uint32_t s = 0; s < file.n_seqs; s++)
        match_sequence(&run, &file, s == 0, chunk, &match);
    model_run_close(&run);
    logits_close(&file);
    return match;
}

struct match match_golden(const char *name, const char *suffix, const struct executor_config *cfg,
                          uint32_t chunk)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s%s", golden_source_dir(), name, suffix);
    return match_path(path, name, cfg, chunk);
}
