#include "server/worker/request_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/tokenizer.h"
#include "server/worker/prompt.h"
#include "server/worker/worker.h"

static int not_built(struct error *err, const char *field)
{
    error_set(err, STATUS_UNIMPLEMENTED, "%s: not built yet", field);
    snprintf(err->field, sizeof(err->field), "%s", field);
    return err->status;
}

int request_build_check(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    const Sluice__V1__Sampling *s = r->sampling;
    const Sluice__V1__Output *o = r->output;
    const struct {
        bool given;
        const char *field;
    } fields[] = {
        {s && s->has_best_of, "sampling.best_of"},
        {s && s->n_allowed_token_ids, "sampling.allowed_token_ids"},
        {s && s->n_bad_words, "sampling.bad_words"},
        {s && s->has_do_sample, "sampling.do_sample"},
        {s && s->watermark, "sampling.watermark"},
        {o && o->prompt_logprobs, "output.prompt_logprobs"},
        {o && o->return_full_text, "output.return_full_text"},
        {o && o->has_truncate, "output.truncate"},
        {r->constraint != NULL, "constraint"},
        {r->adapter[0] != '\0', "adapter"},
        {r->speculate && r->speculate->drafter > SLUICE__V1__DRAFTER__DRAFTER_NONE,
         "speculate.drafter"},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].given)
            return not_built(err, fields[i].field);
    return 0;
}

static int add_ids(const uint32_t *ids, size_t n, struct token_list *list, struct error *err)
{
    uint32_t *copy = malloc((n + 1) * sizeof(*copy));
    if (!copy)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "prompt: out of memory");
    if (n)
        memcpy(copy, ids, n * sizeof(*copy));
    token_list_fini(list);
    *list = (struct token_list){.ids = copy, .n_ids = n, .capacity = n + 1};
    return 0;
}

static int chat_prompt(struct worker *worker, const struct tokenizer *tok,
                       const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                       struct error *err)
{
    const Sluice__V1__Chat *chat = submit->request->chat;
    struct strbuf text = {0};
    if (!worker->template && worker->template_error.status && !chat->template_override[0]) {
        *err = worker->template_error;
        return err->status;
    }
    int rc = prompt_render_chat(worker->template, tok, chat, "chat",
                                submit->template_time_unix_ns / NS_PER_S, &text, err);
    if (!rc)
        rc = prompt_encode_rendered(tok, &text, ids, err);
    strbuf_fini(&text);
    return rc;
}

