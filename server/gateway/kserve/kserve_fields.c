#include "server/gateway/kserve/kserve_fields.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "server/gateway/kserve/kserve_request.h"

enum {
    ANY = KSERVE_TENSOR | KSERVE_PARAMETER | KSERVE_JSON,
    NO_JSON = KSERVE_TENSOR | KSERVE_PARAMETER
};
enum { NUMBER_CHARS = 64 };

struct setter {
    struct kserve_request *request;
    const struct kserve_field *field;
    const char *label;
    const struct kserve_value *values;
    size_t n;
    struct error *err;
};

typedef int set_fn(struct setter *s);

struct kserve_field {
    const char *name;
    unsigned sources;
    const char *datatype; /* for metadata; NULL: not listed */
    const char *sluice;   /* field of GenerateRequest, or NULL */
    set_fn *set;
    size_t at, has;   /* offsets in struct kserve_request; see the set function */
    bool is_list;     /* any number of elements; false: exactly one element */
    unsigned outputs; /* set_output: bits of enum kserve_output */
};

/* --- conversion of a value --- */

static int bad(const struct setter *s, const char *rule)
{
    return error_field(s->err, s->label, "%s", rule);
}

static int not_built(const struct setter *s, const char *rule)
{
    error_field(s->err, s->label, "%s", rule);
    s->err->status = STATUS_UNIMPLEMENTED;
    return error_reason(s->err, REASON_NOT_BUILT);
}

static void *place(const struct setter *s, size_t offset)
{
    return (char *)s->request + offset;
}

static void mark(const struct setter *s)
{
    if (s->field->has)
        *(protobuf_c_boolean *)place(s, s->field->has) = true;
}

/* Copies a short text of a decimal number. False if the text is too long or has other characters:
 * strtod would take "0x1p3" and "-inf" too. */
static bool number_text(const struct kserve_value *v, char out[NUMBER_CHARS])
{
    if (!v->n_text || v->n_text >= NUMBER_CHARS)
        return false;
    memcpy(out, v->text, v->n_text);
    out[v->n_text] = '\0';
    return strspn(out, "0123456789+-.eE") == v->n_text;
}

static int to_double(const struct setter *s, const struct kserve_value *v, double *out)
{
    char text[NUMBER_CHARS], *end = text;
    if (v->kind == KSERVE_FLOAT)
        *out = v->f;
    else if (v->kind == KSERVE_INT)
        *out = (double)v->i;
    else if (v->kind == KSERVE_UINT)
        *out = (double)v->u;
    else if (v->kind == KSERVE_BYTES && number_text(v, text) &&
             (*out = strtod(text, &end), *end == '\0') && end != text)
        ;
    else
        return bad(s, "must be a number");
    return isfinite(*out) ? 0 : bad(s, "must be a finite number");
}

/* A whole number from -2^63 to 2^64-1: *out_u, or *out_i if *out_negative. */
static int to_whole(const struct setter *s, const struct kserve_value *v, bool *out_negative,
                    int64_t *out_i, uint64_t *out_u)
{
    static const char rule[] = "must be a whole number";
    char text[NUMBER_CHARS], *end = text;
    *out_negative = false;
    *out_i = 0;
    *out_u = 0;
    if (v->kind == KSERVE_UINT) {
        *out_u = v->u;
    } else if (v->kind == KSERVE_INT) {
        *out_negative = v->i < 0;
        *out_i = v->i;
        *out_u = (uint64_t)v->i;
    } else if (v->kind == KSERVE_FLOAT) {
        if (!(fabs(v->f) <= 9007199254740992.0) || v->f != floor(v->f))
            return bad(s, rule);
        *out_negative = v->f < 0;
        *out_i = (int64_t)v->f;
        *out_u = (uint64_t)*out_i;
    } else if (v->kind == KSERVE_BYTES && number_text(v, text)) {
        errno = 0;
        *out_negative = text[0] == '-';
        if (*out_negative)
            *out_i = strtoll(text, &end, 10);
        else
            *out_u = strtoull(text, &end, 10);
        if (*end || end == text || errno)
            return bad(s, rule);
        *out_negative = *out_i < 0;
    } else {
        return bad(s, rule);
    }
    return 0;
}

