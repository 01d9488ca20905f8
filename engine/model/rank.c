#include "engine/model/rank.h"

#include <stdlib.h>

#include "base/error.h"
#include "engine/model/shape.h"

static int split_dim(struct segments *seg, uint32_t dim, uint32_t granule, const struct rank *rank,
                     const char *what, struct error *err)
{
    int rc = dim ? segments_init(seg, dim, granule, rank->tp, rank->index, err) : 0;
    if (rc)
        return error_prefix(err, "tp %u over %s", rank->tp, what);
    return 0;
}

static int split_heads(struct layer_split *split, const struct rank *rank,
                       const struct model_layer *layer, struct error *err)
{
    bool latent = layer->mixer && layer->mixer->mixing == ARCH_MIXING_LATENT;
    uint32_t k_dim = layer->k_dim, v_dim = latent ? layer->o_dim : layer->v_dim;
    if (!layer->n_heads)
        return 0;
    /* A unit of heads has a multiple of 32 elements of queries and of values. The width with fewer
     * factors of two needs more heads for that. */
    uint32_t dim = !latent && (k_dim & -k_dim) <= (v_dim & -v_dim) ? k_dim : v_dim;
    struct segments heads = {.count = 0};
    int rc = split_dim(&heads, layer->n_heads * dim, dim, rank, "the heads", err);
    if (rc)
        return rc;
    split->queries = split->mixed = heads;
    for (uint32_t s = 0; s <= N_SEGMENTS; s++) {
        split->queries.bounds[s] = heads.bounds[s] / dim * k_dim;
        split->mixed.bounds[s] = heads.bounds[s] / dim * v_dim;
    }
    uint32_t per_kv = layer->n_heads / layer->n_kv_heads;
    split->head_begin = segments_begin(&split->queries) / k_dim;
    split->n_heads = segments_len(&split->queries) / k_dim;
    split->kv_begin = split->head_begin / per_kv;
    split->projects_all_heads = rank->tp > 1 && layer->mixer->head_norm_scope == ARCH_SCOPE_WHOLE;
    split->n_kv_heads = (split->head_begin + split->n_heads - 1) / per_kv - split->kv_begin + 1;
    return 0;
}

/* The heads of the keys that the rank's heads read. If these wrap around, the rank holds all. */
static void find_keys(struct state_split *split, const struct model_state *s)
{
    uint32_t group = s->n_heads / s->n_key_heads;
    uint32_t first = s->tiled ? split->head_begin % s->n_key_heads : split->head_begin / group;
    uint32_t last_head = split->head_begin + split->n_heads - 1;
    uint32_t last = s->tiled ? last_head % s->n_key_heads : last_head / group;
    bool wraps = s->tiled && (split->n_heads >= s->n_key_heads || last < first);
    split->key_begin = wraps ? 0 : first;
    split->n_keys = wraps ? s->n_key_heads : last - first + 1;
}

/* Values that a rank computes together: a head, or a group, which Mamba-2 norms as a whole. */
static uint32_t unit_of(const struct model_state *s, enum arch_mixing mixing)
{
    if (mixing == ARCH_MIXING_CONV)
        return 1;
    return mixing == ARCH_MIXING_DELTA ? s->head_dim : s->n_heads / s->n_key_heads * s->head_dim;
}

/* Segments do not depend on tp, so ranks may divide a unit. Each of them computes the whole unit,
 * and takes its own values afterwards. */
static int split_state(struct state_split *split, const struct rank *rank,
                       const struct model_shape *shape, const struct model_layer *layer,
                       struct error *err)
{
    const struct model_state *s = &shape->state;
    enum arch_mixing mixing = layer->mixer ? layer->mixer->mixing : ARCH_MIXING_NONE;
    if (!arch_has_state(mixing))
        return 0;
    uint32_t n_values = s->n_heads * s->head_dim, unit = unit_of(s, mixing);
    int rc = split_dim(&split->out, n_values, 1, rank, "the state's values", err);
    if (rc)
        return rc;
    split->value_begin = segments_begin(&split->out) / unit * unit;
    split->n_values = (segments_end(&split->out) + unit - 1) / unit * unit - split->value_begin;
    if (mixing == ARCH_MIXING_CONV)
        return 0;
    split->head_begin = split->value_begin / s->head_dim;
    split->n_heads = split->n_values / s->head_dim;
    find_keys(split, s);
    return 0;
}

