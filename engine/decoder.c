#include "engine/decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/decoder_memory.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"

/* A layer's weights; NULL where the model has none. Vectors are f32 of the rank's length. */
struct layer {
    const struct weight *linear[N_ARCH_SLOTS];
    const float *vector[N_ARCH_SLOTS];
    struct kv_layer kv;
    uint32_t attention_kinds, ffn_kinds; /* preparations that Q, K, V and gate, up read */
};

struct decoder {
    struct decoder_config cfg;
    const struct arch *arch;
    const struct model_shape *shape;
    struct rank_split split;
    struct stream *stream;
    struct comm *comm;
    struct layer *layers;
    struct layer globals; /* slots that are there once */
    unsigned char *kv_memory, *memory;
    uint64_t kv_bytes, memory_bytes;
    struct decoder_memory mem;
    struct act *act;
    struct rope_params rope;
    struct attention_params attention;
};

/* --- creation --- */

static int bind_place(struct decoder *dec, const struct weight_place *place, struct error *err)
{
    const struct weight *weight = loader_weight(dec->cfg.weights, place);
    struct layer *layer =
        place->slot < ARCH_FIRST_LAYER_SLOT ? &dec->globals : &dec->layers[place->layer];
    if (place->layer >= dec->split.n_layers)
        return error_set(err, STATUS_INTERNAL, "decoder: layer %u of %u", place->layer,
                         dec->split.n_layers);
    if (place->desc.role == WEIGHT_VECTOR)
        layer->vector[place->slot] = weight_vector(weight);
    else
        layer->linear[place->slot] = weight;
    return 0;
}

/* What the decoder will do with a slot: W[n, k] or a vector [k], on this rank. */
struct use {
    enum arch_slot slot;
    uint32_t n, k; /* n 0: vector */
    bool needed;
};

static int check_use(const struct decoder *dec, const struct layer *layer, const struct use *use,
                     struct error *err)
{
    const char *name = arch_find_tensor(dec->cfg.model->source, use->slot)
                           ? arch_find_tensor(dec->cfg.model->source, use->slot)->name
                           : "(not described)";
    const struct weight *w = layer->linear[use->slot];
    if (use->n == 0 ? !layer->vector[use->slot] : !w) {
        if (!use->needed && !w && !layer->vector[use->slot])
            return 0;
        return error_set(err, STATUS_INTERNAL, "decoder: %s: no %s for slot %d (%s)",
                         dec->arch->name, use->n ? "matrix" : "vector", (int)use->slot, name);
    }
    if (use->n && (weight_n_rows(w) != use->n || weight_k_local(w) != use->k))
        return error_set(err, STATUS_INTERNAL, "decoder: %s: %s is [%u, %u], [%u, %u] is used",
                         dec->arch->name, name, weight_n_rows(w), weight_k_local(w), use->n,
                         use->k);
    return 0;
}

/* A vector's length is not in its weight: it must stand in the plan. */
static uint32_t vector_length(const struct decoder *dec, enum arch_slot slot, uint32_t layer)
{
    const struct rank_plan *plan = dec->cfg.plan;
    for (uint32_t i = 0; i < plan->n_places; i++)
        if (plan->places[i].slot == slot && plan->places[i].layer == layer)
            return plan->places[i].desc.k_total;
    return 0;
}

static int check_uses(const struct decoder *dec, const struct layer *layer, uint32_t i_layer,
                      const struct use *uses, uint32_t n_uses, struct error *err)
{
    bool used[N_ARCH_SLOTS] = {false};
    for (uint32_t i = 0; i < n_uses; i++) {
        int rc = check_use(dec, layer, &uses[i], err);
        if (rc)
            return rc;
        used[uses[i].slot] = true;
        if (!uses[i].n && layer->vector[uses[i].slot] &&
            vector_length(dec, uses[i].slot, i_layer) != uses[i].k)
            return error_set(err, STATUS_INTERNAL, "decoder: %s: slot %d has %u elements, %u used",
                             dec->arch->name, (int)uses[i].slot,
                             vector_length(dec, uses[i].slot, i_layer), uses[i].k);
    }
    for (uint32_t slot = 0; slot < N_ARCH_SLOTS; slot++)
        if (!used[slot] && (layer->linear[slot] || layer->vector[slot]))
            return error_set(err, STATUS_INTERNAL,
                             "decoder: %s: nothing uses the tensor of slot %u", dec->arch->name,
                             slot);
    return 0;
}