static int to_range(const struct setter *s, const struct kserve_value *v, uint64_t most,
                    uint64_t *out)
{
    bool negative = false;
    int64_t i = 0;
    int rc = to_whole(s, v, &negative, &i, out);
    if (rc || (!negative && *out <= most))
        return rc;
    return error_field(s->err, s->label, "must be a whole number from 0 to %" PRIu64, most);
}

static int to_bool(const struct setter *s, const struct kserve_value *v, bool *out)
{
    static const char *const words[] = {"false", "False", "0", "true", "True", "1"};
    if (v->kind == KSERVE_BOOL) {
        *out = v->is_true;
        return 0;
    }
    if ((v->kind == KSERVE_INT && (v->i == 0 || v->i == 1)) ||
        (v->kind == KSERVE_UINT && v->u <= 1)) {
        *out = v->kind == KSERVE_INT ? v->i == 1 : v->u == 1;
        return 0;
    }
    for (size_t i = 0; v->kind == KSERVE_BYTES && i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == v->n_text && memcmp(words[i], v->text, v->n_text) == 0) {
            *out = i >= 3;
            return 0;
        }
    return bad(s, "must be true or false");
}

static int to_text(const struct setter *s, const struct kserve_value *v, char **out)
{
    size_t at = 0;
    if (v->kind != KSERVE_BYTES)
        return bad(s, "must be a text");
    if (v->n_text && memchr(v->text, '\0', v->n_text))
        return bad(s, "must not have a NUL character");
    if (v->n_text && !utf8_valid(v->text, v->n_text, &at))
        return error_field(s->err, s->label, "byte %zu of the text is no UTF-8", at);
    *out = arena_strndup(&s->request->arena, v->n_text ? v->text : "", v->n_text);
    return *out ? 0 : error_no_memory(s->err);
}

/* --- fields of one value --- */

/* Clients render chat templates themselves, so literals of special tokens become these tokens. */
static int set_text(struct setter *s)
{
    s->request->generate.parse_special_tokens = true;
    s->request->generate.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    return to_text(s, s->values, &s->request->generate.text);
}

static int set_sampling_text(struct setter *s)
{
    if (s->values->kind != KSERVE_BYTES)
        return bad(s, "must be the text of a JSON object");
    s->request->sampling_text = s->values->n_text ? s->values->text : "";
    s->request->n_sampling_text = s->values->n_text;
    return 0;
}

static int set_float(struct setter *s)
{
    double value = 0;
    int rc = to_double(s, s->values, &value);
    if (rc)
        return rc;
    *(float *)place(s, s->field->at) = (float)value;
    mark(s);
    return 0;
}

static int set_u32(struct setter *s)
{
    uint64_t value = 0;
    int rc = to_range(s, s->values, UINT32_MAX, &value);
    if (rc)
        return rc;
    *(uint32_t *)place(s, s->field->at) = (uint32_t)value;
    mark(s);
    return 0;
}

/* -1, like 0, means that the limit is off. */
static int set_top_k(struct setter *s)
{
    bool negative = false;
    int64_t i = 0;
    uint64_t u = 0;
    int rc = to_whole(s, s->values, &negative, &i, &u);
    if (rc)
        return rc;
    if (negative ? i != -1 : u > UINT32_MAX)
        return error_field(s->err, s->label, "must be a whole number from -1 to %" PRIu32,
                           UINT32_MAX);
    s->request->sampling.top_k = negative ? 0 : (uint32_t)u;
    mark(s);
    return 0;
}

static int set_seed(struct setter *s)
{
    bool negative = false;
    int64_t i = 0;
    uint64_t u = 0;
    int rc = to_whole(s, s->values, &negative, &i, &u);
    if (rc)
        return rc;
    s->request->sampling.seed = negative ? (uint64_t)i : u;
    mark(s);
    return 0;
}

