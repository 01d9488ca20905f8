#include "server/gateway/base/validate.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* Bounds of the protocol that no option changes. */
enum { MAX_CHOICES = 8, MAX_KEY_BYTES = 128, MAX_NAME_BYTES = 64, MAX_DRAFT_TOKENS = 16 };

static int unsupported(struct error *err, const char *field)
{
    error_set(err, STATUS_UNIMPLEMENTED, "%s: not supported", field);
    snprintf(err->field, sizeof(err->field), "%s", field);
    return error_reason(err, REASON_FIELD_NOT_BUILT);
}

static int check_length(const char *value, size_t limit, const char *field, struct error *err)
{
    size_t n = strlen(value);
    if (n <= limit)
        return 0;
    return error_field(err, field, "%zu bytes, limit %zu", n, limit);
}

/* Checks the range of a float parameter; NaN is in no range. */
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

/* Checks a count against a configurable limit. */
static int check_count(size_t n, uint64_t most, enum gateway_limit limit, const char *what,
                       const char *field, struct limit_check *check, struct error *err)
{
    if (n <= most)
        return 0;
    check->over = limit;
    return error_field(err, field, "%zu %s, limit %" PRIu64, n, what, most);
}

static int check_choices(const Sluice__V1__Sampling *s, struct limit_check *check,
                         struct error *err)
{
    const struct {
        bool given;
        uint32_t value;
        const char *field;
    } counts[] = {{s->has_n, s->n, "sampling.n"}, {s->has_best_of, s->best_of, "sampling.best_of"}};
    uint64_t most = check->limits->max_choices;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (!counts[i].given || (counts[i].value >= 1 && counts[i].value <= most))
            continue;
        check->over = counts[i].value ? LIMIT_CHOICES : LIMIT_NONE;
        return error_field(err, counts[i].field, "%" PRIu32 " is not in [1, %" PRIu64 "]",
                           counts[i].value, most);
    }
    if (s->has_best_of && s->best_of < (s->has_n ? s->n : 1))
        return error_field(err, "sampling.best_of", "%" PRIu32 " is below n (%" PRIu32 ")",
                           s->best_of, s->n);
    return 0;
}

static int check_biases(const Sluice__V1__Sampling *s, struct limit_check *check, struct error *err)
{
    int rc = check_count(s->n_logit_bias, check->limits->max_logit_bias, LIMIT_LOGIT_BIAS,
                         "entries", "sampling.logit_bias", check, err);
    for (size_t i = 0; !rc && i < s->n_logit_bias; i++) {
        char field[ERROR_FIELD_BYTES];
        snprintf(field, sizeof(field), "sampling.logit_bias[%zu].bias", i);
        rc = check_float(true, s->logit_bias[i]->bias, -100, false, 100, field, err);
    }
    return rc;
}

/* True if nothing is left of a bad word without its leading spaces. */
static bool is_only_spaces(const char *text)
{
    return text[strspn(text, " ")] == '\0';
}

static int check_bad_words(const Sluice__V1__Sampling *s, struct limit_check *check,
                           struct error *err)
{
    const struct gateway_limits *limits = check->limits;
    int rc = check_count(s->n_bad_words, limits->max_bad_words, LIMIT_BAD_WORDS, "texts",
                         "sampling.bad_words", check, err);
    for (size_t i = 0; !rc && i < s->n_bad_words; i++) {
        char field[ERROR_FIELD_BYTES];
        snprintf(field, sizeof(field), "sampling.bad_words[%zu]", i);
        if (is_only_spaces(s->bad_words[i]))
            return error_field(err, field, "has only spaces");
        rc = check_count(strlen(s->bad_words[i]), limits->max_bad_word_bytes, LIMIT_BAD_WORD_BYTES,
                         "bytes", field, check, err);
    }
    return rc;
}