int request_build_prompt(struct worker *worker, struct engine *engine,
                         const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                         struct error *err)
{
    const Sluice__V1__GenerateRequest *r = submit->request;
    const struct tokenizer *tok = engine_tokenizer(engine);
    if (submit->resume && submit->resume->n_prompt_token_ids)
        return add_ids(submit->resume->prompt_token_ids, submit->resume->n_prompt_token_ids, ids,
                       err);
    switch (r->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS:
        return add_ids(r->token_ids->ids, r->token_ids->n_ids, ids, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return prompt_encode_text(tok, r->text, true, false, ids, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT:
        return chat_prompt(worker, tok, submit, ids, err);
    default:
        return error_field(err, "prompt", "is missing; give text, token_ids or chat");
    }
}

static int build_sampling(const Sluice__V1__Sampling *s, struct arena *arena,
                          struct engine_sampling *out, struct error *err)
{
    if (s->has_temperature)
        out->temperature = s->temperature;
    if (s->has_top_k)
        out->top_k = s->top_k;
    if (s->has_top_p)
        out->top_p = s->top_p;
    if (s->has_min_p)
        out->min_p = s->min_p;
    if (s->has_typical_p)
        out->typical_p = s->typical_p;
    if (s->has_repetition_penalty)
        out->repetition_penalty = s->repetition_penalty;
    if (s->has_presence_penalty)
        out->presence_penalty = s->presence_penalty;
    if (s->has_frequency_penalty)
        out->frequency_penalty = s->frequency_penalty;
    if (s->has_n)
        out->n = s->n;
    if (!s->n_logit_bias)
        return 0;
    struct sample_bias *biases = arena_calloc(arena, s->n_logit_bias, sizeof(*biases));
    if (!biases || s->n_logit_bias > UINT32_MAX)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "sampling.logit_bias: out of memory");
    for (size_t i = 0; i < s->n_logit_bias; i++)
        biases[i] = (struct sample_bias){s->logit_bias[i]->token_id, s->logit_bias[i]->bias};
    out->logit_bias = biases;
    out->n_logit_bias = (uint32_t)s->n_logit_bias;
    return 0;
}

static void build_stopping(const Sluice__V1__Stopping *s, struct engine_stopping *out)
{
    if (s->has_max_tokens)
        out->max_tokens = s->max_tokens;
    if (s->has_min_tokens)
        out->min_tokens = s->min_tokens;
    out->stop = (const char *const *)s->stop;
    out->n_stop = (uint32_t)s->n_stop;
    out->stop_token_ids = s->stop_token_ids;
    out->n_stop_token_ids = (uint32_t)s->n_stop_token_ids;
    out->include_stop = s->has_include_stop && s->include_stop;
    out->ignore_eos = s->has_ignore_eos && s->ignore_eos;
}

static int build_resume(const Sluice__Worker__V1__ResumeState *state, struct arena *arena,
                        struct engine_request *out, struct error *err)
{
    uint32_t n = out->sampling.n;
    struct engine_resume *resume =
        n <= ENGINE_MAX_CHOICES ? arena_calloc(arena, n, sizeof(*resume)) : NULL;
    if (n > ENGINE_MAX_CHOICES)
        return 0; /* the engine refuses such an n by name */
    if (!resume)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "resume: out of memory");
    for (size_t i = 0; i < state->n_choices; i++) {
        const Sluice__Worker__V1__ResumedChoice *c = state->choices[i];
        if (c->choice >= n)
            return error_field(err, "resume.choices", "choice %u of a request of %u", c->choice, n);
        if (c->n_released > c->n_generated_ids || c->text_bytes_sent > UINT32_MAX)
            return error_field(err, "resume.choices", "more is released than was generated");
        resume[c->choice] = (struct engine_resume){.ids = c->generated_ids,
                                                   .n_ids = (uint32_t)c->n_generated_ids,
                                                   .n_text_bytes = (uint32_t)c->text_bytes_sent};
    }
    out->resume = resume;
    return 0;
}

/* The engine's salt is a C string; the frame's key is bytes. */
static const char *hex_salt(const ProtobufCBinaryData *key, struct arena *arena)
{
    static const char digits[] = "0123456789abcdef";
    char *out = arena_alloc(arena, 2 * key->len + 1);
    for (size_t i = 0; out && i < key->len; i++) {
        out[2 * i] = digits[key->data[i] >> 4];
        out[2 * i + 1] = digits[key->data[i] & 15];
    }
    return out;
}

int request_build(const Sluice__Worker__V1__Submit *submit, struct arena *arena,
                  struct engine_request *out_request, struct error *err)
{
    const Sluice__V1__GenerateRequest *r = submit->request;
    struct engine_request out;
    int rc = 0;
    engine_request_init(&out);
    if (r->sampling)
        rc = build_sampling(r->sampling, arena, &out.sampling, err);
    if (rc)
        return rc;
    out.sampling.seed = submit->seed;
    if (r->stopping)
        build_stopping(r->stopping, &out.stopping);
    if (r->output) {
        out.want_logprobs = r->output->logprobs;
        out.n_top_logprobs = r->output->has_top_n ? r->output->top_n : 0;
        out.keep_special_tokens =
            r->output->has_skip_special_tokens && !r->output->skip_special_tokens;
    }
    out.priority = r->has_priority ? r->priority : 0;
    out.caller = submit->tenant;
    out.cache_salt = hex_salt(&submit->cache_key, arena);
    if (!out.cache_salt)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cache_key: out of memory");
    if (submit->resume)
        rc = build_resume(submit->resume, arena, &out, err);
    if (!rc)
        *out_request = out;
    return rc;
}
