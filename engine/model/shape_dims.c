/* The lengths of dimensions, the size of a state, and the slots of a layer (shape.h). */
#include "engine/model/shape.h"

static uint32_t norm_dim(const struct model_layer *layer, uint32_t n_heads)
{
    return layer->mixer->head_norm_scope == ARCH_SCOPE_HEAD ? layer->k_dim : n_heads * layer->k_dim;
}

static uint32_t state_dim(const struct model_shape *shape, const struct model_layer *layer,
                          enum arch_dim dim)
{
    const struct model_state *s = &shape->state;
    uint32_t keys = s->n_key_heads * s->key_dim, values = s->n_heads * s->head_dim;
    switch (dim) {
    case ARCH_DIM_STATE_KEYS:
        return keys;
    case ARCH_DIM_STATE_VALUES:
        return values;
    case ARCH_DIM_STATE_HEADS:
        return s->n_heads;
    case ARCH_DIM_STATE_KEY_TAPS:
        return keys * s->width;
    case ARCH_DIM_STATE_VALUE_TAPS:
        return values * s->width;
    case ARCH_DIM_STATE_NORM:
        return layer->mixer->mixing == ARCH_MIXING_DELTA ? s->head_dim : values;
    default:
        return 0;
    }
}

static uint32_t latent_dim(const struct model_shape *shape, const struct model_layer *layer,
                           enum arch_dim dim)
{
    const struct model_latent *l = &shape->latent;
    switch (dim) {
    case ARCH_DIM_LATENT_Q:
        return l->q_rank;
    case ARCH_DIM_LATENT_IN:
        return l->q_rank ? l->q_rank : shape->hidden_dim;
    case ARCH_DIM_LATENT_KV:
        return l->kv_rank;
    case ARCH_DIM_LATENT_ROT:
        return l->n_rot;
    case ARCH_DIM_HEADS_NOPE:
        return layer->n_heads * l->nope_dim;
    case ARCH_DIM_HEADS_ROT:
        return layer->n_heads * l->n_rot;
    case ARCH_DIM_NOPE:
        return l->nope_dim;
    case ARCH_DIM_LATENT_VALUE:
        return l->v_dim;
    default:
        return 0;
    }
}

uint32_t shape_dim(const struct model_shape *shape, uint32_t i, enum arch_dim dim)
{
    const struct model_layer *layer = &shape->layers[i];
    switch (dim) {
    case ARCH_DIM_ONE:
        return 1;
    case ARCH_DIM_HIDDEN:
        return shape->hidden_dim;
    case ARCH_DIM_QUERIES:
        return layer->n_heads * layer->q_dim;
    case ARCH_DIM_KEYS:
        return layer->n_kv_heads * layer->k_dim;
    case ARCH_DIM_VALUES:
        return layer->n_kv_heads * layer->v_dim;
    case ARCH_DIM_MIXED:
        return layer->n_heads * layer->o_dim;
    case ARCH_DIM_HEADS:
        return layer->n_heads;
    case ARCH_DIM_Q_NORM:
        return norm_dim(layer, layer->n_heads);
    case ARCH_DIM_K_NORM:
        return norm_dim(layer, layer->n_kv_heads);
    case ARCH_DIM_FFN:
        return layer->ffn_dim;
    case ARCH_DIM_EXPERTS:
        return shape->experts.n;
    case ARCH_DIM_EXPERT_FFN:
        return shape->experts.ffn_dim;
    case ARCH_DIM_SHARED_FFN:
        return shape->experts.shared_ffn_dim;
    case ARCH_DIM_VOCAB:
        return shape->vocab_size;
    case ARCH_DIM_CONTEXT:
        return shape->context_tokens;
    case ARCH_DIM_ROT_HALF:
        return shape->ropes[0].n_rot / 2;
    case ARCH_DIM_LAYER_EMBD:
        return shape->layer_embd_dim;
    case ARCH_DIM_LAYERS_EMBD:
        return shape->n_layers * shape->layer_embd_dim;
    default:
        return dim < ARCH_DIM_LATENT_Q ? state_dim(shape, layer, dim)
                                       : latent_dim(shape, layer, dim);
    }
}

