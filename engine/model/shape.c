#include "engine/model/shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint.h"
#include "engine/model/shape_keys.h"
#include "engine/model/shape_layers.h"
#include "engine/model/shape_mixers.h"
#include "engine/model/shape_reader.h"

static uint32_t at_most(uint32_t n, uint32_t limit)
{
    return n < limit ? n : limit;
}

static int read_sizes(struct shape_reader *r, struct model_shape *s)
{
    int rc = shape_reader_u32(r, ARCH_PARAM_LAYERS, 0, 1, MODEL_MAX_LAYERS, shape_layers_count(r),
                              &s->n_layers);
    uint32_t most = r->source->counts_drafts && !rc ? s->n_layers - 1 : MODEL_MAX_LAYERS;
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_DRAFT_LAYERS, 0, 0, most, 0, &s->n_draft_layers);
    if (!rc && r->source->counts_drafts)
        s->n_layers -= s->n_draft_layers;
    if (!rc)
        rc =
            shape_reader_u32(r, ARCH_PARAM_CONTEXT, 0, 1, MODEL_MAX_CONTEXT, 0, &s->context_tokens);
    s->trained_tokens = s->context_tokens;
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_POSITION_OFFSET, 0, 0, MODEL_MAX_CONTEXT, 0,
                              &s->position_offset);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_HIDDEN, 0, 1, MODEL_MAX_HIDDEN, 0, &s->hidden_dim);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_LAYER_EMBD, 0, 0, MODEL_MAX_HIDDEN, 0,
                              &s->layer_embd_dim);
    return rc;
}

/* The first of the names that the file has. */
static const struct checkpoint_tensor *find_global(const struct checkpoint *ckpt, const char *names)
{
    char name[SHAPE_MAX_KEY];
    const struct checkpoint_tensor *tensor = NULL;
    for (uint32_t i = 0; !tensor && arch_name_at(names, i, 0, 0, name, sizeof(name)); i++)
        tensor = checkpoint_tensor_find(ckpt, name);
    return tensor;
}

/* Rows of the vocabulary. The file's number is that of the embedding's rows; the shape check
 * refuses a key that contradicts it. Rows beyond the file's tokens have no text. They are never
 * loaded, so that no backend can sample them or give them a probability. */
static int read_vocab(struct shape_reader *r, struct model_shape *s)
{
    const struct arch_tensor *row = arch_find_tensor(r->source, ARCH_TOKEN_EMBD);
    const struct checkpoint_tensor *embd = row ? find_global(r->ckpt, row->name) : NULL;
    if (!embd && row && row->required)
        return checkpoint_missing_tensor(r->ckpt, row->name, r->err);
    s->n_vocab_rows = embd ? (uint32_t)embd->n_rows : 0;
    int rc = shape_reader_u32(r, ARCH_PARAM_VOCAB, 0, 1, MODEL_MAX_VOCAB, embd ? embd->n_rows : 0,
                              &s->n_vocab_rows);
    if (rc)
        return rc;
    bool may_tie = true;
    rc = shape_reader_bool(r, ARCH_PARAM_TIED, 0, &may_tie);
    if (rc)
        return rc;
    s->needs_output = !may_tie;
    uint64_t n_tokens = checkpoint_n_tokens(r->ckpt);
    s->vocab_size = n_tokens && n_tokens < s->n_vocab_rows ? (uint32_t)n_tokens : s->n_vocab_rows;
    return 0;
}

static int unknown_word(struct shape_reader *r, const char *text, const char *what,
                        const char *known)
{
    char name[ESCAPE_MAX_BYTES];
    return checkpoint_unbuilt_key(r->ckpt, r->key, r->err,
                                  "%s \"%s\" is not known, only %s are; use a model with one of "
                                  "these",
                                  what, escape_text(text, strlen(text), name), known);
}

/* --- rope --- */