static int check_floats(const Sluice__V1__Sampling *s, struct error *err)
{
    const struct {
        bool given;
        float value;
        double low, high;
        bool low_open;
        const char *field;
    } rows[] = {
        {s->has_temperature, s->temperature, 0, 100, false, "sampling.temperature"},
        {s->has_top_p, s->top_p, 0, 1, true, "sampling.top_p"},
        {s->has_min_p, s->min_p, 0, 1, false, "sampling.min_p"},
        {s->has_typical_p, s->typical_p, 0, 1, true, "sampling.typical_p"},
        {s->has_repetition_penalty, s->repetition_penalty, 0, 10, true,
         "sampling.repetition_penalty"},
        {s->has_presence_penalty, s->presence_penalty, -2, 2, false, "sampling.presence_penalty"},
        {s->has_frequency_penalty, s->frequency_penalty, -2, 2, false,
         "sampling.frequency_penalty"},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof(rows) / sizeof(rows[0]); i++)
        rc = check_float(rows[i].given, rows[i].value, rows[i].low, rows[i].low_open, rows[i].high,
                         rows[i].field, err);
    return rc;
}

static int validate_sampling(const Sluice__V1__Sampling *s, struct limit_check *check,
                             struct error *err)
{
    int rc = check_floats(s, err);
    if (!rc)
        rc = check_choices(s, check, err);
    if (rc)
        return rc;
    if (s->has_top_k && s->top_k > INT32_MAX)
        return error_field(err, "sampling.top_k", "%" PRIu32 " is over the limit of %d", s->top_k,
                           INT32_MAX);
    rc = check_biases(s, check, err);
    if (!rc)
        rc = check_count(s->n_allowed_token_ids, check->limits->max_allowed_ids, LIMIT_ALLOWED_IDS,
                         "ids", "sampling.allowed_token_ids", check, err);
    if (!rc)
        rc = check_bad_words(s, check, err);
    if (rc)
        return rc;
    if (s->has_do_sample && s->do_sample && s->has_temperature && s->temperature <= 0.0f)
        return error_field(err, "sampling.do_sample",
                           "true contradicts temperature 0, which is "
                           "greedy");
    return 0;
}

/* Checks the stop strings of a request or an update. */
static int check_stops(char *const *stop, size_t n, const char *field, struct limit_check *check,
                       struct error *err)
{
    const struct gateway_limits *limits = check->limits;
    int rc =
        check_count(n, limits->max_stop_strings, LIMIT_STOP_STRINGS, "strings", field, check, err);
    for (size_t i = 0; !rc && i < n; i++) {
        char name[ERROR_FIELD_BYTES];
        snprintf(name, sizeof(name), "%.40s[%zu]", field, i);
        if (!stop[i][0])
            return error_field(err, name, "is empty");
        rc = check_count(strlen(stop[i]), limits->max_stop_bytes, LIMIT_STOP_BYTES, "bytes", name,
                         check, err);
    }
    return rc;
}

static int check_max_tokens(uint32_t value, const char *field, struct error *err)
{
    if (value >= 1 && value <= INT32_MAX)
        return 0;
    return error_field(err, field, "%" PRIu32 " is not in [1, %d]", value, INT32_MAX);
}

static int validate_stopping(const Sluice__V1__Stopping *s, struct limit_check *check,
                             struct error *err)
{
    int rc = s->has_max_tokens ? check_max_tokens(s->max_tokens, "stopping.max_tokens", err) : 0;
    if (rc)
        return rc;
    if (s->has_min_tokens && s->min_tokens > INT32_MAX)
        return error_field(err, "stopping.min_tokens", "%" PRIu32 " is over the limit of %d",
                           s->min_tokens, INT32_MAX);
    if (s->has_min_tokens && s->has_max_tokens && s->min_tokens > s->max_tokens)
        return error_field(err, "stopping.min_tokens",
                           "%" PRIu32 " is over max_tokens (%" PRIu32 ")", s->min_tokens,
                           s->max_tokens);
    rc = check_stops(s->stop, s->n_stop, "stopping.stop", check, err);
    if (!rc)
        rc = check_count(s->n_stop_token_ids, check->limits->max_stop_ids, LIMIT_STOP_IDS, "ids",
                         "stopping.stop_token_ids", check, err);
    return rc;
}

