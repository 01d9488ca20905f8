#include "server/worker/base/facts.h"

#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "engine/engine.h"
#include "server/worker/base/message.h"

enum { MAX_LOGIT_BIAS = 1024 };

static void digest_hex(const struct checkpoint *ckpt, char out_hex[SHA256_HEX_BYTES])
{
    uint8_t digest[SHA256_BYTES];
    checkpoint_digest(ckpt, digest);
    sha256_hex(digest, out_hex);
}

int facts_check_digest(const struct checkpoint *ckpt, const char *hex, struct error *err)
{
    char own[SHA256_HEX_BYTES];
    digest_hex(ckpt, own);
    if (!hex || !hex[0] || strcasecmp(hex, own) == 0)
        return 0;
    error_set(
        err, STATUS_FAILED_PRECONDITION,
        "%s: the file differs from the registered file: its digest is %.16s..., registered was "
        "%.16s...",
        checkpoint_name(ckpt), own, hex);
    return error_reason(err, REASON_MODEL_FILE_CHANGED);
}

static void add_tensors(const struct checkpoint *ckpt, Sluice__V1__ModelInfo *info,
                        struct arena *arena)
{
    uint64_t bytes[N_DTYPES] = {0};
    enum dtype most = DTYPE_F32;
    for (uint64_t i = 0; i < checkpoint_n_tensors(ckpt); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(ckpt, i);
        info->n_parameters += t->n_elems;
        info->weight_bytes += t->n_bytes;
        bytes[t->dtype] += t->n_bytes;
        if (bytes[t->dtype] > bytes[most])
            most = t->dtype;
    }
    info->quantization = message_text(arena, dtype_name(most));
}

static void add_model(const struct model_info *model, Sluice__V1__ModelInfo *info,
                      struct arena *arena)
{
    info->quantization = message_text(arena, model->quantization);
    info->trained_context_length = model->trained_tokens;
    info->context_length = model->context_tokens;
    info->vocab_size = model->vocab_size;
    info->n_layers = model->n_layers;
    info->hidden_dim = model->hidden_dim;
    info->n_heads = model->n_heads;
    info->n_kv_heads = model->n_kv_heads;
    info->head_dim = model->head_dim;
    info->kv_elements_per_token = model->kv_elements;
    info->window_elements_per_token = model->window_elements;
    info->window_tokens = model->window_tokens;
    info->state_bytes_per_sequence = model->state_elements * sizeof(float);
}

static void add_tokenizer(const struct tokenizer *tok, Sluice__V1__ModelInfo *info,
                          struct arena *arena)
{
    const struct tokenizer_info *t = tokenizer_info(tok);
    info->tokenizer = message_text(arena, "bpe");
    info->pre_tokenizer = message_text(arena, t->pre);
    info->vocab_size = t->vocab_size;
    info->has_bos_token_id = t->add_bos && t->bos_id != TOKENIZER_NO_ID;
    info->bos_token_id = info->has_bos_token_id ? (uint32_t)t->bos_id : 0;
    info->eos_token_ids = arena_calloc(arena, t->n_end_ids, sizeof(*info->eos_token_ids));
    if (!info->eos_token_ids)
        return;
    memcpy(info->eos_token_ids, t->end_ids, t->n_end_ids * sizeof(*info->eos_token_ids));
    info->n_eos_token_ids = t->n_end_ids;
}

static void add_fim(const struct tokenizer_info *t, Sluice__V1__ModelInfo *info,
                    struct arena *arena)
{
    const int32_t *ids = t->fim_ids;
    if (!tokenizer_fills_gaps(t))
        return;
    Sluice__V1__FimTokens *fim = arena_alloc(arena, sizeof(*fim));
    if (!fim)
        return;
    sluice__v1__fim_tokens__init(fim);
    fim->prefix = (uint32_t)ids[TOKENIZER_FIM_PREFIX];
    fim->suffix = (uint32_t)ids[TOKENIZER_FIM_SUFFIX];
    fim->middle = (uint32_t)ids[TOKENIZER_FIM_MIDDLE];
    fim->has_padding = ids[TOKENIZER_FIM_PADDING] != TOKENIZER_NO_ID;
    fim->padding = fim->has_padding ? (uint32_t)ids[TOKENIZER_FIM_PADDING] : 0;
    fim->has_repository = ids[TOKENIZER_FIM_REPOSITORY] != TOKENIZER_NO_ID;
    fim->repository = fim->has_repository ? (uint32_t)ids[TOKENIZER_FIM_REPOSITORY] : 0;
    fim->has_separator = ids[TOKENIZER_FIM_SEPARATOR] != TOKENIZER_NO_ID;
    fim->separator = fim->has_separator ? (uint32_t)ids[TOKENIZER_FIM_SEPARATOR] : 0;
    info->fim = fim;
    info->capabilities->suffix = true;
}

