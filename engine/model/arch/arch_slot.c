#include "engine/model/arch/arch.h"

/* A bias or another vector of n elements; a norm's weight; a matrix; a vector or matrix per
 * expert; a matrix per head. */
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
#define HEADS(n, k)                                                                                \
    {                                                                                              \
        SHAPE(n, k, COLUMN), .by_head = true                                                       \
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
    [ARCH_LAYER_EMBD] = MATRIX(VOCAB, LAYERS_EMBD, NONE),
    [ARCH_LAYER_EMBD_PROJ] = MATRIX(LAYERS_EMBD, HIDDEN, NONE),
    [ARCH_LAYER_EMBD_NORM] = NORM(LAYER_EMBD),
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
    [ARCH_ATTN_GATE] = MATRIX(MIXED, HIDDEN, COLUMN),
    [ARCH_ATTN_OUT] = MATRIX(HIDDEN, MIXED, ROW),
    [ARCH_ATTN_OUT_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_STATE_Q] = MATRIX(STATE_KEYS, HIDDEN, COLUMN),
    [ARCH_STATE_K] = MATRIX(STATE_KEYS, HIDDEN, COLUMN),
    [ARCH_STATE_V] = MATRIX(STATE_VALUES, HIDDEN, COLUMN),
    [ARCH_STATE_GATE] = MATRIX(STATE_VALUES, HIDDEN, COLUMN),
    [ARCH_STATE_DT] = MATRIX(STATE_HEADS, HIDDEN, COLUMN),
    [ARCH_STATE_BETA] = MATRIX(STATE_HEADS, HIDDEN, COLUMN),
    [ARCH_STATE_CONV_Q] = VECTOR(STATE_KEY_TAPS, COLUMN),
    [ARCH_STATE_CONV_K] = VECTOR(STATE_KEY_TAPS, COLUMN),
    [ARCH_STATE_CONV_V] = VECTOR(STATE_VALUE_TAPS, COLUMN),
    [ARCH_STATE_CONV_Q_BIAS] = VECTOR(STATE_KEYS, COLUMN),
    [ARCH_STATE_CONV_K_BIAS] = VECTOR(STATE_KEYS, COLUMN),
    [ARCH_STATE_CONV_V_BIAS] = VECTOR(STATE_VALUES, COLUMN),
    [ARCH_STATE_DT_BIAS] = VECTOR(STATE_HEADS, COLUMN),
    [ARCH_STATE_A] = VECTOR(STATE_HEADS, COLUMN),
    [ARCH_STATE_D] = VECTOR(STATE_HEADS, COLUMN),
    [ARCH_STATE_NORM] = NORM(STATE_NORM),
    [ARCH_STATE_OUT] = MATRIX(HIDDEN, STATE_VALUES, ROW),
    [ARCH_CONV_GATE_IN] = MATRIX(STATE_VALUES, HIDDEN, COLUMN),
    [ARCH_CONV_GATE_OUT] = MATRIX(STATE_VALUES, HIDDEN, COLUMN),
    [ARCH_LATENT_Q_DOWN] = MATRIX(LATENT_Q, HIDDEN, NONE),
    [ARCH_LATENT_Q_NORM] = NORM(LATENT_Q),
    [ARCH_LATENT_Q_NOPE] = MATRIX(HEADS_NOPE, LATENT_IN, COLUMN),
    [ARCH_LATENT_Q_ROPE] = MATRIX(HEADS_ROT, LATENT_IN, COLUMN),
    [ARCH_LATENT_KV_DOWN] = MATRIX(LATENT_KV, HIDDEN, NONE),
    [ARCH_LATENT_K_ROPE] = MATRIX(LATENT_ROT, HIDDEN, NONE),
    [ARCH_LATENT_KV_NORM] = NORM(LATENT_KV),
    [ARCH_LATENT_K_UP] = HEADS(LATENT_KV, NOPE),
    [ARCH_LATENT_V_UP] = HEADS(LATENT_VALUE, LATENT_KV),
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
    [ARCH_ROUTER_NORM] = NORM(HIDDEN),
    [ARCH_ROUTER_EXPERT_SCALE] = VECTOR(EXPERTS, NONE),
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
    [ARCH_EXPERT_NORM] = NORM(HIDDEN),
    [ARCH_EXPERT_POST_NORM] = NORM(HIDDEN),
    [ARCH_DENSE_POST_NORM] = NORM(HIDDEN),
    [ARCH_FFN_POST_NORM] = NORM(HIDDEN),
    [ARCH_FFN_POST_NORM_BIAS] = VECTOR(HIDDEN, NONE),
    [ARCH_LAYER_GATE] = MATRIX(LAYER_EMBD, HIDDEN, NONE),
    [ARCH_LAYER_PROJ] = MATRIX(HIDDEN, LAYER_EMBD, NONE),
    [ARCH_LAYER_POST_NORM] = NORM(HIDDEN),
    [ARCH_LAYER_SCALE] = VECTOR(ONE, NONE),
};

