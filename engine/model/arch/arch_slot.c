#include "engine/model/arch/arch.h"

/* A bias or another vector of n elements; a norm's weight; a matrix; a vector or matrix per
 * expert. */
#define SHAPE(n, k, s) .rows = ARCH_DIM_##n, .cols = ARCH_DIM_##k, .split = ARCH_SPLIT_##s
#define VECTOR(n, s)                                                                               \
    {                                                                                              \
        SHAPE(ONE, n, s)                                                                           \
    }
#define NORM(n)                                                                                    \
    {                                                                                              \
        SHAPE(ONE, n, NONE), .is_norm = true                                                       \
    }
#define MATRIX(n, k, s)                                                                            \
    {                                                                                              \
        SHAPE(n, k, s)                                                                             \
    }
#define VECTORS(n, s)                                                                              \
    {                                                                                              \
        SHAPE(ONE, n, s), .by_expert = true                                                        \
    }
#define MATRICES(n, k, s)                                                                          \
    {                                                                                              \
        SHAPE(n, k, s), .by_expert = true                                                          \
    }

static const struct arch_slot_facts facts[N_ARCH_SLOTS] = {
    [ARCH_TOKEN_EMBD] = MATRIX(VOCAB, HIDDEN, NONE),
    [ARCH_POSITION_EMBD] = MATRIX(CONTEXT, HIDDEN, NONE),
    [ARCH_TOKEN_NORM] = NORM(HIDDEN),
    [ARCH_TOKEN_NORM_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_ROPE_FREQS] = VECTOR(ROT_HALF, NONE),
    [ARCH_ROPE_FREQS_LONG] = VECTOR(ROT_HALF, NONE),
    [ARCH_ROPE_FREQS_SHORT] = VECTOR(ROT_HALF, NONE),
    [ARCH_OUTPUT_NORM] = NORM(HIDDEN),
    [ARCH_OUTPUT_NORM_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_OUTPUT] = MATRIX(VOCAB, HIDDEN, COLUMN),
    [ARCH_OUTPUT_BIAS] = VECTOR(VOCAB, COLUMN),
    [ARCH_ATTN_NORM] = NORM(HIDDEN),
    [ARCH_ATTN_NORM_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_ATTN_Q] = MATRIX(QUERIES, HIDDEN, COLUMN),
    [ARCH_ATTN_Q_BIAS] = VECTOR(QUERIES, COLUMN),
    [ARCH_ATTN_K] = MATRIX(KEYS, HIDDEN, COLUMN),
    [ARCH_ATTN_K_BIAS] = VECTOR(KEYS, COLUMN),
    [ARCH_ATTN_V] = MATRIX(VALUES, HIDDEN, COLUMN),
    [ARCH_ATTN_V_BIAS] = VECTOR(VALUES, COLUMN),
    [ARCH_ATTN_Q_NORM] = NORM(Q_NORM),
    [ARCH_ATTN_Q_NORM_BIAS] = VECTOR(Q_NORM, NONE),
    [ARCH_ATTN_K_NORM] = NORM(K_NORM),
    [ARCH_ATTN_K_NORM_BIAS] = VECTOR(K_NORM, NONE),
    [ARCH_ATTN_SINKS] = VECTOR(HEADS, COLUMN),
    [ARCH_ATTN_OUT] = MATRIX(HIDDEN, MIXED, ROW),
    [ARCH_ATTN_OUT_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_ATTN_POST_NORM] = NORM(HIDDEN),
    [ARCH_ATTN_POST_NORM_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_FFN_NORM] = NORM(HIDDEN),
    [ARCH_FFN_NORM_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_FFN_GATE] = MATRIX(FFN, HIDDEN, COLUMN),
    [ARCH_FFN_GATE_BIAS] = VECTOR(FFN, COLUMN),
    [ARCH_FFN_UP] = MATRIX(FFN, HIDDEN, COLUMN),
    [ARCH_FFN_UP_BIAS] = VECTOR(FFN, COLUMN),
    [ARCH_FFN_DOWN] = MATRIX(HIDDEN, FFN, ROW),
    [ARCH_FFN_DOWN_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_ROUTER] = MATRIX(EXPERTS, HIDDEN, NONE),
    [ARCH_ROUTER_BIAS] = VECTOR(EXPERTS, NONE),
    [ARCH_ROUTER_SELECT] = VECTOR(EXPERTS, NONE),
    [ARCH_EXPERT_GATE] = MATRICES(EXPERT_FFN, HIDDEN, COLUMN),
    [ARCH_EXPERT_GATE_BIAS] = VECTORS(EXPERT_FFN, COLUMN),
    [ARCH_EXPERT_UP] = MATRICES(EXPERT_FFN, HIDDEN, COLUMN),
    [ARCH_EXPERT_UP_BIAS] = VECTORS(EXPERT_FFN, COLUMN),
    [ARCH_EXPERT_DOWN] = MATRICES(HIDDEN, EXPERT_FFN, ROW),
    [ARCH_EXPERT_DOWN_BIAS] = VECTORS(HIDDEN, NONE),
    [ARCH_SHARED_GATE] = MATRIX(SHARED_FFN, HIDDEN, COLUMN),
    [ARCH_SHARED_UP] = MATRIX(SHARED_FFN, HIDDEN, COLUMN),
    [ARCH_SHARED_DOWN] = MATRIX(HIDDEN, SHARED_FFN, ROW),
    [ARCH_SHARED_ROUTER] = VECTOR(HIDDEN, NONE),
    [ARCH_FFN_POST_NORM] = NORM(HIDDEN),
    [ARCH_FFN_POST_NORM_BIAS] = VECTOR(HIDDEN, NONE),
};

