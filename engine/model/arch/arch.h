/* arch.h: a model architecture as plain data. The data describe each layer, and per source format
 * the names of tensors and keys. From the data, model.c checks a checkpoint, plan.c divides the
 * tensors among ranks, and decoder.c runs steps. So a new architecture is a table and a golden
 * test. Immutable; any thread.
 *
 * A layer has a mixer and an FFN. Both come from short lists of kinds; patterns choose a kind per
 * layer. A norm, bias or sink exists where the source has a row for its slot and the file has the
 * tensor. So optional parts need no flags. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"

enum {
    ARCH_MAX_MIXERS = 4,
    ARCH_MAX_FFNS = 3,
    ARCH_MAX_ROPES = 4,
    ARCH_NO_ROPE = 255, /* as arch_mixer.rope: the layer has no rope */
};

enum arch_norm {
    ARCH_NORM_RMS,
    ARCH_NORM_LAYER, /* *_NORM_BIAS tensors are allowed */
};

enum arch_residual {
    ARCH_RESIDUAL_SEQUENTIAL, /* x += attn(norm(x)); x += ffn(norm(x)) */
    /* x += attn(norm(x)) + ffn(norm(x)), both from the same x. Without an FFN norm, the FFN reads
     * the attention's norm. */
    ARCH_RESIDUAL_PARALLEL,
};

enum arch_output {
    ARCH_OUTPUT_OWN,            /* the file must have an output matrix */
    ARCH_OUTPUT_TIED_IF_ABSENT, /* without an output matrix in the file: the token embedding */
};

/* --- kinds of mixers --- */

enum arch_mixing {
    ARCH_MIXING_ATTENTION,
    ARCH_MIXING_NONE,
};

/* Positions that a query attends to. */
enum arch_reach {
    ARCH_REACH_ALL,
    ARCH_REACH_WINDOW, /* the last ARCH_PARAM_WINDOW; all where the file has no window */
    ARCH_REACH_CHUNK,  /* its own chunk of ARCH_PARAM_CHUNK positions */
};

/* Norms of queries and keys. */
enum arch_scope {
    ARCH_SCOPE_HEAD,     /* each head by itself, with one weight for all heads */
    ARCH_SCOPE_OWN_HEAD, /* each head by itself, with its own weight */
    ARCH_SCOPE_WHOLE,    /* all heads together */
};

enum arch_head_norms {
    ARCH_HEAD_NORMS_TENSORS, /* queries and keys, where the file has weights */
    ARCH_HEAD_NORMS_BARE,    /* queries and keys without weights */
};

struct arch_mixer {
    const char *name; /* kind's name, as in lists of layer types: "full_attention" */
    enum arch_mixing mixing;
    enum arch_reach reach;
    uint32_t rope; /* rope set, or ARCH_NO_ROPE */
    enum arch_norm head_norm;
    enum arch_scope head_norm_scope;
    enum arch_head_norms head_norms;
    bool norm_after_rope; /* head norms */
    bool bare_value_norm; /* RMS norm of each value head, without weights */
    bool has_temperature; /* queries are scaled by position: ARCH_PARAM_TEMPERATURE */
};

/* --- kinds of FFNs --- */

enum arch_ffn_body {
    ARCH_FFN_DENSE,
    ARCH_FFN_EXPERTS, /* with shared experts where the file has them */
    ARCH_FFN_NONE,
};

enum arch_ffn_form {
    ARCH_FFN_GATED, /* down(activation(gate(x)) · up(x)) */
    ARCH_FFN_PLAIN, /* down(activation(up(x))) */
};

enum arch_expert_weight {
    ARCH_EXPERT_WEIGHT_OUTPUT, /* multiplies the expert's output */
    ARCH_EXPERT_WEIGHT_INPUT,
};

/* The selection bias (ARCH_ROUTER_SELECT) changes which experts are chosen, never their weights.
 * Numbers of experts and groups, renormalisation and scale are parameters. */
