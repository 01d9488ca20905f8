#include "engine/model/shape_mixers.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"

/* --- states --- */

/* The kind of the model's layers with a state; NULL without one. A model has the same state in all
 * these layers. */
static const struct arch_mixer *find_state(const struct model_shape *s)
{
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (arch_has_state(s->layers[i].mixer->mixing))
            return s->layers[i].mixer;
    return NULL;
}

/* The file's key of a parameter; the first of its keys if the file has none, and `none` without a
 * row. */
static const char *key_of(const struct shape_reader *r, enum arch_param_id id, const char *none,
                          struct shape_reader *scratch)
{
    const struct arch_param *row = arch_find_param(r->source, id, 0);
    *scratch = *r;
    if (!row || !row->key)
        return none;
    shape_reader_find(scratch, row->key);
    return scratch->key;
}

/* The dimension of a head, from the values of all heads where the source has their number. */
static int read_head_dim(struct shape_reader *r, struct model_state *state)
{
    uint32_t inner = 0;
    const uint64_t most = (uint64_t)MODEL_MAX_HEADS * MODEL_MAX_STATE_DIM;
    int rc = shape_reader_u32(r, ARCH_PARAM_STATE_INNER, 0, 1, (uint32_t)most, 0, &inner);
    if (rc)
        return rc;
    uint32_t derived = inner / state->n_heads;
    state->head_dim = derived;
    rc = shape_reader_u32(r, ARCH_PARAM_STATE_HEAD_DIM, 0, 1, MODEL_MAX_STATE_DIM, derived,
                          &state->head_dim);
    if (rc)
        return rc;
    if (!state->head_dim || state->head_dim > MODEL_MAX_STATE_DIM ||
        (inner && inner != state->n_heads * state->head_dim)) {
        struct shape_reader values, heads;
        const char *key = key_of(r, ARCH_PARAM_STATE_INNER, r->key, &values);
        return checkpoint_bad_key(
            r->ckpt, key, r->err,
            "%" PRIu32 " values are not %" PRIu32 " heads (key \"%s\") of 1 to %d", inner,
            state->n_heads, key_of(r, ARCH_PARAM_STATE_HEADS, "", &heads), MODEL_MAX_STATE_DIM);
    }
    return 0;
}

static int read_state_heads(struct shape_reader *r, struct model_state *state)
{
    struct shape_reader heads;
    int rc = shape_reader_u32(r, ARCH_PARAM_STATE_HEADS, 0, 1, MODEL_MAX_HEADS, 0, &state->n_heads);
    if (!rc && !state->n_heads)
        return error_set(r->err, STATUS_INTERNAL, "architecture %s: no row for the state's heads",
                         r->arch->name);
    if (!rc)
        rc = read_head_dim(r, state);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_STATE_KEY_DIM, 0, 1, MODEL_MAX_STATE_DIM, 0,
                              &state->key_dim);
    if (!rc)
        rc = shape_reader_bool(r, ARCH_PARAM_STATE_TILED, 0, &state->tiled);
    state->n_key_heads = state->n_heads;
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_STATE_KEY_HEADS, 0, 1, MODEL_MAX_HEADS, state->n_heads,
                              &state->n_key_heads);
    if (!rc && state->n_heads % state->n_key_heads)
        rc = checkpoint_bad_key(
            r->ckpt, r->key, r->err,
            "%" PRIu32 " key heads do not divide the %" PRIu32 " heads (key \"%s\")",
            state->n_key_heads, state->n_heads, key_of(r, ARCH_PARAM_STATE_HEADS, "", &heads));
    return rc;
}

int shape_mixers_read_states(struct shape_reader *r, struct model_shape *s)
{
    struct model_state *state = &s->state;
    const struct arch_mixer *mixer = find_state(s);
    if (!mixer)
        return 0;
    state->norm_first = mixer->norm_before_gate;
    int rc =
        shape_reader_u32(r, ARCH_PARAM_STATE_WIDTH, 0, 2, MODEL_MAX_STATE_WIDTH, 0, &state->width);
    if (!rc)
        rc = shape_reader_bool(r, ARCH_PARAM_STATE_NORM_FIRST, 0, &state->norm_first);
    if (rc || mixer->mixing != ARCH_MIXING_CONV)
        return rc ? rc : read_state_heads(r, state);
    /* A short convolution has no heads: its channels are the values of a single one. */
    state->n_heads = 1;
    state->head_dim = s->hidden_dim;
    return 0;
}

