/* plan.h: the share of a model that one rank holds, and its layout in memory. Computed without
 * allocating weights: the same numbers serve executor_plan(), the loader and the decoder. Plain
 * data. */
#pragma once

#include <stdbool.h>
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

/* A packed weight of a rank. */
struct weight_place {
    enum arch_slot slot;
    uint32_t layer;  /* 0 for slots that are not per layer */
    uint32_t expert; /* or head; 0 for slots that are neither per expert nor per head */
    const struct checkpoint_tensor *tensor;
    /* Norms of heads with a tensor each: [n_heads], the first is `tensor`. Else NULL. */
    const struct checkpoint_tensor *const *by_head;
    uint32_t n_by_head;
    struct weight_desc desc;
    /* The rank's rows (elements of a vector) in the tensor; see struct row_map. */
    struct row_map map;
    uint32_t first; /* the first of the slot's rows that this rank holds */
    uint32_t block; /* which of the tensor's matrices; 0 without experts */
    /* transposed matrices: the row of the file, in the block, that is the first column */
    uint32_t first_column;
    uint32_t blocks; /* vectors: number of parts, each with `first` */
    bool is_transposed, plus_one, minus_exp;
    uint32_t row_bytes; /* a row as weight_pack_rows() reads it */
    uint64_t offset_bytes, n_bytes;
};

/* Sizes that steps need, from the executor's config. */
struct step_sizes {
    uint32_t max_rows, max_seqs, max_blocks_per_seq;
    uint32_t max_logits; /* most sample rows of a step */
    /* rows of logits kept at a time; fewer than max_logits where they are computed in portions */
    uint32_t n_logits;
    uint32_t n_blocks, block_size;
    /* Layers that see at most window_reach positions, the row's own included, have blocks of their
     * own: n_window_blocks. 0: they have n_blocks, as all other layers. With enough KV tokens they
     * have most_window_blocks. */
    uint32_t n_window_blocks, window_reach;
    bool windows_are_chunks; /* they see their own chunk of window_reach positions alone */
    uint64_t most_window_blocks;
    uint32_t n_state_slots; /* states of sequences that recurrent layers keep; 0: no such layers */
    enum dtype kv_dtype;
};

struct rank_plan {
    struct rank rank;
    struct rank_split split;
    enum weight_store store; /* format of dense linears */
    struct step_sizes steps;
    struct weight_place *places; /* owned; by offset */
    uint32_t n_places;
    uint64_t header_bytes;  /* bytes before the first weight */
    uint64_t weights_bytes; /* bytes of the packed memory, header included */
    /* set by the executor, which knows the decoder */
    uint64_t kv_bytes, state_bytes, workspace_bytes;
    /* part of workspace_bytes for captured steps; the driver allocates them */
    uint64_t graph_bytes;
    struct op_needs needs; /* needs of the rank's stream; set by the executor */
    uint64_t source_bytes; /* raw bytes of the file that are read */
    /* Digest of checkpoint, kernel set, rank and layout. Equal digests mean that packed memory can
     * be shared. */
    uint8_t digest[SHA256_BYTES];
};

/* Slots of recurrent states for n_seqs running sequences. More are for snapshots and drafts: those
 * that fit in snapshot_bytes, or a quarter if that is 0. */
uint32_t plan_state_slots(uint32_t n_seqs, uint64_t slot_bytes, uint64_t snapshot_bytes);

/* The reverse: sequences that may run with n_slots slots, at least 1. */
uint32_t plan_running_states(uint32_t n_slots, uint64_t slot_bytes, uint64_t snapshot_bytes);

/* Positions that the layers with a window see at most, each row's own included: the longest window
 * or chunk below `context`. 0: no layer has one. */
uint32_t plan_window_reach(const struct model_shape *shape, uint32_t context);
/* True if no layer that reads the K and V of `layer` sees more than steps->window_reach positions.
 * Layers are counted in the whole model. */
bool plan_has_window(const struct model_shape *shape, const struct step_sizes *steps,
                     uint32_t layer);

/* Computes the step sizes of a config: blocks from tokens, table width from the context. Checks
 * that `ops` support the KV type. INVALID_ARGUMENT names the field. */
int plan_steps(const struct model_shape *shape, const struct executor_config *cfg,
               const struct op_table *ops, struct step_sizes *out_steps,
               uint32_t *out_context_tokens, struct error *err);

/* Checks that the kernel set has the ops of the layers' mixers. UNIMPLEMENTED names the set, the
 * op and the layer. */
int plan_ops_check(const struct op_table *ops, const struct model_shape *shape,
                   uint32_t layer_begin, uint32_t n_layers, struct error *err);

/* True if the rank's stage needs a tensor that is not per layer. With a tied output the last stage
 * needs the token embedding, unless ranks share the output matrix. */
bool plan_stage_has(const struct rank *rank, const struct model *model, enum arch_slot slot);

/* Call plan_rank_fini() in any case. */
int plan_rank_init(struct rank_plan *plan, const struct model *model, const struct op_table *ops,
                   const struct rank *rank, enum weight_store store, const struct step_sizes *steps,
                   struct error *err);
void plan_rank_fini(struct rank_plan *plan);
