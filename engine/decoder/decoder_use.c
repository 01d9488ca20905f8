#include "base/error.h"
#include "engine/decoder/decoder_private.h"

/* Checks that the decoder has every weight that it needs, and that an op reads every weight. With a
 * weight that no op reads, results would differ in silence. */

static bool has(const struct layer *at, enum arch_slot slot)
{
    return at->linear[slot] || at->vector[slot];
}

static int check_slot(const struct decoder *dec, const struct layer *at, enum arch_slot slot,
                      bool needed, struct error *err)
{
    const struct arch_tensor *row = arch_find_tensor(&dec->cfg.model->source, slot);
    if (!needed || has(at, slot))
        return 0;
    return error_set(err, STATUS_INTERNAL,
                     "decoder: architecture %s needs the %s (%s), and the model has none",
                     dec->arch->name, arch_slot_name(slot), row ? row->name : "not described");
}

static int refuse_slot(const struct decoder *dec, const struct layer *at, enum arch_slot slot,
                       bool unused, struct error *err)
{
    if (!unused || !has(at, slot))
        return 0;
    return error_set(err, STATUS_INTERNAL,
                     "decoder: architecture %s does not use the %s, which the model has",
                     dec->arch->name, arch_slot_name(slot));
}

/* Biases of norms that have none. */
static int check_norms(const struct decoder *dec, const struct layer *at, struct error *err)
{
    static const enum arch_slot biases[] = {ARCH_TOKEN_NORM_BIAS,     ARCH_OUTPUT_NORM_BIAS,
                                            ARCH_ATTN_NORM_BIAS,      ARCH_FFN_NORM_BIAS,
                                            ARCH_ATTN_POST_NORM_BIAS, ARCH_FFN_POST_NORM_BIAS};
    static const enum arch_slot head_biases[] = {ARCH_ATTN_Q_NORM_BIAS, ARCH_ATTN_K_NORM_BIAS};
    bool rms = dec->arch->norm == ARCH_NORM_RMS;
    bool head_rms = at->facts && at->facts->mixer->head_norm == ARCH_NORM_RMS;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < ARCH_N_OF(biases); i++)
        rc = refuse_slot(dec, at, biases[i], rms || !has(at, biases[i] - 1), err);
    for (uint32_t i = 0; !rc && i < ARCH_N_OF(head_biases); i++)
        rc = refuse_slot(dec, at, head_biases[i], head_rms || !has(at, head_biases[i] - 1), err);
    return rc;
}

static int check_globals(const struct decoder *dec, struct error *err)
{
    bool first = rank_is_first(&dec->cfg.plan->rank), last = rank_is_last(&dec->cfg.plan->rank);
    bool long_rope = dec->shape->ropes[0].scaling == ROPE_SCALING_LONGROPE;
    const struct layer *at = &dec->globals;
    int rc = check_slot(dec, at, ARCH_TOKEN_EMBD, first, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_OUTPUT, last, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_OUTPUT_NORM, last, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_ROPE_FREQS, !dec->shape->ropes[0].n_rot || long_rope, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_ROPE_FREQS_SHORT, !long_rope, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_ROPE_FREQS_LONG, !long_rope, err);
    for (uint32_t i = ARCH_LAYER_EMBD; !rc && i <= ARCH_LAYER_EMBD_NORM; i++)
        rc = check_slot(dec, at, (enum arch_slot)i, first && dec->shape->layer_embd_dim, err);
    return rc ? rc : check_norms(dec, at, err);
}

static int check_attention(const struct decoder *dec, const struct layer *at, struct error *err)
{
    const struct arch_mixer *mixer = at->facts->mixer;
    bool bare = mixer->head_norms == ARCH_HEAD_NORMS_BARE;
    int rc = check_slot(dec, at, ARCH_ATTN_Q, true, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_ATTN_K, decoder_has_own_kv(dec, at), err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_ATTN_OUT, true, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_ATTN_V_BIAS, !has(at, ARCH_ATTN_V), err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_ATTN_Q_NORM, bare, err);
    return rc ? rc : refuse_slot(dec, at, ARCH_ATTN_K_NORM, bare, err);
}

static int check_latent(const struct decoder *dec, const struct layer *at, struct error *err)
{
    static const enum arch_slot slots[] = {ARCH_LATENT_Q_NOPE,  ARCH_LATENT_Q_ROPE,
                                           ARCH_LATENT_KV_DOWN, ARCH_LATENT_K_ROPE,
                                           ARCH_LATENT_KV_NORM, ARCH_ATTN_OUT};
    bool has_q_rank = dec->shape->latent.q_rank > 0;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < ARCH_N_OF(slots); i++)
        rc = check_slot(dec, at, slots[i], true, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_LATENT_Q_DOWN, has_q_rank, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_LATENT_Q_NORM, has_q_rank, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_LATENT_Q_NORM, !has_q_rank, err);
    for (uint32_t i = 0; !rc && i < 2 * at->split->n_heads; i++)
        if (!at->heads[i])
            rc = error_set(err, STATUS_INTERNAL,
                           "decoder: architecture %s lacks a matrix of a head", dec->arch->name);
    return rc ? rc : refuse_slot(dec, at, ARCH_LATENT_Q_DOWN, !has_q_rank, err);
}

