/* rank.h: one share of a model that runs by itself. A rank has a place in tensor parallelism (index
 * of tp) and in the pipeline (stage of n_stages). Every split dimension has a part that the rank
 * holds. Plain data. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/segments.h"

struct comm;
struct device;
struct error;
struct model_shape;

struct rank {
    uint32_t index, tp;
    uint32_t stage, n_stages;
    /* layers of its stage; n_layers 0: all layers of a model with one stage */
    uint32_t layer_begin, n_layers;
    struct device *device; /* borrowed */
    struct comm *comm;     /* borrowed; NULL at tp 1 */
};

/* The heads of a layer's state that the rank computes. Without heads (short convolution) the rank
 * has channels alone. */
struct state_split {
    uint32_t head_begin, n_heads;
    uint32_t key_begin, n_keys;     /* heads of the keys that these heads read (or groups) */
    uint32_t value_begin, n_values; /* elements of the values */
    /* The rank's part of the values in the output matrix. The rank may compute more values, of a
     * head or group that it shares with another rank. */
    struct segments out;
};

/* The rank's parts of a layer's split dimensions (kernels/segments.h). If heads of two ranks share
 * a KV head, both ranks hold it. Zero where the layer has no attention, or no FFN of that kind. */
struct layer_split {
    struct segments queries; /* part of n_heads · k_dim, whole heads */
    struct segments mixed;   /* the same heads' part of n_heads · o_dim */
    struct segments ffn, expert_ffn, shared_ffn;
    struct state_split state; /* all 0 without a state */
    uint32_t head_begin, n_heads;
    uint32_t kv_begin, n_kv_heads;
    /* The rank computes Q and K of all heads, because their norm spans all heads. Afterwards
     * the rank uses its own heads. */
    bool projects_all_heads;
};

/* The largest numbers over the rank's layers. */
struct rank_most {
    uint32_t queries, mixed, keys, values, ffn, expert_ffn; /* elements of a row */
    /* recurrent layers: inputs of the convolution, values and heads */
    uint32_t state_inputs, state_values, state_heads;
    uint32_t n_heads, n_kv_heads, head_dim;
};

struct rank_split {
    struct segments vocab;
    uint32_t layer_begin, n_layers;
    struct layer_split *layers; /* owned; [n_layers] */
    struct rank_most most;
};

/* The first stage computes the embedding, the last stage has the head. */
static inline bool rank_is_first(const struct rank *rank)
{
    return rank->stage == 0;
}

static inline bool rank_is_last(const struct rank *rank)
{
    return rank->stage + 1 == rank->n_stages;
}

/* True if a stage may begin with this layer. No layer from here on may read the K and V of an
 * earlier one. No layer may have per-layer inputs, because the first stage alone computes them. */
bool rank_may_cut(const struct model_shape *shape, uint32_t layer);

/* INVALID_ARGUMENT (field "tp") if tp is not 1, 2, 4 or 8, or if a rank would have no heads, MLP
 * elements or vocabulary. INVALID_ARGUMENT (field "gpu_layers") for a cut that may not be. INTERNAL
 * if a stage has layers that the model does not have. Call rank_split_fini() in any case. */
int rank_split_init(struct rank_split *split, const struct rank *rank,
                    const struct model_shape *shape, struct error *err);
void rank_split_fini(struct rank_split *split);
