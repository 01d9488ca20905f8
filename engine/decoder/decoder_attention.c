/* Attention over a paged cache of K and V. */
#include "engine/decoder/decoder_private.h"

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

/* --- norms of heads --- */

static int norm_rows(struct decoder *dec, const struct layer *at, struct tensor *x, const float *w,
                     const float *bias)
{
    if (at->facts->mixer->head_norm == ARCH_NORM_LAYER)
        return op_layer_norm(dec->stream, x, x, w, bias, dec->shape->norm_eps);
    return op_rms_norm(dec->stream, x, x, w, dec->shape->norm_eps);
}

/* Norms each head of x[m, n_heads · dim] by itself, in place. */
static int norm_heads(struct decoder *dec, const struct layer *at, const struct tensor *x,
                      uint32_t dim, const float *w, const float *bias)
{
    struct tensor heads = view(x->data, x->n_rows * (x->n_cols / dim), dim);
    return norm_rows(dec, at, &heads, w, bias);
}

/* The same with weights for each head; `first` is the number of the first head of x. */
static int norm_own_heads(struct decoder *dec, const struct layer *at, const struct tensor *x,
                          uint32_t first, const float *w, const float *bias)
{
    size_t at_w = (size_t)first * at->facts->k_dim;
    const struct norm_params p = {.is_centred = at->facts->mixer->head_norm == ARCH_NORM_LAYER,
                                  .w = w + at_w,
                                  .bias = bias ? bias + at_w : NULL,
                                  .eps = dec->shape->norm_eps};
    return op_norm_heads(dec->stream, x, x->n_cols / at->facts->k_dim, &p);
}

/* Norms the queries, or the keys, in place. Does nothing for models without these norms. */
static int norm_part(struct decoder *dec, const struct layer *at, enum arch_slot norm,
                     struct tensor *x)
{
    const struct arch_mixer *mixer = at->facts->mixer;
    const float *w = at->vector[norm], *bias = at->vector[norm + 1];
    if (mixer->head_norms == ARCH_HEAD_NORMS_BARE && !dec->shape->has_bare_norms)
        return 0;
    if (mixer->head_norms == ARCH_HEAD_NORMS_BARE)
        return norm_heads(dec, at, x, at->facts->k_dim, dec->mem.ones, NULL);
    if (!w)
        return 0;
    if (mixer->head_norm_scope == ARCH_SCOPE_WHOLE)
        return norm_rows(dec, at, x, w, bias);
    if (mixer->head_norm_scope == ARCH_SCOPE_OWN_HEAD)
        return norm_own_heads(
            dec, at, x, norm == ARCH_ATTN_Q_NORM ? at->split->head_begin : at->split->kv_begin, w,
            bias);
    return norm_heads(dec, at, x, at->facts->k_dim, w, bias);
}

static int norm_queries_keys(struct decoder *dec, const struct layer *at, struct tensor *q,
                             struct tensor *k)
{
    int rc = norm_part(dec, at, ARCH_ATTN_Q_NORM, q);
    return rc ? rc : norm_part(dec, at, ARCH_ATTN_K_NORM, k);
}

/* --- attention --- */

bool decoder_has_own_kv(const struct decoder *dec, const struct layer *at)
{
    return at->facts->kv_source == dec->split.layer_begin + (uint32_t)(at - dec->layers);
}

/* Computes queries, keys and values of the prepared input. */
static int project(struct decoder *dec, const struct layer *at, struct tensor *q, struct tensor *k,
                   struct tensor *v)
{
    const struct linear_part parts[] = {decoder_part(at, ARCH_ATTN_Q, q),
                                        decoder_part(at, ARCH_ATTN_K, k),
                                        decoder_part(at, ARCH_ATTN_V, v)};
    bool has_values = at->linear[ARCH_ATTN_V] != NULL;
    if (!decoder_has_own_kv(dec, at))
        return op_linear_parts(dec->stream, dec->act, parts, 1);
    int rc = op_linear_parts(dec->stream, dec->act, parts, has_values ? 3 : 2);
    if (!rc && !has_values)
        rc = dec->stream->device->ops->copy(dec->stream, v->data, k->data,
                                            (size_t)k->n_rows * k->n_cols * sizeof(float));
    if (!rc && at->facts->mixer->bare_value_norm)
        rc = norm_heads(dec, at, v, at->facts->v_dim, dec->mem.ones, NULL);
    return rc ? rc : decoder_scale(dec, v, dec->shape->value_scale);
}

