#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/forward/decoder_private.h"

static int bind_place(struct decoder *dec, const struct weight_place *place, struct error *err)
{
    uint32_t i_place = (uint32_t)(place - dec->cfg.plan->places);
    const struct weight *weight = dec->cfg.device_weights ? dec->cfg.device_weights[i_place]
                                                          : loader_weight(dec->cfg.weights, place);
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

/* The expected shape of a slot on this rank: W[n, k], or a vector [k]. */
struct use {
    enum arch_slot slot;
    uint32_t n, k; /* n 0: the slot is a vector */
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

/* A vector's weight does not hold its length: the plan does. */
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
            return error_set(err, STATUS_INTERNAL, "decoder: %s: no op uses the tensor of slot %u",
                             dec->arch->name, slot);
    return 0;
}

static int check_globals(const struct decoder *dec, struct error *err)
{
    const struct model_shape *s = dec->shape;
    bool layer_norm = dec->arch->norm == ARCH_NORM_LAYER;
    bool first = rank_is_first(&dec->cfg.plan->rank), last = rank_is_last(&dec->cfg.plan->rank);
    bool learned = first && dec->arch->position == ARCH_POSITION_LEARNED;
    const struct use uses[] = {
        {ARCH_TOKEN_EMBD, s->vocab_size, s->hidden_dim, first},
        {ARCH_POSITION_EMBD, s->context_tokens, s->hidden_dim, learned},
        {ARCH_TOKEN_NORM, 0, s->hidden_dim, false},
        {ARCH_TOKEN_NORM_BIAS, 0, s->hidden_dim, false},
        {ARCH_ROPE_FREQS, 0, s->n_rot / 2, false},
        {ARCH_OUTPUT_NORM, 0, s->hidden_dim, last},
        {ARCH_OUTPUT_NORM_BIAS, 0, s->hidden_dim, false},
        {ARCH_OUTPUT, segments_len(&dec->split.vocab), s->hidden_dim, last},
    };
    if (!layer_norm &&
        (dec->globals.vector[ARCH_OUTPUT_NORM_BIAS] || dec->globals.vector[ARCH_TOKEN_NORM_BIAS]))
        return error_set(err, STATUS_INTERNAL, "decoder: an RMS norm with a bias is not supported");
    if (dec->arch->position != ARCH_POSITION_LEARNED && dec->globals.linear[ARCH_POSITION_EMBD])
        return error_set(err, STATUS_INTERNAL, "decoder: %s: no op uses the position table",
                         dec->arch->name);
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
        /* these two come last: models without a gate skip them */
        {ARCH_FFN_GATE, ffn, hidden, true},
        {ARCH_FFN_GATE_BIAS, 0, ffn, false},
    };
    uint32_t n_uses = sizeof(uses) / sizeof(uses[0]) - (gated ? 0 : 2);
    if (dec->arch->norm != ARCH_NORM_LAYER &&
        (layer->vector[ARCH_ATTN_NORM_BIAS] || layer->vector[ARCH_FFN_NORM_BIAS]))
        return error_set(err, STATUS_INTERNAL, "decoder: an RMS norm with a bias is not supported");
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
    if (dec->cfg.model->tied_output && rank_is_last(&plan->rank) &&
        !dec->globals.linear[ARCH_OUTPUT])
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
    if (dec->arch->position != ARCH_POSITION_ROPE)
        return 0;
    float *host = malloc(2 * n * sizeof(float));
    if (!host)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for rope frequencies");
    float *divisors = host + n;
    error_clear(err); /* a failure of the device fills it */
    const struct device_ops *ops = dec->stream->device->ops;
    const float *given = dec->globals.vector[ARCH_ROPE_FREQS];
    int rc = 0;
    if (given)
        rc = ops->download(dec->stream, divisors, given, n * sizeof(float));
    if (!rc)
        rc = ops->stream_sync(dec->stream, err);
    float factor = model_rope_freqs(s, given ? divisors : NULL, host);
    if (!rc)
        rc = ops->upload(dec->stream, dec->mem.inv_freq, host, n * sizeof(float));
    if (!rc)
        rc = ops->stream_sync(dec->stream, err);
    else if (!err->status)
        error_set(err, rc, "rope frequencies cannot be copied");
    free(host);
    dec->rope = (struct rope_params){.style = dec->cfg.model->source->rope_style,
                                     .head_dim = s->head_dim,
                                     .n_rot = s->n_rot,
                                     .inv_freq = dec->mem.inv_freq,
                                     .attention_factor = factor};
    return rc;
}

/* Uploads the ALiBi slopes of this rank's heads. Models without ALiBi have none. */
static int make_alibi(struct decoder *dec, struct error *err)
{
    const struct model_shape *s = dec->shape;
    const struct device_ops *ops = dec->stream->device->ops;
    if (dec->arch->position != ARCH_POSITION_ALIBI)
        return 0;
    float *host = malloc(s->n_heads * sizeof(float));
    if (!host)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for slopes");
    model_alibi_slopes(s, host);
    int rc = ops->upload(dec->stream, dec->mem.slopes, host + dec->split.head_begin,
                         dec->split.n_heads * sizeof(float));
    if (!rc)
        rc = ops->stream_sync(dec->stream, err);
    else
        error_set(err, rc, "slopes cannot be copied");
    free(host);
    dec->attention.slopes = dec->mem.slopes;
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
    if (!rc)
        rc = make_alibi(dec, err);
    if (!rc)
        rc = decoder_inputs_init(dec, err);
    if (!rc)
        rc = decoder_graphs_create(dec, err);
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
    decoder_graphs_destroy(dec);
    decoder_inputs_fini(dec);
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