static int check_globals(const struct decoder *dec, struct error *err)
{
    const struct model_shape *s = dec->shape;
    bool layer_norm = dec->arch->norm == ARCH_NORM_LAYER;
    const struct use uses[] = {
        {ARCH_TOKEN_EMBD, s->vocab_size, s->hidden_dim, true},
        {ARCH_ROPE_FREQS, 0, s->n_rot / 2, false},
        {ARCH_OUTPUT_NORM, 0, s->hidden_dim, true},
        {ARCH_OUTPUT_NORM_BIAS, 0, s->hidden_dim, false},
        {ARCH_OUTPUT, segments_len(&dec->split.vocab), s->hidden_dim, true},
    };
    if (!layer_norm && dec->globals.vector[ARCH_OUTPUT_NORM_BIAS])
        return error_set(err, STATUS_INTERNAL, "decoder: an RMS norm has no bias");
    return check_uses(dec, &dec->globals, 0, uses, sizeof(uses) / sizeof(uses[0]), err);
}

static int check_layer(const struct decoder *dec, uint32_t i_layer, struct error *err)
{
    const struct layer *layer = &dec->layers[i_layer];
    uint32_t hidden = dec->shape->hidden_dim, hd = dec->shape->head_dim;
    uint32_t q = dec->split.n_heads * hd, kv = dec->split.n_kv_heads * hd;
    uint32_t ffn = segments_len(&dec->split.ffn);
    bool gated = dec->arch->ffn == ARCH_FFN_GATED;
    const struct use uses[] = {
        {ARCH_ATTN_NORM, 0, hidden, true},
        {ARCH_ATTN_NORM_BIAS, 0, hidden, false},
        {ARCH_ATTN_Q, q, hidden, true},
        {ARCH_ATTN_Q_BIAS, 0, q, false},
        {ARCH_ATTN_K, kv, hidden, true},
        {ARCH_ATTN_K_BIAS, 0, kv, false},
        {ARCH_ATTN_V, kv, hidden, true},
        {ARCH_ATTN_V_BIAS, 0, kv, false},
        {ARCH_ATTN_OUT, hidden, q, true},
        {ARCH_ATTN_OUT_BIAS, 0, hidden, false},
        {ARCH_FFN_NORM, 0, hidden, true},
        {ARCH_FFN_NORM_BIAS, 0, hidden, false},
        {ARCH_FFN_UP, ffn, hidden, true},
        {ARCH_FFN_UP_BIAS, 0, ffn, false},
        {ARCH_FFN_DOWN, hidden, ffn, true},
        {ARCH_FFN_DOWN_BIAS, 0, hidden, false},
        /* Last: left out where there is no gate. */
        {ARCH_FFN_GATE, ffn, hidden, true},
        {ARCH_FFN_GATE_BIAS, 0, ffn, false},
    };
    uint32_t n_uses = sizeof(uses) / sizeof(uses[0]) - (gated ? 0 : 2);
    if (dec->arch->norm != ARCH_NORM_LAYER &&
        (layer->vector[ARCH_ATTN_NORM_BIAS] || layer->vector[ARCH_FFN_NORM_BIAS]))
        return error_set(err, STATUS_INTERNAL, "decoder: an RMS norm has no bias");
    return check_uses(dec, layer, i_layer, uses, n_uses, err);
}

static void set_kinds(const struct decoder *dec, struct layer *at)
{
    at->attention_kinds = weight_act_kind(at->linear[ARCH_ATTN_Q]) |
                          weight_act_kind(at->linear[ARCH_ATTN_K]) |
                          weight_act_kind(at->linear[ARCH_ATTN_V]);
    at->ffn_kinds = weight_act_kind(at->linear[ARCH_FFN_UP]);
    if (dec->arch->ffn == ARCH_FFN_GATED)
        at->ffn_kinds |= weight_act_kind(at->linear[ARCH_FFN_GATE]);
}