static bool has_tensor(const struct shape_reader *r, enum arch_slot slot)
{
    const struct arch_tensor *row = arch_find_tensor(r->source, slot);
    return row && find_global(r->ckpt, row->name);
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
    return unknown_word(r, type, "rope scaling",
                        "none, linear, llama3, yarn, longrope, dynamic and proportional");
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

/* True if the file has a key of the parameter; then r->key is that key. */
static bool has_key(struct shape_reader *r, enum arch_param_id id, uint32_t of)
{
    const struct arch_param *row = arch_find_param(r->source, id, of);
    return row && row->key && shape_reader_find(r, row->key);
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
    if (!has_key(r, ARCH_PARAM_ROPE_FACTOR, of))
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
    has_key(r, ARCH_PARAM_ROPE_SCALING, of); /* the error names its key */
    return checkpoint_unbuilt_key(
        r->ckpt, r->key, r->err,
        "longrope without its divisors for short and for long sequences is not known; use a model "
        "that has both");
}

static int read_rope(struct shape_reader *r, const struct model_shape *shape, uint32_t of,
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
    if (!rc && s->n_rot != share_rot && has_key(r, ARCH_PARAM_ROT_SHARE, of))
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

/* Reads each set that a layer uses. Layers that share a set have equal key dimensions. */
static int read_ropes(struct shape_reader *r, struct model_shape *s)
{
    uint32_t k_dims[ARCH_MAX_ROPES] = {0};
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const struct model_layer *layer = &s->layers[i];
        uint32_t of = layer->mixer->rope;
        if (!layer->n_heads || of == ARCH_NO_ROPE)
            continue;
        uint32_t dim = shape_rope_dim(s, layer);
        int rc = k_dims[of] ? 0 : read_rope(r, s, of, dim, &s->ropes[of]);
        if (rc)
            return rc;
        if (k_dims[of] && k_dims[of] != dim)
            return unequal_keys(r, s, i, dim, k_dims[of]);
        k_dims[of] = dim;
    }
    return find_long_rope(r, s);
}

/* --- scales --- */

/* ALiBi slopes depend on the number of heads, and are the same in all layers. */
static int check_alibi(struct shape_reader *r, const struct model_shape *s)
{
    for (uint32_t i = 1; s->alibi_bias > 0 && i < s->n_layers; i++) {
        if (s->layers[i].n_heads == s->layers[0].n_heads)
            continue;
        shape_reader_find(r, arch_find_param(r->source, ARCH_PARAM_HEADS, 0)->key);
        return checkpoint_unbuilt_key(r->ckpt, r->key, r->err,
                                      "%" PRIu32 " heads in layer 0 and %" PRIu32
                                      " in layer %" PRIu32 " are not known with ALiBi; use a model "
                                      "with equal layers",
                                      s->layers[0].n_heads, s->layers[i].n_heads, i);
    }
    return 0;
}

/* A bool, or a number that is not 0. */
static int read_switch(struct shape_reader *r, enum arch_param_id id, bool *out)
{
    const struct arch_param *row = arch_find_param(r->source, id, 0);
    double number;
    struct error ignored;
    if (!row || !row->key || !shape_reader_find(r, row->key) ||
        checkpoint_get_f64(r->ckpt, r->key, &number, &ignored) != 0)
        return shape_reader_bool(r, id, 0, out);
    *out = number != 0;
    return 0;
}

static int read_switches(struct shape_reader *r, struct model_shape *s)
{
    bool scales = true;
    uint32_t n_experts = 0, without = 0;
    s->has_bare_norms = true;
    int rc = read_switch(r, ARCH_PARAM_USE_TEMPERATURE, &scales);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_TEMPERATURE_OFFSET, 0, 0, 1, 0, &s->temperature_offset);
    if (!rc)
        rc = shape_reader_bool(r, ARCH_PARAM_BARE_NORMS, 0, &s->has_bare_norms);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_NO_BARE_NORMS_EXPERTS, 0, 0, MODEL_MAX_EXPERTS, 0,
                              &without);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_EXPERTS, 0, 0, MODEL_MAX_EXPERTS, 0, &n_experts);
    s->temperature = scales ? s->temperature : 0;
    s->has_bare_norms = s->has_bare_norms && (!without || n_experts != without);
    return rc;
}

/* Ops divide a position by the length as whole numbers. */
static int check_temperature(struct shape_reader *r, const struct model_shape *s)
{
    if (!(s->temperature > 0) || s->temperature_length == floor(s->temperature_length))
        return 0;
    has_key(r, ARCH_PARAM_TEMPERATURE_LENGTH, 0); /* the error names its key */
    return checkpoint_bad_key(r->ckpt, r->key, r->err, "%g is not a whole number of positions",
                              s->temperature_length);
}