int validate_update(const Sluice__V1__UpdateFrame *u, struct limit_check *check, struct error *err)
{
    int rc = u->has_max_tokens ? check_max_tokens(u->max_tokens, "update.max_tokens", err) : 0;
    if (!rc && u->has_priority && (u->priority < -100 || u->priority > 100))
        rc = error_field(err, "update.priority", "%" PRId32 " is not in [-100, 100]", u->priority);
    if (!rc && u->n_stop && !u->replace_stop)
        rc = error_field(err, "update.stop", "needs update.replace_stop");
    if (!rc)
        rc = check_stops(u->stop, u->n_stop, "update.stop", check, err);
    return rc;
}

static int validate_output(const Sluice__V1__Output *o, struct limit_check *check,
                           struct error *err)
{
    if (o->has_top_n && o->top_n > check->limits->max_top_n) {
        check->over = LIMIT_TOP_N;
        return error_field(err, "output.top_n", "%" PRIu32 " is over the limit of %" PRIu64,
                           o->top_n, check->limits->max_top_n);
    }
    if (o->has_top_n && o->top_n && !o->logprobs && !o->prompt_logprobs)
        return error_field(err, "output.top_n", "needs output.logprobs or output.prompt_logprobs");
    if (o->has_truncate && (o->truncate < 1 || o->truncate > INT32_MAX))
        return error_field(err, "output.truncate", "%" PRIu32 " is not in [1, %d]", o->truncate,
                           INT32_MAX);
    return 0;
}

static int check_chat(const Sluice__V1__Chat *chat, const char *field, struct limit_check *check,
                      struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    snprintf(name, sizeof(name), "%.40s.messages", field);
    if (!chat->n_messages)
        return error_field(err, name, "is empty");
    int rc = check_count(chat->n_messages, check->limits->max_messages, LIMIT_MESSAGES, "messages",
                         name, check, err);
    for (size_t i = 0; !rc && i < chat->n_messages; i++) {
        snprintf(name, sizeof(name), "%.40s.messages[%zu].role", field, i);
        if (!chat->messages[i]->role[0])
            return error_field(err, name, "is empty");
        rc = check_length(chat->messages[i]->role, MAX_KEY_BYTES, name, err);
    }
    snprintf(name, sizeof(name), "%.40s.template", field);
    if (!rc)
        rc = check_length(chat->template_, MAX_KEY_BYTES, name, err);
    snprintf(name, sizeof(name), "%.40s.continue_field", field);
    if (!rc)
        rc = check_length(chat->continue_field, MAX_KEY_BYTES, name, err);
    if (rc)
        return rc;
    snprintf(name, sizeof(name), "%.40s.tools_json", field);
    return check_count(chat->n_tools_json, check->limits->max_tools, LIMIT_TOOLS, "tools", name,
                       check, err);
}

static int check_model(const char *model, const char *version, struct error *err)
{
    if (!model[0])
        return error_field(err, "model", "is empty; name a served model (ListModels lists them)");
    int rc = check_length(model, MAX_NAME_BYTES, "model", err);
    return rc ? rc : check_length(version, MAX_NAME_BYTES, "version", err);
}

static int validate_prompt(const Sluice__V1__GenerateRequest *r, struct limit_check *check,
                           struct error *err)
{
    switch (r->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return 0;
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS:
        if (!r->token_ids->n_ids)
            return error_field(err, "token_ids.ids", "is empty");
        return 0;
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT:
        return check_chat(r->chat, "chat", check, err);
    default:
        return error_field(err, "prompt", "is missing; give text, token_ids or chat");
    }
}