int shape_mixers_check_activation(struct shape_reader *r, const struct model_shape *s)
{
    const struct arch_param *row = arch_find_param(r->source, ARCH_PARAM_ACTIVATION, 0);
    const struct arch_mixer *mixer = find_state(s);
    if (!mixer || mixer->mixing == ARCH_MIXING_CONV || !s->has_activation ||
        s->activation == ACTIVATION_SILU || !row || !row->key ||
        strcmp(row->key, "hidden_act") != 0)
        return 0;
    shape_reader_find(r, row->key);
    return checkpoint_unbuilt_key(r->ckpt, r->key, r->err,
                                  "a recurrent layer with this activation is not known, only one "
                                  "with \"silu\"; use a model with that activation");
}

/* --- factors --- */

static int read_scale(struct shape_reader *r, enum arch_param_id id, double *out)
{
    *out = 1;
    return shape_reader_f64(r, id, 0, 1e-6, 1e6, SHAPE_UNSET, out);
}

/* An array of n factors; 1 for each without the key. */
static int read_factors(struct shape_reader *r, enum arch_param_id id, uint32_t n, double *out)
{
    const struct arch_param *row = arch_find_param(r->source, id, 0);
    struct checkpoint_array array;
    struct error ignored;
    for (uint32_t i = 0; i < n; i++)
        out[i] = 1;
    if (!row || !shape_reader_find(r, row->key))
        return 0;
    bool whole = checkpoint_get_array(r->ckpt, r->key, CHECKPOINT_INT, &array, &ignored) == 0;
    int rc = whole ? 0 : checkpoint_get_array(r->ckpt, r->key, CHECKPOINT_FLOAT, &array, r->err);
    if (rc)
        return rc;
    if (array.n != n)
        return checkpoint_bad_key(r->ckpt, r->key, r->err, "%" PRIu64 " elements, not %" PRIu32,
                                  array.n, n);
    for (uint32_t i = 0; i < n; i++) {
        out[i] =
            whole ? (double)checkpoint_array_int(&array, i) : checkpoint_array_float(&array, i);
        if (!(out[i] >= 1e-6 && out[i] <= 1e6))
            return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                      "element %" PRIu32 ", %g, is not in "
                                      "[1e-06, 1e+06]",
                                      i, out[i]);
    }
    return 0;
}

/* A factor of attention's input multiplies queries, keys and values, as they have no biases then.
 * So it multiplies the scores twice. */
int shape_mixers_read_scales(struct shape_reader *r, struct model_shape *s)
{
    double in, out, key, state_in, state_out, parts[5], ffn[2];
    int rc = read_scale(r, ARCH_PARAM_SCALE_ATTN_IN, &in);
    if (!rc)
        rc = read_scale(r, ARCH_PARAM_SCALE_ATTN_OUT, &out);
    if (!rc)
        rc = read_scale(r, ARCH_PARAM_SCALE_KEY, &key);
    if (!rc)
        rc = read_scale(r, ARCH_PARAM_SCALE_STATE_IN, &state_in);
    if (!rc)
        rc = read_scale(r, ARCH_PARAM_SCALE_STATE_OUT, &state_out);
    if (!rc)
        rc = read_factors(r, ARCH_PARAM_SCALE_STATE_PARTS, 5, parts);
    if (!rc)
        rc = read_factors(r, ARCH_PARAM_SCALE_FFN, 2, ffn);
    if (rc)
        return rc;
    s->score_scale = (float)(in * in * key);
    s->value_scale *= (float)in;
    s->scales = (struct model_scales){
        .attn_out = (float)out,
        .gate = (float)(state_in * parts[0]),
        .values = (float)(state_in * parts[1]),
        .keys = (float)(state_in * parts[2]),
        .queries = (float)(state_in * parts[3]),
        .dt = (float)(state_in * parts[4]),
        .state_out = (float)state_out,
        .ffn_gate = (float)ffn[0],
        .ffn_out = (float)ffn[1],
    };
    return 0;
}

