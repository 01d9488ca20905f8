/* Latent attention (arXiv 2405.04434), absorbed for every row. The cache has one KV head: the
 * latent values, then the key's part with rope. A head's up projection of keys turns queries to
 * latent values. Its up projection of values turns the mix of latent values to the head's output.
 */
#include <stdlib.h>

#include "base/error.h"
#include "engine/decoder/decoder_private.h"

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

/* The columns [begin, begin + n) of all rows. */
static struct tensor columns(const struct tensor *t, uint32_t begin, uint32_t n)
{
    struct tensor part = *t;
    part.data = (float *)t->data + begin;
    part.n_cols = n;
    return part;
}

/* --- weights of heads --- */

int decoder_latent_open(struct decoder *dec, struct error *err)
{
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        struct layer *at = &dec->layers[i];
        if (at->facts->mixer->mixing != ARCH_MIXING_LATENT)
            continue;
        at->heads = calloc(2 * (size_t)at->split->n_heads, sizeof(*at->heads));
        if (!at->heads)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u heads",
                             at->split->n_heads);
    }
    return 0;
}

void decoder_latent_close(struct decoder *dec)
{
    for (uint32_t i = 0; dec->layers && i < dec->split.n_layers; i++)
        free(dec->layers[i].heads);
}

void decoder_latent_bind(struct layer *at, enum arch_slot slot, uint32_t head,
                         const struct weight *weight)
{
    uint32_t i = head - at->split->head_begin;
    at->heads[slot == ARCH_LATENT_V_UP ? at->split->n_heads + i : i] = weight;
}

/* --- attention --- */

/* The projections of a step's rows. */
struct latent_rows {
    struct tensor nope, rope; /* queries by heads */
    struct tensor k;          /* [latent values | part with rope] */
};

/* Keys, and queries of full rank, read the layer's input; other queries read the low rank's. */
static int project(struct decoder *dec, const struct layer *at, struct latent_rows *in)
{
    const struct model_latent *l = &dec->shape->latent;
    struct tensor latent = columns(&in->k, 0, l->kv_rank),
                  k_rope = columns(&in->k, l->kv_rank, l->n_rot);
    struct tensor low = view(dec->mem.latent_q, in->k.n_rows, l->q_rank);
    const struct linear_part queries[] = {decoder_part(at, ARCH_LATENT_Q_NOPE, &in->nope),
                                          decoder_part(at, ARCH_LATENT_Q_ROPE, &in->rope)};
    const struct linear_part keys[] = {decoder_part(at, ARCH_LATENT_KV_DOWN, &latent),
                                       decoder_part(at, ARCH_LATENT_K_ROPE, &k_rope)};
    int rc = op_linear_parts(dec->stream, dec->act, keys, 2);
    if (!rc && l->q_rank) {
        const struct linear_part down = decoder_part(at, ARCH_LATENT_Q_DOWN, &low);
        const struct norm_params norm = {.w = at->vector[ARCH_LATENT_Q_NORM], .eps = l->eps};
        rc = op_linear_parts(dec->stream, dec->act, &down, 1);
        if (!rc)
            rc = op_norm_prepare(dec->stream, dec->act, &low, &low, &norm,
                                 weight_act_kind(queries[0].w) | weight_act_kind(queries[1].w));
    }
    if (!rc)
        rc = op_linear_parts(dec->stream, dec->act, queries, 2);
    if (!rc)
        rc = op_rms_norm(dec->stream, &latent, &latent, at->vector[ARCH_LATENT_KV_NORM], l->eps);
    return rc;
}

/* Rotates, stores the keys, and makes queries q[m, heads · (kv_rank + n_rot)] of the latent
 * space. */
static int absorb(struct decoder *dec, const struct layer *at, const struct attention_rows *rows,
                  struct latent_rows *in, struct tensor *q)
{
    const struct model_latent *l = &dec->shape->latent;
    uint32_t n_heads = at->split->n_heads, k_dim = at->facts->k_dim;
    struct tensor k_rope = columns(&in->k, l->kv_rank, l->n_rot);
    int rc = op_rope(dec->stream, &k_rope, rows->positions, at->rope);
    if (!rc)
        rc = op_kv_write(dec->stream, &at->kv, &in->k, NULL, rows->kv_slots);
    if (!rc)
        rc = op_rope(dec->stream, &in->rope, rows->positions, at->rope);
    if (!rc)
        rc = op_heads_linear(dec->stream, dec->act, q, &in->nope, at->heads, n_heads, k_dim);
    return rc ? rc : op_copy_heads(dec->stream, q, &in->rope, n_heads, l->n_rot, k_dim, l->kv_rank);
}

int decoder_run_latent(struct decoder *dec, const struct layer *at,
                       const struct attention_rows *rows, const struct tensor *x,
                       struct tensor *out, struct tensor *sum)
{
    const struct model_latent *l = &dec->shape->latent;
    const struct layer_split *split = at->split;
    const struct decoder_soon o_soon = decoder_soon_out(at), ffn = decoder_soon_ffn(at);
    uint32_t m = x->n_rows, n_heads = split->n_heads;
    struct tensor h = view(dec->mem.h, m, x->n_cols);
    struct tensor q = view(dec->mem.q, m, n_heads * at->facts->k_dim);
    struct tensor mixed = view(dec->mem.latent_mixed, m, n_heads * l->kv_rank);
    struct tensor values = view(dec->mem.mixed, m, n_heads * l->v_dim);
    struct linear_part o = decoder_part(at, ARCH_ATTN_OUT, out);
    struct latent_rows in = {.nope = view(dec->mem.latent_nope, m, n_heads * l->nope_dim),
                             .rope = view(dec->mem.latent_rope, m, n_heads * l->n_rot),
                             .k = view(dec->mem.k, m, at->facts->k_dim)};
    int rc = decoder_norm_prepare(dec, at, ARCH_ATTN_NORM, &h, x, at->mixer_kinds);
    decoder_will_read(dec, &o_soon);
    if (!rc)
        rc = project(dec, at, &in);
    if (!rc)
        rc = absorb(dec, at, rows, &in, &q);
    if (!rc)
        rc = op_attention(dec->stream, &mixed, &q, &at->kv, rows, &at->attention);
    if (!rc)
        rc = op_heads_linear(dec->stream, dec->act, &values, &mixed, at->heads + n_heads, n_heads,
                             l->v_dim);
    decoder_will_read(dec, &ffn);
    if (!rc)
        rc = decoder_row_prepare(dec, &o, &split->mixed, &values);
    return rc ? rc : decoder_end_branch(dec, at, o, ARCH_ATTN_POST_NORM, sum);
}