struct arch_router {
    enum router_score score; /* ARCH_PARAM_EXPERT_SCORE replaces it */
    enum router_group_score group_score;
    enum arch_expert_weight weight;
    float min_sum, add_sum; /* as in struct router_params */
};

struct arch_ffn {
    const char *name; /* kind's name, as in lists of layer types: "dense" */
    enum arch_ffn_body body;
    enum arch_ffn_form form;
    enum activation activation; /* ARCH_PARAM_ACTIVATION replaces it */
    struct arch_router router;  /* experts only */
};

/* --- tensors --- */

/* The role of a tensor in the decoder. Slots below ARCH_FIRST_LAYER_SLOT exist once, the others
 * once per layer. arch_slot.c has each slot's shape and split. */
enum arch_slot {
    ARCH_TOKEN_EMBD,
    ARCH_POSITION_EMBD, /* x += row `position` */
    ARCH_TOKEN_NORM,    /* norm of the token embedding, before the first layer */
    ARCH_TOKEN_NORM_BIAS,
    ARCH_ROPE_FREQS,       /* divides the frequencies of rope set 0 (llama 3 scaling) */
    ARCH_ROPE_FREQS_LONG,  /* longrope: divisors for sequences beyond the original context, */
    ARCH_ROPE_FREQS_SHORT, /* and for sequences up to it */
    ARCH_OUTPUT_NORM,
    ARCH_OUTPUT_NORM_BIAS,
    ARCH_OUTPUT,
    ARCH_OUTPUT_BIAS,
    ARCH_ATTN_NORM,
    ARCH_FIRST_LAYER_SLOT = ARCH_ATTN_NORM,
    ARCH_ATTN_NORM_BIAS,
    ARCH_ATTN_Q,
    ARCH_ATTN_Q_BIAS,
    ARCH_ATTN_K,
    ARCH_ATTN_K_BIAS,
    ARCH_ATTN_V, /* absent: the values are the keys before norm and rope */
    ARCH_ATTN_V_BIAS,
    ARCH_ATTN_Q_NORM,
    ARCH_ATTN_Q_NORM_BIAS,
    ARCH_ATTN_K_NORM,
    ARCH_ATTN_K_NORM_BIAS,
    ARCH_ATTN_SINKS, /* a logit per head that only adds to the softmax denominator */
    ARCH_ATTN_OUT,
    ARCH_ATTN_OUT_BIAS,
    ARCH_ATTN_POST_NORM, /* norms the attention's output before it is added */
    ARCH_ATTN_POST_NORM_BIAS,
    ARCH_FFN_NORM,
    ARCH_FFN_NORM_BIAS,
    ARCH_FFN_GATE,
    ARCH_FFN_GATE_BIAS,
    ARCH_FFN_UP,
    ARCH_FFN_UP_BIAS,
    ARCH_FFN_DOWN,
    ARCH_FFN_DOWN_BIAS,
    ARCH_ROUTER,
    ARCH_ROUTER_BIAS,
    ARCH_ROUTER_SELECT, /* added to the scores for the choice of experts only */
    ARCH_EXPERT_GATE,   /* matrices [experts] */
    ARCH_EXPERT_GATE_BIAS,
    ARCH_EXPERT_UP,
    ARCH_EXPERT_UP_BIAS,
    ARCH_EXPERT_DOWN,
    ARCH_EXPERT_DOWN_BIAS,
    ARCH_SHARED_GATE,
    ARCH_SHARED_UP,
    ARCH_SHARED_DOWN,
    ARCH_SHARED_ROUTER, /* the shared experts' output is multiplied by sigmoid of this */
    ARCH_FFN_POST_NORM, /* norms the FFN's output before it is added */
    ARCH_FFN_POST_NORM_BIAS,
    N_ARCH_SLOTS,
};

