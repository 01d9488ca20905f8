#include "server/worker/serve/request_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/engine.h"
#include "server/worker/base/prompt.h"
#include "server/worker/state/worker.h"

static int unsupported(struct error *err, const char *field)
{
    error_set(err, STATUS_UNIMPLEMENTED, "%s: not supported", field);
    snprintf(err->field, sizeof(err->field), "%s", field);
    return err->status;
}

int request_build_check(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    const struct {
        bool given;
        const char *field;
    } fields[] = {
        {r->constraint != NULL, "constraint"},
        {r->adapter[0] != '\0', "adapter"},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].given)
            return unsupported(err, fields[i].field);
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
    struct prompt_guard guard = {0};
    int rc = prompt_render_chat(worker->templates, &worker->template_limits, tok, chat, "chat",
                                submit->template_time_unix_ns / NS_PER_S, &text, &guard, err);
    if (!rc)
        rc = prompt_encode_rendered(tok, &text, &guard, ids, err);
    prompt_guard_fini(&guard);
    strbuf_fini(&text);
    return rc;
}

static int whole_prompt(struct worker *worker, const struct tokenizer *tok,
                        const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                        struct error *err)
{
    const Sluice__V1__GenerateRequest *r = submit->request;
    switch (r->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS:
        return add_ids(r->token_ids->ids, r->token_ids->n_ids, ids, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return r->suffix[0]
                   ? prompt_encode_gap(tok, r->text, r->suffix, ids, err)
                   : prompt_encode_text(tok, r->text, true, r->parse_special_tokens, ids, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT:
        return chat_prompt(worker, tok, submit, ids, err);
    default:
        return error_field(err, "prompt", "is missing; give text, token_ids or chat");
    }
}

int request_build_prompt(struct worker *worker, struct engine *engine,
                         const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                         uint32_t *out_n_truncated, struct error *err)
{
    const Sluice__V1__Output *output = submit->request->output;
    *out_n_truncated = 0;
    /* The earlier run has already cut the prompt. */
    if (submit->resume && submit->resume->n_prompt_token_ids)
        return add_ids(submit->resume->prompt_token_ids, submit->resume->n_prompt_token_ids, ids,
                       err);
    int rc = whole_prompt(worker, engine_tokenizer(engine), submit, ids, err);
    if (rc || !output || !output->has_truncate || ids->n_ids <= output->truncate)
        return rc;
    if (!output->truncate)
        return error_field(err, "output.truncate", "must be at least 1");
    size_t n_cut = ids->n_ids - output->truncate;
    memmove(ids->ids, ids->ids + n_cut, output->truncate * sizeof(*ids->ids));
    ids->n_ids = output->truncate;
    *out_n_truncated = (uint32_t)n_cut;
    return 0;
}

/* Encodes the text with and without a leading space, into the arena. */
static int encode_bad_word(const struct tokenizer *tok, const char *text, uint32_t i_text,
                           struct arena *arena, struct engine_bad_word out[2], struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    size_t n_bytes = strlen(text);
    char *spaced = arena_alloc(arena, n_bytes + 2);
    struct token_list ids = {0};
    int rc = 0;
    if (!spaced)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "sampling.bad_words: out of memory");
    spaced[0] = ' ';
    memcpy(spaced + 1, text, n_bytes + 1);
    for (uint32_t i = 0; i < 2 && !rc; i++) {
        ids.n_ids = 0;
        size_t n_lost;
        rc = tokenizer_encode(tok, spaced + 1 - i, n_bytes + i, 0, &ids, &n_lost, err);
        snprintf(name, sizeof(name), "sampling.bad_words[%u]", i_text);
        if (!rc && n_lost)
            rc =
                error_field(err, name, "the model has no tokens for %zu bytes of the text", n_lost);
        if (rc)
            break;
        uint32_t *copy = arena_calloc(arena, ids.n_ids + 1, sizeof(*copy));
        if (!copy)
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "sampling.bad_words: out of memory");
        else if (ids.n_ids)
            memcpy(copy, ids.ids, ids.n_ids * sizeof(*copy));
        out[i] = (struct engine_bad_word){copy, (uint32_t)ids.n_ids, i_text};
    }
    if (rc && !strncmp(err->field, "text", 4)) {
        snprintf(err->field, sizeof(err->field), "%s", name);
        error_prefix(err, "%s", name);
    }
    token_list_fini(&ids);
    return rc;
}