static int bind_weights(struct decoder *dec, struct error *err)
{
    const struct rank_plan *plan = dec->cfg.plan;
    dec->layers = calloc(dec->split.n_layers, sizeof(*dec->layers));
    if (!dec->layers)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u layers",
                         dec->split.n_layers);
    for (uint32_t i = 0; i < plan->n_places; i++) {
        int rc = bind_place(dec, &plan->places[i], err);
        if (rc)
            return rc;
    }
    if (dec->cfg.model->tied_output && !dec->globals.linear[ARCH_OUTPUT])
        dec->globals.linear[ARCH_OUTPUT] = dec->globals.linear[ARCH_TOKEN_EMBD];
    int rc = check_globals(dec, err);
    for (uint32_t i = 0; !rc && i < dec->split.n_layers; i++) {
        rc = check_layer(dec, i, err);
        if (!rc)
            set_kinds(dec, &dec->layers[i]);
    }
    return rc;
}

static int make_memory(struct decoder *dec, struct error *err)
{
    const struct device_ops *ops = dec->stream->device->ops;
    const struct rank_plan *plan = dec->cfg.plan;
    void *data;
    decoder_memory_layout(plan, dec->shape, NULL, &dec->mem);
    dec->memory_bytes = dec->mem.n_bytes;
    int rc = ops->alloc(dec->stream->device, dec->memory_bytes, &data, err);
    if (rc)
        return error_prefix(err, "workspace");
    dec->memory = data;
    decoder_memory_layout(plan, dec->shape, dec->memory, &dec->mem);
    dec->kv_bytes = decoder_kv_bytes(plan, dec->shape);
    rc = ops->alloc(dec->stream->device, dec->kv_bytes, &data, err);
    if (rc)
        return error_prefix(err, "KV cache");
    dec->kv_memory = data;
    for (uint32_t i = 0; i < dec->split.n_layers; i++)
        decoder_memory_kv(plan, dec->shape, dec->kv_memory, i, &dec->layers[i].kv);
    uint32_t max_k = decoder_memory_max_k(plan, dec->shape);
    return dec->stream->ops->act_create(dec->stream->device, plan->steps.max_rows, max_k, &dec->act,
                                        err);
}

static int make_rope(struct decoder *dec, struct error *err)
{
    const struct model_shape *s = dec->shape;
    uint32_t n = s->n_rot / 2;
    dec->rope = (struct rope_params){.style = ROPE_NONE};
    if (dec->arch->position == ARCH_POSITION_NONE)
        return 0;
    float *host = malloc(n * sizeof(float));
    if (!host)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for rope frequencies");
    float factor = model_rope_freqs(s, dec->globals.vector[ARCH_ROPE_FREQS], host);
    int rc =
        dec->stream->device->ops->upload(dec->stream, dec->mem.inv_freq, host, n * sizeof(float));
    if (rc)
        error_set(err, rc, "rope frequencies cannot be uploaded");
    else
        rc = dec->stream->device->ops->stream_sync(dec->stream, err);
    free(host);
    dec->rope = (struct rope_params){.style = dec->cfg.model->source->rope_style,
                                     .head_dim = s->head_dim,
                                     .n_rot = s->n_rot,
                                     .inv_freq = dec->mem.inv_freq,
                                     .attention_factor = factor};
    return rc;
}

static void init_attention(struct decoder *dec)
{
    dec->attention = (struct attention_params){
        .n_heads = dec->split.n_heads,
        .head_begin = dec->split.head_begin,
        .kv_begin = dec->split.kv_begin,
        .heads_per_kv = dec->shape->n_heads / dec->shape->n_kv_heads,
        .scale = (float)(1.0 / sqrt(dec->shape->head_dim)),
    };
}

int decoder_create(const struct decoder_config *cfg, struct decoder **out_decoder,
                   struct error *err)
{
    struct decoder *dec = calloc(1, sizeof(*dec));
    if (!dec)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a decoder");
    dec->cfg = *cfg;
    dec->arch = cfg->model->arch;
    dec->shape = &cfg->model->shape;
    dec->split = cfg->plan->split;
    dec->stream = cfg->stream;
    dec->comm = cfg->plan->rank.comm;
    init_attention(dec);
    int rc = bind_weights(dec, err);
    if (!rc)
        rc = make_memory(dec, err);
    if (!rc)
        rc = make_rope(dec, err);
    if (rc) {
        decoder_destroy(dec);
        return rc;
    }
    *out_decoder = dec;
    return 0;
}

void decoder_destroy(struct decoder *dec)
{
    if (!dec)
        return;
    const struct device_ops *ops = dec->stream->device->ops;
    if (dec->act)
        dec->stream->ops->act_destroy(dec->act);
    if (dec->kv_memory)
        ops->free(dec->stream->device, dec->kv_memory, dec->kv_bytes);
    if (dec->memory)
        ops->free(dec->stream->device, dec->memory, dec->memory_bytes);
    free(dec->layers);
    free(dec);
}

