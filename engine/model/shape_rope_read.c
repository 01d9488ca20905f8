#include "engine/model/shape_rope_read.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/shape_layers.h"

static uint32_t at_most(uint32_t n, uint32_t limit)
{
    return n < limit ? n : limit;
}

static bool has_tensor(const struct shape_reader *r, enum arch_slot slot)
{
    const struct arch_tensor *row = arch_find_tensor(r->source, slot);
    return row && shape_reader_tensor(r, row->name);
}

static int read_scaling_type(struct shape_reader *r, uint32_t of, struct rope_set *s)
{
    static const struct {
        const char *name;
        enum rope_scaling scaling;
    } types[] = {{"none", ROPE_SCALING_NONE},
                 {"default", ROPE_SCALING_NONE},
                 {"linear", ROPE_SCALING_LINEAR},
                 {"llama3", ROPE_SCALING_LLAMA3},
                 {"yarn", ROPE_SCALING_YARN},
                 {"longrope", ROPE_SCALING_LONGROPE},
                 {"su", ROPE_SCALING_LONGROPE},
                 {"dynamic", ROPE_SCALING_DYNAMIC},
                 {"proportional", ROPE_SCALING_PROPORTIONAL}};
    const char *type;
    int rc = shape_reader_text(r, ARCH_PARAM_ROPE_SCALING, of, &type);
    if (rc)
        return rc;
    /* A factor without a type means linear scaling: the file is older than the type's key. Tensors
     * of divisors mean longrope. A dialect may have a scaling of its own. */
    const struct arch_param *row = arch_find_param(r->source, ARCH_PARAM_ROPE_SCALING, of);
    if (!type && row && row->absent == ARCH_ABSENT_FALLBACK) {
        s->scaling = (enum rope_scaling)row->fallback;
        return 0;
    }
    if (!type) {
        bool divided = has_tensor(r, ARCH_ROPE_FREQS_SHORT) && has_tensor(r, ARCH_ROPE_FREQS_LONG);
        s->scaling = divided          ? ROPE_SCALING_LONGROPE
                     : s->factor != 1 ? ROPE_SCALING_LINEAR
                                      : ROPE_SCALING_NONE;
        return 0;
    }
    for (uint32_t i = 0; i < ARCH_N_OF(types); i++) {
        if (strcmp(type, types[i].name) != 0)
            continue;
        s->scaling = types[i].scaling;
        return 0;
    }
    return shape_reader_unknown_word(
        r, type, "rope scaling", "none, linear, llama3, yarn, longrope, dynamic and proportional");
}

/* A table's divisors of longrope, if they are an array of the metadata. */
static int read_divisors(struct shape_reader *r, enum arch_param_id id, uint32_t of,
                         struct rope_set *s, float *out_divisors, bool *out_present)
{
    const struct arch_param *row = arch_find_param(r->source, id, of);
    struct checkpoint_array array;
    struct error ignored;
    bool whole = false;
    *out_present = row && shape_reader_find(r, row->key);
    if (!*out_present)
        return 0;
    if (checkpoint_get_array(r->ckpt, r->key, CHECKPOINT_INT, &array, &ignored) == 0) {
        whole = true;
    } else {
        int rc = checkpoint_get_array(r->ckpt, r->key, CHECKPOINT_FLOAT, &array, r->err);
        if (rc)
            return rc;
    }
    if (array.n != s->n_rot / 2)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu64 " divisors for %" PRIu32 " frequencies", array.n,
                                  s->n_rot / 2);
    for (uint32_t i = 0; i < array.n; i++) {
        double value =
            whole ? (double)checkpoint_array_int(&array, i) : checkpoint_array_float(&array, i);
        if (!(value >= 1e-3 && value <= 1e6))
            return checkpoint_bad_key(r->ckpt, r->key, r->err, "divisor %g is not in [0.001, 1e6]",
                                      value);
        out_divisors[i] = (float)value;
    }
    return 0;
}