const struct arch_slot_facts *arch_slot_facts(enum arch_slot slot)
{
    return &facts[slot];
}

bool arch_slot_has_bias(enum arch_slot slot)
{
    const struct arch_slot_facts *own = &facts[slot], *next = own + 1;
    return slot + 1 < N_ARCH_SLOTS && own->rows != ARCH_DIM_ONE && next->rows == ARCH_DIM_ONE &&
           next->cols == own->rows && next->by_expert == own->by_expert && !next->is_norm;
}

static const char *const slot_names[N_ARCH_SLOTS] = {
    [ARCH_TOKEN_EMBD] = "token embedding",
    [ARCH_POSITION_EMBD] = "position embedding",
    [ARCH_TOKEN_NORM] = "norm of the token embedding",
    [ARCH_TOKEN_NORM_BIAS] = "bias of the norm of the token embedding",
    [ARCH_LAYER_EMBD] = "embedding per layer",
    [ARCH_LAYER_EMBD_PROJ] = "projection of the embedding per layer",
    [ARCH_LAYER_EMBD_NORM] = "norm of the embedding per layer",
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
    [ARCH_ATTN_GATE] = "attention gate matrix",
    [ARCH_ATTN_OUT] = "attention output matrix",
    [ARCH_ATTN_OUT_BIAS] = "bias of the attention output matrix",
    [ARCH_STATE_Q] = "state's query matrix",
    [ARCH_STATE_K] = "state's key matrix",
    [ARCH_STATE_V] = "state's value matrix",
    [ARCH_STATE_GATE] = "state's gate matrix",
    [ARCH_STATE_DT] = "state's step matrix",
    [ARCH_STATE_BETA] = "state's beta matrix",
    [ARCH_STATE_CONV_Q] = "convolution of the state's queries",
    [ARCH_STATE_CONV_K] = "convolution of the state's keys",
    [ARCH_STATE_CONV_V] = "convolution of the state's values",
    [ARCH_STATE_CONV_Q_BIAS] = "bias of the convolution of the state's queries",
    [ARCH_STATE_CONV_K_BIAS] = "bias of the convolution of the state's keys",
    [ARCH_STATE_CONV_V_BIAS] = "bias of the convolution of the state's values",
    [ARCH_STATE_DT_BIAS] = "bias of the state's steps",
    [ARCH_STATE_A] = "state's decay",
    [ARCH_STATE_D] = "state's pass-through",
    [ARCH_STATE_NORM] = "state's output norm",
    [ARCH_STATE_OUT] = "state's output matrix",
    [ARCH_CONV_GATE_IN] = "gate before the convolution",
    [ARCH_CONV_GATE_OUT] = "gate after the convolution",
    [ARCH_LATENT_Q_DOWN] = "down projection of the queries",
    [ARCH_LATENT_Q_NORM] = "norm of the low-rank queries",
    [ARCH_LATENT_Q_NOPE] = "query matrix without rope",
    [ARCH_LATENT_Q_ROPE] = "query matrix with rope",
    [ARCH_LATENT_KV_DOWN] = "down projection of keys and values",
    [ARCH_LATENT_K_ROPE] = "key matrix with rope",
    [ARCH_LATENT_KV_NORM] = "norm of the low-rank keys and values",
    [ARCH_LATENT_K_UP] = "up projection of the keys",
    [ARCH_LATENT_V_UP] = "up projection of the values",
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
    [ARCH_ROUTER_NORM] = "norm of the router's input",
    [ARCH_ROUTER_EXPERT_SCALE] = "scales of the experts",
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
    [ARCH_EXPERT_NORM] = "norm before the experts",
    [ARCH_EXPERT_POST_NORM] = "norm after the experts",
    [ARCH_DENSE_POST_NORM] = "norm after the dense FFN",
    [ARCH_FFN_POST_NORM] = "norm after the FFN",
    [ARCH_FFN_POST_NORM_BIAS] = "bias of the norm after the FFN",
    [ARCH_LAYER_GATE] = "gate of the layer's input",
    [ARCH_LAYER_PROJ] = "projection of the layer's input",
    [ARCH_LAYER_POST_NORM] = "norm after the layer's input",
    [ARCH_LAYER_SCALE] = "scale of the layer's output",
};

const char *arch_slot_name(enum arch_slot slot)
{
    return slot_names[slot];
}