void decoder_get_taken(const struct decoder *dec, uint64_t *out_kv_bytes,
                       uint64_t *out_workspace_bytes)
{
    const struct rank_plan *plan = dec->cfg.plan;
    uint32_t max_k = decoder_memory_max_k(plan, dec->shape);
    *out_kv_bytes = dec->kv_bytes;
    *out_workspace_bytes =
        dec->memory_bytes + dec->stream->ops->act_bytes(plan->steps.max_rows, max_k);
}

/* --- a step --- */

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

static int norm(struct decoder *dec, const struct layer *at, enum arch_slot weight,
                enum arch_slot bias, struct tensor *y, const struct tensor *x)
{
    const float *w = at->vector[weight];
    if (dec->arch->norm == ARCH_NORM_LAYER)
        return op_layer_norm(dec->stream, y, x, w, at->vector[bias], dec->shape->norm_eps);
    return op_rms_norm(dec->stream, y, x, w, dec->shape->norm_eps);
}

/* y = W·act + bias for a weight that is split by its outputs or not at all. */
static struct linear_part part(const struct layer *at, enum arch_slot weight, enum arch_slot bias,
                               struct tensor *y)
{
    return (struct linear_part){.y = y, .w = at->linear[weight], .bias = at->vector[bias]};
}

/* What is read after the linear that comes now. */
static void will_read_attention(struct decoder *dec, const struct layer *next)
{
    if (next) {
        const struct weight *w[] = {next->linear[ARCH_ATTN_Q], next->linear[ARCH_ATTN_K],
                                    next->linear[ARCH_ATTN_V]};
        op_will_read(dec->stream, w, 3);
    } else {
        op_will_read(dec->stream, &dec->globals.linear[ARCH_OUTPUT], 1);
    }
}

static void will_read_ffn(struct decoder *dec, const struct layer *at)
{
    const struct weight *w[] = {at->linear[ARCH_FFN_UP], at->linear[ARCH_FFN_GATE]};
    op_will_read(dec->stream, w, dec->arch->ffn == ARCH_FFN_GATED ? 2 : 1);
}

/* x += W·from + bias for a weight that is split by its inputs; the bias is added once, after the
 * sum. `y` is scratch, or the result where x is NULL. */
static int row(struct decoder *dec, const struct linear_part *what, const struct segments *segments,
               const struct tensor *from)
{
    struct tensor partial = view(dec->mem.partial, what->y->n_rows, what->y->n_cols);
    int rc =
        op_act_prepare(dec->stream, dec->act, from, weight_act_kind(what->w), segments, dec->comm);
    if (rc || !dec->comm || dec->comm->size == 1)
        return rc ? rc : op_linear_parts(dec->stream, dec->act, what, 1);
    rc = op_linear_row(dec->stream, what->y, dec->act, what->w, &partial, dec->comm);
    if (!rc && what->bias)
        rc = op_add_bias(dec->stream, what->y, what->bias);
    return rc || !what->sum ? rc : op_add(dec->stream, what->sum, what->y);
}

/* out[m, hidden] = attention over h[m, hidden], the layer's normed input; added to `sum`. */
static int attention(struct decoder *dec, const struct layer *at, const struct attention_rows *rows,
                     struct tensor *out, struct tensor *sum, const struct tensor *h)
{
    uint32_t m = h->n_rows, hd = dec->shape->head_dim;
    struct tensor q = view(dec->mem.q, m, dec->split.n_heads * hd);
    struct tensor k = view(dec->mem.k, m, dec->split.n_kv_heads * hd);
    struct tensor v = view(dec->mem.v, m, dec->split.n_kv_heads * hd);
    struct tensor mixed = view(dec->mem.mixed, m, dec->split.n_heads * hd);
    const struct linear_part parts[] = {part(at, ARCH_ATTN_Q, ARCH_ATTN_Q_BIAS, &q),
                                        part(at, ARCH_ATTN_K, ARCH_ATTN_K_BIAS, &k),
                                        part(at, ARCH_ATTN_V, ARCH_ATTN_V_BIAS, &v)};
    struct linear_part o = part(at, ARCH_ATTN_OUT, ARCH_ATTN_OUT_BIAS, out);
    o.sum = sum;
    int rc = op_act_prepare(dec->stream, dec->act, h, at->attention_kinds, NULL, NULL);
    op_will_read(dec->stream, &o.w, 1);
    if (!rc)
        rc = op_linear_parts(dec->stream, dec->act, parts, 3);
    if (!rc)
        rc = op_rope(dec->stream, &q, rows->positions, &dec->rope);
    if (!rc)
        rc = op_rope(dec->stream, &k, rows->positions, &dec->rope);
    if (!rc)
        rc = op_kv_write(dec->stream, &at->kv, &k, &v, rows->kv_slots);
    if (!rc)
        rc = op_attention(dec->stream, &mixed, &q, &at->kv, rows, &dec->attention);
    will_read_ffn(dec, at);
    return rc ? rc : row(dec, &o, &dec->split.heads, &mixed);
}