uint64_t shape_state_floats(const struct model_shape *shape, uint32_t layer)
{
    const struct model_state *s = &shape->state;
    enum arch_mixing mixing = shape->layers[layer].mixer->mixing;
    uint64_t keys = (uint64_t)s->n_key_heads * s->key_dim;
    uint64_t values = (uint64_t)s->n_heads * s->head_dim;
    if (!arch_has_state(mixing))
        return 0;
    if (mixing == ARCH_MIXING_CONV)
        return (s->width - 1) * values;
    return (s->width - 1) * (2 * keys + values) + values * s->key_dim;
}

uint32_t shape_rope_dim(const struct model_shape *shape, const struct model_layer *layer)
{
    bool latent = layer->mixer && layer->mixer->mixing == ARCH_MIXING_LATENT;
    return latent ? shape->latent.n_rot : layer->k_dim;
}

/* True if the layer's recurrent mixer has the slot. */
static bool state_has(enum arch_mixing mixing, enum arch_slot slot)
{
    if (slot == ARCH_CONV_GATE_IN || slot == ARCH_CONV_GATE_OUT)
        return mixing == ARCH_MIXING_CONV;
    if (mixing == ARCH_MIXING_CONV)
        return slot == ARCH_STATE_V || slot == ARCH_STATE_CONV_V ||
               slot == ARCH_STATE_CONV_V_BIAS || slot == ARCH_STATE_OUT;
    bool is_delta = mixing == ARCH_MIXING_DELTA;
    if (slot == ARCH_STATE_BETA)
        return is_delta;
    return arch_has_state(mixing) && (slot != ARCH_STATE_D || !is_delta);
}

bool shape_mixer_has(enum arch_mixing mixing, enum arch_slot slot)
{
    if (slot >= ARCH_ATTN_Q && slot <= ARCH_ATTN_GATE)
        return arch_has_attention(mixing) && mixing != ARCH_MIXING_LATENT;
    if (slot == ARCH_ATTN_OUT || slot == ARCH_ATTN_OUT_BIAS)
        return arch_has_attention(mixing);
    if (slot >= ARCH_STATE_Q && slot <= ARCH_CONV_GATE_OUT)
        return state_has(mixing, slot);
    if (slot >= ARCH_LATENT_Q_DOWN && slot <= ARCH_LATENT_V_UP)
        return mixing == ARCH_MIXING_LATENT;
    return mixing != ARCH_MIXING_NONE;
}

bool shape_ffn_has(const struct arch_ffn *ffn, enum arch_slot slot)
{
    bool both = ffn->body == ARCH_FFN_BOTH;
    bool is_gate = slot == ARCH_FFN_GATE || slot == ARCH_FFN_GATE_BIAS;
    if (slot >= ARCH_FFN_GATE && slot <= ARCH_FFN_DOWN_BIAS)
        return (both || ffn->body == ARCH_FFN_DENSE) && (!is_gate || ffn->form == ARCH_FFN_GATED);
    if (slot >= ARCH_ROUTER && slot <= ARCH_SHARED_ROUTER)
        return both || ffn->body == ARCH_FFN_EXPERTS;
    if (slot >= ARCH_EXPERT_NORM && slot <= ARCH_DENSE_POST_NORM)
        return both;
    return slot >= ARCH_LAYER_GATE || ffn->body != ARCH_FFN_NONE;
}

bool shape_layer_has(const struct model_layer *layer, enum arch_slot slot)
{
    if (slot == ARCH_ATTN_V && layer->values == SHAPE_VALUES_ARE_KEYS)
        return false;
    return slot < ARCH_FFN_NORM ? shape_mixer_has(layer->mixer->mixing, slot)
                                : shape_ffn_has(layer->ffn, slot);
}