static int read_scales(struct shape_reader *r, struct model_shape *s)
{
    double eps = 0, embed = 1, residual = 1, logit = 1, divisor = 1, attn = 0, attn_dim = 0,
           value = 1;
    double attn_cap = 0, final_cap = 0;
    uint32_t scale_layers = 0;
    s->alibi_scale = 1;
    const struct {
        enum arch_param_id id;
        double min, max, derived;
        double *out;
    } rows[] = {
        {ARCH_PARAM_NORM_EPS, 1e-12, 1e-1, SHAPE_UNSET, &eps},
        {ARCH_PARAM_ALIBI_BIAS, 1e-3, 1e3, SHAPE_UNSET, &s->alibi_bias},
        {ARCH_PARAM_ALIBI_SCALE, 1e-6, 1e3, 1 / sqrt(s->layers[0].k_dim), &s->alibi_scale},
        {ARCH_PARAM_EMBED_SCALE, 1e-6, 1e6, sqrt(s->hidden_dim), &embed},
        {ARCH_PARAM_RESIDUAL_SCALE, 1e-6, 1e6, SHAPE_UNSET, &residual},
        {ARCH_PARAM_LOGIT_SCALE, 1e-6, 1e6, SHAPE_UNSET, &logit},
        {ARCH_PARAM_LOGIT_DIVISOR, 1e-6, 1e6, SHAPE_UNSET, &divisor},
        {ARCH_PARAM_VALUE_SCALE, 1e-3, 1e3, SHAPE_UNSET, &value},
        {ARCH_PARAM_ATTN_SCALE, 0, 1e3, 0, &attn},
        {ARCH_PARAM_ATTN_SCALE_DIM, 0, 1e6, 0, &attn_dim},
        {ARCH_PARAM_ATTN_SOFTCAP, 0, 1e6, SHAPE_UNSET, &attn_cap},
        {ARCH_PARAM_FINAL_SOFTCAP, 0, 1e6, SHAPE_UNSET, &final_cap},
        {ARCH_PARAM_TEMPERATURE, 0, 1e3, SHAPE_UNSET, &s->temperature},
        {ARCH_PARAM_TEMPERATURE_LENGTH, 1, MODEL_MAX_CONTEXT, s->context_tokens,
         &s->temperature_length},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int rc = shape_reader_f64(r, rows[i].id, 0, rows[i].min, rows[i].max, rows[i].derived,
                                  rows[i].out);
        if (rc)
            return rc;
    }
    int rc =
        shape_reader_u32(r, ARCH_PARAM_ATTN_SCALE_LAYERS, 0, 0, MODEL_MAX_LAYERS, 0, &scale_layers);
    if (rc)
        return rc;
    rc = read_switches(r, s);
    if (!rc)
        rc = check_temperature(r, s);
    if (rc)
        return rc;
    if (scale_layers == s->n_layers && s->layers[0].n_heads)
        attn_dim = (double)s->hidden_dim / s->layers[0].n_heads;
    rc = check_alibi(r, s);
    if (rc)
        return rc;
    s->norm_eps = (float)eps;
    s->embed_scale = (float)embed;
    s->residual_scale = (float)residual;
    s->logit_scale = (float)(logit / divisor);
    s->value_scale = (float)value;
    s->attn_scale = (float)(attn_dim > 0 ? 1 / sqrt(attn_dim) : attn);
    s->attn_softcap = (float)attn_cap;
    s->final_softcap = (float)final_cap;
    return shape_mixers_read_scales(r, s);
}