/* out[m, hidden] = MLP over h[m, hidden]; added to `sum`. `next` (NULL: none) is the layer whose
 * weights are read afterwards. */
static int ffn(struct decoder *dec, const struct layer *at, const struct layer *next,
               struct tensor *out, struct tensor *sum, const struct tensor *h)
{
    uint32_t m = h->n_rows, n = segments_len(&dec->split.ffn);
    struct tensor up_y = view(dec->mem.up, m, n), gate_y = view(dec->mem.gate, m, n);
    struct linear_part up = part(at, ARCH_FFN_UP, ARCH_FFN_UP_BIAS, &up_y);
    struct linear_part down = part(at, ARCH_FFN_DOWN, ARCH_FFN_DOWN_BIAS, out);
    down.sum = sum;
    int rc = op_act_prepare(dec->stream, dec->act, h, at->ffn_kinds, NULL, NULL);
    op_will_read(dec->stream, &down.w, 1);
    if (!rc && dec->arch->ffn == ARCH_FFN_GATED) {
        struct linear_part gate = part(at, ARCH_FFN_GATE, ARCH_FFN_GATE_BIAS, &gate_y);
        rc = op_linear_gated(dec->stream, dec->act, &gate, &up, dec->arch->activation);
    } else if (!rc) {
        rc = op_linear_parts(dec->stream, dec->act, &up, 1);
        if (!rc)
            rc = op_act_mul(dec->stream, &gate_y, &up_y, NULL, dec->arch->activation);
    }
    will_read_attention(dec, next);
    return rc ? rc : row(dec, &down, &dec->split.ffn, &gate_y);
}

static int run_layer(struct decoder *dec, const struct layer *at, const struct layer *next,
                     const struct attention_rows *rows, struct tensor *x)
{
    uint32_t m = x->n_rows, hidden = x->n_cols;
    struct tensor h = view(dec->mem.h, m, hidden);
    struct tensor from_attention = view(dec->mem.y_attention, m, hidden);
    struct tensor from_ffn = view(dec->mem.y_ffn, m, hidden);
    bool parallel = dec->arch->residual == ARCH_RESIDUAL_PARALLEL;
    int rc = norm(dec, at, ARCH_ATTN_NORM, ARCH_ATTN_NORM_BIAS, &h, x);
    if (!rc)
        rc = attention(dec, at, rows, &from_attention, parallel ? NULL : x, &h);
    if (!rc)
        rc = norm(dec, at, ARCH_FFN_NORM, ARCH_FFN_NORM_BIAS, &h, x);
    if (!rc && !parallel)
        return ffn(dec, at, next, &from_ffn, x, &h);
    if (!rc)
        rc = ffn(dec, at, next, &from_ffn, NULL, &h);
    if (!rc)
        rc = op_add(dec->stream, x, &from_attention);
    if (!rc)
        rc = op_add(dec->stream, x, &from_ffn);
    return rc;
}