static int check_ffn(const struct decoder *dec, const struct layer *at, struct error *err)
{
    bool gated = at->facts->ffn->form == ARCH_FFN_GATED;
    int rc = check_slot(dec, at, ARCH_FFN_UP, true, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_FFN_DOWN, true, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_FFN_GATE, gated, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_FFN_GATE, !gated, err);
    return rc ? rc : refuse_slot(dec, at, ARCH_FFN_GATE_BIAS, !gated, err);
}

static int check_experts(const struct decoder *dec, const struct layer *at, struct error *err)
{
    bool gated = at->facts->ffn->form == ARCH_FFN_GATED;
    bool shared = dec->shape->experts.shared_ffn_dim > 0;
    if (!dec->stream->ops->experts)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "kernels %s: layers of experts are not supported; use another device",
                         dec->stream->ops->name);
    int rc = check_slot(dec, at, ARCH_ROUTER, true, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_SHARED_UP, shared, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_SHARED_DOWN, shared, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_SHARED_GATE, shared && gated, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_SHARED_GATE, !shared || !gated, err);
    if (!rc)
        rc = refuse_slot(dec, at, ARCH_SHARED_ROUTER, !shared, err);
    return rc ? rc : refuse_slot(dec, at, ARCH_EXPERT_GATE_BIAS, !gated, err);
}

static int check_state(const struct decoder *dec, const struct layer *at, struct error *err)
{
    static const enum arch_slot both[] = {ARCH_STATE_Q,      ARCH_STATE_K,      ARCH_STATE_V,
                                          ARCH_STATE_GATE,   ARCH_STATE_DT,     ARCH_STATE_CONV_Q,
                                          ARCH_STATE_CONV_K, ARCH_STATE_CONV_V, ARCH_STATE_DT_BIAS,
                                          ARCH_STATE_A,      ARCH_STATE_OUT};
    static const enum arch_slot conv[] = {ARCH_STATE_V, ARCH_STATE_CONV_V, ARCH_STATE_OUT,
                                          ARCH_CONV_GATE_IN, ARCH_CONV_GATE_OUT};
    bool is_delta = at->facts->mixer->mixing == ARCH_MIXING_DELTA;
    bool is_conv = at->facts->mixer->mixing == ARCH_MIXING_CONV;
    int rc = 0;
    for (uint32_t i = 0; !rc && is_conv && i < ARCH_N_OF(conv); i++)
        rc = check_slot(dec, at, conv[i], true, err);
    if (rc || is_conv)
        return rc;
    for (uint32_t i = 0; !rc && i < ARCH_N_OF(both); i++)
        rc = check_slot(dec, at, both[i], true, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_STATE_BETA, is_delta, err);
    if (!rc)
        rc = check_slot(dec, at, ARCH_STATE_NORM, is_delta, err);
    return rc ? rc : check_slot(dec, at, ARCH_STATE_D, !is_delta, err);
}

/* Kinds of layers that this decoder cannot run. */
static int check_kinds(const struct decoder *dec, const struct layer *at, struct error *err)
{
    const struct arch_ffn *ffn = at->facts->ffn;
    if (ffn->body != ARCH_FFN_BOTH || dec->shape->residual != ARCH_RESIDUAL_PARALLEL)
        return 0;
    return error_set(err, STATUS_UNIMPLEMENTED,
                     "decoder: architecture %s has layers of the kind \"%s\", which are not "
                     "supported; use another model",
                     dec->arch->name, ffn->name);
}

int decoder_check_uses(const struct decoder *dec, struct error *err)
{
    int rc = check_globals(dec, err);
    for (uint32_t i = 0; !rc && i < dec->split.n_layers; i++) {
        const struct layer *at = &dec->layers[i];
        rc = check_kinds(dec, at, err);
        bool latent = at->facts->mixer->mixing == ARCH_MIXING_LATENT;
        if (!rc && latent)
            rc = check_latent(dec, at, err);
        if (!rc && !latent && arch_has_attention(at->facts->mixer->mixing))
            rc = check_attention(dec, at, err);
        if (!rc && arch_has_state(at->facts->mixer->mixing))
            rc = check_state(dec, at, err);
        bool both = at->facts->ffn->body == ARCH_FFN_BOTH;
        if (!rc && (both || at->facts->ffn->body == ARCH_FFN_DENSE))
            rc = check_ffn(dec, at, err);
        if (!rc && (both || at->facts->ffn->body == ARCH_FFN_EXPERTS))
            rc = check_experts(dec, at, err);
        for (uint32_t k = ARCH_LAYER_GATE; !rc && k <= ARCH_LAYER_POST_NORM; k++)
            rc = check_slot(dec, at, (enum arch_slot)k, dec->shape->layer_embd_dim != 0, err);
        if (!rc)
            rc = check_norms(dec, at, err);
    }
    return rc;
}
