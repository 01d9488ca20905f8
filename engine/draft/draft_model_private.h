/* draft_model_private.h: the draft model's state, shared by draft_model.c (passes) and
 * draft_model_open.c alone. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "engine/draft/draft_model.h"
#include "engine/forward/step_time.h"
#include "engine/model/step.h"
#include "kernels/sample.h"

struct draft_model {
    char *name; /* of its file */
    struct executor *executor;
    uint32_t vocab_size, context_tokens, max_rows, block_size;
    uint32_t chunk; /* rows of one sequence in a pass */
    bool always;    /* drafts whether it pays or not */
    bool is_narrow; /* fewer tokens than the model it drafts for */

    struct step_batch *batch; /* the pass under way */
    struct step_shape shape;
    struct draft_job *sampled[DRAFT_MODEL_MAX_SEQS]; /* by sample row */
    struct sample_params params[DRAFT_MODEL_MAX_SEQS];
    struct sample_result results[DRAFT_MODEL_MAX_SEQS];
    uint64_t i_pass;

    bool *is_whole;    /* [n_blocks] it has all K and V of a block that the prefix cache knows */
    uint64_t *writers; /* [n_blocks] the last pass that wrote to a block */
    struct step_time time;
    struct draft_model_stats stats;
    struct error failure;
};