const struct arch_slot_facts *arch_slot_facts(enum arch_slot slot)
{
    return &facts[slot];
}

static const char *const slot_names[N_ARCH_SLOTS] = {
    [ARCH_TOKEN_EMBD] = "token embedding",
    [ARCH_POSITION_EMBD] = "position embedding",
    [ARCH_TOKEN_NORM] = "norm of the token embedding",
    [ARCH_TOKEN_NORM_BIAS] = "bias of the norm of the token embedding",
    [ARCH_ROPE_FREQS] = "rope divisors",
    [ARCH_ROPE_FREQS_LONG] = "rope divisors of long contexts",
    [ARCH_ROPE_FREQS_SHORT] = "rope divisors of short contexts",
    [ARCH_OUTPUT_NORM] = "output norm",
    [ARCH_OUTPUT_NORM_BIAS] = "bias of the output norm",
    [ARCH_OUTPUT] = "output matrix",
    [ARCH_OUTPUT_BIAS] = "bias of the output matrix",
    [ARCH_ATTN_NORM] = "attention norm",
    [ARCH_ATTN_NORM_BIAS] = "bias of the attention norm",
    [ARCH_ATTN_Q] = "query matrix",
    [ARCH_ATTN_Q_BIAS] = "bias of the query matrix",
    [ARCH_ATTN_K] = "key matrix",
    [ARCH_ATTN_K_BIAS] = "bias of the key matrix",
    [ARCH_ATTN_V] = "value matrix",
    [ARCH_ATTN_V_BIAS] = "bias of the value matrix",
    [ARCH_ATTN_Q_NORM] = "query norm",
    [ARCH_ATTN_Q_NORM_BIAS] = "bias of the query norm",
    [ARCH_ATTN_K_NORM] = "key norm",
    [ARCH_ATTN_K_NORM_BIAS] = "bias of the key norm",
    [ARCH_ATTN_SINKS] = "attention sinks",
    [ARCH_ATTN_OUT] = "attention output matrix",
    [ARCH_ATTN_OUT_BIAS] = "bias of the attention output matrix",
    [ARCH_ATTN_POST_NORM] = "norm after the attention",
    [ARCH_ATTN_POST_NORM_BIAS] = "bias of the norm after the attention",
    [ARCH_FFN_NORM] = "FFN norm",
    [ARCH_FFN_NORM_BIAS] = "bias of the FFN norm",
    [ARCH_FFN_GATE] = "FFN gate matrix",
    [ARCH_FFN_GATE_BIAS] = "bias of the FFN gate matrix",
    [ARCH_FFN_UP] = "FFN up matrix",
    [ARCH_FFN_UP_BIAS] = "bias of the FFN up matrix",
    [ARCH_FFN_DOWN] = "FFN down matrix",
    [ARCH_FFN_DOWN_BIAS] = "bias of the FFN down matrix",
    [ARCH_ROUTER] = "router",
    [ARCH_ROUTER_BIAS] = "bias of the router",
    [ARCH_ROUTER_SELECT] = "selection bias of the router",
    [ARCH_EXPERT_GATE] = "experts' gate matrix",
    [ARCH_EXPERT_GATE_BIAS] = "bias of the experts' gate matrix",
    [ARCH_EXPERT_UP] = "experts' up matrix",
    [ARCH_EXPERT_UP_BIAS] = "bias of the experts' up matrix",
    [ARCH_EXPERT_DOWN] = "experts' down matrix",
    [ARCH_EXPERT_DOWN_BIAS] = "bias of the experts' down matrix",
    [ARCH_SHARED_GATE] = "shared experts' gate matrix",
    [ARCH_SHARED_UP] = "shared experts' up matrix",
    [ARCH_SHARED_DOWN] = "shared experts' down matrix",
    [ARCH_SHARED_ROUTER] = "shared experts' router",
    [ARCH_FFN_POST_NORM] = "norm after the FFN",
    [ARCH_FFN_POST_NORM_BIAS] = "bias of the norm after the FFN",
};

const char *arch_slot_name(enum arch_slot slot)
{
    return slot_names[slot];
}
