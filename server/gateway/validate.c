#include "server/gateway/validate.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* DESIGN section 9. */
enum {
    MAX_CHOICES = 8,
    MAX_STOP_STRINGS = 4,
    MAX_STOP_BYTES = 256,
    MAX_STOP_IDS = 64,
    MAX_TOP_N = 20,
    MAX_LOGIT_BIAS = 1024,
    MAX_KEY_BYTES = 128,
    MAX_NAME_BYTES = 64,
    MAX_MESSAGES = 4096,
    MAX_TOOLS = 128,
};

static int unimplemented(struct error *err, const char *field)
{
    error_set(err, STATUS_UNIMPLEMENTED, "%s: not built yet", field);
    snprintf(err->field, sizeof(err->field), "%s", field);
    return error_reason(err, "FIELD_NOT_BUILT");
}

static int check_length(const char *value, size_t limit, const char *field, struct error *err)
{
    size_t n = strlen(value);
    if (n <= limit)
        return 0;
    return error_field(err, field, "%zu bytes, limit %zu", n, limit);
}

/* Bounds of a float parameter; NaN is in no range. */
static int check_float(bool given, float value, double low, bool low_open, double high,
                       const char *field, struct error *err)
{
    if (!given)
        return 0;
    double v = (double)value;
    bool above = low_open ? v > low : v >= low;
    if (above && v <= high)
        return 0;
    return error_field(err, field, "%g is not in %c%g, %g]", v, low_open ? '(' : '[', low, high);
}

static int validate_sampling(const Sluice__V1__Sampling *s, struct error *err)
{
    int rc = 0;
    if (!rc)
        rc = check_float(s->has_temperature, s->temperature, 0, false, 100, "sampling.temperature",
                         err);
    if (!rc)
        rc = check_float(s->has_top_p, s->top_p, 0, true, 1, "sampling.top_p", err);
    if (!rc)
        rc = check_float(s->has_min_p, s->min_p, 0, false, 1, "sampling.min_p", err);
    if (!rc)
        rc = check_float(s->has_typical_p, s->typical_p, 0, true, 1, "sampling.typical_p", err);
    if (!rc)
        rc = check_float(s->has_repetition_penalty, s->repetition_penalty, 0, true, 10,
                         "sampling.repetition_penalty", err);
    if (!rc)
        rc = check_float(s->has_presence_penalty, s->presence_penalty, -2, false, 2,
                         "sampling.presence_penalty", err);
    if (!rc)
        rc = check_float(s->has_frequency_penalty, s->frequency_penalty, -2, false, 2,
                         "sampling.frequency_penalty", err);
    if (rc)
        return rc;
    if (s->has_n && (s->n < 1 || s->n > MAX_CHOICES))
        return error_field(err, "sampling.n", "%" PRIu32 " is not in [1, %d]", s->n, MAX_CHOICES);
    if (s->has_top_k && s->top_k > INT32_MAX)
        return error_field(err, "sampling.top_k", "%" PRIu32 " is over the limit of %d", s->top_k,
                           INT32_MAX);
    if (s->n_logit_bias > MAX_LOGIT_BIAS)
        return error_field(err, "sampling.logit_bias", "%zu entries, limit %d", s->n_logit_bias,
                           MAX_LOGIT_BIAS);
    for (size_t i = 0; i < s->n_logit_bias; i++) {
        char field[64];
        snprintf(field, sizeof(field), "sampling.logit_bias[%zu].bias", i);
        rc = check_float(true, s->logit_bias[i]->bias, -100, false, 100, field, err);
        if (rc)
            return rc;
    }
    if (s->has_best_of)
        return unimplemented(err, "sampling.best_of");
    if (s->n_allowed_token_ids)
        return unimplemented(err, "sampling.allowed_token_ids");
    if (s->n_bad_words)
        return unimplemented(err, "sampling.bad_words");
    if (s->has_do_sample)
        return unimplemented(err, "sampling.do_sample");
    if (s->watermark)
        return unimplemented(err, "sampling.watermark");
    return 0;
}