static int read_activation(struct shape_reader *r, struct model_shape *s)
{
    static const struct {
        const char *name;
        enum activation activation;
    } rows[] = {{"silu", ACTIVATION_SILU},
                {"swish", ACTIVATION_SILU},
                {"gelu", ACTIVATION_GELU_ERF},
                {"gelu_new", ACTIVATION_GELU_TANH},
                {"gelu_fast", ACTIVATION_GELU_TANH},
                {"gelu_pytorch_tanh", ACTIVATION_GELU_TANH},
                {"gelu_python", ACTIVATION_GELU_ERF},
                {"gelu_python_tanh", ACTIVATION_GELU_TANH},
                {"gelu_tanh", ACTIVATION_GELU_TANH},
                {"relu", ACTIVATION_RELU},
                {"relu2", ACTIVATION_RELU2}};
    const char *name;
    int rc = shape_reader_text(r, ARCH_PARAM_ACTIVATION, 0, &name);
    if (rc || !name)
        return rc;
    for (uint32_t i = 0; i < ARCH_N_OF(rows); i++) {
        if (strcmp(name, rows[i].name) != 0)
            continue;
        s->activation = rows[i].activation;
        s->has_activation = true;
        return 0;
    }
    return unknown_word(r, name, "activation", "silu, gelu, relu and relu2");
}

static int read_residual(struct shape_reader *r, struct model_shape *s)
{
    bool parallel = r->arch->residual == ARCH_RESIDUAL_PARALLEL;
    int rc = shape_reader_bool(r, ARCH_PARAM_PARALLEL, 0, &parallel);
    s->residual = parallel ? ARCH_RESIDUAL_PARALLEL : ARCH_RESIDUAL_SEQUENTIAL;
    return rc;
}

/* The width of each expert. Files with experts in all layers may give it as that of the FFN. */
static int read_expert_ffn(struct shape_reader *r, uint32_t *out)
{
    const struct arch_param *row = arch_find_param(r->source, ARCH_PARAM_EXPERT_FFN, 0);
    uint32_t derived = 0;
    if (row && row->absent == ARCH_ABSENT_DERIVE && !shape_reader_find(r, row->key)) {
        int rc = shape_reader_u32(r, ARCH_PARAM_FFN, 0, 1, MODEL_MAX_FFN, 0, &derived);
        if (rc)
            return rc;
    }
    return shape_reader_u32(r, ARCH_PARAM_EXPERT_FFN, 0, 1, MODEL_MAX_FFN, derived, out);
}

/* Groups of experts, unless the file's method ignores them. */
static int read_groups(struct shape_reader *r, struct model_experts *e)
{
    const char *method = NULL;
    int rc = shape_reader_text(r, ARCH_PARAM_EXPERT_METHOD, 0, &method);
    if (rc || (method && strcmp(method, "greedy") == 0))
        return rc;
    if (method && strcmp(method, "group_limited_greedy") != 0 && strcmp(method, "noaux_tc") != 0)
        return unknown_word(r, method, "choice of experts",
                            "greedy, group_limited_greedy and noaux_tc");
    rc = shape_reader_u32(r, ARCH_PARAM_EXPERT_GROUPS, 0, 1, at_most(e->n, EXPERTS_MAX_GROUPS), 1,
                          &e->n_groups);
    if (!rc && e->n % e->n_groups)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " groups do not divide the %" PRIu32 " experts",
                                  e->n_groups, e->n);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_EXPERT_GROUPS_USED, 0, 1, e->n_groups, e->n_groups,
                              &e->n_groups_used);
    if (!rc && e->n_used > e->n / e->n_groups * e->n_groups_used)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " of %" PRIu32 " groups have fewer than the %" PRIu32
                                  " experts of a token",
                                  e->n_groups_used, e->n_groups, e->n_used);
    return rc;
}

/* The score of the file, else that of files with its vocabulary, else that of the router. */
static int read_score(struct shape_reader *r, const struct model_shape *s, struct model_experts *e)
{
    uint32_t score = 0, vocab = 0;
    int rc = shape_reader_u32(r, ARCH_PARAM_EXPERT_SIGMOID_VOCAB, 0, 1, MODEL_MAX_VOCAB, 0, &vocab);
    uint32_t derived = vocab && vocab == s->n_vocab_rows ? ROUTER_SIGMOID + 1 : 0;
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_EXPERT_SCORE, 0, 0, ROUTER_SQRT_SOFTPLUS + 1, derived,
                              &score);
    for (uint32_t i = 0; i < r->arch->n_ffns; i++) {
        const struct arch_ffn *ffn = &r->arch->ffns[i];
        if (ffn->body != ARCH_FFN_EXPERTS && ffn->body != ARCH_FFN_BOTH)
            continue;
        e->score = score ? (enum router_score)(score - 1) : ffn->router.score;
        bool by_max = ffn->router.softmax_by_max && e->score == ROUTER_SOFTMAX;
        e->group_score = by_max ? ROUTER_GROUP_MAX : ffn->router.group_score;
    }
    return rc;
}

