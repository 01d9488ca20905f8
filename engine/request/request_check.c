#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/request/request.h"

struct range {
    const char *field;
    double value, low, high;
    bool low_open; /* `low` itself is not allowed */
};

/* Field names are those of the protocol. NaN lies in no range. */
static int check_ranges(const struct engine_sampling *s, struct error *err)
{
    const struct range ranges[] = {
        {"sampling.temperature", (double)s->temperature, 0, 100, false},
        {"sampling.top_p", (double)s->top_p, 0, 1, true},
        {"sampling.min_p", (double)s->min_p, 0, 1, false},
        {"sampling.typical_p", (double)s->typical_p, 0, 1, true},
        {"sampling.repetition_penalty", (double)s->repetition_penalty, 0, 10, true},
        {"sampling.presence_penalty", (double)s->presence_penalty, -2, 2, false},
        {"sampling.frequency_penalty", (double)s->frequency_penalty, -2, 2, false},
        {"sampling.n", (double)s->n, 1, ENGINE_MAX_CHOICES, false},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        const struct range *r = &ranges[i];
        if (r->value >= r->low && r->value <= r->high && !(r->low_open && r->value == r->low))
            continue;
        return error_field(err, r->field, "%g is not in %s%g, %g]", r->value,
                           r->low_open ? "(" : "[", r->low, r->high);
    }
    return 0;
}

static int check_id(const char *field, uint32_t i, const char *member, uint32_t id,
                    const struct request_limits *limits, struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    if (id < limits->vocab_size)
        return 0;
    snprintf(name, sizeof(name), "%.60s[%u]%.16s", field, i, member);
    return error_field(err, name, "%u is not a token id: the vocabulary has %u tokens", id,
                       limits->vocab_size);
}