/* --- latent attention --- */

/* The elements of a key without rope, from the key's length where the source has that. */
static int read_nope(struct shape_reader *r, struct model_latent *latent)
{
    uint32_t key = 0;
    int rc = shape_reader_u32(r, ARCH_PARAM_LATENT_KEY, 0, 0, MODEL_MAX_HEAD_DIM, 0, &key);
    latent->nope_dim = key > latent->n_rot ? key - latent->n_rot : 0;
    if (rc || (key && !latent->nope_dim))
        return rc ? rc
                  : checkpoint_bad_key(r->ckpt, r->key, r->err,
                                       "keys of %" PRIu32 " elements have no part without rope "
                                       "beside the %" PRIu32 " elements with rope",
                                       key, latent->n_rot);
    rc = shape_reader_u32(r, ARCH_PARAM_LATENT_NOPE, 0, 1, MODEL_MAX_HEAD_DIM, latent->nope_dim,
                          &latent->nope_dim);
    if (!rc && key && key != latent->nope_dim + latent->n_rot)
        rc = checkpoint_bad_key(r->ckpt, r->key, r->err,
                                "%" PRIu32 " elements without rope and %" PRIu32
                                " with rope are not keys of %" PRIu32,
                                latent->nope_dim, latent->n_rot, key);
    return rc;
}

static int read_ranks(struct shape_reader *r, struct model_latent *latent)
{
    double eps = 0;
    const struct {
        enum arch_param_id id;
        uint32_t min, max;
        uint32_t *out;
    } rows[] = {
        {ARCH_PARAM_LATENT_Q, 0, MODEL_MAX_HIDDEN, &latent->q_rank},
        {ARCH_PARAM_LATENT_KV, 1, MODEL_MAX_HEAD_DIM, &latent->kv_rank},
        {ARCH_PARAM_LATENT_ROT, 2, MODEL_MAX_HEAD_DIM, &latent->n_rot},
        {ARCH_PARAM_LATENT_VALUE, 1, MODEL_MAX_HEAD_DIM, &latent->v_dim},
    };
    for (uint32_t i = 0; i < ARCH_N_OF(rows); i++) {
        int rc = shape_reader_u32(r, rows[i].id, 0, rows[i].min, rows[i].max, 0, rows[i].out);
        if (rc)
            return rc;
        if (rows[i].id == ARCH_PARAM_LATENT_ROT &&
            (latent->n_rot % 2 || latent->kv_rank + latent->n_rot > MODEL_MAX_HEAD_DIM))
            return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                      "%" PRIu32 " elements with rope are not an even number, or "
                                      "exceed %d with the rank %" PRIu32 " of K and V",
                                      latent->n_rot, MODEL_MAX_HEAD_DIM, latent->kv_rank);
    }
    int rc = shape_reader_f64(r, ARCH_PARAM_LATENT_EPS, 0, 1e-12, 1e-1, SHAPE_UNSET, &eps);
    latent->eps = (float)eps;
    if (!rc && !(eps > 0))
        rc = error_set(r->err, STATUS_INTERNAL, "architecture %s: no row for the norms of low rank",
                       r->arch->name);
    return rc ? rc : read_nope(r, latent);
}

/* The numbers that describe the cache, where the file has them. Some files count a KV head for each
 * head. */