/* A dimension by its meaning; the metadata give its length. */
enum arch_dim {
    ARCH_DIM_ONE,
    ARCH_DIM_HIDDEN,
    ARCH_DIM_QUERIES, /* n_heads · k_dim */
    ARCH_DIM_KEYS,    /* n_kv_heads · k_dim */
    ARCH_DIM_VALUES,  /* n_kv_heads · v_dim */
    ARCH_DIM_MIXED,   /* n_heads · v_dim */
    ARCH_DIM_HEADS,   /* n_heads */
    ARCH_DIM_Q_NORM,  /* by the mixer's scope: k_dim or n_heads · k_dim */
    ARCH_DIM_K_NORM,
    ARCH_DIM_FFN,
    ARCH_DIM_EXPERTS,
    ARCH_DIM_EXPERT_FFN,
    ARCH_DIM_SHARED_FFN,
    ARCH_DIM_VOCAB,
    ARCH_DIM_CONTEXT,
    ARCH_DIM_ROT_HALF, /* n_rot / 2 of rope set 0 */
};

enum arch_split {
    ARCH_SPLIT_NONE,   /* every rank holds the whole tensor */
    ARCH_SPLIT_COLUMN, /* a rank holds a part of the outputs (rows of W, or of a bias) */
    ARCH_SPLIT_ROW, /* a rank holds a part of the inputs (columns of W); the results are summed */
};

/* The shape and split of a slot, equal in all architectures. */
struct arch_slot_facts {
    enum arch_dim rows, cols; /* W[rows, cols]; vectors have rows = ONE */
    enum arch_split split;
    bool by_expert; /* a matrix or vector per expert */
    bool is_norm;   /* the weight of a norm */
};

/* How a slot's values lie in the file's tensor. */
enum arch_transform {
    ARCH_TRANSFORM_NONE,
    ARCH_TRANSFORM_PLUS_ONE,  /* a norm's weight without its 1 */
    ARCH_TRANSFORM_TRANSPOSE, /* the file has [cols, rows] */
    /* Slots of the same name alternate by KV head: Q, K and V of a head, then of the next. */
    ARCH_TRANSFORM_BY_HEAD,
    ARCH_TRANSFORM_BY_ROW, /* slots of the same name alternate row by row: even rows, odd rows */
    ARCH_TRANSFORM_TRANSPOSE_BY_ROW, /* both: the slots' columns alternate in the file */
    N_ARCH_TRANSFORMS,
};

/* Slots with the same name share a tensor of the file. Their rows (or elements) follow one another
 * in the table's order, as Q, K and V often do, unless the transform says otherwise. */
struct arch_tensor {
    enum arch_slot slot;
    bool required;
    /* For example "blk.%u.attn_q.weight"; the first %u is the layer. A second %u is the expert, or
     * the head where norms of heads have a tensor for each head. Several names are separated by
     * '|'; the first that the file has is taken. */
    const char *name;
    enum arch_transform transform;
};

/* --- hyper-parameters --- */