/* A suffix goes with a text alone, and with the whole prompt. */
static int check_suffix(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    const Sluice__V1__Output *output = r->output;
    if (!r->suffix[0])
        return 0;
    if (r->prompt_case != SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT)
        return error_field(err, "suffix", "needs a prompt of kind text");
    if (output && output->return_full_text)
        return error_field(err, "output.return_full_text", "excludes suffix");
    if (output && output->has_truncate)
        return error_field(err, "output.truncate", "excludes suffix");
    return 0;
}

static int check_parse(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    if (!r->parse_special_tokens)
        return 0;
    if (r->prompt_case != SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT)
        return error_field(err, "parse_special_tokens", "needs a prompt of kind text");
    return r->suffix[0] ? error_field(err, "parse_special_tokens", "excludes suffix") : 0;
}

static int check_reasoning(const Sluice__V1__Output *output, struct error *err)
{
    if (output && output->split_reasoning && output->return_full_text)
        return error_field(err, "output.split_reasoning", "excludes return_full_text");
    return 0;
}

static int validate_unbuilt(const Sluice__V1__GenerateRequest *r, struct error *err)
{
    if (r->constraint)
        return unsupported(err, "constraint");
    if (r->adapter[0])
        return unsupported(err, "adapter");
    return 0;
}

static int validate_speculate(const Sluice__V1__Speculate *s, struct error *err)
{
    if ((unsigned)s->drafter > SLUICE__V1__DRAFTER__DRAFTER_MODEL)
        return error_field(err, "speculate.drafter", "%d is not a known drafter", (int)s->drafter);
    if (!s->has_max_draft_tokens)
        return 0;
    if (s->max_draft_tokens < 1 || s->max_draft_tokens > MAX_DRAFT_TOKENS)
        return error_field(err, "speculate.max_draft_tokens", "%" PRIu32 " is not in [1, %d]",
                           s->max_draft_tokens, MAX_DRAFT_TOKENS);
    if (s->drafter == SLUICE__V1__DRAFTER__DRAFTER_NONE)
        return error_field(err, "speculate.max_draft_tokens",
                           "%" PRIu32 " contradicts DRAFTER_NONE", s->max_draft_tokens);
    return 0;
}

static int check_reattach(const Sluice__V1__GenerateRequest *r, struct limit_check *check,
                          struct error *err)
{
    if (r->reattach_window_ms <= check->limits->max_reattach_ms)
        return 0;
    check->over = LIMIT_REATTACH;
    return error_field(err, "reattach_window_ms", "%" PRIu32 " is over the limit of %" PRIu64,
                       r->reattach_window_ms, check->limits->max_reattach_ms);
}

static int check_credit(bool given, uint32_t n_tokens, const char *field, struct error *err)
{
    if (!given || n_tokens <= INT32_MAX)
        return 0;
    return error_field(err, field, "%" PRIu32 " is over the limit of %d", n_tokens, INT32_MAX);
}

int validate_generate(const Sluice__V1__GenerateRequest *r, struct limit_check *check,
                      struct error *err)
{
    check->over = LIMIT_NONE;
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
    if (!rc && r->speculate)
        rc = validate_speculate(r->speculate, err);
    if (!rc)
        rc = check_reattach(r, check, err);
    if (!rc)
        rc = check_credit(r->has_credit_tokens, r->credit_tokens, "credit_tokens", err);
    if (!rc)
        rc = validate_prompt(r, check, err);
    if (!rc)
        rc = check_suffix(r, err);
    if (!rc)
        rc = check_parse(r, err);
    if (!rc)
        rc = check_reasoning(r->output, err);
    if (!rc && r->sampling)
        rc = validate_sampling(r->sampling, check, err);
    if (!rc && r->stopping)
        rc = validate_stopping(r->stopping, check, err);
    if (!rc && r->output)
        rc = validate_output(r->output, check, err);
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
        return 0; /* the vocabulary is unknown here; the worker checks the same */
    if (r->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS)
        for (size_t i = 0; !rc && i < r->token_ids->n_ids; i++)
            rc = check_id(r->token_ids->ids[i], info->vocab_size, "token_ids.ids", i, err);
    if (r->sampling)
        for (size_t i = 0; !rc && i < r->sampling->n_logit_bias; i++)
            rc = check_id(r->sampling->logit_bias[i]->token_id, info->vocab_size,
                          "sampling.logit_bias", i, err);
    if (r->sampling)
        for (size_t i = 0; !rc && i < r->sampling->n_allowed_token_ids; i++)
            rc = check_id(r->sampling->allowed_token_ids[i], info->vocab_size,
                          "sampling.allowed_token_ids", i, err);
    if (r->stopping)
        for (size_t i = 0; !rc && i < r->stopping->n_stop_token_ids; i++)
            rc = check_id(r->stopping->stop_token_ids[i], info->vocab_size,
                          "stopping.stop_token_ids", i, err);
    return rc;
}