static int split_layer(struct layer_split *split, const struct rank *rank,
                       const struct model_shape *shape, const struct model_layer *layer,
                       struct error *err)
{
    bool experts =
        layer->ffn && (layer->ffn->body == ARCH_FFN_EXPERTS || layer->ffn->body == ARCH_FFN_BOTH);
    int rc = split_heads(split, rank, layer, err);
    if (!rc)
        rc = split_state(&split->state, rank, shape, layer, err);
    if (!rc)
        rc = split_dim(&split->ffn, layer->ffn_dim, 1, rank, "the MLP", err);
    if (!rc && experts)
        rc = split_dim(&split->expert_ffn, shape->experts.ffn_dim, 1, rank, "an expert", err);
    if (!rc && experts)
        rc = split_dim(&split->shared_ffn, shape->experts.shared_ffn_dim, 1, rank,
                       "the shared expert", err);
    return rc;
}

static void raise_to(uint32_t *most, uint32_t n)
{
    *most = n > *most ? n : *most;
}

static uint32_t len_of(const struct segments *seg)
{
    return seg->count ? segments_len(seg) : 0;
}

static uint32_t state_inputs(const struct state_split *split, const struct model_state *s)
{
    return 2 * split->n_keys * s->key_dim + split->n_values;
}

static void raise_most(struct rank_most *most, const struct layer_split *split,
                       const struct model_layer *layer, const struct model_state *state)
{
    raise_to(&most->state_inputs, state_inputs(&split->state, state));
    raise_to(&most->state_values, split->state.n_values);
    raise_to(&most->state_heads, split->state.n_heads);
    bool all = split->projects_all_heads;
    raise_to(&most->queries, all ? layer->n_heads * layer->k_dim : len_of(&split->queries));
    raise_to(&most->mixed, len_of(&split->mixed));
    raise_to(&most->keys, (all ? layer->n_kv_heads : split->n_kv_heads) * layer->k_dim);
    raise_to(&most->values, split->n_kv_heads * layer->v_dim);
    raise_to(&most->ffn, len_of(&split->ffn));
    raise_to(&most->ffn, len_of(&split->shared_ffn));
    raise_to(&most->expert_ffn, len_of(&split->expert_ffn));
    raise_to(&most->n_heads, split->n_heads);
    raise_to(&most->n_kv_heads, split->n_kv_heads);
    raise_to(&most->head_dim, layer->k_dim > layer->v_dim ? layer->k_dim : layer->v_dim);
}

bool rank_may_cut(const struct model_shape *shape, uint32_t layer)
{
    for (uint32_t i = layer; i < shape->n_layers; i++)
        if (shape->layers[i].kv_source < layer)
            return false;
    return !shape->layer_embd_dim;
}

/* A stage holds the K and V that its layers read, and the per-layer inputs of all layers. */
static int check_shared(const struct rank_split *split, const struct rank *rank,
                        const struct model_shape *shape, struct error *err)
{
    if (rank->n_stages > 1 && shape->layer_embd_dim)
        return error_field(err, "gpu_layers",
                           "a model with per-layer inputs cannot be cut before layer %u; use "
                           "the same device for all layers",
                           split->layer_begin ? split->layer_begin : split->n_layers);
    for (uint32_t i = split->layer_begin; i < split->layer_begin + split->n_layers; i++)
        if (shape->layers[i].kv_source < split->layer_begin)
            return error_field(err, "gpu_layers",
                               "layer %u reads the K and V of layer %u, and a cut before layer %u "
                               "parts them; use the same device for both",
                               i, shape->layers[i].kv_source, split->layer_begin);
    return 0;
}

int rank_split_init(struct rank_split *split, const struct rank *rank,
                    const struct model_shape *shape, struct error *err)
{
    uint32_t n_layers = rank->n_layers ? rank->n_layers : shape->n_layers;
    *split = (struct rank_split){.layer_begin = rank->layer_begin, .n_layers = n_layers};
    if (rank->stage >= rank->n_stages || rank->layer_begin > shape->n_layers ||
        n_layers > shape->n_layers - rank->layer_begin)
        return error_set(err, STATUS_INTERNAL, "stage %u of %u: layers %u..%u of %u", rank->stage,
                         rank->n_stages, rank->layer_begin, rank->layer_begin + n_layers,
                         shape->n_layers);
    int rc = check_shared(split, rank, shape, err);
    if (rc)
        return rc;
    split->layers = calloc(n_layers ? n_layers : 1, sizeof(*split->layers));
    if (!split->layers)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u layers", n_layers);
    for (uint32_t i = 0; !rc && i < n_layers; i++) {
        const struct model_layer *layer = &shape->layers[rank->layer_begin + i];
        rc = split_layer(&split->layers[i], rank, shape, layer, err);
        if (rc)
            error_prefix(err, "layer %u", rank->layer_begin + i);
        raise_most(&split->most, &split->layers[i], layer, &shape->state);
    }
    return rc ? rc : split_dim(&split->vocab, shape->vocab_size, 1, rank, "the vocabulary", err);
}

void rank_split_fini(struct rank_split *split)
{
    free(split->layers);
    split->layers = NULL;
}
