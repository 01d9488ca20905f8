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

struct checkpoint;
struct checkpoint_tensor;
struct error;

enum {
    MODEL_MAX_LAYERS = 1024,
    MODEL_MAX_HIDDEN = 1 << 16,
    MODEL_MAX_FFN = 1 << 20,
    MODEL_MAX_HEADS = 1024,
    MODEL_MAX_HEAD_DIM = 512,
    MODEL_MAX_VOCAB = 1 << 20,
    MODEL_MAX_CONTEXT = 1 << 24,
};

enum model_rope_scaling { MODEL_ROPE_PLAIN, MODEL_ROPE_LINEAR, MODEL_ROPE_YARN };

struct model_shape {
    uint32_t n_layers, context_tokens, hidden_dim, ffn_dim, n_heads, n_kv_heads, head_dim;
    uint32_t n_rot;        /* 0: no rope */
    uint32_t vocab_size;   /* rows of the vocabulary matrices that are loaded; see n_vocab_rows */
    uint32_t n_vocab_rows; /* rows in the file; rows beyond the file's tokens are not loaded */
    float norm_eps;
    double alibi_bias; /* 0: no ALiBi */
    enum model_rope_scaling rope_scaling;
    double rope_base, rope_factor, rope_original_context, rope_attn_factor, rope_ext_factor;
    double rope_beta_fast, rope_beta_slow;
};

struct model {
    const struct checkpoint *ckpt; /* borrowed while the model is open */
    const struct arch *arch;
    const struct arch_source *source;
    struct model_shape shape;
    struct model_info info;
    bool tied_output; /* the file has no output matrix: the token embedding serves as ARCH_OUTPUT */
    const struct checkpoint_tensor **tensors; /* owned; by slot and layer, see model_tensor() */
};

/* `arch` NULL: uses the architecture that general.architecture names. Call model_fini() in any
 * case. */
int model_init(struct model *model, const struct checkpoint *ckpt, const struct arch *arch,
               struct error *err);
void model_fini(struct model *model);

/* NULL if the file does not have the tensor. For a tied output, returns the token embedding. */
const struct checkpoint_tensor *model_tensor(const struct model *model, enum arch_slot slot,
                                             uint32_t layer);
uint32_t model_dim(const struct model_shape *shape, enum arch_dim dim);
/* Rows (elements of a vector) of the slot's tensor in the file. The slot's own rows begin at
 * *out_begin. `row` is a row of the model's source. */
uint32_t model_tensor_rows(const struct model *model, const struct arch_tensor *row,
                           uint32_t *out_begin);

/* Fills inv_freq[n_rot / 2], with linear and YaRN scaling applied, divided by `divisors` (NULL or
 * [n_rot / 2]). Returns the factor for cos and sin. Sources: arXiv 2104.09864; arXiv 2309.00071,
 * section 3. */
float model_rope_freqs(const struct model_shape *shape, const float *divisors, float *inv_freq);

/* Fills slopes[n_heads]. With n = 2^⌊log2 n_heads⌋, head h < n has 2^(−bias·(h + 1)/n). A head h ≥
 * n has 2^(−bias·(2·(h − n) + 1)/(2·n)), every other slope of 2·n heads. Source: arXiv 2108.12409,
 * and its authors' code for head counts that are not a power of two. */
void model_alibi_slopes(const struct model_shape *shape, float *slopes);

/* model_params.c: reads and checks the hyper-parameters. */
int model_read_shape(const struct checkpoint *ckpt, const struct arch *arch,
                     const struct arch_source *source, struct model_shape *out_shape,
                     struct error *err);