static int set_timeout(struct setter *s)
{
    return to_range(s, s->values, INT64_MAX / 1000, &s->request->timeout_us);
}

static int set_bool(struct setter *s)
{
    bool value = false;
    int rc = to_bool(s, s->values, &value);
    if (rc)
        return rc;
    *(protobuf_c_boolean *)place(s, s->field->at) = value;
    mark(s);
    return 0;
}

/* A member of type bool. */
static int set_flag(struct setter *s)
{
    bool value = false;
    int rc = to_bool(s, s->values, &value);
    if (rc)
        return rc;
    *(bool *)place(s, s->field->at) = value;
    if (s->field->has)
        *(bool *)place(s, s->field->has) = true;
    return 0;
}

static int set_output(struct setter *s)
{
    bool value = false;
    int rc = to_bool(s, s->values, &value);
    if (!rc && value)
        s->request->outputs |= s->field->outputs;
    return rc;
}

/* The number of alternatives; 0: the log-probability of the token alone. */
static int set_logprobs(struct setter *s)
{
    uint64_t n = 0;
    int rc = to_range(s, s->values, UINT32_MAX, &n);
    if (rc)
        return rc;
    s->request->output.logprobs = true;
    s->request->output.has_top_n = n > 0;
    s->request->output.top_n = (uint32_t)n;
    return 0;
}

/* --- lists --- */

static int set_texts(struct setter *s)
{
    char **list = arena_calloc(&s->request->arena, s->n + 1, sizeof(char *));
    size_t n = 0;
    int rc = list ? 0 : error_no_memory(s->err);
    for (size_t i = 0; !rc && i < s->n; i++) {
        rc = to_text(s, &s->values[i], &list[n]);
        n += !rc && list[n][0]; /* Triton pads a list with empty texts */
    }
    if (rc)
        return rc;
    *(char ***)place(s, s->field->at) = list;
    *(size_t *)place(s, s->field->has) = n;
    return 0;
}

static int set_ids(struct setter *s)
{
    uint32_t *list = arena_calloc(&s->request->arena, s->n + 1, sizeof(*list));
    int rc = list ? 0 : error_no_memory(s->err);
    for (size_t i = 0; !rc && i < s->n; i++) {
        uint64_t id = 0;
        rc = to_range(s, &s->values[i], UINT32_MAX, &id);
        list[i] = (uint32_t)id;
    }
    if (rc)
        return rc;
    *(uint32_t **)place(s, s->field->at) = list;
    *(size_t *)place(s, s->field->has) = s->n;
    return 0;
}

/* Pairs of an id and an amount, from a JSON object. */
static int set_logit_bias(struct setter *s)
{
    Sluice__V1__Sampling *sampling = &s->request->sampling;
    size_t n = s->n / 2;
    Sluice__V1__LogitBias **list = arena_calloc(&s->request->arena, n + 1, sizeof(*list));
    int rc = list ? 0 : error_no_memory(s->err);
    for (size_t i = 0; !rc && i < n; i++) {
        uint64_t id = 0;
        double bias = 0;
        list[i] = arena_alloc(&s->request->arena, sizeof(**list));
        if (!list[i])
            return error_no_memory(s->err);
        sluice__v1__logit_bias__init(list[i]);
        rc = to_range(s, &s->values[2 * i], UINT32_MAX, &id);
        if (!rc)
            rc = to_double(s, &s->values[2 * i + 1], &bias);
        list[i]->token_id = (uint32_t)id;
        list[i]->bias = (float)bias;
    }
    if (rc)
        return rc;
    sampling->logit_bias = list;
    sampling->n_logit_bias = n;
    return 0;
}

/* --- fields without effect, or not built --- */

static int take_nothing(struct setter *s)
{
    (void)s;
    return 0;
}