/* Both tables of divisors are arrays of the metadata, or both are tensors. */
static int read_longrope(struct shape_reader *r, const struct model_shape *shape, uint32_t of,
                         struct rope_set *s)
{
    static const enum arch_param_id ids[ROPE_MAX_TABLES] = {
        [ROPE_TABLE_SHORT] = ARCH_PARAM_ROPE_SHORT_FACTORS,
        [ROPE_TABLE_LONG] = ARCH_PARAM_ROPE_LONG_FACTORS,
    };
    bool found[ROPE_MAX_TABLES];
    if (!shape_reader_has(r, ARCH_PARAM_ROPE_FACTOR, of))
        s->factor = shape->context_tokens / s->original_context;
    for (uint32_t i = 0; i < ROPE_MAX_TABLES; i++) {
        int rc = read_divisors(r, ids[i], of, s, s->divisors[i], &found[i]);
        if (rc)
            return rc;
    }
    bool none = !found[ROPE_TABLE_SHORT] && !found[ROPE_TABLE_LONG];
    s->n_divisors = found[ROPE_TABLE_SHORT] && found[ROPE_TABLE_LONG] ? s->n_rot / 2 : 0;
    if (s->n_divisors ||
        (none && has_tensor(r, ARCH_ROPE_FREQS_SHORT) && has_tensor(r, ARCH_ROPE_FREQS_LONG)))
        return 0;
    shape_reader_has(r, ARCH_PARAM_ROPE_SCALING, of); /* the error names its key */
    return checkpoint_unbuilt_key(
        r->ckpt, r->key, r->err,
        "longrope without its divisors for short and for long sequences is not known; use a model "
        "that has both");
}

static int read_set(struct shape_reader *r, const struct model_shape *shape, uint32_t of,
                    uint32_t k_dim, struct rope_set *s)
{
    *s = (struct rope_set){.factor = 1,
                           .attn_factor = 1,
                           .original_context = shape->context_tokens,
                           .ext_factor = 1,
                           .beta_fast = 32,
                           .beta_slow = 1,
                           .low_freq = 1,
                           .high_freq = 4,
                           .truncate = true};
    const struct {
        enum arch_param_id id;
        double min, max, derived; /* SHAPE_UNSET: not derived */
        double *out;
    } rows[] = {
        {ARCH_PARAM_ROPE_BASE, 1.0001, 1e12, SHAPE_UNSET, &s->base},
        {ARCH_PARAM_ROPE_ALPHA, 0, 1e6, SHAPE_UNSET, &s->alpha},
        {ARCH_PARAM_ROPE_FACTOR, 1e-3, 1e6, SHAPE_UNSET, &s->factor},
        {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT, 1, MODEL_MAX_CONTEXT, shape->context_tokens,
         &s->original_context},
        {ARCH_PARAM_ROPE_ATTN_FACTOR, 1e-3, 1e3, SHAPE_UNSET, &s->attn_factor},
        {ARCH_PARAM_ROPE_ATTENTION, 0, 1e3, SHAPE_UNSET, &s->attention},
        {ARCH_PARAM_ROPE_EXT_FACTOR, 0, 1, SHAPE_UNSET, &s->ext_factor},
        {ARCH_PARAM_ROPE_BETA_FAST, 1e-3, 1e6, SHAPE_UNSET, &s->beta_fast},
        {ARCH_PARAM_ROPE_BETA_SLOW, 1e-3, 1e6, SHAPE_UNSET, &s->beta_slow},
        {ARCH_PARAM_ROPE_MSCALE, 0, 1e3, SHAPE_UNSET, &s->mscale},
        {ARCH_PARAM_ROPE_MSCALE_ALL, 0, 1e3, SHAPE_UNSET, &s->mscale_all},
        {ARCH_PARAM_ROPE_LOW_FREQ, 1e-3, 1e6, SHAPE_UNSET, &s->low_freq},
        {ARCH_PARAM_ROPE_HIGH_FREQ, 1e-3, 1e6, SHAPE_UNSET, &s->high_freq},
    };
    double share = 1, log_factor = 0;
    int rc = read_scaling_type(r, of, s);
    bool proportional = !rc && s->scaling == ROPE_SCALING_PROPORTIONAL;
    if (!rc)
        rc = shape_reader_f64(r, ARCH_PARAM_ROT_SHARE, of, 0, 1, SHAPE_UNSET, &share);
    s->n_turning = proportional ? (uint32_t)(share * k_dim / 2) : k_dim / 2;
    s->n_rot = proportional ? k_dim : (uint32_t)(share * k_dim);
    uint32_t share_rot = s->n_rot;
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_ROT_DIM, of, 1, k_dim, share_rot, &s->n_rot);
    if (!rc && s->n_rot != share_rot && shape_reader_has(r, ARCH_PARAM_ROT_SHARE, of))
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " rotating dimensions; another key gives %" PRIu32,
                                  share_rot, s->n_rot);
    if (!rc && (!s->n_rot || s->n_rot % 2))
        rc = checkpoint_bad_key(r->ckpt, r->key, r->err,
                                "a rope of %" PRIu32 " dimensions is not known, only of 2, 4 and "
                                "so on up to the head's %" PRIu32,
                                s->n_rot, k_dim);
    for (size_t i = 0; !rc && i < sizeof(rows) / sizeof(rows[0]); i++)
        rc = shape_reader_f64(r, rows[i].id, of, rows[i].min, rows[i].max, rows[i].derived,
                              rows[i].out);
    if (!rc)
        rc = shape_reader_f64(r, ARCH_PARAM_ROPE_LOG_FACTOR, of, 0, 1e2, SHAPE_UNSET, &log_factor);
    if (log_factor > 0)
        s->mscale = s->mscale_all = 10 * log_factor;
    if (!rc)
        rc = shape_reader_bool(r, ARCH_PARAM_ROPE_TRUNCATE, of, &s->truncate);
    if (!rc)
        rc = read_scaling_type(r, of, s);
    return rc || s->scaling != ROPE_SCALING_LONGROPE ? rc : read_longrope(r, shape, of, s);
}

