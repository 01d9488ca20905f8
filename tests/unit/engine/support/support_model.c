#include "tests/unit/engine/support/support_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "tests/unit/engine/support/support_gguf.h"

struct executor_config model_run_config(const char *kernels)
{
    return (struct executor_config){
        .kernels = kernels,
        .n_threads = 2,
        .tp = 1,
        .kv_dtype = DTYPE_F32,
        .kv_block_size = 16,
        .kv_tokens = 2048,
        .max_rows = 128,
        .max_seqs = MODEL_RUN_MAX_SEQS,
    };
}

void model_run_open_ckpt(struct model_run *run, struct checkpoint *ckpt,
                         const struct executor_config *cfg)
{
    model_run_open_arch(run, ckpt, NULL, cfg);
}

void model_run_open_arch(struct model_run *run, struct checkpoint *ckpt, const struct arch *arch,
                         const struct executor_config *cfg)
{
    struct error err = {0};
    memset(run, 0, sizeof(*run));
    run->cfg = *cfg;
    run->ckpt = ckpt;
    if (executor_open_arch(ckpt, arch, cfg, NULL, NULL, NULL, &run->ex, &err) != 0)
        fail_msg("%s: %s", checkpoint_name(ckpt), err.message);
    run->stride =
        (executor_actual(run->ex)->context_tokens + cfg->kv_block_size - 1) / cfg->kv_block_size;
    struct step_limits limits = {cfg->max_rows, cfg->max_seqs, run->stride, cfg->n_score_rows,
                                 false};
    if (step_batch_create(&limits, &run->batch, &err) != 0)
        fail_msg("%s", err.message);
}

void model_run_open(struct model_run *run, const char *path, const struct executor_config *cfg)
{
    struct error err = {0};
    struct checkpoint *ckpt = NULL;
    if (checkpoint_open(path, &ckpt, &err) != 0)
        fail_msg("%s: %s", path, err.message);
    model_run_open_ckpt(run, ckpt, cfg);
}

void model_run_close(struct model_run *run)
{
    for (uint32_t s = 0; s < run->n_seqs; s++)
        free(run->seqs[s].table);
    step_batch_destroy(run->batch);
    executor_close(run->ex);
    checkpoint_close(run->ckpt);
    memset(run, 0, sizeof(*run));
}

uint32_t model_run_add(struct model_run *run, const uint32_t *ids, uint32_t n_ids)
{
    assert_true(run->n_seqs < MODEL_RUN_MAX_SEQS);
    struct model_run_seq *seq = &run->seqs[run->n_seqs];
    *seq = (struct model_run_seq){.ids = ids, .n_ids = n_ids};
    seq->table = calloc(run->stride, sizeof(*seq->table));
    assert_non_null(seq->table);
    return run->n_seqs++;
}

/* Returns the next block in a mixed order: every second from the front, then the rest from the
 * back. */
static uint32_t take_block(struct model_run *run)
{
    uint32_t n = executor_actual(run->ex)->n_blocks, i = run->n_taken++;
    assert_true(i < n);
    uint32_t half = (n + 1) / 2;
    return i < half ? 2 * i : n - 1 - (n % 2) - 2 * (i - half);
}

void model_run_push(struct model_run *run, uint32_t i_seq, uint32_t n, int sample)
{
    struct step_batch *b = run->batch;
    struct model_run_seq *seq = &run->seqs[i_seq];
    uint32_t bs = run->cfg.kv_block_size, s = b->n_seqs++;
    uint32_t *table = b->block_tables + (size_t)s * run->stride;
    assert_true(seq->n_done + n <= seq->n_ids && b->n_rows + n <= run->cfg.max_rows);
    b->seq_start[s] = b->n_rows;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = seq->n_done + i, row = b->n_rows++;
        if (pos / bs >= seq->n_blocks)
            seq->table[seq->n_blocks++] = take_block(run);
        b->token_ids[row] = seq->ids[pos];
        b->positions[row] = pos;
        b->kv_slots[row] = seq->table[pos / bs] * bs + pos % bs;
        b->seq_of_row[row] = s;
        b->rope_tables[row] = run->is_long;
        b->is_generated[row] = run->generated;
        if (sample == 2 || (sample == 1 && i + 1 == n))
            b->sample_rows[b->n_sample_rows++] = row;
    }
    b->seq_start[s + 1] = b->n_rows;
    step_batch_use_slot(b, s, i_seq, seq->n_done == 0);
    memcpy(table, seq->table, run->stride * sizeof(*table));
    seq->n_done += n;
}

void model_run_step(struct model_run *run)
{
    struct error err = {0};
    if (executor_step(run->ex, run->batch, &err) != 0)
        fail_msg("step: %s", err.message);
    step_batch_clear(run->batch);
}

void model_run_all(struct model_run *run, const uint32_t *ids, uint32_t n_ids, uint32_t chunk,
                   bool last_only, float *out)
{
    uint32_t vocab = executor_model_info(run->ex)->vocab_size;
    uint32_t seq = model_run_add(run, ids, n_ids);
    uint32_t most = last_only || chunk < run->cfg.max_seqs ? chunk : run->cfg.max_seqs;
    for (uint32_t done = 0; done < n_ids;) {
        uint32_t n = n_ids - done < most ? n_ids - done : most;
        bool last = done + n == n_ids;
        model_run_push(run, seq, n, last_only ? last : 2);
        model_run_step(run);
        if (!last_only)
            for (uint32_t i = 0; i < n; i++)
                memcpy(out + (size_t)(done + i) * vocab, executor_logits(run->ex, i),
                       vocab * sizeof(float));
        else if (last)
            memcpy(out, executor_logits(run->ex, 0), vocab * sizeof(float));
        done += n;
    }
}

const char *model_sample_path(void)
{
    const char *path = gguf_sample_path();
    if (access(path, R_OK) != 0)
        fail_msg("the sample model is missing at %s: run etc/fetch_model.sh or set SLUICE_MODEL",
                 path);
    return path;
}

double model_relative_error(const float *a, const float *b, uint32_t n)
{
    double most = 0, scale = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (isnan(d))
            return (double)NAN;
        most = fmax(most, d);
        scale = fmax(scale, fabs((double)b[i]));
    }
    return most / scale;
}
