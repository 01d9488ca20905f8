/* plan.h: what one rank of a model holds and how it lies in memory, worked out without allocating
 * any of it: the same numbers serve executor_plan(), the loader and the decoder. Plain data. */
#pragma once

#include <stdint.h>

#include "base/sha256.h"
#include "engine/model/model.h"
#include "engine/model/rank.h"
#include "kernels/ops.h"
#include "kernels/weight.h"

struct error;
struct executor_config;

/* Packed memory of the CPU begins with a header of this size (loader.h). */
enum { PLAN_HEADER_BYTES = 4096 };

/* One packed weight of a rank. */
struct weight_place {
    enum arch_slot slot;
    uint32_t layer; /* 0 for slots that are there once */
    const struct checkpoint_tensor *tensor;
    struct weight_desc desc;
    uint32_t row_begin; /* first row of the tensor that this rank holds */
    uint32_t col_begin; /* vectors: first element */
    uint64_t offset_bytes, n_bytes;
};

/* What steps need, from the executor's config. */
struct step_sizes {
    uint32_t max_rows, max_seqs, max_blocks_per_seq;
    uint32_t max_logits; /* rows whose logits are wanted, at most, */
    uint32_t n_logits;   /* and kept at once: fewer where a head's rows can be had in turns */
    uint32_t n_blocks, block_size;
    enum dtype kv_dtype;
};

struct rank_plan {
    struct rank rank;
    struct rank_split split;
    enum weight_store store; /* of dense linears */
    struct step_sizes steps;
    struct weight_place *places; /* owned; by offset */
    uint32_t n_places;
    uint64_t header_bytes;              /* before the first weight */
    uint64_t weights_bytes;             /* of the whole packed memory, header included */
    uint64_t kv_bytes, workspace_bytes; /* filled by the executor, which knows the decoder */
    uint64_t graph_bytes;  /* of the workspace: for captured steps; not allocated, the driver's */
    struct op_needs needs; /* of its stream; filled by who plans the whole */
    uint64_t source_bytes; /* raw bytes read for it */
    uint8_t digest[SHA256_BYTES]; /* of checkpoint, kernel set, rank and layout: equal digests mean
                                     that packed memory can be shared */
};

/* The steps part of a config: blocks from tokens, table width from the context, a cache that `ops`
 * take. INVALID_ARGUMENT names the field. */
int plan_steps(const struct model_shape *shape, const struct executor_config *cfg,
               const struct op_table *ops, struct step_sizes *out_steps,
               uint32_t *out_context_tokens, struct error *err);

/* plan_rank_fini() afterwards in any case. */
int plan_rank_init(struct rank_plan *plan, const struct model *model, const struct op_table *ops,
                   const struct rank *rank, enum weight_store store, const struct step_sizes *steps,
                   struct error *err);
void plan_rank_fini(struct rank_plan *plan);
