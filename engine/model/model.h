/* model.h: a checkpoint bound to an architecture. Hyper-parameters are read and checked, every
 * tensor is found and its shape checked; unknown keys and tensors are refused. Reads no weights.
 * Immutable once open; any thread.
 *
 * Errors about the file: INVALID_ARGUMENT (reason MODEL_FILE_INVALID) with the key or tensor, the
 * value found and the value expected. UNIMPLEMENTED names an architecture, key, tensor or type that
 * is not supported. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine_stats.h"
#include "engine/model/arch/arch.h"
#include "engine/model/shape.h"

struct checkpoint;
struct checkpoint_tensor;
struct error;

struct model {
    const struct checkpoint *ckpt; /* borrowed while the model is open */
    const struct arch *arch;
    struct arch_source source; /* with the rows of its bases */
    struct model_shape shape;
    struct model_info info;
    bool tied_output; /* the file has no output matrix: the token embedding serves as ARCH_OUTPUT */
    const struct checkpoint_tensor **tensors; /* owned; by slot and layer, see model_tensor() */
    const struct checkpoint_tensor **expert_tensors; /* owned; NULL without experts */
    /* Norms of heads that have a tensor each: by layer, Q or K, and head. Owned; else NULL. */
    const struct checkpoint_tensor **head_tensors;
    /* Per row of source.tensors: the first row whose slot lies in the same tensors. Owned. */
    uint32_t *shared_with;
};

/* Where a slot's outputs (rows, or elements of a vector) lie among those of its tensor. Output i
 * lies at begin + i / run · stride + i % run. */
struct row_map {
    uint32_t begin, run, stride;
};

/* `arch` NULL: uses the architecture that the file names. Call model_fini() in any case. */
int model_init(struct model *model, const struct checkpoint *ckpt, const struct arch *arch,
               struct error *err);
void model_fini(struct model *model);

/* NULL if the file does not have the tensor. For a tied output, returns the token embedding. */
const struct checkpoint_tensor *model_tensor(const struct model *model, enum arch_slot slot,
                                             uint32_t layer, uint32_t expert);
/* The tensors of a slot's heads, where each head has its own; NULL for other slots. *out_n gets
 * their number. */
const struct checkpoint_tensor *const *
model_head_tensors(const struct model *model, enum arch_slot slot, uint32_t layer, uint32_t *out_n);
/* True for the matrices of experts, which may have a tensor per expert. For other slots `expert` is
 * 0. */
bool model_has_experts(enum arch_slot slot);
/* Rows (elements of a vector) of the slot's tensor in the file. The slot's own rows begin at
 * *out_begin. `row` is a row of the model's source. */
uint32_t model_tensor_rows(const struct model *model, const struct arch_tensor *row, uint32_t layer,
                           uint32_t *out_begin);
struct row_map model_row_map(const struct model *model, const struct arch_tensor *row,
                             uint32_t layer);
