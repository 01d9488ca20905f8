#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/format/escape.h"
#include "engine/model/model.h"

enum { MAX_KEY_BYTES = 128 };

struct reader {
    const struct checkpoint *ckpt;
    const struct arch *arch;
    const struct arch_source *source;
    struct error *err;
    char key[MAX_KEY_BYTES]; /* key of the last parameter read */
};

/* Finds the parameter's row. *out_present: the file has its key. Returns NULL with an error in
 * *out_rc if a required key is missing. */
static const struct arch_param *locate_param(struct reader *r, enum arch_param_id id,
                                             bool *out_present, int *out_rc)
{
    const struct arch_param *param = arch_find_param(r->source, id);
    *out_rc = 0;
    *out_present = false;
    if (!param) {
        *out_rc = error_set(r->err, STATUS_INTERNAL, "architecture %s describes no parameter %d",
                            r->arch->name, (int)id);
        return NULL;
    }
    snprintf(r->key, sizeof(r->key), "%s.%s", r->arch->name, param->key);
    *out_present = checkpoint_has(r->ckpt, r->key);
    if (!*out_present && param->absent == ARCH_ABSENT_REFUSE)
        *out_rc = checkpoint_missing_key(r->ckpt, r->key, r->err);
    return param;
}

/* Reads an integer in [1, limit]. `derived` is the value if the key is absent and the row says
 * DERIVE. */
static int read_u32(struct reader *r, enum arch_param_id id, uint64_t limit, uint64_t derived,
                    uint32_t *out)
{
    bool present;
    int rc;
    uint64_t value = derived;
    const struct arch_param *param = locate_param(r, id, &present, &rc);
    if (rc)
        return rc;
    if (present) {
        rc = checkpoint_get_u64(r->ckpt, r->key, &value, r->err);
        if (rc)
            return rc;
    } else if (param->absent == ARCH_ABSENT_FALLBACK) {
        value = (uint64_t)param->fallback;
    }
    if (value < 1 || value > limit)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "the value%s %" PRIu64 " is not in 1..%" PRIu64,
                                  present ? "" : " that other keys give,", value, limit);
    *out = (uint32_t)value;
    return 0;
}

static int read_f64(struct reader *r, enum arch_param_id id, double min, double max, double derived,
                    double *out)
{
    bool present;
    int rc;
    double value = derived;
    const struct arch_param *param = locate_param(r, id, &present, &rc);
    if (rc)
        return rc;
    if (present) {
        rc = checkpoint_get_f64(r->ckpt, r->key, &value, r->err);
        if (rc)
            return rc;
    } else if (param->absent == ARCH_ABSENT_FALLBACK) {
        value = param->fallback;
    }
    if (!(value >= min && value <= max))
        return checkpoint_bad_key(r->ckpt, r->key, r->err, "the value%s %g is not in [%g, %g]",
                                  present ? "" : " that other keys give,", value, min, max);
    *out = value;
    return 0;
}

static int read_sizes(struct reader *r, struct model_shape *s)
{
    int rc = read_u32(r, ARCH_PARAM_LAYERS, MODEL_MAX_LAYERS, 0, &s->n_layers);
    if (!rc)
        rc = read_u32(r, ARCH_PARAM_CONTEXT, MODEL_MAX_CONTEXT, 0, &s->context_tokens);
    if (!rc)
        rc = read_u32(r, ARCH_PARAM_HIDDEN, MODEL_MAX_HIDDEN, 0, &s->hidden_dim);
    if (!rc)
        rc = read_u32(r, ARCH_PARAM_FFN, MODEL_MAX_FFN, 0, &s->ffn_dim);
    return rc;
}

static int read_heads(struct reader *r, struct model_shape *s)
{
    uint32_t value_dim = 0;
    int rc = read_u32(r, ARCH_PARAM_HEADS, MODEL_MAX_HEADS, 0, &s->n_heads);
    if (rc)
        return rc;
    rc = read_u32(r, ARCH_PARAM_KV_HEADS, s->n_heads, s->n_heads, &s->n_kv_heads);
    if (rc)
        return rc;
    assert(s->n_kv_heads);
    if (s->n_heads % s->n_kv_heads)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " KV heads do not divide the %" PRIu32 " heads",
                                  s->n_kv_heads, s->n_heads);
    if (r->arch->attention == ARCH_ATTENTION_MULTI_HEAD && s->n_kv_heads != s->n_heads)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " KV heads where the architecture has one per head",
                                  s->n_kv_heads);
    uint64_t derived = s->hidden_dim % s->n_heads ? 0 : s->hidden_dim / s->n_heads;
    rc = read_u32(r, ARCH_PARAM_KEY_DIM, MODEL_MAX_HEAD_DIM, derived, &s->head_dim);
    if (rc)
        return rc;
    if (s->head_dim % 2)
        return checkpoint_bad_key(r->ckpt, r->key, r->err, "head dimension %" PRIu32 " is odd",
                                  s->head_dim);
    rc = read_u32(r, ARCH_PARAM_VALUE_DIM, MODEL_MAX_HEAD_DIM, s->head_dim, &value_dim);
    if (rc)
        return rc;
    if (value_dim != s->head_dim)
        return checkpoint_unbuilt_key(r->ckpt, r->key, r->err,
                                      "heads with %" PRIu32 " elements of a value and %" PRIu32
                                      " of a key are not known, only heads with as many of both "
                                      "are; use a model with such heads",
                                      value_dim, s->head_dim);
    return 0;
}