static int build_bad_words(const Sluice__V1__Sampling *s, const struct tokenizer *tok,
                           struct arena *arena, struct engine_sampling *out, struct error *err)
{
    if (s->n_bad_words > ENGINE_MAX_BAD_WORDS / 2)
        return error_field(err, "sampling.bad_words", "%zu texts exceed the limit of %d",
                           s->n_bad_words, ENGINE_MAX_BAD_WORDS / 2);
    struct engine_bad_word *words = arena_calloc(arena, 2 * s->n_bad_words, sizeof(*words));
    if (!words)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "sampling.bad_words: out of memory");
    for (size_t i = 0; i < s->n_bad_words; i++) {
        const char *text = s->bad_words[i] + strspn(s->bad_words[i], " ");
        int rc = encode_bad_word(tok, text, (uint32_t)i, arena, &words[2 * i], err);
        if (rc)
            return rc;
    }
    out->bad_words = words;
    out->n_bad_words = (uint32_t)(2 * s->n_bad_words);
    return 0;
}

static int build_biases(const Sluice__V1__Sampling *s, struct arena *arena,
                        struct engine_sampling *out, struct error *err)
{
    struct sample_bias *biases = arena_calloc(arena, s->n_logit_bias, sizeof(*biases));
    if (!biases || s->n_logit_bias > UINT32_MAX)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "sampling.logit_bias: out of memory");
    for (size_t i = 0; i < s->n_logit_bias; i++)
        biases[i] = (struct sample_bias){s->logit_bias[i]->token_id, s->logit_bias[i]->bias};
    out->logit_bias = biases;
    out->n_logit_bias = (uint32_t)s->n_logit_bias;
    return 0;
}

/* do_sample chooses between sampling and greedy; temperature sets the distribution. */
static int build_do_sample(const Sluice__V1__Sampling *s, struct engine_sampling *out,
                           struct error *err)
{
    if (!s->has_do_sample)
        return 0;
    if (s->do_sample && s->has_temperature && s->temperature == 0.0f)
        return error_field(err, "sampling.do_sample",
                           "true contradicts temperature 0 (greedy); leave either out");
    if (!s->do_sample)
        out->temperature = 0.0f;
    else if (out->temperature <= 0)
        out->temperature = 1.0f;
    return 0;
}

/* The version's values for fields that the request leaves out. */
static void take_defaults(const Sluice__V1__DefaultSampling *d, struct engine_sampling *out)
{
    if (d->has_temperature)
        out->temperature = d->temperature;
    if (d->has_top_k)
        out->top_k = d->top_k;
    if (d->has_top_p)
        out->top_p = d->top_p;
    if (d->has_min_p)
        out->min_p = d->min_p;
    if (d->has_typical_p)
        out->typical_p = d->typical_p;
    if (d->has_repetition_penalty)
        out->repetition_penalty = d->repetition_penalty;
}

static int build_sampling(const Sluice__V1__Sampling *s, const struct tokenizer *tok,
                          struct arena *arena, struct engine_sampling *out, struct error *err)
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
    if (s->has_best_of && s->best_of < out->n)
        return error_field(err, "sampling.best_of", "%u is below n (%u)", s->best_of, out->n);
    if (s->has_best_of)
        out->n = s->best_of;
    out->watermark = s->watermark;
    out->allowed_ids = s->allowed_token_ids;
    out->n_allowed_ids = (uint32_t)s->n_allowed_token_ids;
    int rc = build_do_sample(s, out, err);
    if (!rc && s->n_logit_bias)
        rc = build_biases(s, arena, out, err);
    if (!rc && s->n_bad_words)
        rc = build_bad_words(s, tok, arena, out, err);
    return rc;
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

static int build_speculate(const Sluice__V1__Speculate *s, struct engine_speculate *out,
                           struct error *err)
{
    static const enum engine_drafter drafters[] = {
        [SLUICE__V1__DRAFTER__DRAFTER_UNSPECIFIED] = ENGINE_DRAFTER_DEFAULT,
        [SLUICE__V1__DRAFTER__DRAFTER_NONE] = ENGINE_DRAFTER_NONE,
        [SLUICE__V1__DRAFTER__DRAFTER_NGRAM] = ENGINE_DRAFTER_NGRAM,
        [SLUICE__V1__DRAFTER__DRAFTER_MODEL] = ENGINE_DRAFTER_MODEL,
    };
    unsigned drafter = (unsigned)s->drafter;
    if (drafter >= sizeof(drafters) / sizeof(drafters[0]))
        return error_field(err, "speculate.drafter", "%d is not a known drafter", (int)s->drafter);
    if (s->has_max_draft_tokens && !s->max_draft_tokens)
        return error_field(err, "speculate.max_draft_tokens", "0 is not in [1, %d]",
                           ENGINE_MAX_DRAFT_TOKENS);
    out->drafter = drafters[drafter];
    out->max_draft_tokens = s->has_max_draft_tokens ? s->max_draft_tokens : 0;
    return 0;
}

