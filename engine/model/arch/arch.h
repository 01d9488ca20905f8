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

#include "engine/model/arch/arch_each.h"
#include "engine/model/arch/arch_params.h"
#include "engine/model/arch/arch_slots.h"
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
    ARCH_MIXING_DELTA,  /* gated delta net (recurrent.h) */
    ARCH_MIXING_MAMBA2, /* Mamba-2 (recurrent.h) */
    ARCH_MIXING_CONV,   /* gated short convolution: out · conv(in · x) */
    ARCH_MIXING_LATENT, /* attention over a joint low-rank K and V (arXiv 2405.04434) */
    /* Attention and Mamba-2 side by side: both read the same norm, and their outputs are added. */
    ARCH_MIXING_ATTENTION_MAMBA2,
    N_ARCH_MIXINGS,
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
    /* The kind's names in lists of layer types, separated by '|': "full_attention|attention". */
    const char *name;
    enum arch_mixing mixing;
    enum arch_reach reach;
    uint32_t rope; /* rope set, or ARCH_NO_ROPE */
    enum arch_norm head_norm;
    enum arch_scope head_norm_scope;
    enum arch_head_norms head_norms;
    bool norm_after_rope; /* head norms */
    bool bare_value_norm; /* RMS norm of each value head, without weights */
    bool has_temperature; /* queries are scaled by position: ARCH_PARAM_TEMPERATURE */
    bool keys_as_values;  /* a layer may have no ARCH_ATTN_V: the values are its keys */
    /* Mamba-2: ARCH_STATE_NORM norms the output before the gate multiplies it. Else the gate comes
     * first. */
    bool norm_before_gate;
};

/* --- kinds of FFNs --- */

enum arch_ffn_body {
    ARCH_FFN_DENSE,
    ARCH_FFN_EXPERTS, /* with shared experts where the file has them */
    ARCH_FFN_NONE,
    ARCH_FFN_BOTH, /* a dense FFN and experts side by side; the normed outputs are added */
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
    bool softmax_by_max; /* with the score softmax, a group's score is ROUTER_GROUP_MAX */
    enum arch_expert_weight weight;
    float min_sum, add_sum; /* as in struct router_params */
};

struct arch_ffn {
    const char *name; /* the same: "dense" */
    enum arch_ffn_body body;
    enum arch_ffn_form form;
    enum activation activation; /* ARCH_PARAM_ACTIVATION replaces it */
    struct arch_router router;  /* experts only */
};

/* --- fixed keys --- */

/* The values that a key without a parameter may have. */
enum arch_key_rule {
    ARCH_KEY_ANY,    /* any value: the decoder does not need the key */
    ARCH_KEY_NUMBER, /* `value`; for a bool 0 or 1 */
    ARCH_KEY_TEXT,   /* a text among those of `text`, which '|' separates */
    ARCH_KEY_TENSOR, /* a bool: true if the file has a tensor of `slot`, false if it has none */
    ARCH_KEY_OPEN,   /* an array of two numbers: 0, and infinity */
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
#define ARCH_OPEN_RANGE(key_)                                                                      \
    {                                                                                              \
        .key = (key_), .rule = ARCH_KEY_OPEN                                                       \
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
    /* The array has an element per layer: not 0 gives `kind`, 0 leaves the layer as it is. */
    ARCH_PATTERN_MARKED,
    /* The key is a text with a letter per layer; the letter `n` gives `kind`, others leave the
       layer. */
    ARCH_PATTERN_CHARS,
    ARCH_PATTERN_SET,  /* if the number is not 0, or the bool true: layers of `rest` get `kind` */
    ARCH_PATTERN_TEXT, /* if the text is a name of `kind`: layers of `rest` get `kind` */
    /* As NAMES, but each layer must have this kind by the rows before. */
    ARCH_PATTERN_SAME_NAMES,
    ARCH_PATTERN_ONLY, /* as LIST, and all other layers get `rest` */
    N_ARCH_PATTERN_FORMS,
};

/* Chooses the kinds of layers. All layers begin with kind 0. The rows apply in order; so a later
 * row wins. A row whose key has another form in the file does nothing. A key of which no row knows
 * the form is refused, unless a fixed key allows its value. */
struct arch_pattern {
    enum arch_part part;
    enum arch_pattern_form form;
    const char *key; /* as in struct arch_param; NULL: n alone */
    /* ARCH_PATTERN_CHARS: the letter. Others: the number without the key; 0: the row does nothing
     * then. SET has such a number, too. */
    uint32_t n;
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
/* hybrid/arch_delta.c: the Llama block, and a gated delta net in most layers */
extern const struct arch_source arch_delta_gguf, arch_delta_hf;
/* The key of the order of value heads in files of Ollama, and a row that reads the key. */
#define ARCH_DELTA_OLLAMA_KEY "ssm.v_head_reordered"
extern const struct arch_param arch_delta_ollama_params[1];

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
/* True if the slot after this one holds the bias of this one. */
bool arch_slot_has_bias(enum arch_slot slot);
/* For messages: "query matrix". */
const char *arch_slot_name(enum arch_slot slot);

bool arch_is_transposed(enum arch_transform transform);

/* True if layers of the kind have K and V (attention or latent attention), or a state. */
bool arch_has_attention(enum arch_mixing mixing);
bool arch_has_state(enum arch_mixing mixing);

/* True if the row's names have the number of a head: each head's norm lies in its own tensor. */
bool arch_is_by_head(const struct arch_tensor *row);

/* Copies the i-th of several names, separated by '|'. The first %u becomes the layer's number, the
 * second the expert's or head's. Returns false if there is no such name, if it does not fit, or if
 * the pattern is bad. */
bool arch_name_at(const char *names, uint32_t i, uint32_t layer, uint32_t expert, char *out,
                  uint32_t n_bytes);
/* True if `name` is among the names, where %u stands for digits. */
bool arch_names_have(const char *names, const char *name);
/* True if `name` begins with one of the names. */
bool arch_names_begin(const char *names, const char *name);
