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