static int check_ids(const char *field, const uint32_t *ids, uint32_t n,
                     const struct request_limits *limits, struct error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        int rc = check_id(field, i, "", ids[i], limits, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int check_biases(const struct engine_sampling *s, const struct request_limits *limits,
                        struct error *err)
{
    if (s->n_logit_bias > REQUEST_MAX_LOGIT_BIAS)
        return error_field(err, "sampling.logit_bias", "%u entries given; at most %d are allowed",
                           s->n_logit_bias, REQUEST_MAX_LOGIT_BIAS);
    for (uint32_t i = 0; i < s->n_logit_bias; i++) {
        char name[ERROR_FIELD_BYTES];
        const struct sample_bias *b = &s->logit_bias[i];
        int rc = check_id("sampling.logit_bias", i, ".token_id", b->id, limits, err);
        if (rc)
            return rc;
        if (!(b->value >= -100.0f && b->value <= 100.0f) && b->value != -INFINITY) {
            snprintf(name, sizeof(name), "sampling.logit_bias[%u].bias", i);
            return error_field(err, name, "%g is not in [-100, 100]", (double)b->value);
        }
        for (uint32_t j = 0; j < i; j++)
            if (s->logit_bias[j].id == b->id) {
                snprintf(name, sizeof(name), "sampling.logit_bias[%u].token_id", i);
                return error_field(err, name, "token %u is listed twice (also in entry %u)", b->id,
                                   j);
            }
    }
    return 0;
}

static bool is_suppressed(uint32_t id, const struct request_limits *limits)
{
    for (uint32_t i = 0; i < limits->n_suppressed_ids; i++)
        if (limits->suppressed_ids[i] == id)
            return true;
    return false;
}

static int check_allowed(const struct engine_sampling *s, const struct request_limits *limits,
                         struct error *err)
{
    if (s->n_allowed_ids > REQUEST_MAX_ALLOWED_IDS)
        return error_field(err, "sampling.allowed_token_ids",
                           "%u ids given; at most %d are allowed", s->n_allowed_ids,
                           REQUEST_MAX_ALLOWED_IDS);
    int rc = check_ids("sampling.allowed_token_ids", s->allowed_ids, s->n_allowed_ids, limits, err);
    if (rc || !s->n_allowed_ids)
        return rc;
    for (uint32_t i = 0; i < s->n_allowed_ids; i++)
        if (!is_suppressed(s->allowed_ids[i], limits))
            return 0;
    return error_field(err, "sampling.allowed_token_ids",
                       "the model's suppress_tokens have all %u ids; load the version with "
                       "default_sampling \"none\" to draw them",
                       s->n_allowed_ids);
}

static int check_bad_words(const struct engine_sampling *s, const struct request_limits *limits,
                           struct error *err)
{
    if (s->n_bad_words > ENGINE_MAX_BAD_WORDS)
        return error_field(err, "sampling.bad_words",
                           "%u token sequences given; at most %d are allowed", s->n_bad_words,
                           ENGINE_MAX_BAD_WORDS);
    for (uint32_t i = 0; i < s->n_bad_words; i++) {
        char name[ERROR_FIELD_BYTES];
        const struct engine_bad_word *word = &s->bad_words[i];
        snprintf(name, sizeof(name), "sampling.bad_words[%u]", word->i_text);
        if (!word->n_ids)
            return error_field(err, name, "the text has no tokens");
        if (word->n_ids > ENGINE_MAX_BAD_WORD_IDS)
            return error_field(err, name, "%u tokens; at most %d are allowed", word->n_ids,
                               ENGINE_MAX_BAD_WORD_IDS);
        int rc = check_ids(name, word->ids, word->n_ids, limits, err);
        if (rc)
            return rc;
    }
    return 0;
}

int request_check_stops(const char *field, const char *const *stop, uint32_t n_stop,
                        struct error *err)
{
    if (n_stop > ENGINE_MAX_STOP_STRINGS)
        return error_field(err, field, "%u stop strings given; at most %d are allowed", n_stop,
                           ENGINE_MAX_STOP_STRINGS);
    for (uint32_t i = 0; i < n_stop; i++) {
        char name[ERROR_FIELD_BYTES];
        size_t n = stop[i] ? strlen(stop[i]) : 0, offset;
        snprintf(name, sizeof(name), "%.60s[%u]", field, i);
        if (!n)
            return error_field(err, name, "must not be empty");
        if (n > ENGINE_MAX_STOP_BYTES)
            return error_field(err, name, "%zu bytes; at most %d are allowed", n,
                               ENGINE_MAX_STOP_BYTES);
        if (!utf8_valid(stop[i], n, &offset))
            return error_field(err, name, "not UTF-8 at byte %zu", offset);
    }
    return 0;
}

static int check_stopping(const struct engine_stopping *s, const struct request_limits *limits,
                          struct error *err)
{
    int rc = request_check_stops("stopping.stop", s->stop, s->n_stop, err);
    if (rc)
        return rc;
    if (!s->max_tokens)
        return error_field(err, "stopping.max_tokens", "must be at least 1");
    if (s->min_tokens > s->max_tokens)
        return error_field(err, "stopping.min_tokens", "%u is more than max_tokens (%u)",
                           s->min_tokens, s->max_tokens);
    if (s->n_stop_token_ids > REQUEST_MAX_STOP_IDS)
        return error_field(err, "stopping.stop_token_ids", "%u ids given; at most %d are allowed",
                           s->n_stop_token_ids, REQUEST_MAX_STOP_IDS);
    return check_ids("stopping.stop_token_ids", s->stop_token_ids, s->n_stop_token_ids, limits,
                     err);
}

static int check_speculate(const struct engine_speculate *s, const struct request_limits *limits,
                           struct error *err)
{
    if (s->drafter > ENGINE_DRAFTER_MODEL)
        return error_field(err, "speculate.drafter", "%d is not a drafter", (int)s->drafter);
    if (s->drafter == ENGINE_DRAFTER_MODEL && !limits->has_draft_model) {
        error_field(err, "speculate.drafter", "the model was loaded without a draft model");
        err->status = STATUS_FAILED_PRECONDITION;
        return error_reason(err, REASON_NO_DRAFT_MODEL);
    }
    if (s->max_draft_tokens > ENGINE_MAX_DRAFT_TOKENS)
        return error_field(err, "speculate.max_draft_tokens", "%u is more than %d",
                           s->max_draft_tokens, ENGINE_MAX_DRAFT_TOKENS);
    if (s->drafter == ENGINE_DRAFTER_NONE && s->max_draft_tokens)
        return error_field(err, "speculate.max_draft_tokens",
                           "%u needs a drafter, but the drafter is NONE", s->max_draft_tokens);
    return 0;
}

/* Checks the operator's limits, which may be below the context. */
static int check_totals(const struct engine_request *req, const struct request_limits *limits,
                        struct error *err)
{
    uint32_t n = req->n_prompt_ids, most = limits->max_total_tokens;
    if (limits->max_input_tokens && n > limits->max_input_tokens) {
        error_field(err, "prompt",
                    "%u tokens exceed max_input_tokens: for prompts the maximum context length is "
                    "%u tokens",
                    n, limits->max_input_tokens);
        return error_reason(err, REASON_INPUT_TOO_LONG);
    }
    if (!most)
        return 0;
    if (n >= most)
        error_field(err, "prompt",
                    "%u tokens leave no room to generate: by max_total_tokens the maximum context "
                    "length is %u tokens, prompt and answer together",
                    n, most);
    else if (req->stopping.max_tokens != UINT32_MAX && req->stopping.max_tokens > most - n)
        error_field(err, "stopping.max_tokens",
                    "%u plus the prompt's %u tokens exceed max_total_tokens (%u)",
                    req->stopping.max_tokens, n, most);
    else
        return 0;
    return error_reason(err, REASON_TOTAL_TOO_LONG);
}

static int check_prompt(const struct engine_request *req, const struct request_limits *limits,
                        struct error *err)
{
    if (!req->n_prompt_ids)
        return error_field(err, "prompt", "empty: at least one token is needed");
    int rc = req->resume ? 0 : check_totals(req, limits, err);
    if (rc)
        return rc;
    if (req->n_prompt_ids >= limits->context_tokens) {
        error_field(err, "prompt",
                    "%u tokens leave no room to generate: this model's maximum context length is "
                    "%u tokens",
                    req->n_prompt_ids, limits->context_tokens);
        return error_reason(err, REASON_CONTEXT_TOO_LONG);
    }
    return check_ids("prompt.token_ids", req->prompt_ids, req->n_prompt_ids, limits, err);
}

/* Checks the ids of a resume. They may exceed max_tokens: an update may have
 * lowered max_tokens meanwhile. */
static int check_resume(const struct engine_request *req, const struct request_limits *limits,
                        struct error *err)
{
    uint32_t most = limits->context_tokens - req->n_prompt_ids;
    for (uint32_t i = 0; req->resume && i < req->sampling.n; i++) {
        char name[ERROR_FIELD_BYTES];
        const struct engine_resume *resume = &req->resume[i];
        snprintf(name, sizeof(name), "resume[%u].generated_ids", i);
        if (resume->n_ids > most)
            return error_field(err, name, "%u ids given; at most %u tokens can follow the prompt",
                               resume->n_ids, most);
        int rc = check_ids(name, resume->ids, resume->n_ids, limits, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int check_text(const char *field, const char *text, size_t limit, struct error *err)
{
    size_t n = text ? strlen(text) : 0;
    if (n > limit)
        return error_field(err, field, "%zu bytes; at most %zu are allowed", n, limit);
    return 0;
}

int request_check(const struct engine_request *req, const struct request_limits *limits,
                  struct error *err)
{
    int rc = check_ranges(&req->sampling, err);
    if (rc || (rc = check_stopping(&req->stopping, limits, err)) ||
        (rc = check_speculate(&req->speculate, limits, err)) ||
        (rc = check_biases(&req->sampling, limits, err)) ||
        (rc = check_allowed(&req->sampling, limits, err)) ||
        (rc = check_bad_words(&req->sampling, limits, err)) ||
        (rc = check_text("cache_salt", req->cache_salt, REQUEST_MAX_SALT_BYTES, err)) ||
        (rc = check_text("caller", req->caller, REQUEST_MAX_CALLER_BYTES, err)) ||
        (rc = check_prompt(req, limits, err)) || (rc = check_resume(req, limits, err)))
        return rc;
    if (limits->n_running_states && req->sampling.n > limits->n_running_states)
        return error_field(err, "sampling.n",
                           "%u choices need %u state slots of %llu bytes; the server has %u for "
                           "sequences; lower n, or load the model with more state_slots",
                           req->sampling.n, req->sampling.n,
                           (unsigned long long)limits->state_bytes, limits->n_running_states);
    if (req->sampling.n > limits->max_concurrent)
        return error_field(err, "sampling.n", "%u choices exceed the %u sequences that run at once",
                           req->sampling.n, limits->max_concurrent);
    if (req->n_top_logprobs > SAMPLE_MAX_TOP)
        return error_field(err, "output.top_n", "%u is more than %d", req->n_top_logprobs,
                           SAMPLE_MAX_TOP);
    if (req->n_top_logprobs && !req->want_logprobs && !req->want_prompt_logprobs)
        return error_field(err, "output.top_n",
                           "%u requires output.logprobs or output.prompt_logprobs",
                           req->n_top_logprobs);
    if (req->n_prompt_logprobs_known > req->n_prompt_ids)
        return error_field(err, "resume.n_prompt_logprobs",
                           "%u is more than the prompt's %u tokens", req->n_prompt_logprobs_known,
                           req->n_prompt_ids);
    if (req->priority < -REQUEST_MAX_PRIORITY || req->priority > REQUEST_MAX_PRIORITY)
        return error_field(err, "priority", "%d is not in [-%d, %d]", req->priority,
                           REQUEST_MAX_PRIORITY, REQUEST_MAX_PRIORITY);
    if (req->deadline_ns < 0)
        return error_field(err, "deadline", "%lld ns is negative", (long long)req->deadline_ns);
    return 0;
}