/* The rank's own heads of rows that hold all heads. */
static void take_own_heads(struct tensor *rows, uint32_t first, uint32_t n, uint32_t dim)
{
    rows->data = (float *)rows->data + (size_t)first * dim;
    rows->n_cols = n * dim;
}

/* Rotates the queries of a layer that reads the K and V of another. */
static int rotate_queries(struct decoder *dec, const struct layer *at,
                          const struct attention_rows *rows, struct tensor *q)
{
    const struct layer_split *split = at->split;
    bool after = at->facts->mixer->norm_after_rope;
    int rc = after ? 0 : norm_part(dec, at, ARCH_ATTN_Q_NORM, q);
    if (split->projects_all_heads)
        take_own_heads(q, split->head_begin, split->n_heads, at->facts->k_dim);
    if (!rc)
        rc = op_rope(dec->stream, q, rows->positions, at->rope);
    return rc || !after ? rc : norm_part(dec, at, ARCH_ATTN_Q_NORM, q);
}

/* Rotates queries and keys, and stores keys and values. */
static int rotate_and_store(struct decoder *dec, const struct layer *at,
                            const struct attention_rows *rows, struct tensor *q, struct tensor *k,
                            struct tensor *v)
{
    const struct layer_split *split = at->split;
    if (!decoder_has_own_kv(dec, at))
        return rotate_queries(dec, at, rows, q);
    if (!at->facts->mixer->norm_after_rope) {
        int rc = norm_queries_keys(dec, at, q, k);
        if (split->projects_all_heads) {
            take_own_heads(q, split->head_begin, split->n_heads, at->facts->k_dim);
            take_own_heads(k, split->kv_begin, split->n_kv_heads, at->facts->k_dim);
        }
        return rc ? rc
                  : op_rope_kv(dec->stream, q, k, v, rows->positions, at->rope, &at->kv,
                               rows->kv_slots);
    }
    int rc = op_rope(dec->stream, q, rows->positions, at->rope);
    if (!rc)
        rc = op_rope(dec->stream, k, rows->positions, at->rope);
    if (!rc)
        rc = norm_queries_keys(dec, at, q, k);
    return rc ? rc : op_kv_write(dec->stream, &at->kv, k, v, rows->kv_slots);
}

int decoder_project_rows(struct decoder *dec, const struct layer *at, uint32_t m,
                         struct decoder_projections *out)
{
    const struct layer_split *split = at->split;
    uint32_t k_dim = at->facts->k_dim;
    bool all = split->projects_all_heads;
    out->q = view(dec->mem.q, m, (all ? at->facts->n_heads : split->n_heads) * k_dim);
    out->k = view(dec->mem.k, m, (all ? at->facts->n_kv_heads : split->n_kv_heads) * k_dim);
    out->v = view(dec->mem.v, m, split->n_kv_heads * at->facts->v_dim);
    int rc = project(dec, at, &out->q, &out->k, &out->v);
    if (rc || !at->linear[ARCH_ATTN_GATE])
        return rc;
    out->gate = view(dec->mem.attention_gate, m, split->n_heads * at->facts->o_dim);
    const struct linear_part gate = decoder_part(at, ARCH_ATTN_GATE, &out->gate);
    return op_linear_parts(dec->stream, dec->act, &gate, 1);
}

int decoder_attend(struct decoder *dec, const struct layer *at, const struct attention_rows *rows,
                   struct decoder_projections *in, const struct decoder_soon *then,
                   struct tensor *out, struct tensor *sum)
{
    const struct layer_split *split = at->split;
    struct tensor mixed = view(dec->mem.mixed, out->n_rows, split->n_heads * at->facts->v_dim);
    struct linear_part o = decoder_part(at, ARCH_ATTN_OUT, out);
    int rc = rotate_and_store(dec, at, rows, &in->q, &in->k, &in->v);
    if (!rc && at->facts->mixer->has_temperature && dec->temperature.by_position)
        rc = op_scale(dec->stream, &in->q, rows->positions, &dec->temperature);
    if (!rc)
        rc = op_attention(dec->stream, &mixed, &in->q, &at->kv, rows, &at->attention);
    if (!rc && at->linear[ARCH_ATTN_GATE]) {
        rc = op_act_mul(dec->stream, &in->gate, &in->gate, &mixed, ACTIVATION_SIGMOID);
        mixed = in->gate;
    }
    if (!rc)
        rc = decoder_scale(dec, &mixed, dec->shape->scales.attn_out);
    decoder_will_read(dec, then);
    if (!rc)
        rc = decoder_row_prepare(dec, &o, &split->mixed, &mixed);
    return rc ? rc : decoder_end_branch(dec, at, o, ARCH_ATTN_POST_NORM, sum);
}