/* Rows of the vocabulary. The file's number is that of the embedding's rows; the shape check
 * refuses a key that contradicts it. Rows beyond the file's tokens have no text. They are never
 * loaded, so that no backend can sample them or give them a probability. */
static int read_vocab(struct reader *r, struct model_shape *s)
{
    const struct arch_tensor *row = arch_find_tensor(r->source, ARCH_TOKEN_EMBD);
    const struct checkpoint_tensor *embd = row ? checkpoint_tensor_find(r->ckpt, row->name) : NULL;
    if (!embd && row && row->required)
        return checkpoint_missing_tensor(r->ckpt, row->name, r->err);
    int rc =
        read_u32(r, ARCH_PARAM_VOCAB, MODEL_MAX_VOCAB, embd ? embd->n_rows : 0, &s->n_vocab_rows);
    if (rc)
        return rc;
    uint64_t n_tokens = checkpoint_n_tokens(r->ckpt);
    s->vocab_size = n_tokens && n_tokens < s->n_vocab_rows ? (uint32_t)n_tokens : s->n_vocab_rows;
    return 0;
}

static int read_scaling_type(struct reader *r, struct model_shape *s)
{
    bool present;
    int rc;
    const char *type = NULL;
    char name[ESCAPE_MAX_BYTES];
    locate_param(r, ARCH_PARAM_ROPE_SCALING, &present, &rc);
    if (rc)
        return rc;
    /* A factor without a type means linear scaling: the file is older than the type's key. */
    if (!present) {
        s->rope_scaling = s->rope_factor != 1 ? MODEL_ROPE_LINEAR : MODEL_ROPE_PLAIN;
        return 0;
    }
    rc = checkpoint_get_string(r->ckpt, r->key, &type, NULL, r->err);
    if (rc)
        return rc;
    if (strcmp(type, "none") == 0)
        s->rope_scaling = MODEL_ROPE_PLAIN;
    else if (strcmp(type, "linear") == 0)
        s->rope_scaling = MODEL_ROPE_LINEAR;
    else if (strcmp(type, "yarn") == 0)
        s->rope_scaling = MODEL_ROPE_YARN;
    else
        return checkpoint_unbuilt_key(
            r->ckpt, r->key, r->err,
            "rope scaling \"%s\" is not known, only none, linear and yarn "
            "are; use a model with one of these",
            escape_text(type, strlen(type), name));
    return 0;
}

/* `derived` of a parameter whose value cannot be derived from other keys. */
#define UNSET ((double)NAN)

static int read_rope(struct reader *r, struct model_shape *s)
{
    const struct {
        enum arch_param_id id;
        double min, max, derived; /* UNSET: not derived */
        double *out;
    } rows[] = {
        {ARCH_PARAM_ROPE_BASE, 1.0001, 1e12, UNSET, &s->rope_base},
        {ARCH_PARAM_ROPE_FACTOR, 1e-3, 1e6, UNSET, &s->rope_factor},
        {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT, 1, MODEL_MAX_CONTEXT, s->context_tokens,
         &s->rope_original_context},
        {ARCH_PARAM_ROPE_ATTN_FACTOR, 1e-3, 1e3, UNSET, &s->rope_attn_factor},
        {ARCH_PARAM_ROPE_EXT_FACTOR, 0, 1, UNSET, &s->rope_ext_factor},
        {ARCH_PARAM_ROPE_BETA_FAST, 1e-3, 1e6, UNSET, &s->rope_beta_fast},
        {ARCH_PARAM_ROPE_BETA_SLOW, 1e-3, 1e6, UNSET, &s->rope_beta_slow},
    };
    int rc = read_u32(r, ARCH_PARAM_ROT_DIM, s->head_dim, s->head_dim, &s->n_rot);
    if (!rc && s->n_rot % 2)
        rc = checkpoint_bad_key(r->ckpt, r->key, r->err, "%" PRIu32 " is odd", s->n_rot);
    for (size_t i = 0; !rc && i < sizeof(rows) / sizeof(rows[0]); i++)
        rc = read_f64(r, rows[i].id, rows[i].min, rows[i].max, rows[i].derived, rows[i].out);
    return rc ? rc : read_scaling_type(r, s);
}

static int read_position(struct reader *r, struct model_shape *s)
{
    switch (r->arch->position) {
    case ARCH_POSITION_ROPE:
        return read_rope(r, s);
    case ARCH_POSITION_ALIBI:
        return read_f64(r, ARCH_PARAM_ALIBI_BIAS, 1e-3, 1e3, UNSET, &s->alibi_bias);
    case ARCH_POSITION_NONE:
    case ARCH_POSITION_LEARNED:
        break;
    }
    return 0;
}