int validate_tokenize(const Sluice__V1__TokenizeRequest *r, struct limit_check *check,
                      struct error *err)
{
    check->over = LIMIT_NONE;
    int rc = check_model(r->model, r->version, err);
    if (rc)
        return rc;
    if (r->input_case == SLUICE__V1__TOKENIZE_REQUEST__INPUT_CHAT)
        return check_chat(r->chat, "chat", check, err);
    if (r->input_case == SLUICE__V1__TOKENIZE_REQUEST__INPUT__NOT_SET)
        return error_field(err, "input", "is missing; give text or chat");
    return 0;
}

int validate_apply_chat_template(const Sluice__V1__ApplyChatTemplateRequest *r,
                                 struct limit_check *check, struct error *err)
{
    check->over = LIMIT_NONE;
    int rc = check_model(r->model, r->version, err);
    if (rc)
        return rc;
    if (!r->chat)
        return error_field(err, "chat", "is missing");
    return check_chat(r->chat, "chat", check, err);
}

int validate_detokenize(const Sluice__V1__DetokenizeRequest *r, struct error *err)
{
    return check_model(r->model, r->version, err);
}

static int check_received(const Sluice__V1__ReattachFrame *r, struct error *err)
{
    if (r->n_received > MAX_CHOICES)
        return error_field(err, "reattach.received", "%zu entries, limit %d", r->n_received,
                           MAX_CHOICES);
    for (size_t i = 0; i < r->n_received; i++)
        for (size_t k = 0; k < i; k++) {
            char field[64];
            snprintf(field, sizeof(field), "reattach.received[%zu].choice", i);
            if (r->received[i]->choice == r->received[k]->choice)
                return error_field(err, field, "%" PRIu32 " is listed twice",
                                   r->received[i]->choice);
        }
    return 0;
}

int validate_frame(const Sluice__V1__GenerateStreamRequest *f, const char **out_id,
                   struct error *err)
{
    bool start = f->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_START;
    const char *id = f->request_id;
    if (!id[0] && start)
        id = f->start->request_id;
    *out_id = id;
    int rc = check_length(id, MAX_KEY_BYTES, "request_id", err);
    if (rc) {
        *out_id = "";
        return rc;
    }
    if (f->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME__NOT_SET)
        return error_field(err, "frame",
                           "is missing; give start, cancel, update, pause, resume, credit or "
                           "reattach");
    if (!id[0])
        return error_field(err, "request_id", "is empty");
    if (start && f->start->request_id[0] && strcmp(f->start->request_id, id) != 0)
        return error_field(err, "start.request_id",
                           "\"%s\" differs from the frame's request_id \"%s\"",
                           f->start->request_id, id);
    if (f->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_REATTACH)
        return check_received(f->reattach, err);
    if (f->frame_case != SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CREDIT)
        return 0;
    if (!f->credit->n_tokens)
        return error_field(err, "credit.n_tokens", "must be at least 1");
    return check_credit(true, f->credit->n_tokens, "credit.n_tokens", err);
}

int validate_cancel(const Sluice__V1__CancelRequest *r, struct error *err)
{
    if (!r->request_id[0])
        return error_field(err, "request_id", "is empty");
    return check_length(r->request_id, MAX_KEY_BYTES, "request_id", err);
}