static bool has_experts(const struct model_shape *s)
{
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (s->layers[i].ffn->body == ARCH_FFN_EXPERTS || s->layers[i].ffn->body == ARCH_FFN_BOTH)
            return true;
    return false;
}

/* A config may have the keys of experts, and no layer with experts. */
static int read_experts(struct shape_reader *r, struct model_shape *s)
{
    struct model_experts *e = &s->experts;
    double scale = 1;
    uint32_t n_shared = 0;
    int rc = shape_reader_u32(r, ARCH_PARAM_EXPERTS, 0, 0, MODEL_MAX_EXPERTS, 0, &e->n);
    *e = (struct model_experts){
        .n = has_experts(s) ? e->n : 0, .n_groups = 1, .n_groups_used = 1, .scale = 1};
    if (rc || !e->n)
        return rc;
    rc = shape_reader_u32(r, ARCH_PARAM_EXPERTS_USED, 0, 1, at_most(e->n, EXPERTS_MAX_USED), 0,
                          &e->n_used);
    if (!rc)
        rc = read_expert_ffn(r, &e->ffn_dim);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_SHARED_COUNT, 0, 0,
                              e->ffn_dim ? MODEL_MAX_FFN / e->ffn_dim : 0, 0, &n_shared);
    e->shared_ffn_dim = n_shared * e->ffn_dim;
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_SHARED_FFN, 0, 0, MODEL_MAX_FFN, e->shared_ffn_dim,
                              &e->shared_ffn_dim);
    if (!rc)
        rc = read_groups(r, e);
    if (!rc)
        rc = shape_reader_bool(r, ARCH_PARAM_EXPERT_RENORM, 0, &e->renormalise);
    if (!rc)
        rc = shape_reader_f64(r, ARCH_PARAM_EXPERT_SCALE, 0, 1e-6, 1e6, SHAPE_UNSET, &scale);
    e->scale = (float)scale;
    return rc ? rc : read_score(r, s, e);
}

int shape_read(const struct checkpoint *ckpt, const struct arch *arch,
               const struct arch_source *source, const char *prefix, struct model_shape *out_shape,
               struct error *err)
{
    struct shape_reader r = {
        .ckpt = ckpt, .arch = arch, .source = source, .prefix = prefix, .err = err};
    struct model_shape shape = {0};
    int rc = read_sizes(&r, &shape);
    if (!rc)
        rc = shape_layers_read(&r, &shape);
    if (!rc)
        rc = read_vocab(&r, &shape);
    if (!rc)
        rc = read_scales(&r, &shape);
    if (!rc)
        rc = read_ropes(&r, &shape);
    if (!rc)
        rc = read_activation(&r, &shape);
    if (!rc)
        rc = shape_mixers_check_activation(&r, &shape);
    if (!rc)
        rc = read_residual(&r, &shape);
    if (!rc)
        rc = read_experts(&r, &shape);
    if (!rc)
        rc = shape_keys_check(&r);
    if (rc)
        shape_fini(&shape);
    else
        *out_shape = shape;
    return rc;
}

void shape_fini(struct model_shape *shape)
{
    free(shape->layers);
    shape->layers = NULL;
}

enum activation shape_activation(const struct model_shape *shape, const struct model_layer *layer)
{
    return shape->has_activation ? shape->activation : layer->ffn->activation;
}

float shape_attn_scale(const struct model_shape *shape, const struct model_layer *layer)
{
    bool latent = layer->mixer && layer->mixer->mixing == ARCH_MIXING_LATENT;
    double scale = 1.0 / sqrt(latent ? layer->q_dim : layer->k_dim);
    if (latent && layer->mixer->rope < ARCH_MAX_ROPES)
        scale *= shape_rope_score_factor(&shape->ropes[layer->mixer->rope]);
    return (shape->attn_scale > 0 ? shape->attn_scale : (float)scale) * shape->score_scale;
}