static void add_limits(const struct facts_limits *limits, Sluice__V1__ModelInfo *info)
{
    if (limits->context_tokens)
        info->context_length = limits->context_tokens;
    uint32_t total = info->context_length;
    if (limits->max_total_tokens && (!total || limits->max_total_tokens < total))
        total = limits->max_total_tokens;
    info->limits->max_prompt_tokens = total ? total - 1 : 0;
    info->limits->max_generated_tokens = info->limits->max_prompt_tokens;
    if (limits->max_input_tokens && (!total || limits->max_input_tokens < total - 1))
        info->limits->max_prompt_tokens = limits->max_input_tokens;
    info->limits->max_choices = ENGINE_MAX_CHOICES;
    info->limits->max_stop_strings = ENGINE_MAX_STOP_STRINGS;
    info->limits->max_stop_bytes = ENGINE_MAX_STOP_BYTES;
    info->limits->max_top_n = SAMPLE_MAX_TOP;
    info->limits->max_logit_bias = MAX_LOGIT_BIAS;
    info->limits->max_concurrent_requests = limits->max_concurrent;
    info->limits->max_queued_requests = limits->max_queued;
    info->capabilities->chat = limits->chat;
    info->capabilities->tools = limits->chat;
    info->capabilities->logprobs = true;
    info->capabilities->prompt_logprobs = true;
    info->capabilities->speculate = true;
}

/* Adds the default sampling of the model's files, if they have any. */
static int add_sampling(const struct checkpoint *ckpt, Sluice__V1__ModelInfo *info,
                        struct arena *arena, struct error *err)
{
    struct default_sampling s;
    default_sampling_read(ckpt, &s, NULL);
    if (!(s.has_temperature || s.has_top_k || s.has_top_p || s.has_min_p || s.has_typical_p ||
          s.has_repetition_penalty || s.n_suppressed))
        return 0;
    Sluice__V1__DefaultSampling *out = arena_alloc(arena, sizeof(*out));
    uint32_t *suppressed = arena_alloc(arena, sizeof(s.suppressed_ids));
    if (!out || !suppressed)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "model facts: out of memory");
    sluice__v1__default_sampling__init(out);
    out->has_temperature = s.has_temperature;
    out->temperature = s.temperature;
    out->has_top_k = s.has_top_k;
    out->top_k = s.top_k;
    out->has_top_p = s.has_top_p;
    out->top_p = s.top_p;
    out->has_min_p = s.has_min_p;
    out->min_p = s.min_p;
    out->has_typical_p = s.has_typical_p;
    out->typical_p = s.typical_p;
    out->has_repetition_penalty = s.has_repetition_penalty;
    out->repetition_penalty = s.repetition_penalty;
    memcpy(suppressed, s.suppressed_ids, sizeof(s.suppressed_ids));
    out->suppress_tokens = suppressed;
    out->n_suppress_tokens = s.n_suppressed;
    info->default_sampling = out;
    return 0;
}

int facts_model_info(struct arena *arena, const struct checkpoint *ckpt,
                     const struct tokenizer *tok, const struct model_info *model,
                     const struct facts_limits *limits, Sluice__V1__ModelInfo **out_info,
                     struct error *err)
{
    char hex[SHA256_HEX_BYTES];
    const char *text;
    Sluice__V1__ModelInfo *info = arena_alloc(arena, sizeof(*info));
    Sluice__V1__Capabilities *capabilities = arena_alloc(arena, sizeof(*capabilities));
    Sluice__V1__ModelLimits *model_limits = arena_alloc(arena, sizeof(*model_limits));
    if (!info || !capabilities || !model_limits)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "model facts: out of memory");
    sluice__v1__model_info__init(info);
    sluice__v1__capabilities__init(capabilities);
    sluice__v1__model_limits__init(model_limits);
    info->capabilities = capabilities;
    info->limits = model_limits;
    info->architecture = message_text(arena, checkpoint_architecture(ckpt));
    /* a folder has no key for its name */
    bool is_folder = strcmp(checkpoint_format(ckpt), "hf") == 0;
    int rc = checkpoint_get_string_or(ckpt, "general.name", is_folder ? checkpoint_name(ckpt) : "",
                                      &text, err);
    if (rc)
        return rc;
    info->display_name = message_text(arena, text);
    info->format = message_text(arena, is_folder ? "safetensors" : checkpoint_format(ckpt));
    digest_hex(ckpt, hex);
    info->weights_digest = message_text(arena, hex);
    add_tensors(ckpt, info, arena);
    if (model)
        add_model(model, info, arena);
    if (tok) {
        add_tokenizer(tok, info, arena);
        add_fim(tokenizer_info(tok), info, arena);
        info->capabilities->reasoning = engine_tells_reasoning(tok);
    }
    add_limits(limits, info);
    rc = limits->no_sampling ? 0 : add_sampling(ckpt, info, arena, err);
    if (rc)
        return rc;
    if (arena->exhausted)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "model facts: out of memory for the texts");
    *out_info = info;
    return 0;
}
