/* Linears of a layer, and the weights that are read soon. */
#include "engine/decoder/decoder_private.h"
#include "kernels/comm.h"

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

struct linear_part decoder_part(const struct layer *at, enum arch_slot weight, struct tensor *y)
{
    const float *bias = arch_slot_has_bias(weight) ? at->vector[weight + 1] : NULL;
    return (struct linear_part){.y = y, .w = at->linear[weight], .bias = bias};
}

static uint32_t weights_of(const struct decoder_soon *soon,
                           const struct weight *out[LINEAR_MAX_PARTS])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < soon->n; i++)
        if (soon->layer->linear[soon->slots[i]])
            out[n++] = soon->layer->linear[soon->slots[i]];
    return n;
}

void decoder_will_read(struct decoder *dec, const struct decoder_soon *soon)
{
    const struct weight *w[LINEAR_MAX_PARTS];
    uint32_t n = weights_of(soon, w);
    if (n)
        op_will_read(dec->stream, w, n);
}

struct decoder_soon decoder_soon_ffn(const struct layer *at)
{
    static const enum arch_slot dense[] = {ARCH_FFN_UP, ARCH_FFN_GATE};
    static const enum arch_slot experts[] = {ARCH_ROUTER, ARCH_SHARED_GATE, ARCH_SHARED_UP};
    return at->experts ? (struct decoder_soon){at, experts, ARCH_N_OF(experts)}
                       : (struct decoder_soon){at, dense, ARCH_N_OF(dense)};
}

struct decoder_soon decoder_soon_out(const struct layer *at)
{
    static const enum arch_slot out[] = {ARCH_ATTN_OUT, ARCH_STATE_OUT};
    return (struct decoder_soon){at, out, ARCH_N_OF(out)};
}

/* The weights that a mixer reads first. */
static struct decoder_soon soon_mixer(const struct layer *at)
{
    static const enum arch_slot qkv[] = {ARCH_ATTN_Q, ARCH_ATTN_K, ARCH_ATTN_V};
    static const enum arch_slot state[] = {ARCH_STATE_Q, ARCH_STATE_K, ARCH_STATE_V};
    static const enum arch_slot latent[] = {ARCH_LATENT_Q_DOWN, ARCH_LATENT_KV_DOWN};
    enum arch_mixing mixing = at->facts->mixer->mixing;
    if (mixing == ARCH_MIXING_LATENT)
        return (struct decoder_soon){at, latent, ARCH_N_OF(latent)};
    return arch_has_attention(mixing) ? (struct decoder_soon){at, qkv, ARCH_N_OF(qkv)}
                                      : (struct decoder_soon){at, state, ARCH_N_OF(state)};
}

struct decoder_soon decoder_soon_next(const struct decoder *dec, const struct layer *next)
{
    static const enum arch_slot head[] = {ARCH_OUTPUT};
    if (!next) /* last layer of the last stage */
        return (struct decoder_soon){&dec->globals, head, 1};
    return next->facts->mixer->mixing != ARCH_MIXING_NONE ? soon_mixer(next)
                                                          : decoder_soon_ffn(next);
}

uint32_t decoder_reads_next(const struct decoder *dec, const struct layer *next,
                            const struct weight *out[LINEAR_MAX_PARTS])
{
    const struct decoder_soon soon = decoder_soon_next(dec, next);
    return weights_of(&soon, out);
}

int decoder_row_prepare(struct decoder *dec, const struct linear_part *what,
                        const struct segments *segments, const struct tensor *from)
{
    return op_act_prepare(dec->stream, dec->act, from, weight_act_kind(what->w), segments,
                          dec->comm);
}

int decoder_linear_row(struct decoder *dec, const struct linear_part *what)
{
    struct tensor partial = view(dec->mem.partial, what->y->n_rows, what->y->n_cols);
    if (!dec->comm || dec->comm->size == 1)
        return op_linear_parts(dec->stream, dec->act, what, 1);
    int rc = op_linear_row(dec->stream, what->y, dec->act, what->w, &partial, dec->comm);
    if (!rc && what->bias)
        rc = op_add_bias(dec->stream, what->y, what->bias);
    float factor = what->sum_factor != 0 ? what->sum_factor : 1;
    return rc || !what->sum ? rc : op_add_scaled(dec->stream, what->sum, what->y, factor);
}

int decoder_add_branch(struct decoder *dec, const struct layer *at, struct tensor *y,
                       enum arch_slot post_norm, struct tensor *sum)
{
    const struct scale_params scale = {.factor = dec->shape->residual_scale};
    int rc = at->vector[post_norm] ? decoder_norm(dec, at, post_norm, y, y) : 0;
    if (!rc && sum)
        return op_add_scaled(dec->stream, sum, y, scale.factor);
    return rc || scale.factor == 1 ? rc : op_scale(dec->stream, y, NULL, &scale);
}

int decoder_end_branch(struct decoder *dec, const struct layer *at, struct linear_part what,
                       enum arch_slot post_norm, struct tensor *sum)
{
    bool adds = !at->vector[post_norm] && (sum || dec->shape->residual_scale == 1);
    what.sum = adds ? sum : NULL;
    what.sum_factor = dec->shape->residual_scale != 1 ? dec->shape->residual_scale : 0;
    int rc = decoder_linear_row(dec, &what);
    return rc || adds ? rc : decoder_add_branch(dec, at, what.y, post_norm, sum);
}
