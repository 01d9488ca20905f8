#include "engine/model/shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/shape_keys.h"
#include "engine/model/shape_layers.h"
#include "engine/model/shape_mixers.h"
#include "engine/model/shape_reader.h"
#include "engine/model/shape_rope_read.h"

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
    const struct arch_tensor *row = arch_find_tensor(r->source, ARCH_LAYER_EMBD_NORM);
    const struct checkpoint_tensor *norm = row ? shape_reader_tensor(r, row->name) : NULL;
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_LAYER_EMBD, 0, 0, MODEL_MAX_HIDDEN,
                              norm ? norm->n_elems : 0, &s->layer_embd_dim);
    return rc;
}

/* Rows of the vocabulary. The file's number is that of the embedding's rows; the shape check
 * refuses a key that contradicts it. Rows beyond the file's tokens have no text. They are never
 * loaded, so that no backend can sample them or give them a probability. */
static int read_vocab(struct shape_reader *r, struct model_shape *s)
{
    const struct arch_tensor *row = arch_find_tensor(r->source, ARCH_TOKEN_EMBD);
    const struct checkpoint_tensor *embd = row ? shape_reader_tensor(r, row->name) : NULL;
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
    shape_reader_has(r, ARCH_PARAM_TEMPERATURE_LENGTH, 0); /* the error names its key */
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
    return shape_reader_unknown_word(r, name, "activation", "silu, gelu, relu and relu2");
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
        return shape_reader_unknown_word(r, method, "choice of experts",
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
        rc = shape_rope_read(&r, &shape);
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