enum arch_param_id {
    ARCH_PARAM_LAYERS,
    ARCH_PARAM_DRAFT_LAYERS, /* layers behind the model's own that only draft tokens */
    ARCH_PARAM_CONTEXT,
    ARCH_PARAM_POSITION_OFFSET, /* rows of the position table before that of position 0 */
    ARCH_PARAM_HIDDEN,
    ARCH_PARAM_VOCAB,
    ARCH_PARAM_NORM_EPS,
    ARCH_PARAM_FFN,        /* a number, or an array with a number per layer */
    ARCH_PARAM_HEADS,      /* the same */
    ARCH_PARAM_KV_HEADS,   /* the same */
    ARCH_PARAM_KV_FACTOR,  /* of: the mixer; multiplies its KV heads */
    ARCH_PARAM_KEY_DIM,    /* of: the mixer */
    ARCH_PARAM_VALUE_DIM,  /* of: the mixer */
    ARCH_PARAM_WINDOW,     /* 0: no window */
    ARCH_PARAM_USE_WINDOW, /* bool; false: no window */
    ARCH_PARAM_CHUNK,
    ARCH_PARAM_ALIBI_BIAS,  /* the largest ALiBi bias, from which the slopes follow */
    ARCH_PARAM_ALIBI_SCALE, /* multiplies the slopes; derived: 1/√k_dim */
    /* bool; false: the file must have an output matrix */
    ARCH_PARAM_TIED,
    ARCH_PARAM_PARALLEL,       /* bool; replaces the architecture's residual */
    ARCH_PARAM_ACTIVATION,     /* a name; replaces the FFNs' activation */
    ARCH_PARAM_EMBED_SCALE,    /* multiplies the embedding; derived: √hidden */
    ARCH_PARAM_RESIDUAL_SCALE, /* multiplies each branch before it is added */
    ARCH_PARAM_LOGIT_SCALE,    /* multiplies the logits */
    ARCH_PARAM_LOGIT_DIVISOR,  /* divides the logits */
    ARCH_PARAM_VALUE_SCALE,    /* multiplies the values before attention */
    ARCH_PARAM_ATTN_SCALE,     /* multiplies the scores; derived: 1/√k_dim */
    ARCH_PARAM_ATTN_SCALE_DIM, /* the scale is 1/√value */
    /* A number of layers: in a model with this number, the scale is 1/√(hidden / heads). */
    ARCH_PARAM_ATTN_SCALE_LAYERS,
    ARCH_PARAM_ATTN_SOFTCAP,  /* 0: none */
    ARCH_PARAM_FINAL_SOFTCAP, /* 0: none */
    ARCH_PARAM_TEMPERATURE,   /* β: queries · (1 + β·ln(1 + ⌊position / length⌋)) */
    ARCH_PARAM_TEMPERATURE_LENGTH,
    ARCH_PARAM_EXPERTS,
    ARCH_PARAM_EXPERTS_USED,
    ARCH_PARAM_EXPERT_FFN, /* derived: ARCH_PARAM_FFN */
    ARCH_PARAM_SHARED_FFN,
    ARCH_PARAM_SHARED_COUNT, /* in its place: shared experts of ARCH_PARAM_EXPERT_FFN each */
    ARCH_PARAM_EXPERT_GROUPS,
    ARCH_PARAM_EXPERT_GROUPS_USED,
    ARCH_PARAM_EXPERT_RENORM, /* bool: the chosen weights are divided by their sum */
    ARCH_PARAM_EXPERT_SCALE,  /* multiplies the weights at last */
    /* 0 the router's, 1 softmax, 2 sigmoid, 3 softmax of the chosen, 4 √softplus */
    ARCH_PARAM_EXPERT_SCORE,
    ARCH_PARAM_ROT_DIM,   /* this and the following ones: of a rope set */
    ARCH_PARAM_ROT_SHARE, /* part of the key dimension, in place of a number */
    ARCH_PARAM_ROPE_BASE,
    /* multiplies the base by alpha^(n/(n − 2)), n = rotating dims; 0: does not */
    ARCH_PARAM_ROPE_ALPHA,
    ARCH_PARAM_ROPE_SCALING, /* "none", "linear", "llama3", "yarn", "longrope" */
    ARCH_PARAM_ROPE_FACTOR,
    ARCH_PARAM_ROPE_ORIGINAL_CONTEXT,
    ARCH_PARAM_ROPE_ATTN_FACTOR, /* multiplies the scaling's own factor of cos and sin */
    ARCH_PARAM_ROPE_ATTENTION,   /* replaces it; 0: does not */
    ARCH_PARAM_ROPE_EXT_FACTOR,
    ARCH_PARAM_ROPE_BETA_FAST,
    ARCH_PARAM_ROPE_BETA_SLOW,
    ARCH_PARAM_ROPE_TRUNCATE, /* bool; false: YaRN's ramp has fractional ends */
    ARCH_PARAM_ROPE_MSCALE,
    ARCH_PARAM_ROPE_MSCALE_ALL,
    ARCH_PARAM_ROPE_LOW_FREQ,
    ARCH_PARAM_ROPE_HIGH_FREQ,
    ARCH_PARAM_ROPE_LONG_FACTORS, /* longrope: both are arrays of divisors, [n_rot / 2] */
    ARCH_PARAM_ROPE_SHORT_FACTORS,
    N_ARCH_PARAMS,
};

