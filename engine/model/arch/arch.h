/* arch.h: what a model architecture is, as plain data: which tensors it has under which names, how
 * each is split over ranks, which metadata it reads, and how a layer is put together. model.c
 * checks a checkpoint against it, plan.c cuts it into ranks, decoder.c interprets it: a new
 * architecture is a table and a golden test. Immutable; any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"

enum arch_norm {
    ARCH_NORM_RMS,
    ARCH_NORM_LAYER, /* the *_NORM_BIAS tensors may be there */
};

enum arch_position {
    ARCH_POSITION_NONE,
    ARCH_POSITION_ROPE,
    ARCH_POSITION_LEARNED, /* x += row `position` of ARCH_POSITION_EMBD */
    ARCH_POSITION_ALIBI,   /* scores += slope of the head · (key's − query's position) */
};

enum arch_attention {
    ARCH_ATTENTION_MULTI_HEAD, /* as many KV heads as query heads */
    ARCH_ATTENTION_GROUPED,    /* n_heads is a multiple of n_kv_heads */
};

enum arch_residual {
    ARCH_RESIDUAL_PRE_NORM, /* x += attn(norm(x)); x += ffn(norm(x)) */
    ARCH_RESIDUAL_PARALLEL, /* x += attn(norm(x)) + ffn(norm(x)), both from the same x */
};

enum arch_ffn {
    ARCH_FFN_GATED, /* down(activation(gate(x)) · up(x)) */
    ARCH_FFN_PLAIN, /* down(activation(up(x))) */
};

enum arch_output {
    ARCH_OUTPUT_OWN,            /* a matrix of its own, always */
    ARCH_OUTPUT_TIED_IF_ABSENT, /* the token embedding where the file has no output matrix */
};

/* The place a tensor takes in the decoder. Slots up to ARCH_FIRST_LAYER_SLOT are there once, the
 * others once per layer. */
enum arch_slot {
    ARCH_TOKEN_EMBD,
    ARCH_POSITION_EMBD,
    ARCH_TOKEN_NORM, /* of the token embedding, before the first layer */
    ARCH_TOKEN_NORM_BIAS,
    ARCH_ROPE_FREQS, /* divides the rope frequencies (llama 3 scaling) */
    ARCH_OUTPUT_NORM,
    ARCH_OUTPUT_NORM_BIAS,
    ARCH_OUTPUT,
    ARCH_ATTN_NORM,
    ARCH_FIRST_LAYER_SLOT = ARCH_ATTN_NORM,
    ARCH_ATTN_NORM_BIAS,
    ARCH_ATTN_Q,
    ARCH_ATTN_Q_BIAS,
    ARCH_ATTN_K,
    ARCH_ATTN_K_BIAS,
    ARCH_ATTN_V,
    ARCH_ATTN_V_BIAS,
    ARCH_ATTN_OUT,
    ARCH_ATTN_OUT_BIAS,
    ARCH_FFN_NORM,
    ARCH_FFN_NORM_BIAS,
    ARCH_FFN_GATE,
    ARCH_FFN_GATE_BIAS,
    ARCH_FFN_UP,
    ARCH_FFN_UP_BIAS,
    ARCH_FFN_DOWN,
    ARCH_FFN_DOWN_BIAS,
    N_ARCH_SLOTS,
};

/* A dimension by its meaning; its length comes from the metadata. */
enum arch_dim {
    ARCH_DIM_ONE,
    ARCH_DIM_HIDDEN,
    ARCH_DIM_HEADS, /* n_heads · head_dim */
    ARCH_DIM_KV,    /* n_kv_heads · head_dim */
    ARCH_DIM_FFN,
    ARCH_DIM_VOCAB,
    ARCH_DIM_CONTEXT,
    ARCH_DIM_ROT_HALF, /* n_rot / 2 */
};

enum arch_split {
    ARCH_SPLIT_NONE,   /* every rank holds all of it */
    ARCH_SPLIT_COLUMN, /* a rank holds its part of the outputs (rows of W, or of a bias) */
    ARCH_SPLIT_ROW,    /* a rank holds its part of the inputs (columns of W); results are summed */
};