/* Logits of the sample rows only; each rank writes its columns of the shared [n, vocab]. */
static int run_head(struct decoder *dec, const struct tensor *x, uint32_t n)
{
    uint32_t hidden = dec->shape->hidden_dim, vocab = dec->shape->vocab_size;
    const struct weight *w = dec->globals.linear[ARCH_OUTPUT];
    uint32_t max_rows = dec->cfg.plan->steps.max_rows;
    for (uint32_t begin = 0; begin < n; begin += max_rows) {
        uint32_t m = n - begin < max_rows ? n - begin : max_rows;
        struct tensor h = view(dec->mem.h, m, hidden);
        struct tensor y =
            view(dec->cfg.logits + (size_t)begin * vocab + segments_begin(&dec->split.vocab), m,
                 segments_len(&dec->split.vocab));
        y.row_stride = vocab;
        int rc = op_gather_rows(dec->stream, &h, x, dec->mem.sample_rows + begin);
        if (!rc)
            rc = norm(dec, &dec->globals, ARCH_OUTPUT_NORM, ARCH_OUTPUT_NORM_BIAS, &h, &h);
        if (!rc)
            rc = op_act_prepare(dec->stream, dec->act, &h, weight_act_kind(w), NULL, NULL);
        if (!rc)
            rc = op_linear(dec->stream, &y, dec->act, w);
        if (rc)
            return rc;
    }
    return 0;
}

static int upload_u32(struct decoder *dec, uint32_t *dst, const uint32_t *src, size_t n)
{
    return dec->stream->device->ops->upload(dec->stream, dst, src, n * sizeof(*src));
}

/* Brings the batch to the fixed addresses that the ops read; of each block table as much as its
 * sequence uses. */
static int upload_batch(struct decoder *dec, const struct step_batch *batch)
{
    struct decoder_memory *mem = &dec->mem;
    size_t stride = batch->limits.max_blocks_per_seq;
    int rc = upload_u32(dec, mem->token_ids, batch->token_ids, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->positions, batch->positions, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->kv_slots, batch->kv_slots, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->seq_of_row, batch->seq_of_row, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->sample_rows, batch->sample_rows, batch->n_sample_rows);
    for (uint32_t s = 0; !rc && s < batch->n_seqs; s++) {
        uint32_t last = batch->positions[batch->seq_start[s + 1] - 1];
        size_t n = last / dec->cfg.plan->steps.block_size + 1;
        rc = upload_u32(dec, mem->block_tables + s * stride, batch->block_tables + s * stride, n);
    }
    return rc;
}

int decoder_step(struct decoder *dec, const struct step_batch *batch, struct error *err)
{
    struct decoder_memory *mem = &dec->mem;
    struct tensor x = view(mem->x, batch->n_rows, dec->shape->hidden_dim);
    const struct attention_rows rows = {
        .positions = mem->positions,
        .seq_of_row = mem->seq_of_row,
        .kv_slots = mem->kv_slots,
        .block_tables = mem->block_tables,
        .table_stride = batch->limits.max_blocks_per_seq,
        .n_rows = batch->n_rows,
        .n_seqs = batch->n_seqs,
    };
    int rc = upload_batch(dec, batch);
    if (!rc)
        rc = op_embed(dec->stream, &x, mem->token_ids, dec->globals.linear[ARCH_TOKEN_EMBD]);
    for (uint32_t i = 0; !rc && i < dec->split.n_layers; i++) {
        const struct layer *next = i + 1 < dec->split.n_layers ? &dec->layers[i + 1] : NULL;
        rc = run_layer(dec, &dec->layers[i], next, &rows, &x);
        if (dec->cfg.progress)
            atomic_fetch_add(dec->cfg.progress, 1);
    }
    if (!rc)
        rc = run_head(dec, &x, batch->n_sample_rows);
    if (rc)
        return error_set(err, rc, "rank %u: an operation of the step failed",
                         dec->cfg.plan->rank.index);
    return dec->stream->device->ops->stream_sync(dec->stream, err);
}

int decoder_copy_block(struct decoder *dec, uint32_t from, uint32_t to, struct error *err)
{
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        const struct kv_layer *kv = &dec->layers[i].kv;
        size_t bytes =
            (size_t)kv->n_kv_heads * kv->block_size * kv_vector_bytes(kv->dtype, kv->head_dim);
        int rc = dec->stream->device->ops->copy(dec->stream, (char *)kv->k + to * bytes,
                                                (const char *)kv->k + from * bytes, bytes);
        if (!rc)
            rc = dec->stream->device->ops->copy(dec->stream, (char *)kv->v + to * bytes,
                                                (const char *)kv->v + from * bytes, bytes);
        if (rc)
            return error_set(err, rc, "rank %u: KV block %u cannot be copied",
                             dec->cfg.plan->rank.index, from);
    }
    return dec->stream->device->ops->stream_sync(dec->stream, err);
}