static bool known_param(const struct arch_source *source, const char *key)
{
    for (uint32_t i = 0; i < source->n_params; i++)
        if (strcmp(source->params[i].key, key) == 0)
            return true;
    return false;
}

static const struct arch_fixed_key *fixed_key(const struct arch_source *source, const char *key)
{
    for (uint32_t i = 0; i < source->n_fixed_keys; i++)
        if (strcmp(source->fixed_keys[i].key, key) == 0)
            return &source->fixed_keys[i];
    return NULL;
}

static int check_fixed(struct reader *r, const char *full, const struct arch_fixed_key *fixed)
{
    double value;
    bool truth;
    if (fixed->any_value)
        return 0;
    struct error ignored;
    if (checkpoint_get_bool(r->ckpt, full, &truth, &ignored) == 0) {
        value = truth ? 1 : 0;
    } else {
        int rc = checkpoint_get_f64(r->ckpt, full, &value, r->err);
        if (rc)
            return rc;
    }
    if (value == fixed->value)
        return 0;
    return checkpoint_unbuilt_key(
        r->ckpt, full, r->err, "the value %g is not known, only %g is; use a model with that value",
        value, fixed->value);
}

/* An unknown key of the architecture could change what the model computes, so it is refused. */
static int check_keys(struct reader *r)
{
    size_t n_prefix = strlen(r->arch->name);
    for (uint64_t i = 0; i < checkpoint_n_keys(r->ckpt); i++) {
        const char *full = checkpoint_key(r->ckpt, i);
        if (strncmp(full, r->arch->name, n_prefix) != 0 || full[n_prefix] != '.')
            continue;
        const char *key = full + n_prefix + 1;
        if (known_param(r->source, key))
            continue;
        const struct arch_fixed_key *fixed = fixed_key(r->source, key);
        if (!fixed)
            return checkpoint_unbuilt_key(
                r->ckpt, full, r->err,
                "this key is unknown in architecture %s and may change what the model "
                "computes; use a model without the key, or a newer Sluice",
                r->arch->name);
        int rc = check_fixed(r, full, fixed);
        if (rc)
            return rc;
    }
    return 0;
}

int model_read_shape(const struct checkpoint *ckpt, const struct arch *arch,
                     const struct arch_source *source, struct model_shape *out_shape,
                     struct error *err)
{
    struct reader r = {.ckpt = ckpt, .arch = arch, .source = source, .err = err};
    struct model_shape shape = {0};
    double eps = 0;
    int rc = read_sizes(&r, &shape);
    if (!rc)
        rc = read_heads(&r, &shape);
    if (!rc)
        rc = read_vocab(&r, &shape);
    if (!rc)
        rc = read_f64(&r, ARCH_PARAM_NORM_EPS, 1e-12, 1e-1, 0, &eps);
    if (!rc)
        rc = read_position(&r, &shape);
    if (!rc)
        rc = check_keys(&r);
    if (rc)
        return rc;
    shape.norm_eps = (float)eps;
    *out_shape = shape;
    return 0;
}

void model_alibi_slopes(const struct model_shape *shape, float *slopes)
{
    uint32_t n = 1;
    while (n <= shape->n_heads / 2)
        n *= 2;
    for (uint32_t h = 0; h < shape->n_heads; h++) {
        double turns = h < n ? h + 1.0 : (2.0 * (h - n) + 1.0) / 2;
        slopes[h] = (float)exp2(-shape->alibi_bias * turns / n);
    }
}

/* The dimension (of n_rot) with `turns` wavelengths in the original context. */
static double yarn_dim(const struct model_shape *s, double turns)
{
    const double two_pi = 6.283185307179586;
    return s->n_rot * log(s->rope_original_context / (turns * two_pi)) / (2 * log(s->rope_base));
}

float model_rope_freqs(const struct model_shape *shape, const float *divisors, float *inv_freq)
{
    bool yarn = shape->rope_scaling == MODEL_ROPE_YARN;
    double scale = shape->rope_scaling == MODEL_ROPE_PLAIN ? 1 : 1 / shape->rope_factor;
    double low = 0, high = 0;
    if (yarn) {
        low = fmax(0, floor(yarn_dim(shape, shape->rope_beta_fast)));
        high = fmin(shape->n_rot - 1, ceil(yarn_dim(shape, shape->rope_beta_slow)));
    }
    for (uint32_t i = 0; i < shape->n_rot / 2; i++) {
        double f = pow(shape->rope_base, -2.0 * i / shape->n_rot);
        if (divisors)
            f /= (double)divisors[i];
        double ramp = (i - low) / fmax(0.001, high - low);
        double keep = yarn ? (1 - fmin(1, fmax(0, ramp))) * shape->rope_ext_factor : 0;
        inv_freq[i] = (float)(f * (scale * (1 - keep) + keep));
    }
    double attention = yarn ? shape->rope_attn_factor * (1 + 0.1 * log(shape->rope_factor)) : 1;
    return (float)attention;
}
