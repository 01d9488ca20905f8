/* arch.h: a model architecture as plain data. The data name the tensors, their split over ranks,
 * the metadata, and the structure of a layer. From the data, model.c checks a checkpoint, plan.c
 * divides the tensors among ranks, and decoder.c runs steps. So a new architecture is a table and a
 * golden test. Immutable; any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"

enum arch_norm {
    ARCH_NORM_RMS,
    ARCH_NORM_LAYER, /* *_NORM_BIAS tensors are allowed */
};

enum arch_position {
    ARCH_POSITION_NONE,
    ARCH_POSITION_ROPE,
    ARCH_POSITION_LEARNED, /* x += row `position` of ARCH_POSITION_EMBD */
    ARCH_POSITION_ALIBI,   /* scores += slope of the head · (key's − query's position) */
};

/* How attention heads share KV heads. */
enum arch_attention {
    ARCH_ATTENTION_MULTI_HEAD, /* every query head has its own KV head */
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
    ARCH_OUTPUT_OWN,            /* the file must have an output matrix */
    ARCH_OUTPUT_TIED_IF_ABSENT, /* without an output matrix in the file: the token embedding */
};

/* The role of a tensor in the decoder. Slots below ARCH_FIRST_LAYER_SLOT exist once, the others
 * once per layer. */
enum arch_slot {
    ARCH_TOKEN_EMBD,
    ARCH_POSITION_EMBD,
    ARCH_TOKEN_NORM, /* norm of the token embedding, before the first layer */
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

/* A dimension by its meaning; the metadata give its length. */
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
    ARCH_SPLIT_NONE,   /* every rank holds the whole tensor */
    ARCH_SPLIT_COLUMN, /* a rank holds a part of the outputs (rows of W, or of a bias) */
    ARCH_SPLIT_ROW, /* a rank holds a part of the inputs (columns of W); the results are summed */
};

/* Slots with the same name share a tensor of the file. Their rows (or elements) follow one another
 * in the table's order, as Q, K and V often do. Each slot is split over ranks by itself. */
struct arch_tensor {
    enum arch_slot slot;
    enum arch_dim rows, cols; /* W[rows, cols]; vectors have rows = ONE */
    enum arch_split split;
    bool required;
    const char *name; /* for example "blk.%u.attn_q.weight"; %u is the layer */
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
    ARCH_PARAM_VALUE_DIM, /* must equal the key dimension */
    ARCH_PARAM_VOCAB,
    ARCH_PARAM_NORM_EPS,
    ARCH_PARAM_ALIBI_BIAS, /* ALiBi only: the largest bias, from which the slopes follow */
    ARCH_PARAM_ROT_DIM,    /* this and the following ones: rope only */
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
    ARCH_ABSENT_REFUSE, /* the load fails: the key is required */
    ARCH_ABSENT_DERIVE, /* derived from other keys: KV heads = heads, key dim = hidden / heads, … */
    ARCH_ABSENT_FALLBACK, /* the row's `fallback` is used */
};

struct arch_param {
    enum arch_param_id id;
    const char *key; /* key without the architecture's name: "attention.head_count" */
    enum arch_absent absent;
    double fallback;
};

/* A key below the architecture's prefix that the decoder does not need (any_value), or for which
 * only `value` is supported. Every other unknown key is refused by name. */
struct arch_fixed_key {
    const char *key;
    bool any_value;
    double value;
};

/* Names and settings of the architecture in one source format. */
struct arch_source {
    const char *format; /* as returned by checkpoint_format() */
    enum rope_style rope_style;
    /* [n_params]: every parameter that the architecture needs, once */
    const struct arch_param *params;
    const struct arch_fixed_key *fixed_keys;
    const struct arch_tensor *tensors; /* [n_tensors], each slot at most once */
    uint32_t n_params, n_fixed_keys, n_tensors;
};

struct arch {
    const char *name; /* value of general.architecture, and prefix of its keys */
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

/* NULL if no architecture has that name. */
const struct arch *arch_find(const char *name);
/* All names, for error messages. */
const char *arch_names(void);
/* NULL if the architecture has no source for this format. */
const struct arch_source *arch_find_source(const struct arch *arch, const char *format);
/* NULL if the source does not have the slot. */
const struct arch_tensor *arch_find_tensor(const struct arch_source *source, enum arch_slot slot);
const struct arch_param *arch_find_param(const struct arch_source *source, enum arch_param_id id);
/* True if the table is consistent. Numbers must lie within their enums, and no slot or parameter
 * may occur twice. A value is set only where it is read, and exactly the parameters that the
 * architecture uses are present. */
bool arch_source_is_sound(const struct arch *arch, const struct arch_source *source);
/* Writes the tensor's name in a layer (any number for slots that exist once). Returns false if the
 * name does not fit, or if the pattern has anything but one %u. */
bool arch_tensor_name(const struct arch_tensor *tensor, uint32_t layer, char *out,
                      uint32_t n_bytes);