/* A beam width; only 1 is built. */
static int take_one(struct setter *s)
{
    uint64_t n = 0;
    int rc = to_range(s, s->values, UINT32_MAX, &n);
    return rc || n <= 1 ? rc : not_built(s, "only 1 is built");
}

static int take_false(struct setter *s)
{
    bool value = false;
    int rc = to_bool(s, s->values, &value);
    return rc || !value ? rc : not_built(s, "only false is built");
}

static int take_true(struct setter *s)
{
    bool value = false;
    int rc = to_bool(s, s->values, &value);
    return rc || value ? rc : not_built(s, "only true is built");
}

static int refuse(struct setter *s)
{
    return not_built(s, "is not built and would change the answer");
}

/* --- the names --- */

#define AT(member) offsetof(struct kserve_request, member)
#define SAMPLING(member, how)                                                                      \
    "sampling." #member, how, .at = AT(sampling.member), .has = AT(sampling.has_##member)
#define SAMPLING_LIST(member, how)                                                                 \
    "sampling." #member, how, .at = AT(sampling.member), .has = AT(sampling.n_##member),           \
                              .is_list = true
#define STOPPING(member, how)                                                                      \
    "stopping." #member, how, .at = AT(stopping.member), .has = AT(stopping.has_##member)
#define STOPPING_LIST(member, how)                                                                 \
    "stopping." #member, how, .at = AT(stopping.member), .has = AT(stopping.n_##member),           \
                              .is_list = true
#define ANSWER(member, how)                                                                        \
    "output." #member, how, .at = AT(output.member), .has = AT(output.has_##member)
#define OUTPUT(bits) NULL, set_output, .outputs = (bits)
#define NO_PLACE     .at = 0
#define BIT(output)  (1u << KSERVE_OUTPUT_##output)

