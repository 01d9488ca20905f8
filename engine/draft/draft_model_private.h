/* draft_model_private.h: the draft model's state. Shared by draft_model.c (passes) and
 * draft_model_open.c only. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "engine/draft/draft_model.h"
#include "engine/draft/draft_states.h"
#include "engine/forward/step_time.h"
#include "engine/model/step.h"
#include "kernels/sample.h"

struct draft_model {
    char *name; /* name of its file */
    struct executor *executor;
    uint32_t vocab_size, context_tokens, max_rows, block_size;
    uint32_t long_rope_after; /* see struct model_info; the target's may differ */
    uint32_t chunk;           /* most rows of one sequence in a pass */
    bool always;              /* drafts whether drafting pays or not */
    bool is_narrow;           /* has fewer tokens than the target model */

    struct step_batch *batch; /* batch of the current pass */
    struct step_shape shape;
    struct draft_job *sampled[DRAFT_MODEL_MAX_SEQS]; /* [n_sample_rows] */
    struct sample_params params[DRAFT_MODEL_MAX_SEQS];
    struct sample_result results[DRAFT_MODEL_MAX_SEQS];
    uint64_t i_pass;

    /* [n_blocks] if K and V of the whole block are written and the prefix cache has the block: 1 +
     * the rope table; else 0 */
    uint8_t *whole;
    uint64_t *writers;           /* [n_blocks] last pass that wrote to the block */
    struct draft_states *states; /* NULL: no recurrent layers */
    struct step_time time;
    struct draft_model_stats stats;
    struct error failure;
};