/* The length from which sequences use the long tables. A row's table is the same in all sets, so
 * the sets must have one such length. Sets that no sequence can outgrow agree. */
static int find_long_rope(struct shape_reader *r, struct model_shape *s)
{
    const struct rope_set *first = NULL;
    for (uint32_t of = 0; of < ARCH_MAX_ROPES; of++) {
        const struct rope_set *set = &s->ropes[of];
        if (set->scaling != ROPE_SCALING_LONGROPE)
            continue;
        uint32_t after = at_most((uint32_t)set->original_context, s->context_tokens);
        if (first && at_most((uint32_t)first->original_context, s->context_tokens) != after)
            return error_set(r->err, STATUS_UNIMPLEMENTED,
                             "%s: longropes with the original contexts %.0f and %.0f in one model "
                             "are not known; use a model with one of them",
                             checkpoint_name(r->ckpt), first->original_context,
                             set->original_context);
        s->long_rope_after = after < s->context_tokens ? after : 0;
        first = set;
    }
    return 0;
}

/* The error names the key that gives the layer its kind, if there is one. */
static int unequal_keys(struct shape_reader *r, const struct model_shape *s, uint32_t layer,
                        uint32_t dim, uint32_t other)
{
    static const char hint[] = "use a model with equal heads";
    const char *kind = s->layers[layer].mixer->name;
    if (shape_layers_find_key(r, ARCH_PART_MIXER, &s->layers[layer]))
        return checkpoint_unbuilt_key(r->ckpt, r->key, r->err,
                                      "layer %" PRIu32 " is \"%s\" with keys of %" PRIu32
                                      " elements, and shares a rope with keys of %" PRIu32 "; %s",
                                      layer, kind, dim, other, hint);
    return error_set(r->err, STATUS_UNIMPLEMENTED,
                     "%s: layer %" PRIu32 " has keys of %" PRIu32 " elements and shares a rope "
                     "with keys of %" PRIu32 "; %s",
                     checkpoint_name(r->ckpt), layer, dim, other, hint);
}

int shape_rope_read(struct shape_reader *r, struct model_shape *s)
{
    uint32_t k_dims[ARCH_MAX_ROPES] = {0};
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const struct model_layer *layer = &s->layers[i];
        uint32_t of = layer->mixer->rope;
        if (!layer->n_heads || of == ARCH_NO_ROPE)
            continue;
        uint32_t dim = shape_rope_dim(s, layer);
        int rc = k_dims[of] ? 0 : read_set(r, s, of, dim, &s->ropes[of]);
        if (rc)
            return rc;
        if (k_dims[of] && k_dims[of] != dim)
            return unequal_keys(r, s, i, dim, k_dims[of]);
        k_dims[of] = dim;
    }
    return find_long_rope(r, s);
}