/* Slots of the same name share a tensor of the file, which has their rows (or elements) one below
 * the other in the table's order, as Q, K and V often lie; each is cut over ranks by itself. */
struct arch_tensor {
    enum arch_slot slot;
    enum arch_dim rows, cols; /* W[rows, cols]; vectors have rows = ONE */
    enum arch_split split;
    bool required;
    const char *name; /* "blk.%u.attn_q.weight"; %u is the layer */
};

/* A hyper-parameter read from the metadata. */
enum arch_param_id {
    ARCH_PARAM_LAYERS,
    ARCH_PARAM_CONTEXT,
    ARCH_PARAM_HIDDEN,
    ARCH_PARAM_FFN,
    ARCH_PARAM_HEADS,
    ARCH_PARAM_KV_HEADS,
    ARCH_PARAM_KEY_DIM,
    ARCH_PARAM_VALUE_DIM, /* must equal the key's */
    ARCH_PARAM_VOCAB,
    ARCH_PARAM_NORM_EPS,
    ARCH_PARAM_ALIBI_BIAS, /* the largest, from which the slopes follow; with ALiBi alone */
    ARCH_PARAM_ROT_DIM,    /* from here on: with rope alone */
    ARCH_PARAM_ROPE_BASE,
    ARCH_PARAM_ROPE_SCALING, /* "none", "linear" or "yarn" */
    ARCH_PARAM_ROPE_FACTOR,
    ARCH_PARAM_ROPE_ORIGINAL_CONTEXT,
    ARCH_PARAM_ROPE_ATTN_FACTOR,
    ARCH_PARAM_ROPE_EXT_FACTOR,
    ARCH_PARAM_ROPE_BETA_FAST,
    ARCH_PARAM_ROPE_BETA_SLOW,
    N_ARCH_PARAMS,
};

enum arch_absent {
    ARCH_ABSENT_REFUSE,   /* the load fails: the key is missing */
    ARCH_ABSENT_DERIVE,   /* follows from others: KV heads = heads, key dim = hidden / heads, … */
    ARCH_ABSENT_FALLBACK, /* `fallback` */
};

struct arch_param {
    enum arch_param_id id;
    const char *key; /* without the architecture's name: "attention.head_count" */
    enum arch_absent absent;
    double fallback;
};

/* A key below the architecture's prefix that carries nothing the decoder needs, or which must have
 * this value because nothing else is built. Every other unknown key is refused by its name. */
struct arch_fixed_key {
    const char *key;
    bool any_value;
    double value;
};

/* How one source format spells the architecture. */
struct arch_source {
    const char *format; /* checkpoint_format() */
    enum rope_style rope_style;
    const struct arch_param *params; /* [n_params], each id that the position takes once */
    const struct arch_fixed_key *fixed_keys;
    const struct arch_tensor *tensors; /* [n_tensors], each slot at most once */
    uint32_t n_params, n_fixed_keys, n_tensors;
};

struct arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    enum arch_norm norm;
    enum arch_position position;
    enum arch_attention attention;
    enum arch_ffn ffn;
    enum activation activation;
    enum arch_residual residual;
    enum arch_output output;
    const struct arch_source *sources;
    uint32_t n_sources;
};

extern const struct arch arch_llama, arch_gpt2, arch_bloom;

/* NULL where no architecture of that name is built. */
const struct arch *arch_find(const char *name);
/* All names, for messages. */
const char *arch_names(void);
/* NULL where the architecture is not described for this format. */
const struct arch_source *arch_find_source(const struct arch *arch, const char *format);
/* NULL where the source has no such slot. */
const struct arch_tensor *arch_find_tensor(const struct arch_source *source, enum arch_slot slot);
const struct arch_param *arch_find_param(const struct arch_source *source, enum arch_param_id id);
/* True for a table that makes sense by itself: numbers within their enums, no slot or parameter
 * twice, no value where none is read, just the parameters that the architecture has a use for. */
bool arch_source_is_sound(const struct arch *arch, const struct arch_source *source);
/* The tensor's name in a layer (any number for slots that are there once). False where it would not
 * fit or the pattern holds anything but one %u. */
bool arch_tensor_name(const struct arch_tensor *tensor, uint32_t layer, char *out,
                      uint32_t n_bytes);
