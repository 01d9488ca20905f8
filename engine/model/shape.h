/* shape.h: the numbers of a model: facts of the whole model, of its rope sets and of each layer.
 * Read from the metadata once; plain data; any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/arch/arch.h"

struct checkpoint;
struct error;

enum {
    MODEL_MAX_LAYERS = 1024,
    MODEL_MAX_HIDDEN = 1 << 16,
    MODEL_MAX_FFN = 1 << 20,
    MODEL_MAX_HEADS = 1024,
    MODEL_MAX_HEAD_DIM = 576,
    MODEL_MAX_VOCAB = 1 << 20,
    MODEL_MAX_CONTEXT = 1 << 24,
    MODEL_MAX_EXPERTS = EXPERTS_MAX,
    MODEL_MAX_STATE_DIM = RECURRENT_MAX_DIM, /* rows or columns of a head's state */
    MODEL_MAX_STATE_WIDTH = RECURRENT_MAX_WIDTH,
};

/* The tables of longrope. A sequence turns all its positions by one of them. */
enum { ROPE_TABLE_SHORT, ROPE_TABLE_LONG, ROPE_MAX_TABLES };

/* The frequencies of a rope set. */
struct rope_set {
    uint32_t n_rot;     /* 0: the set is not used */
    uint32_t n_turning; /* proportional: pairs that turn, the first of n_rot / 2; others stay */
    enum rope_scaling scaling;
    double base, factor, original_context;
    double alpha;       /* multiplies the base by alpha^(n/(n − 2)); 0: does not */
    double attn_factor; /* multiplies the scaling's own factor of cos and sin */
    double attention;   /* replaces that factor; 0: does not */
    double ext_factor, beta_fast, beta_slow;
    double mscale, mscale_all;  /* YaRN; 0: none */
    double low_freq, high_freq; /* llama 3 */
    bool truncate;              /* YaRN: the ramp's ends are whole numbers */
    /* longrope: divisors of the frequencies, by table; n_divisors 0: tensors have them */
    uint32_t n_divisors;
    float divisors[ROPE_MAX_TABLES][MODEL_MAX_HEAD_DIM / 2];
};

/* The matrix of a layer's values. */
enum shape_values {
    SHAPE_VALUES_OWN,       /* the file must have it */
    SHAPE_VALUES_ARE_KEYS,  /* the file may not have it: the values are the keys */
    SHAPE_VALUES_BY_TENSOR, /* the values are the keys if the file does not have it */
};

struct model_layer {
    const struct arch_mixer *mixer;
    const struct arch_ffn *ffn;
    uint32_t n_heads, n_kv_heads, k_dim, v_dim; /* 0 without attention */
    /* Elements of a head in the query matrix and in the output matrix. They differ from k_dim and
     * v_dim with latent attention only, whose cache has one KV head of latent values. */
    uint32_t q_dim, o_dim;
    uint32_t window, chunk; /* 0: none */
    uint32_t ffn_dim;       /* 0 without a dense FFN */
    uint32_t kv_source;     /* the layer whose K and V this layer reads; usually its own number */
    enum shape_values values;
};

struct model_experts {
    uint32_t n, n_used, ffn_dim, shared_ffn_dim;
    uint32_t n_groups, n_groups_used; /* 1 of 1: no groups */
    enum router_score score;
    enum router_group_score group_score;
    bool renormalise;
    float scale;
};

/* Recurrent layers; all layers of a model have equal states. All 0 without such layers. */
struct model_state {
    uint32_t n_key_heads, n_heads, key_dim, head_dim;
    uint32_t width;  /* taps of the convolution */
    bool norm_first; /* the output is normed before the gate multiplies it */
    bool tiled;      /* head h reads key head h % n_key_heads; else h / (n_heads / n_key_heads) */
};

/* Factors beside those of model_shape; 1: none. Falcon-H1 has them in place of larger weights. */
struct model_scales {
    float attn_out;                        /* attention's output, before its output matrix */
    float gate, values, keys, queries, dt; /* parts of the recurrent layer's input */
    float state_out;                       /* its output, before its output matrix */
    float ffn_gate, ffn_out;               /* the FFN's gate, and its input to the down matrix */
};

/* Latent attention. All 0 without such layers. */
struct model_latent {
    uint32_t q_rank; /* 0: queries of full rank */
    uint32_t kv_rank, n_rot, nope_dim, v_dim;
    float eps; /* for norms of low-rank vectors */
};