static int check_cache(struct shape_reader *r, uint32_t of, uint32_t i,
                       const struct model_layer *layer)
{
    uint32_t n_kv = layer->n_heads, k_dim = layer->k_dim, v_dim = layer->v_dim;
    int rc = shape_reader_layer_u32(r, ARCH_PARAM_KV_HEADS, of, i, 1, layer->n_heads,
                                    layer->n_heads, &n_kv);
    if (!rc && n_kv != 1 && n_kv != layer->n_heads)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " KV heads are neither 1 nor the %" PRIu32 " heads",
                                  n_kv, layer->n_heads);
    if (!rc)
        rc = shape_reader_layer_u32(r, ARCH_PARAM_KEY_DIM, of, i, 1, MODEL_MAX_HEAD_DIM, k_dim,
                                    &k_dim);
    if (!rc && k_dim != layer->k_dim)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "keys of %" PRIu32 " elements are not the ranks' sum %" PRIu32,
                                  k_dim, layer->k_dim);
    if (!rc)
        rc = shape_reader_layer_u32(r, ARCH_PARAM_VALUE_DIM, of, i, 1, MODEL_MAX_HEAD_DIM, v_dim,
                                    &v_dim);
    if (!rc && v_dim != layer->v_dim)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "values of %" PRIu32 " elements do not have the rank %" PRIu32,
                                  v_dim, layer->v_dim);
    return rc;
}

/* The cache has one KV head: the latent values, then the key's part with rope. */
int shape_mixers_read_latent(struct shape_reader *r, struct model_shape *s, uint32_t i,
                             struct model_layer *layer)
{
    struct model_latent *latent = &s->latent;
    uint32_t of = (uint32_t)(layer->mixer - r->arch->mixers);
    int rc = latent->kv_rank ? 0 : read_ranks(r, latent);
    if (!rc)
        rc = shape_reader_layer_u32(r, ARCH_PARAM_HEADS, of, i, 1, MODEL_MAX_HEADS, 0,
                                    &layer->n_heads);
    layer->n_kv_heads = 1;
    layer->k_dim = latent->kv_rank + latent->n_rot;
    layer->v_dim = latent->kv_rank;
    layer->q_dim = latent->nope_dim + latent->n_rot;
    layer->o_dim = latent->v_dim;
    return rc ? rc : check_cache(r, of, i, layer);
}

/* --- shared K and V --- */

/* The last layer before `first` with the mixer of layer i; `first` without one. */
static uint32_t find_source(const struct model_shape *s, uint32_t first, uint32_t i)
{
    uint32_t j = first;
    while (j > 0 && s->layers[j - 1].mixer != s->layers[i].mixer)
        j--;
    return j ? j - 1 : first;
}

static int share_layer(struct shape_reader *r, struct model_shape *s, uint32_t first, uint32_t i)
{
    struct model_layer *layer = &s->layers[i];
    uint32_t from = find_source(s, first, i);
    if (from == first)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "layer %" PRIu32 " shares the K and V of an earlier layer of the "
                                  "kind \"%s\", and none of the first %" PRIu32
                                  " layers is of this kind",
                                  i, layer->mixer->name, first);
    const struct model_layer *source = &s->layers[from];
    if (source->n_kv_heads != layer->n_kv_heads || source->k_dim != layer->k_dim ||
        source->v_dim != layer->v_dim)
        return checkpoint_bad_key(
            r->ckpt, r->key, r->err,
            "layer %" PRIu32 " shares the K and V of layer %" PRIu32 ", which has %" PRIu32
            " KV heads of %" PRIu32 " elements, not %" PRIu32 " of %" PRIu32,
            i, from, source->n_kv_heads, source->k_dim, layer->n_kv_heads, layer->k_dim);
    layer->kv_source = from;
    return 0;
}

int shape_mixers_read_shared_kv(struct shape_reader *r, struct model_shape *s)
{
    uint32_t n = 0;
    bool doubles = false;
    int rc = shape_reader_bool(r, ARCH_PARAM_FFN_DOUBLE, 0, &doubles);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_SHARED_KV_LAYERS, 0, 0, s->n_layers - 1, 0, &n);
    for (uint32_t i = s->n_layers - n; !rc && i < s->n_layers; i++) {
        if (arch_has_attention(s->layers[i].mixer->mixing))
            rc = share_layer(r, s, s->n_layers - n, i);
        s->layers[i].ffn_dim *= doubles ? 2 : 1;
    }
    return rc;
}