enum rope_scaling {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR,
    ROPE_SCALING_LLAMA3,
    ROPE_SCALING_YARN,
    /* Two tables of divisors: one for sequences up to the original context, one for longer ones. */
    ROPE_SCALING_LONGROPE,
    /* Dynamic NTK stretches contexts beyond the model's own. This engine refuses such contexts, so
     * the frequencies are unscaled. */
    ROPE_SCALING_DYNAMIC,
};

enum arch_absent {
    ARCH_ABSENT_REFUSE, /* the load fails: the key is required */
    ARCH_ABSENT_DERIVE, /* derived from other keys: KV heads = heads, key dim = hidden / heads, … */
    /* The row's `fallback` is used; for ARCH_PARAM_ROPE_SCALING an enum rope_scaling. */
    ARCH_ABSENT_FALLBACK,
};

/* A hyper-parameter read from the metadata. A parameter without a row has its neutral value. */
struct arch_param {
    enum arch_param_id id;
    /* Key without the architecture's name: "attention.head_count". Several spellings are separated
     * by '|'. Those that the file has must have one value. NULL: a constant. */
    const char *key;
    enum arch_absent absent;
    double fallback;
    uint32_t of; /* rope set; or mixer, where 0 stands for all mixers without a row of their own */
};

/* The values that a key without a parameter may have. */
enum arch_key_rule {
    ARCH_KEY_ANY,    /* any value: the decoder does not need the key */
    ARCH_KEY_NUMBER, /* `value`; for a bool 0 or 1 */
    ARCH_KEY_TEXT,   /* a text among those of `text`, which '|' separates */
    ARCH_KEY_TENSOR, /* a bool: true if the file has a tensor of `slot`, false if it has none */
};

/* A key that is no parameter. In an array, each element must keep the rule. A key that ends with
 * '*' stands for all keys with that beginning. Every other unknown key is refused by name. */
struct arch_fixed_key {
    const char *key;
    enum arch_key_rule rule;
    double value;
    const char *text;
    enum arch_slot slot;
};

/* Rows of fixed keys. */
#define ARCH_ANY_VALUE(key_)                                                                       \
    {                                                                                              \
        .key = (key_), .rule = ARCH_KEY_ANY                                                        \
    }
#define ARCH_ONE_VALUE(key_, value_)                                                               \
    {                                                                                              \
        .key = (key_), .rule = ARCH_KEY_NUMBER, .value = (value_)                                  \
    }
#define ARCH_ONE_TEXT(key_, text_)                                                                 \
    {                                                                                              \
        .key = (key_), .rule = ARCH_KEY_TEXT, .text = (text_)                                      \
    }
#define ARCH_HAS_TENSOR(key_, slot_)                                                               \
    {                                                                                              \
        .key = (key_), .rule = ARCH_KEY_TENSOR, .slot = (slot_)                                    \
    }

/* --- patterns --- */

enum arch_part {
    ARCH_PART_MIXER,
    ARCH_PART_FFN,
};

enum arch_pattern_form {
    ARCH_PATTERN_FIRST_OF, /* the first layer of each n gets `kind` */
    ARCH_PATTERN_LAST_OF,  /* the last layer of each n */
    ARCH_PATTERN_LEADING,  /* the first n layers */
    ARCH_PATTERN_AFTER,    /* the layers after number n; a negative number has none */
    ARCH_PATTERN_LIST,     /* the layers whose numbers the array holds */
    /* The array has an element per layer: not 0 gives `kind`, 0 gives `rest`. */
    ARCH_PATTERN_FLAGS,
    ARCH_PATTERN_NAMES,   /* the array has the kind's name per layer */
    ARCH_PATTERN_WITHOUT, /* all layers, if the file lacks the key */
};

/* Chooses the kinds of layers. All layers begin with kind 0. The rows apply in order; so a later
 * row wins. A row whose key has another form in the file does nothing. A key of which no row knows
 * the form is refused, unless a fixed key allows its value. */
struct arch_pattern {
    enum arch_part part;
    enum arch_pattern_form form;
    const char *key; /* as in struct arch_param; NULL: n alone */
    uint32_t n;      /* without the key; 0: the row does nothing then */
    uint32_t kind, rest;
};

