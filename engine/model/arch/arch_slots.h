/* arch_slots.h: the roles of tensors in the decoder, their shapes, and how their values lie in
 * files. Plain data; a part of arch.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The role of a tensor in the decoder. Slots below ARCH_FIRST_LAYER_SLOT exist once, the others
 * once per layer. arch_slot.c has each slot's shape and split. */
enum arch_slot {
    ARCH_TOKEN_EMBD,
    ARCH_POSITION_EMBD, /* x += row `position` */
    ARCH_TOKEN_NORM,    /* norm of the token embedding, before the first layer */
    ARCH_TOKEN_NORM_BIAS,
    /* Per-layer inputs: LAYER_EMBD[token] and LAYER_EMBD_PROJ · embedding, whose slices per layer
     * are normed by LAYER_EMBD_NORM, are added. */
    ARCH_LAYER_EMBD,
    ARCH_LAYER_EMBD_PROJ,
    ARCH_LAYER_EMBD_NORM,
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
    ARCH_ATTN_GATE,  /* the attention's output is multiplied by sigmoid of this matrix · x */
    ARCH_ATTN_OUT,
    ARCH_ATTN_OUT_BIAS,
    /* Recurrent layers. Mamba-2 and the delta net share the slots: B lies in K, C in Q, x in V. */
    ARCH_STATE_Q,
    ARCH_STATE_K,
    ARCH_STATE_V,
    ARCH_STATE_GATE,   /* the output is multiplied by SiLU of this matrix · x */
    ARCH_STATE_DT,     /* the step's size per head, before softplus */
    ARCH_STATE_BETA,   /* delta net: the share of a new value per head, before sigmoid */
    ARCH_STATE_CONV_Q, /* taps of the convolution of each channel, [dim][width] */
    ARCH_STATE_CONV_K,
    ARCH_STATE_CONV_V,
    ARCH_STATE_CONV_Q_BIAS,
    ARCH_STATE_CONV_K_BIAS,
    ARCH_STATE_CONV_V_BIAS,
    ARCH_STATE_DT_BIAS,
    ARCH_STATE_A, /* per head, negative: a state decays by e^(A · step) */
    ARCH_STATE_D, /* Mamba-2: per head, the part of x that passes the state */
    /* The output's norm: one weight for all heads (delta net), or a weight per value (Mamba-2). */
    ARCH_STATE_NORM,
    ARCH_STATE_OUT,
    ARCH_CONV_GATE_IN,  /* short convolution: multiplies its input, */
    ARCH_CONV_GATE_OUT, /* and its output */
    /* Latent attention. Queries come from Q_DOWN and Q_NORM, or from the layer's input. */
    ARCH_LATENT_Q_DOWN,
    ARCH_LATENT_Q_NORM,
    ARCH_LATENT_Q_NOPE, /* the part of each head without rope, */
    ARCH_LATENT_Q_ROPE, /* and the part with rope */
    ARCH_LATENT_KV_DOWN,
    ARCH_LATENT_K_ROPE, /* the part of the key with rope, one for all heads */
    ARCH_LATENT_KV_NORM,
    ARCH_LATENT_K_UP,    /* matrices [heads]: from a query without rope to one of latent values */
    ARCH_LATENT_V_UP,    /* matrices [heads]: from a mix of latent values to the head's output */
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
    ARCH_ROUTER_NORM,   /* multiplies the router's input, which is normed without weights first */
    ARCH_ROUTER_EXPERT_SCALE, /* multiplies the weight of each expert */
    ARCH_EXPERT_GATE,         /* matrices [experts] */
    ARCH_EXPERT_GATE_BIAS,
    ARCH_EXPERT_UP,
    ARCH_EXPERT_UP_BIAS,
    ARCH_EXPERT_DOWN,
    ARCH_EXPERT_DOWN_BIAS,
    ARCH_SHARED_GATE,
    ARCH_SHARED_UP,
    ARCH_SHARED_DOWN,
    ARCH_SHARED_ROUTER, /* the shared experts' output is multiplied by sigmoid of this */
    /* Dense FFN and experts side by side: norms of the experts' input and of both outputs. */
    ARCH_EXPERT_NORM,
    ARCH_EXPERT_POST_NORM,
    ARCH_DENSE_POST_NORM,
    ARCH_FFN_POST_NORM, /* norms the FFN's output before it is added */
    ARCH_FFN_POST_NORM_BIAS,
    /* Per-layer inputs, after the FFN: x += norm(PROJ · (GELU(GATE · x) · input)). Then x is
     * multiplied by SCALE, which any layer may have. */
    ARCH_LAYER_GATE,
    ARCH_LAYER_PROJ,
    ARCH_LAYER_POST_NORM,
    ARCH_LAYER_SCALE,
    N_ARCH_SLOTS,
};