struct model_shape {
    uint32_t n_layers, context_tokens, hidden_dim;
    uint32_t position_offset; /* rows of the position table before that of position 0 */
    uint32_t trained_tokens;  /* the context in the file; context_tokens may be less */
    uint32_t n_draft_layers;  /* in the file behind n_layers; not loaded */
    uint32_t vocab_size;   /* rows of the vocabulary matrices that are loaded; see n_vocab_rows */
    uint32_t n_vocab_rows; /* rows in the file; rows beyond the file's tokens are not loaded */
    bool needs_output; /* the file must have an output matrix, as its tie_word_embeddings says */
    enum arch_residual residual;
    float norm_eps;
    float embed_scale, residual_scale, logit_scale; /* 1: none */
    float value_scale;                              /* multiplies the values before attention */
    float attn_scale;                               /* 0: 1/√k_dim */
    float score_scale;                              /* multiplies the scale of the scores */
    struct model_scales scales;
    float attn_softcap, final_softcap;      /* 0: none */
    double alibi_bias;                      /* 0: no ALiBi */
    double alibi_scale;                     /* multiplies the slopes */
    double temperature, temperature_length; /* 0: none */
    uint32_t temperature_offset;
    bool has_bare_norms;        /* mixers with ARCH_HEAD_NORMS_BARE norm queries and keys */
    enum activation activation; /* see shape_activation() */
    bool has_activation;        /* false: the kinds' own */
    struct model_experts experts;
    struct model_state state;
    struct model_latent latent;
    uint32_t layer_embd_dim; /* width of the per-layer inputs; 0: none */
    struct rope_set ropes[ARCH_MAX_ROPES];
    uint32_t long_rope_after;   /* longer sequences use ROPE_TABLE_LONG; 0: none does */
    struct model_layer *layers; /* owned, [n_layers] */
};

/* Reads and checks the hyper-parameters, and refuses unknown keys. `prefix` (may be empty) comes
 * before every key of the source. Call shape_fini() after success. */
int shape_read(const struct checkpoint *ckpt, const struct arch *arch,
               const struct arch_source *source, const char *prefix, struct model_shape *out_shape,
               struct error *err);
void shape_fini(struct model_shape *shape);

/* Length of a dimension in a layer (any layer for slots that exist once). */
uint32_t shape_dim(const struct model_shape *shape, uint32_t layer, enum arch_dim dim);
enum activation shape_activation(const struct model_shape *shape, const struct model_layer *layer);
/* Elements of a key that a rope may turn. */
uint32_t shape_rope_dim(const struct model_shape *shape, const struct model_layer *layer);
float shape_attn_scale(const struct model_shape *shape, const struct model_layer *layer);
/* Floats of a sequence's state in a layer: the inputs of the convolution, then the heads. 0 without
 * a state. The limits above exclude an overflow. */
uint64_t shape_state_floats(const struct model_shape *shape, uint32_t layer);
/* True if a mixer of the kind has the slot, which is one of ARCH_ATTN_NORM to
 * ARCH_ATTN_POST_NORM_BIAS. */
bool shape_mixer_has(enum arch_mixing mixing, enum arch_slot slot);
/* True if an FFN of the kind has the slot, which is ARCH_FFN_NORM or a later one. */
bool shape_ffn_has(const struct arch_ffn *ffn, enum arch_slot slot);
/* True if the layer's kinds have the slot, which exists once per layer. */
bool shape_layer_has(const struct model_layer *layer, enum arch_slot slot);

/* shape_rope.c */

/* Fills inv_freq[n_rot / 2] with the scaling applied, divided by `divisors` (NULL or [n_rot / 2]).
 * Returns the factor for cos and sin. Sources: arXiv 2104.09864; arXiv 2309.00071, section 3. */
float shape_rope_freqs(const struct rope_set *set, const float *divisors, float *inv_freq);

/* Latent attention: the factor of the scores, (1 + 0.1·mscale_all·ln(factor))² with YaRN. */
double shape_rope_score_factor(const struct rope_set *set);

/* Fills slopes[n_heads]. With n = 2^⌊log2 n_heads⌋, head h < n has 2^(−bias·(h + 1)/n). A head h ≥
 * n has 2^(−bias·(2·(h − n) + 1)/(2·n)), every other slope of 2·n heads. Source: arXiv 2108.12409,
 * and its authors' code for head counts that are not a power of two. */
void shape_alibi_slopes(double bias, uint32_t n_heads, float *slopes);