static int validate_stopping(const Sluice__V1__Stopping *s, struct error *err)
{
    if (s->has_max_tokens && (s->max_tokens < 1 || s->max_tokens > INT32_MAX))
        return error_field(err, "stopping.max_tokens", "%" PRIu32 " is not in [1, %d]",
                           s->max_tokens, INT32_MAX);
    if (s->has_min_tokens && s->has_max_tokens && s->min_tokens > s->max_tokens)
        return error_field(err, "stopping.min_tokens",
                           "%" PRIu32 " is over max_tokens (%" PRIu32 ")", s->min_tokens,
                           s->max_tokens);
    if (s->n_stop > MAX_STOP_STRINGS)
        return error_field(err, "stopping.stop", "%zu strings, limit %d", s->n_stop,
                           MAX_STOP_STRINGS);
    for (size_t i = 0; i < s->n_stop; i++) {
        char field[64];
        snprintf(field, sizeof(field), "stopping.stop[%zu]", i);
        if (!s->stop[i][0])
            return error_field(err, field, "is empty");
        int rc = check_length(s->stop[i], MAX_STOP_BYTES, field, err);
        if (rc)
            return rc;
    }
    if (s->n_stop_token_ids > MAX_STOP_IDS)
        return error_field(err, "stopping.stop_token_ids", "%zu ids, limit %d", s->n_stop_token_ids,
                           MAX_STOP_IDS);
    return 0;
}

static int validate_output(const Sluice__V1__Output *o, struct error *err)
{
    if (o->has_top_n && o->top_n > MAX_TOP_N)
        return error_field(err, "output.top_n", "%" PRIu32 " is over the limit of %d", o->top_n,
                           MAX_TOP_N);
    if (o->has_top_n && o->top_n && !o->logprobs)
        return error_field(err, "output.top_n", "needs output.logprobs");
    if (o->prompt_logprobs)
        return unimplemented(err, "output.prompt_logprobs");
    if (o->return_full_text)
        return unimplemented(err, "output.return_full_text");
    if (o->has_truncate)
        return unimplemented(err, "output.truncate");
    return 0;
}

int validate_chat(const Sluice__V1__Chat *chat, const char *field, struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    if (chat->n_messages < 1 || chat->n_messages > MAX_MESSAGES) {
        snprintf(name, sizeof(name), "%s.messages", field);
        return error_field(err, name, "%zu messages, want 1 to %d", chat->n_messages, MAX_MESSAGES);
    }
    for (size_t i = 0; i < chat->n_messages; i++) {
        snprintf(name, sizeof(name), "%s.messages[%zu].role", field, i);
        if (!chat->messages[i]->role[0])
            return error_field(err, name, "is empty");
        int rc = check_length(chat->messages[i]->role, MAX_KEY_BYTES, name, err);
        if (rc)
            return rc;
    }
    if (chat->n_tools_json > MAX_TOOLS) {
        snprintf(name, sizeof(name), "%s.tools_json", field);
        return error_field(err, name, "%zu tools, limit %d", chat->n_tools_json, MAX_TOOLS);
    }
    return 0;
}

static int check_model(const char *model, const char *version, struct error *err)
{
    if (!model[0])
        return error_field(err, "model", "is empty; name a served model (ListModels tells which)");
    int rc = check_length(model, MAX_NAME_BYTES, "model", err);
    return rc ? rc : check_length(version, MAX_NAME_BYTES, "version", err);
}

static int validate_prompt(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    switch (r->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return 0;
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS:
        if (!r->token_ids->n_ids)
            return error_field(err, "token_ids.ids", "is empty");
        return 0;
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT:
        return validate_chat(r->chat, "chat", err);
    default:
        return error_field(err, "prompt", "is missing; give text, token_ids or chat");
    }
}

