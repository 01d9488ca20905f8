/* support_model.h: runs sequences through an executor without a scheduler. Each sequence has its
 * own blocks (scattered on purpose); the test builds the steps. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/forward/executor.h"
#include "engine/model/step.h"

struct checkpoint;

enum { MODEL_RUN_MAX_SEQS = 16 };

struct model_run_seq {
    const uint32_t *ids; /* borrowed */
    uint32_t n_ids, n_done;
    uint32_t *table; /* owned; [stride] */
    uint32_t n_blocks;
};

struct model_run {
    struct checkpoint *ckpt;
    struct executor *ex;
    struct step_batch *batch;
    struct executor_config cfg;
    uint32_t stride, n_taken;
    struct model_run_seq seqs[MODEL_RUN_MAX_SEQS];
    uint32_t n_seqs;
    bool generated; /* rows pushed from now on are generated tokens, not prompt */
    bool is_long;   /* rows pushed from now on are rotated by longrope's long table */
    uint32_t step_seq[MODEL_RUN_MAX_SEQS]; /* sequence of the i-th sampled row */
};

/* f32 kernels, tp 1, 2 threads, f32 KV, blocks of 16, 2048 tokens of KV, 128 rows, 16 sequences. */
struct executor_config model_run_config(const char *kernels);
/* Fails the test with the error's text if the executor cannot open. */
void model_run_open(struct model_run *run, const char *path, const struct executor_config *cfg);
/* Takes ownership of ckpt. */
void model_run_open_ckpt(struct model_run *run, struct checkpoint *ckpt,
                         const struct executor_config *cfg);
/* The same with this architecture in place of the file's; borrowed until close. NULL: the file's.
 */
void model_run_open_arch(struct model_run *run, struct checkpoint *ckpt, const struct arch *arch,
                         const struct executor_config *cfg);
void model_run_close(struct model_run *run);

/* Adds a sequence and returns its number. */
uint32_t model_run_add(struct model_run *run, const uint32_t *ids, uint32_t n_ids);
/* Adds the next n tokens of a sequence to the step; `sample`: 0 none, 1 the last row, 2 all rows.
 */
void model_run_push(struct model_run *run, uint32_t seq, uint32_t n, int sample);
/* Runs the pushed rows. executor_logits() returns logits in the order of the pushes. */
void model_run_step(struct model_run *run);

/* Runs all tokens of one sequence alone, in chunks of `chunk`. Logits of every position go to
 * out[n_ids × vocab] (last_only: those of the last position). */
void model_run_all(struct model_run *run, const uint32_t *ids, uint32_t n_ids, uint32_t chunk,
                   bool last_only, float *out);

/* The sample model's path; fails the test with a clear text where the file is missing. */
const char *model_sample_path(void);
/* max|a − b| / max|b|; NaN if any value is NaN. */
double model_relative_error(const float *a, const float *b, uint32_t n);
