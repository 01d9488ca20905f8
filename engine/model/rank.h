/* rank.h: one share of a model that runs by itself: its place in tensor parallelism (index of tp)
 * and in the pipeline (stage of n_stages), and which part of every split dimension it holds. Plain
 * data. */
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
    uint32_t layer_begin, n_layers; /* of its stage; n_layers 0: all, of a model of one stage */
    struct device *device;          /* borrowed */
    struct comm *comm;              /* borrowed; NULL at tp 1 */
};

/* The parts of the split dimensions (kernels/segments.h). A KV head that heads of two ranks share
 * is held by both. */
struct rank_split {
    struct segments heads; /* of n_heads · head_dim, whole heads */
    struct segments ffn;
    struct segments vocab;
    uint32_t head_begin, n_heads;
    uint32_t kv_begin, n_kv_heads;
    uint32_t layer_begin, n_layers;
};

/* The first stage embeds, the last one has the head. */
static inline bool rank_is_first(const struct rank *rank)
{
    return rank->stage == 0;
}

static inline bool rank_is_last(const struct rank *rank)
{
    return rank->stage + 1 == rank->n_stages;
}

/* INVALID_ARGUMENT (field "tp") where tp is not 1, 2, 4, 8 or leaves a rank without heads, MLP
 * elements or vocabulary; INTERNAL where a stage has layers that the model has not. */
int rank_split_init(struct rank_split *split, const struct rank *rank,
                    const struct model_shape *shape, struct error *err);