static int validate_unbuilt(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    if (r->constraint)
        return unimplemented(err, "constraint");
    if (r->adapter[0])
        return unimplemented(err, "adapter");
    if (r->speculate && r->speculate->drafter != SLUICE__V1__DRAFTER__DRAFTER_UNSPECIFIED &&
        r->speculate->drafter != SLUICE__V1__DRAFTER__DRAFTER_NONE)
        return unimplemented(err, "speculate.drafter");
    if (r->speculate && r->speculate->has_max_draft_tokens)
        return unimplemented(err, "speculate.max_draft_tokens");
    if (r->reattach_window_ms)
        return unimplemented(err, "reattach_window_ms");
    return 0;
}

int validate_generate(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    int rc = check_model(r->model, r->version, err);
    if (!rc)
        rc = check_length(r->request_id, MAX_KEY_BYTES, "request_id", err);
    if (!rc)
        rc = check_length(r->session_key, MAX_KEY_BYTES, "session_key", err);
    if (!rc)
        rc = check_length(r->cache_salt, MAX_KEY_BYTES, "cache_salt", err);
    if (!rc && r->has_priority && (r->priority < -100 || r->priority > 100))
        rc = error_field(err, "priority", "%" PRId32 " is not in [-100, 100]", r->priority);
    if (!rc)
        rc = validate_unbuilt(r, err);
    if (!rc)
        rc = validate_prompt(r, err);
    if (!rc && r->sampling)
        rc = validate_sampling(r->sampling, err);
    if (!rc && r->stopping)
        rc = validate_stopping(r->stopping, err);
    if (!rc && r->output)
        rc = validate_output(r->output, err);
    return rc;
}

static int check_id(uint32_t id, uint32_t vocab_size, const char *field, size_t i,
                    struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    if (id < vocab_size)
        return 0;
    snprintf(name, sizeof(name), "%s[%zu]", field, i);
    return error_field(err, name, "%" PRIu32 " is not below the vocabulary size %" PRIu32, id,
                       vocab_size);
}

int validate_for_model(const Sluice__V1__GenerateRequest *r, const Sluice__V1__ModelInfo *info,
                       struct error *err)
{
    int rc = 0;
    if (!info || !info->vocab_size)
        return 0; /* not known here; the worker checks the same */
    if (r->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS)
        for (size_t i = 0; !rc && i < r->token_ids->n_ids; i++)
            rc = check_id(r->token_ids->ids[i], info->vocab_size, "token_ids.ids", i, err);
    if (r->sampling)
        for (size_t i = 0; !rc && i < r->sampling->n_logit_bias; i++)
            rc = check_id(r->sampling->logit_bias[i]->token_id, info->vocab_size,
                          "sampling.logit_bias", i, err);
    if (r->stopping)
        for (size_t i = 0; !rc && i < r->stopping->n_stop_token_ids; i++)
            rc = check_id(r->stopping->stop_token_ids[i], info->vocab_size,
                          "stopping.stop_token_ids", i, err);
    return rc;
}

int validate_tokenize(const Sluice__V1__TokenizeRequest *r, struct error *err)
{
    int rc = check_model(r->model, r->version, err);
    if (rc)
        return rc;
    if (r->input_case == SLUICE__V1__TOKENIZE_REQUEST__INPUT_CHAT)
        return validate_chat(r->chat, "chat", err);
    if (r->input_case == SLUICE__V1__TOKENIZE_REQUEST__INPUT__NOT_SET)
        return error_field(err, "input", "is missing; give text or chat");
    return 0;
}

int validate_detokenize(const Sluice__V1__DetokenizeRequest *r, struct error *err)
{
    return check_model(r->model, r->version, err);
}

int validate_cancel(const Sluice__V1__CancelRequest *r, struct error *err)
{
    if (!r->request_id[0])
        return error_field(err, "request_id", "is empty");
    return check_length(r->request_id, MAX_KEY_BYTES, "request_id", err);
}

uint32_t request_n_choices(const Sluice__V1__GenerateRequest *r)
{
    return r->sampling && r->sampling->has_n ? r->sampling->n : 1;
}
