/* arch_params.h: the hyper-parameters that the metadata give. Plain data; a part of arch.h. */
#pragma once

#include <stdint.h>

enum arch_param_id {
    ARCH_PARAM_LAYERS,       /* derived: the length of the list of layer types */
    ARCH_PARAM_DRAFT_LAYERS, /* layers behind the model's own that only draft tokens */
    ARCH_PARAM_CONTEXT,
    ARCH_PARAM_POSITION_OFFSET, /* rows of the position table before that of position 0 */
    ARCH_PARAM_HIDDEN,
    ARCH_PARAM_VOCAB,
    ARCH_PARAM_NORM_EPS,
    ARCH_PARAM_FFN,       /* a number, or an array with a number per layer */
    ARCH_PARAM_HEADS,     /* the same */
    ARCH_PARAM_KV_HEADS,  /* the same */
    ARCH_PARAM_KV_FACTOR, /* of: the mixer; multiplies its KV heads */
    ARCH_PARAM_KEY_DIM,   /* of: the mixer */
    ARCH_PARAM_VALUE_DIM, /* of: the mixer */
    /* bool; whether layers of mixers with keys_as_values lack values; no row: the tensors tell */
    ARCH_PARAM_KEYS_AS_VALUES,
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
    ARCH_PARAM_TEMPERATURE_OFFSET, /* added to the position */
    ARCH_PARAM_USE_TEMPERATURE,    /* a bool or a number; false or 0: queries are not scaled */
    ARCH_PARAM_BARE_NORMS,         /* bool; false: ARCH_HEAD_NORMS_BARE norms nothing */
    /* A number of experts: in a model with this number, ARCH_HEAD_NORMS_BARE norms nothing. */
    ARCH_PARAM_NO_BARE_NORMS_EXPERTS,
    ARCH_PARAM_SHARED_KV_LAYERS, /* the last n layers read the K and V of a layer before them */
    /* width of the per-layer inputs; 0: none; derived: that of their norm, if there is one */
    ARCH_PARAM_LAYER_EMBD,
    ARCH_PARAM_FFN_DOUBLE, /* bool; true: layers with shared K and V have twice the FFN */
    /* bool; true: the FFN has two thirds of ARCH_PARAM_FFN, rounded down, */
    ARCH_PARAM_FFN_ADJUST,
    ARCH_PARAM_FFN_FACTOR,      /* times this number, rounded down, */
    ARCH_PARAM_FFN_MULTIPLE,    /* and rounded up to a multiple of this one */
    ARCH_PARAM_STATE_WIDTH,     /* taps of the convolution */
    ARCH_PARAM_STATE_KEY_DIM,   /* rows of a head's state */
    ARCH_PARAM_STATE_HEAD_DIM,  /* columns of a head's state; derived: inner / heads */
    ARCH_PARAM_STATE_INNER,     /* values of all heads */
    ARCH_PARAM_STATE_KEY_HEADS, /* key heads (delta net), groups (Mamba-2) */
    ARCH_PARAM_STATE_HEADS,
    ARCH_PARAM_STATE_NORM_FIRST,  /* bool; replaces the mixer's norm_before_gate */
    ARCH_PARAM_STATE_TILED,       /* bool; true: head h reads key head h % key heads */
    ARCH_PARAM_LATENT_Q,          /* rank of the queries; 0: they have full rank */
    ARCH_PARAM_LATENT_KV,         /* rank of K and V */
    ARCH_PARAM_LATENT_ROT,        /* elements of a head with rope, */
    ARCH_PARAM_LATENT_NOPE,       /* and without; derived: LATENT_KEY − LATENT_ROT */
    ARCH_PARAM_LATENT_KEY,        /* both together; derived: their sum */
    ARCH_PARAM_LATENT_VALUE,      /* elements of a head's output */
    ARCH_PARAM_LATENT_EPS,        /* for norms of low-rank queries, keys and values */
    ARCH_PARAM_SCALE_ATTN_IN,     /* Falcon-H1 multiplies the attention's input, */
    ARCH_PARAM_SCALE_ATTN_OUT,    /* its output, */
    ARCH_PARAM_SCALE_KEY,         /* its keys, */
    ARCH_PARAM_SCALE_STATE_IN,    /* the input of the recurrent layer, */
    ARCH_PARAM_SCALE_STATE_OUT,   /* its output, */
    ARCH_PARAM_SCALE_STATE_PARTS, /* its gate, V, K, Q and step size: an array of 5, */
    ARCH_PARAM_SCALE_FFN,         /* and the FFN's gate and output: an array of 2 */
    ARCH_PARAM_EXPERTS,
    ARCH_PARAM_EXPERTS_USED,
    ARCH_PARAM_EXPERT_FFN, /* derived: ARCH_PARAM_FFN */
    ARCH_PARAM_SHARED_FFN,
    ARCH_PARAM_SHARED_COUNT, /* in its place: shared experts of ARCH_PARAM_EXPERT_FFN each */
    ARCH_PARAM_EXPERT_GROUPS,
    ARCH_PARAM_EXPERT_GROUPS_USED,
    ARCH_PARAM_EXPERT_METHOD, /* a name; "greedy": the groups do not count */
    ARCH_PARAM_EXPERT_RENORM, /* bool: the chosen weights are divided by their sum */
    ARCH_PARAM_EXPERT_SCALE,  /* multiplies the weights at last */
    /* 0 the router's, 1 softmax, 2 sigmoid, 3 softmax of the chosen, 4 √softplus */
    ARCH_PARAM_EXPERT_SCORE,
    /* A number of tokens: without a key, a model with this vocabulary has the score sigmoid. */
    ARCH_PARAM_EXPERT_SIGMOID_VOCAB,
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
    ARCH_PARAM_ROPE_LOG_FACTOR, /* YaRN in GGUF: 0.1 · mscale of all dimensions */
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
    /* The frequencies are those of a rope of the whole head; only the first n_rot / 2 turn. */
    ROPE_SCALING_PROPORTIONAL,
};

enum arch_absent {
    ARCH_ABSENT_REFUSE, /* the load fails: the key is required */
    ARCH_ABSENT_DERIVE, /* derived from other keys: KV heads = heads, key dim = hidden / heads, … */
    /* The row's `fallback` is used; for ARCH_PARAM_ROPE_SCALING an enum rope_scaling. */
    ARCH_ABSENT_FALLBACK,
    ARCH_ABSENT_MIXER_0, /* the value of mixer 0, whose row has another rule */
};

/* A hyper-parameter read from the metadata. A parameter without a row has its neutral value. */
struct arch_param {
    enum arch_param_id id;
    /* Key without the architecture's name: "attention.head_count". Several spellings are separated
     * by '|'. Those that the file has must have one value. %u stands for the layer's number. NULL:
     * a constant. */
    const char *key;
    enum arch_absent absent;
    double fallback;
    uint32_t of; /* rope set; or mixer, where 0 stands for all mixers without a row of their own */
};