/* --- sources --- */

/* A file with this key, unless its value is 0 or false, is of another architecture. The same goes
 * for a file with this tensor. */
struct arch_variant {
    const char *key, *tensor; /* either; the key as in struct arch_param */
    const char *arch;         /* the other architecture's name */
};

/* Names and settings of the architecture in one dialect of a source format. */
struct arch_source {
    /* Rows of `base` (NULL: none) come first. A row of the same slot, parameter or key replaces the
     * base's row; a tensor whose name is NULL removes it. Patterns and ignored tensors replace
     * those of the base. */
    const struct arch_source *base;
    const char *format;  /* as returned by checkpoint_format() */
    const char *aliases; /* names of the architecture in this dialect, separated by '|' */
    enum rope_style rope_style;
    const struct arch_param *params;
    const struct arch_fixed_key *fixed_keys;
    const struct arch_tensor *tensors; /* [n_tensors], each slot at most once */
    const struct arch_pattern *patterns;
    /* Beginnings of the names of tensors that are not needed, separated by '|'; or NULL. %u stands
     * for a number. */
    const char *ignored_tensors;
    /* Beginning of the names of a layer's tensors, for those of layers that only draft tokens. NULL
     * without such layers. They are not read. */
    const char *draft_layers;
    bool counts_drafts; /* ARCH_PARAM_LAYERS includes them */
    /* The source of a dialect. A file with one of these keys is in the dialect, if its context has
     * at least so many tokens. NULL: the plain dialect, which comes before the others in the list.
     */
    const char *dialect_keys;
    uint32_t dialect_context;
    const struct arch_variant *variants; /* the first that fits counts */
    uint32_t n_params, n_fixed_keys, n_tensors, n_patterns, n_variants;
};

struct arch {
    const char *name;
    enum arch_norm norm; /* kind of all norms but the head norms */
    enum arch_residual residual;
    enum arch_output output;
    struct arch_mixer mixers[ARCH_MAX_MIXERS];
    struct arch_ffn ffns[ARCH_MAX_FFNS];
    uint32_t n_mixers, n_ffns;
    const struct arch_source *sources;
    uint32_t n_sources;
};

#define ARCH_N_OF(array) (uint32_t)(sizeof(array) / sizeof((array)[0]))

/* Spellings of the rope base in config.json. */
#define ARCH_HF_ROPE_BASE                                                                          \
    "rope_parameters.rope_theta|rope_parameters.full_attention.rope_theta|rope_theta"

/* All architectures. */
#define ARCH_EACH(X)                                                                               \
    X(llama)                                                                                       \
    X(qwen3)                                                                                       \
    X(qwen3vl)                                                                                     \
    X(gpt2)                                                                                        \
    X(bloom)                                                                                       \
    X(qwen2)                                                                                       \
    X(seed_oss)                                                                                    \
    X(smollm3)                                                                                     \
    X(gemma2)                                                                                      \
    X(gemma3)                                                                                      \
    X(phi2)                                                                                        \
    X(phi3)                                                                                        \
    X(granite)                                                                                     \
    X(olmo2)                                                                                       \
    X(exaone4)                                                                                     \
    X(command_r)                                                                                   \
    X(cohere2)                                                                                     \
    X(glm4)                                                                                        \
    X(starcoder2)                                                                                  \
    X(gptneox)                                                                                     \
    X(nemotron)                                                                                    \
    X(ernie4_5)                                                                                    \
    X(hunyuan_dense)                                                                               \
    X(mistral3)                                                                                    \
    X(stablelm)                                                                                    \
    X(falcon)                                                                                      \
    X(falcon_40b)                                                                                  \
    X(falcon_rw)                                                                                   \
    X(opt)                                                                                         \
    X(gptj)                                                                                        \
    X(mpt)                                                                                         \
    X(qwen3moe)                                                                                    \
    X(mixtral)                                                                                     \
    X(gpt_oss)                                                                                     \
    X(gpt_oss_mxfp4)                                                                               \
    X(qwen2moe)                                                                                    \
    X(granitemoe)                                                                                  \
    X(glm4moe)                                                                                     \
    X(ernie4_5_moe)                                                                                \
    X(minimax_m2)                                                                                  \
    X(mimo2)