static const struct kserve_field fields[] = {
    {"text_input", NO_JSON, "BYTES", "text", set_text, NO_PLACE},
    {"stream", NO_JSON, "BOOL", NULL, set_flag, .at = AT(streams)},
    {"sampling_parameters", NO_JSON, "BYTES", NULL, set_sampling_text, NO_PLACE},
    {"exclude_input_in_output", NO_JSON, "BOOL", NULL, set_flag, .at = AT(excludes_prompt),
     .has = AT(has_exclude)},
    {"return_finish_reason", NO_JSON, "BOOL", OUTPUT(BIT(FINISH_REASON))},
    {"return_cumulative_logprob", NO_JSON, "BOOL", OUTPUT(BIT(CUMULATIVE_LOGPROB))},
    {"return_logprobs", NO_JSON, "BOOL", OUTPUT(BIT(LOGPROBS))},
    {"return_num_input_tokens", NO_JSON, "BOOL", OUTPUT(BIT(NUM_INPUT_TOKENS))},
    {"return_num_output_tokens", NO_JSON, "BOOL", OUTPUT(BIT(NUM_OUTPUT_TOKENS))},
    {"return_log_probs", NO_JSON, "BOOL", OUTPUT(BIT(CUM_LOG_PROBS) | BIT(OUTPUT_LOG_PROBS))},
    {"max_tokens", ANY, "INT32", STOPPING(max_tokens, set_u32)},
    {"min_tokens", ANY, "INT32", STOPPING(min_tokens, set_u32)},
    {"min_length", NO_JSON, NULL, STOPPING(min_tokens, set_u32)},
    {"stop_words", NO_JSON, "BYTES", STOPPING_LIST(stop, set_texts)},
    {"stop", KSERVE_JSON | KSERVE_PARAMETER, NULL, STOPPING_LIST(stop, set_texts)},
    {"stop_token_ids", ANY, NULL, STOPPING_LIST(stop_token_ids, set_ids)},
    {"end_id", NO_JSON, "INT32", STOPPING_LIST(stop_token_ids, set_ids)},
    {"ignore_eos", ANY, NULL, STOPPING(ignore_eos, set_bool)},
    {"include_stop_str_in_output", ANY, NULL, STOPPING(include_stop, set_bool)},
    {"temperature", ANY, "FP32", SAMPLING(temperature, set_float)},
    {"top_k", ANY, "INT32", SAMPLING(top_k, set_top_k)},
    {"top_p", ANY, "FP32", SAMPLING(top_p, set_float)},
    {"min_p", ANY, NULL, SAMPLING(min_p, set_float)},
    {"typical_p", ANY, NULL, SAMPLING(typical_p, set_float)},
    {"repetition_penalty", ANY, "FP32", SAMPLING(repetition_penalty, set_float)},
    {"presence_penalty", ANY, "FP32", SAMPLING(presence_penalty, set_float)},
    {"frequency_penalty", ANY, "FP32", SAMPLING(frequency_penalty, set_float)},
    {"seed", ANY, "UINT64", SAMPLING(seed, set_seed)},
    {"random_seed", NO_JSON, "UINT64", SAMPLING(seed, set_seed)},
    {"n", ANY, NULL, SAMPLING(n, set_u32)},
    {"num_return_sequences", NO_JSON, NULL, SAMPLING(n, set_u32)},
    {"best_of", ANY, NULL, SAMPLING(best_of, set_u32)},
    {"bad_words", ANY, "BYTES", SAMPLING_LIST(bad_words, set_texts)},
    {"allowed_token_ids", ANY, NULL, SAMPLING_LIST(allowed_token_ids, set_ids)},
    {"logit_bias", KSERVE_JSON, NULL, "sampling.logit_bias", set_logit_bias, NO_PLACE,
     .is_list = true},
    {"logprobs", KSERVE_JSON | KSERVE_PARAMETER, NULL, "output.top_n", set_logprobs, NO_PLACE},
    {"skip_special_tokens", ANY, NULL, ANSWER(skip_special_tokens, set_bool)},
    {"truncate_prompt_tokens", ANY, NULL, ANSWER(truncate, set_u32)},
    {"timeout", KSERVE_PARAMETER, NULL, NULL, set_timeout, NO_PLACE},
    {"triton_enable_empty_final_response", KSERVE_PARAMETER, NULL, NULL, set_flag,
     .at = AT(empty_final)},
    /* Nothing is padded here, and a beam of width 1 has no length penalty. */
    {"pad_id", NO_JSON, NULL, NULL, take_nothing, NO_PLACE},
    {"length_penalty", ANY, NULL, NULL, take_nothing, NO_PLACE},
    {"early_stopping", ANY, NULL, NULL, take_nothing, NO_PLACE},
    {"beam_width", NO_JSON, NULL, NULL, take_one, NO_PLACE},
    {"use_beam_search", KSERVE_JSON, NULL, NULL, take_false, NO_PLACE},
    {"return_context_logits", NO_JSON, NULL, NULL, take_false, NO_PLACE},
    {"return_generation_logits", NO_JSON, NULL, NULL, take_false, NO_PLACE},
    {"detokenize", KSERVE_JSON, NULL, NULL, take_true, NO_PLACE},
    {"spaces_between_special_tokens", KSERVE_JSON, NULL, NULL, take_true, NO_PLACE},
    {"lora_name", KSERVE_JSON, NULL, NULL, refuse, NO_PLACE},
    {"prompt_logprobs", KSERVE_JSON, NULL, NULL, refuse, NO_PLACE},
    {"guided_decoding", KSERVE_JSON, NULL, NULL, refuse, NO_PLACE},
    {"structured_outputs", KSERVE_JSON, NULL, NULL, refuse, NO_PLACE},
    {"image", KSERVE_TENSOR, NULL, NULL, refuse, NO_PLACE},
    {"sequence_id", KSERVE_PARAMETER, NULL, NULL, refuse, NO_PLACE},
    {"sequence_start", KSERVE_PARAMETER, NULL, NULL, take_false, NO_PLACE},
    {"sequence_end", KSERVE_PARAMETER, NULL, NULL, take_false, NO_PLACE},
    {"priority", KSERVE_PARAMETER, NULL, NULL, refuse, NO_PLACE},
};

enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };
_Static_assert(N_FIELDS <= 64, "struct kserve_request has a bit for each field");

static uint64_t bit_of(const struct kserve_field *field)
{
    return (uint64_t)1 << (field - fields);
}

const struct kserve_field *kserve_fields_find(enum kserve_source source, const char *name,
                                              const char *label, struct error *err)
{
    static const char *const kinds[] = {[KSERVE_TENSOR] = "input of this model",
                                        [KSERVE_PARAMETER] = "parameter of a request",
                                        [KSERVE_JSON] = "sampling parameter"};
    for (size_t i = 0; i < N_FIELDS; i++)
        if ((fields[i].sources & source) && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    error_field(err, label, "is no %s", kinds[source]);
    return NULL;
}

bool kserve_fields_is_in(const struct kserve_field *field, uint64_t given)
{
    return given & bit_of(field);
}

bool kserve_fields_is_pairs(const struct kserve_field *field)
{
    return field->set == set_logit_bias;
}

/* Refuses a second value, under the same name or under another. */
static int check_once(const struct setter *s)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct kserve_field *other = &fields[i];
        bool same = other == s->field || (s->field->sluice && other->sluice &&
                                          strcmp(other->sluice, s->field->sluice) == 0);
        if (same && kserve_fields_is_in(other, s->request->given))
            return error_field(s->err, s->label, "is given twice%s%s",
                               other == s->field ? "" : ", also as ",
                               other == s->field ? "" : other->name);
    }
    return 0;
}

int kserve_fields_set(struct kserve_request *request, const struct kserve_field *field,
                      const char *label, const struct kserve_value *values, size_t n,
                      struct error *err)
{
    struct setter s = {request, field, label, values, n, err};
    int rc = check_once(&s);
    if (!rc && !field->is_list && n != 1)
        rc = error_field(err, label, "has %zu elements; send 1", n);
    size_t n_limit = kserve_fields_is_pairs(field) ? n / 2 : n;
    if (!rc && n_limit > KSERVE_MAX_ELEMENTS)
        rc = error_field(err, label, "has %zu elements, limit %d", n_limit, KSERVE_MAX_ELEMENTS);
    if (!rc)
        rc = field->set(&s);
    if (!rc)
        request->given |= bit_of(field);
    return rc;
}

const char *kserve_fields_name(uint64_t given, const char *sluice_field)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        size_t n = fields[i].sluice ? strlen(fields[i].sluice) : 0;
        if (n && kserve_fields_is_in(&fields[i], given) &&
            strncmp(fields[i].sluice, sluice_field, n) == 0 &&
            (!sluice_field[n] || sluice_field[n] == '['))
            return fields[i].name;
    }
    return NULL;
}

bool kserve_fields_input(size_t i, struct kserve_input *out_input)
{
    static const struct {
        const char *name;
        Inference__DataType type;
    } types[] = {{"BYTES", INFERENCE__DATA_TYPE__TYPE_STRING},
                 {"BOOL", INFERENCE__DATA_TYPE__TYPE_BOOL},
                 {"INT32", INFERENCE__DATA_TYPE__TYPE_INT32},
                 {"UINT64", INFERENCE__DATA_TYPE__TYPE_UINT64},
                 {"FP32", INFERENCE__DATA_TYPE__TYPE_FP32}};
    for (size_t k = 0, n = 0; k < N_FIELDS; k++) {
        if (!fields[k].datatype || n++ != i)
            continue;
        *out_input = (struct kserve_input){.name = fields[k].name,
                                           .datatype = fields[k].datatype,
                                           .is_list = fields[k].is_list,
                                           .is_required = k == 0};
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
            if (strcmp(types[t].name, fields[k].datatype) == 0)
                out_input->type = types[t].type;
        return true;
    }
    return false;
}