/* A dimension by its meaning; the metadata give its length. */
enum arch_dim {
    ARCH_DIM_ONE,
    ARCH_DIM_HIDDEN,
    ARCH_DIM_QUERIES, /* n_heads · q_dim */
    ARCH_DIM_KEYS,    /* n_kv_heads · k_dim */
    ARCH_DIM_VALUES,  /* n_kv_heads · v_dim */
    ARCH_DIM_MIXED,   /* n_heads · o_dim */
    ARCH_DIM_HEADS,   /* n_heads */
    ARCH_DIM_Q_NORM,  /* by the mixer's scope: k_dim or n_heads · k_dim */
    ARCH_DIM_K_NORM,
    ARCH_DIM_FFN,
    ARCH_DIM_EXPERTS,
    ARCH_DIM_EXPERT_FFN,
    ARCH_DIM_SHARED_FFN,
    ARCH_DIM_VOCAB,
    ARCH_DIM_CONTEXT,
    ARCH_DIM_ROT_HALF,     /* n_rot / 2 of rope set 0 */
    ARCH_DIM_LAYER_EMBD,   /* a layer's part of the per-layer inputs */
    ARCH_DIM_LAYERS_EMBD,  /* the parts of all layers */
    ARCH_DIM_STATE_KEYS,   /* state: n_key_heads · key_dim */
    ARCH_DIM_STATE_VALUES, /* state: n_heads · head_dim */
    ARCH_DIM_STATE_HEADS,
    ARCH_DIM_STATE_KEY_TAPS,   /* STATE_KEYS · width */
    ARCH_DIM_STATE_VALUE_TAPS, /* STATE_VALUES · width */
    ARCH_DIM_STATE_NORM,       /* delta net: head_dim; else STATE_VALUES */
    ARCH_DIM_LATENT_Q,         /* latent: q_rank */
    ARCH_DIM_LATENT_IN,        /* the input of queries: q_rank, or hidden without */
    ARCH_DIM_LATENT_KV,        /* latent: kv_rank */
    ARCH_DIM_LATENT_ROT,       /* latent: n_rot */
    ARCH_DIM_HEADS_NOPE,       /* n_heads · nope_dim */
    ARCH_DIM_HEADS_ROT,        /* n_heads · n_rot */
    ARCH_DIM_NOPE,             /* latent: nope_dim */
    ARCH_DIM_LATENT_VALUE,     /* latent: v_dim */
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
    bool by_head;   /* a matrix per head; split: a rank holds those of its heads */
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
    /* Slots of the same name alternate by query head: query and gate, or parts of a query. */
    ARCH_TRANSFORM_BY_QUERY_HEAD,
    ARCH_TRANSFORM_BY_STATE_HEAD,    /* they alternate by key head of the state */
    ARCH_TRANSFORM_MINUS_EXP,        /* the file has ln(−value) */
    ARCH_TRANSFORM_HEADS,            /* a matrix per head: [heads][rows][cols] */
    ARCH_TRANSFORM_HEADS_TRANSPOSED, /* [heads][cols][rows] */
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