static int build_resume(const Sluice__Worker__V1__ResumeState *state, struct arena *arena,
                        struct engine_request *out, struct error *err)
{
    uint32_t n = out->sampling.n;
    struct engine_resume *resume =
        n <= ENGINE_MAX_CHOICES ? arena_calloc(arena, n, sizeof(*resume)) : NULL;
    if (n > ENGINE_MAX_CHOICES)
        return 0; /* the engine refuses such an n with the field's name */
    if (!resume)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "resume: out of memory");
    for (size_t i = 0; i < state->n_choices; i++) {
        const Sluice__Worker__V1__ResumedChoice *c = state->choices[i];
        if (c->choice >= n)
            return error_field(err, "resume.choices",
                               "choice %u is not below the %u choices of the request", c->choice,
                               n);
        if (c->n_released > c->n_generated_ids || c->text_bytes_sent > UINT32_MAX)
            return error_field(err, "resume.choices", "more tokens are released than generated");
        resume[c->choice] = (struct engine_resume){.ids = c->generated_ids,
                                                   .n_ids = (uint32_t)c->n_generated_ids,
                                                   .n_text_bytes = (uint32_t)c->text_bytes_sent,
                                                   .finished = c->finished};
    }
    out->resume = resume;
    out->n_prompt_logprobs_known = state->n_prompt_logprobs;
    return 0;
}

/* Adds the tokens that end the text of a gap to the stop ids. */
static int build_gap_ends(const struct tokenizer_info *info, struct arena *arena,
                          struct engine_stopping *out, struct error *err)
{
    static const enum tokenizer_fim ends[] = {TOKENIZER_FIM_PADDING, TOKENIZER_FIM_REPOSITORY,
                                              TOKENIZER_FIM_SEPARATOR};
    enum { N_ENDS = sizeof(ends) / sizeof(ends[0]) };
    uint32_t *ids = arena_calloc(arena, out->n_stop_token_ids + N_ENDS, sizeof(*ids));
    if (!ids)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "suffix: out of memory");
    if (out->n_stop_token_ids)
        memcpy(ids, out->stop_token_ids, out->n_stop_token_ids * sizeof(*ids));
    out->stop_token_ids = ids;
    for (size_t i = 0; i < N_ENDS; i++)
        if (info->fim_ids[ends[i]] != TOKENIZER_NO_ID)
            ids[out->n_stop_token_ids++] = (uint32_t)info->fim_ids[ends[i]];
    return 0;
}

/* Encodes the key as hex: the engine's salt is a C string, the frame's key is bytes. */
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

/* The default of output.split_reasoning, and the place in a thought where the prompt ends. */
static void build_reasoning(const Sluice__Worker__V1__Submit *submit, struct engine_request *out)
{
    const Sluice__V1__GenerateRequest *r = submit->request;
    const Sluice__V1__Output *o = r->output;
    bool is_chat = r->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    bool splits =
        o && o->has_split_reasoning ? o->split_reasoning : is_chat && !(o && o->return_full_text);
    if (!submit->knows_kinds || !splits)
        return;
    out->reasoning = ENGINE_REASONING_SPLIT;
    if (!is_chat)
        return;
    if (r->chat->template_override[0])
        out->reasoning_template = r->chat->template_override;
    if (r->chat->continue_final_message)
        out->reasoning = strcmp(r->chat->continue_field, "reasoning_content") == 0
                             ? ENGINE_REASONING_THINKS
                             : ENGINE_REASONING_ANSWERS;
}

static void build_output(const Sluice__V1__Output *o, struct engine_request *out)
{
    out->want_logprobs = o->logprobs;
    out->want_prompt_logprobs = o->prompt_logprobs;
    out->n_top_logprobs = o->has_top_n ? o->top_n : 0;
    out->keep_special_tokens = o->has_skip_special_tokens && !o->skip_special_tokens;
    out->return_full_text = o->return_full_text;
}

int request_build(const Sluice__Worker__V1__Submit *submit, const struct tokenizer *tok,
                  struct arena *arena, struct engine_request *out_request, struct error *err)
{
    const Sluice__V1__GenerateRequest *r = submit->request;
    struct engine_request out;
    int rc = 0;
    engine_request_init(&out);
    if (submit->default_sampling)
        take_defaults(submit->default_sampling, &out.sampling);
    if (r->sampling)
        rc = build_sampling(r->sampling, tok, arena, &out.sampling, err);
    if (rc)
        return rc;
    out.sampling.seed = submit->seed;
    if (r->stopping)
        build_stopping(r->stopping, &out.stopping);
    if (r->suffix[0] && !out.stopping.ignore_eos)
        rc = build_gap_ends(tokenizer_info(tok), arena, &out.stopping, err);
    if (rc)
        return rc;
    if (r->output)
        build_output(r->output, &out);
    build_reasoning(submit, &out);
    if (r->sampling && r->sampling->has_best_of)
        out.want_logprobs = true; /* best_of compares their sum */
    if (r->speculate)
        rc = build_speculate(r->speculate, &out.speculate, err);
    if (rc)
        return rc;
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