#define ARCH_DECLARE(name) extern const struct arch arch_##name;
ARCH_EACH(ARCH_DECLARE)
#undef ARCH_DECLARE

/* arch_base.c: the rows that most architectures share, those of the Llama block. */
extern const struct arch_source arch_base_gguf, arch_base_hf;
/* The rows of GPT-2 and BLOOM in GGUF: layer norms, biases everywhere, a plain FFN, joined Q, K and
 * V, no rope. */
extern const struct arch_source arch_base_gpt_gguf;
/* The numbers that every GGUF file has, and the keys of config.json that no architecture needs. */
extern const struct arch_source arch_base_gguf_keys, arch_base_hf_keys;
/* experts/arch_experts.c: the same with experts in place of the FFN */
extern const struct arch_source arch_experts_gguf, arch_experts_hf;
/* The same with the names of Mixtral, and with the patterns of Qwen. */
extern const struct arch_source arch_experts_mixtral_hf, arch_experts_qwen_gguf,
    arch_experts_qwen_hf;

/* Finds the architecture and its source by the name that a file of this format gives. NULL if there
 * is none; *out_source (may be NULL) is untouched then. */
const struct arch *arch_find(const char *format, const char *name,
                             const struct arch_source **out_source);
/* Finds an architecture by its own name; NULL if there is none. */
const struct arch *arch_find_named(const char *name);
/* The source of `arch` whose aliases have `name`; the format's first source for a name that none
 * has. NULL without a source for the format. */
const struct arch_source *arch_find_source(const struct arch *arch, const char *format,
                                           const char *name);
/* The i-th architecture; NULL beyond the last. For tests of all tables. */
const struct arch *arch_at(uint32_t i);
/* Copies a source with the rows of its bases; out->base is NULL. False without memory. Call
 * arch_source_fini() in any case. */
bool arch_source_init(struct arch_source *out, const struct arch_source *from);
void arch_source_fini(struct arch_source *source);
/* The following calls take a source without a base. NULL if the source does not have the slot. */
const struct arch_tensor *arch_find_tensor(const struct arch_source *source, enum arch_slot slot);
/* The parameter's row for this rope set or mixer; NULL if the source has none. */
const struct arch_param *arch_find_param(const struct arch_source *source, enum arch_param_id id,
                                         uint32_t of);
/* The row of a key that is no parameter; NULL without one. A row of this key alone comes before one
 * with '*'. */
const struct arch_fixed_key *arch_find_fixed_key(const struct arch_source *source, const char *key);
/* True if a parameter, a pattern, or either of them reads the key. */
bool arch_reads_param(const struct arch_source *source, const char *key);
bool arch_reads_pattern(const struct arch_source *source, const char *key);
bool arch_reads_key(const struct arch_source *source, const char *key);
/* True if the table is consistent. Numbers must lie within their enums, and no slot or parameter
 * may occur twice. */
bool arch_source_is_sound(const struct arch *arch, const struct arch_source *source);
const struct arch_slot_facts *arch_slot_facts(enum arch_slot slot);
/* For messages: "query matrix". */
const char *arch_slot_name(enum arch_slot slot);

bool arch_is_transposed(enum arch_transform transform);

/* True if the row's names have the number of a head: each head's norm lies in its own tensor. */
bool arch_is_by_head(const struct arch_tensor *row);

/* Copies the i-th of several names, separated by '|'. The first %u becomes the layer's number, the
 * second the expert's or head's. Returns false if there is no such name, if it does not fit, or if
 * the pattern is bad. */
bool arch_name_at(const char *names, uint32_t i, uint32_t layer, uint32_t expert, char *out,
                  uint32_t n_bytes);
/* True if `name` is among the names. */
bool arch_names_have(const char *names, const char *name);
/* True if `name` begins with one of the names. */
bool arch_names_begin(const char *names, const char *name);
