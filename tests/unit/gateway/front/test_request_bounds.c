/* Fields out of their bounds are refused by name before a worker hears of them. Each configured
 * limit holds where it is set, and its refusals are counted. The tables write a request as changes
 * of a small good one, "path value" (see change()). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

enum { VOCABULARY = 49152 };

static struct fixture f;

static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

/* --- requests from words --- */

static void change(ProtobufCMessage *message, const char *text);

static void *at(ProtobufCMessage *message, size_t offset)
{
    return (char *)message + offset;
}

static ProtobufCMessage *new_message(const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = calloc(1, descriptor->sizeof_message);
    assert_non_null(message);
    protobuf_c_message_init(descriptor, message);
    return message;
}

/* Returns the new text of a field: 129 times x for "x*129", and `value` itself otherwise. */
static char *new_text(const char *value)
{
    size_t n = strlen(value);
    if (n < 3 || value[1] != '*')
        return strdup(value);
    n = strtoul(value + 2, NULL, 10);
    char *text = calloc(1, n + 1);
    assert_non_null(text);
    return memset(text, value[0], n);
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    default:
        return sizeof(uint32_t);
    }
}

static void set(const ProtobufCFieldDescriptor *field, void *place, const char *value)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)place = new_text(value);
        return;
    case PROTOBUF_C_TYPE_FLOAT:
        *(float *)place = strtof(value, NULL);
        return;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)place = strtol(value, NULL, 10) != 0;
        return;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        *(uint32_t *)place = (uint32_t)strtoll(value, NULL, 10);
        return;
    case PROTOBUF_C_TYPE_MESSAGE: /* "role=user content=x" */
        *(ProtobufCMessage **)place = new_message(field->descriptor);
        for (size_t n; *value; value += n + (value[n] == ' ')) {
            char part[256];
            n = strcspn(value, " ");
            snprintf(part, sizeof(part), "%.*s", (int)n, value);
            part[strcspn(part, "=")] = ' ';
            change(*(ProtobufCMessage **)place, part);
        }
        return;
    default:
        fail_msg("%s has a type that this test does not know", field->name);
    }
}

static void append(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field, size_t n,
                   const char *value)
{
    size_t size = size_of(field), *count = at(message, field->quantifier_offset);
    char **list = at(message, field->offset);
    *list = realloc(*list, (*count + n) * size);
    assert_non_null(*list);
    for (size_t i = 0; i < n; i++)
        set(field, *list + (*count)++ * size, value);
}

/* Chooses a field of a oneof, and frees the field that was set before. */
static void choose(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field, uint32_t kind)
{
    uint32_t *chosen = at(message, field->quantifier_offset);
    if (*chosen == kind)
        return;
    const ProtobufCFieldDescriptor *old =
        *chosen ? protobuf_c_message_descriptor_get_field(message->descriptor, *chosen) : NULL;
    if (old && old->type == PROTOBUF_C_TYPE_STRING)
        free(*(char **)at(message, old->offset));
    *(void **)at(message, field->offset) = NULL;
    *chosen = kind;
}

/* Applies a change. "stopping.max_tokens 3" sets a field; "sampling.allowed_token_ids[2] 9" adds 2
 * elements to a list. "token_ids" makes an empty message; "text" without a value removes the
 * field's text. */
static void change(ProtobufCMessage *message, const char *text)
{
    char path[128];
    size_t n_path = strcspn(text, " "), n = 1;
    const char *value = text[n_path] ? text + n_path + 1 : NULL;
    snprintf(path, sizeof(path), "%.*s", (int)n_path, text);
    char *dot = strchr(path, '.'), *bracket = strchr(path, '[');
    if (bracket && !dot) {
        n = strtoul(bracket + 1, NULL, 10);
        *bracket = '\0';
    }
    if (dot)
        *dot = '\0';
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, path);
    if (!field)
        fail_msg("no field %s", path);
    bool one_of = field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        append(message, field, n, value);
        return;
    }
    if (one_of)
        choose(message, field, value || field->type == PROTOBUF_C_TYPE_MESSAGE ? field->id : 0);
    ProtobufCMessage **inner = at(message, field->offset);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE && !*inner)
        *inner = new_message(field->descriptor);
    if (dot)
        change(*inner, text + (dot - path) + 1);
    else if (value && !one_of && field->quantifier_offset)
        *(protobuf_c_boolean *)at(message, field->quantifier_offset) = true;
    if (!dot && value) {
        if (field->type == PROTOBUF_C_TYPE_STRING && *(char **)inner != protobuf_c_empty_string)
            free(*(char **)inner);
        set(field, inner, value);
    }
}

enum { MAX_CHANGES = 5 };

static int ask(const char *const *changes, struct error *err)
{
    struct rpc_call_options options = {.timeout_ms = 20000};
    ProtobufCMessage *answer, *request = new_message(&sluice__v1__generate_request__descriptor);
    static const char *const good[] = {"model m", "text x", "stopping.max_tokens 4"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        change(request, good[i]);
    for (size_t i = 0; i < MAX_CHANGES && changes[i]; i++)
        change(request, changes[i]);
    error_clear(err);
    int rc = rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Complete", request,
                              &options, &answer, err);
    protobuf_c_message_free_unpacked(request, NULL);
    if (!rc)
        rpc_message_free(answer);
    return rc;
}

/* --- refusals --- */

static const struct bad {
    const char *field, *changes[MAX_CHANGES];
} bad[] = {
    {"model", {"model "}},
    {"model", {"model x*65"}},
    {"version", {"version x*65"}},
    {"request_id", {"request_id x*129"}},
    {"session_key", {"session_key x*129"}},
    {"cache_salt", {"cache_salt x*129"}},
    {"priority", {"priority 101"}},
    {"priority", {"priority 1000"}},
    {"priority", {"priority -101"}},
    {"prompt", {"text"}},
    {"chat.template", {"chat.messages role=user", "chat.template x*129"}},
    {"chat.continue_field", {"chat.messages role=user", "chat.continue_field x*129"}},
    {"token_ids.ids", {"token_ids"}},
    {"token_ids.ids[1]", {"token_ids.ids 1", "token_ids.ids 49152"}},
    {"parse_special_tokens", {"token_ids.ids 1", "parse_special_tokens 1"}},
    {"parse_special_tokens", {"suffix y", "parse_special_tokens 1"}},
    {"chat.messages", {"chat"}},
    {"chat.messages[0].role", {"chat.messages content=x"}},
    {"chat.messages[0].role", {"chat.messages role=x*129 content=x"}},
    {"chat.messages[1].role", {"chat.messages role=user", "chat.messages content=x"}},
    {"sampling.temperature", {"sampling.temperature nan"}},
    {"sampling.temperature", {"sampling.temperature inf"}},
    {"sampling.temperature", {"sampling.temperature -inf"}},
    {"sampling.temperature", {"sampling.temperature 1e38"}},
    {"sampling.temperature", {"sampling.temperature 100.5"}},
    {"sampling.temperature", {"sampling.temperature -1"}},
    {"sampling.top_p", {"sampling.top_p nan"}},
    {"sampling.top_p", {"sampling.top_p inf"}},
    {"sampling.top_p", {"sampling.top_p -inf"}},
    {"sampling.top_p", {"sampling.top_p 1.5"}},
    {"sampling.top_p", {"sampling.top_p -1"}},
    {"sampling.top_p", {"sampling.top_p 0"}},
    {"sampling.min_p", {"sampling.min_p nan"}},
    {"sampling.min_p", {"sampling.min_p inf"}},
    {"sampling.min_p", {"sampling.min_p 1e38"}},
    {"sampling.min_p", {"sampling.min_p -0.1"}},
    {"sampling.typical_p", {"sampling.typical_p nan"}},
    {"sampling.typical_p", {"sampling.typical_p -inf"}},
    {"sampling.typical_p", {"sampling.typical_p -1"}},
    {"sampling.typical_p", {"sampling.typical_p 0"}},
    {"sampling.typical_p", {"sampling.typical_p 1.01"}},
    {"sampling.repetition_penalty", {"sampling.repetition_penalty nan"}},
    {"sampling.repetition_penalty", {"sampling.repetition_penalty inf"}},
    {"sampling.repetition_penalty", {"sampling.repetition_penalty 10.5"}},
    {"sampling.repetition_penalty", {"sampling.repetition_penalty -1"}},
    {"sampling.repetition_penalty", {"sampling.repetition_penalty 0"}},
    {"sampling.presence_penalty", {"sampling.presence_penalty nan"}},
    {"sampling.presence_penalty", {"sampling.presence_penalty -2.5"}},
    {"sampling.presence_penalty", {"sampling.presence_penalty 2.5"}},
    {"sampling.frequency_penalty", {"sampling.frequency_penalty nan"}},
    {"sampling.frequency_penalty", {"sampling.frequency_penalty -inf"}},
    {"sampling.frequency_penalty", {"sampling.frequency_penalty 2.5"}},
    {"sampling.n", {"sampling.n 0"}},
    {"sampling.n", {"sampling.n 9"}},
    {"sampling.n", {"sampling.n 1000000000"}},
    {"sampling.n", {"sampling.n 2147483648"}},
    {"sampling.n", {"sampling.n 4294967295"}},
    {"sampling.best_of", {"sampling.best_of 0"}},
    {"sampling.best_of", {"sampling.best_of 9"}},
    {"sampling.best_of", {"sampling.best_of 4294967295"}},
    {"sampling.best_of", {"sampling.n 3", "sampling.best_of 2"}},
    {"sampling.top_k", {"sampling.top_k 2147483648"}},
    {"sampling.do_sample", {"sampling.do_sample 1", "sampling.temperature 0"}},
    {"sampling.logit_bias", {"sampling.logit_bias[1025] token_id=1 bias=1"}},
    {"sampling.logit_bias", {"sampling.logit_bias[100000] token_id=1"}}, /* 1 MiB holds no more */
    {"sampling.logit_bias[0]", {"sampling.logit_bias token_id=49152 bias=1"}},
    {"sampling.logit_bias[0]", {"sampling.logit_bias token_id=4294967295 bias=1"}},
    {"sampling.logit_bias[0].bias", {"sampling.logit_bias token_id=7 bias=nan"}},
    {"sampling.logit_bias[0].bias", {"sampling.logit_bias token_id=7 bias=inf"}},
    {"sampling.logit_bias[0].bias", {"sampling.logit_bias token_id=7 bias=-inf"}},
    {"sampling.logit_bias[0].bias", {"sampling.logit_bias token_id=7 bias=100.5"}},
    {"sampling.logit_bias[0].bias", {"sampling.logit_bias token_id=7 bias=-101"}},
    {"sampling.logit_bias[0].bias", {"sampling.logit_bias token_id=7 bias=1e38"}},
    {"sampling.allowed_token_ids", {"sampling.allowed_token_ids[4097] 1"}},
    {"sampling.allowed_token_ids[1]",
     {"sampling.allowed_token_ids 5", "sampling.allowed_token_ids 49152"}},
    {"sampling.bad_words", {"sampling.bad_words[65] x"}},
    {"sampling.bad_words[1]", {"sampling.bad_words x", "sampling.bad_words "}},
    {"sampling.bad_words[1]", {"sampling.bad_words x", "sampling.bad_words    "}},
    {"sampling.bad_words[3]",
     {"sampling.bad_words x", "sampling.bad_words y", "sampling.bad_words z",
      "sampling.bad_words w*257"}},
    {"stopping.max_tokens", {"stopping.max_tokens 0"}},
    {"stopping.max_tokens", {"stopping.max_tokens 2147483648"}},
    {"stopping.min_tokens", {"stopping.min_tokens 5"}}, /* max_tokens is 4 */
    {"stopping.min_tokens", {"stopping.min_tokens 4294967295"}},
    {"stopping.stop", {"stopping.stop[5] x"}},
    {"stopping.stop", {"stopping.stop[10000] x"}},
    {"stopping.stop[0]", {"stopping.stop "}},
    {"stopping.stop[2]", {"stopping.stop x", "stopping.stop y", "stopping.stop "}},
    {"stopping.stop[1]", {"stopping.stop x", "stopping.stop y*257"}},
    {"stopping.stop[0]", {"stopping.stop y*1000000"}},
    {"stopping.stop_token_ids", {"stopping.stop_token_ids[65] 1"}},
    {"stopping.stop_token_ids[1]", {"stopping.stop_token_ids 1", "stopping.stop_token_ids 49152"}},
    {"output.top_n", {"output.logprobs 1", "output.top_n 21"}},
    {"output.top_n", {"output.logprobs 1", "output.top_n 49152"}},
    {"output.top_n", {"output.top_n 3"}},
    {"output.truncate", {"output.truncate 0"}},
    {"output.truncate", {"output.truncate 2147483648"}},
    {"speculate.drafter", {"speculate.drafter 9"}},
    {"speculate.max_draft_tokens", {"speculate.max_draft_tokens 0"}},
    {"speculate.max_draft_tokens", {"speculate.max_draft_tokens 17"}},
    {"credit_tokens", {"credit_tokens 2147483648"}},
};

static const struct bad unbuilt[] = {
    {"constraint", {"constraint.regex a+"}},
    {"adapter", {"adapter lora"}},
};

static const struct good {
    const char *changes[MAX_CHANGES];
} good[] = {
    {{"sampling.temperature 1e-40"}},
    {{"sampling.temperature 100"}},
    {{"sampling.top_p 1e-38"}},
    {{"sampling.min_p 1"}},
    {{"sampling.typical_p 1e-38"}},
    {{"sampling.repetition_penalty 1e-38"}},
    {{"sampling.repetition_penalty 10"}},
    {{"sampling.presence_penalty -2", "sampling.frequency_penalty 2"}},
    {{"sampling.top_k 2147483647"}},
    {{"sampling.n 8"}},
    {{"sampling.logit_bias[1024] token_id=49151 bias=-100"}},
    {{"sampling.allowed_token_ids[4096] 49151"}},
    {{"sampling.bad_words[64] x*256"}},
    {{"stopping.stop[4] x*256"}},
    {{"stopping.stop_token_ids[64] 49151"}},
    {{"output.logprobs 1", "output.top_n 20"}},
    {{"priority -100"}},
    {{"priority 100"}},
    {{"request_id x*128", "session_key x*128", "cache_salt x*128"}},
    {{"chat.messages role=x*128 content=x"}},
};

static void start(void)
{
    static Sluice__V1__ModelInfo info;
    sluice__v1__model_info__init(&info);
    info.vocab_size = VOCABULARY;
    f.info = &info;
    fixture_start(&f, 1);
}

static void expect_refused(const struct bad *row, int status)
{
    struct error err;
    char named[ERROR_FIELD_BYTES];
    int got = ask(row->changes, &err);
    if (got != status || strcmp(err.field, row->field) != 0)
        fail_msg("%s, %s: status %d, field %s, \"%s\"", row->field, row->changes[0], got, err.field,
                 err.message);
    snprintf(named, sizeof(named), "%.*s", (int)strcspn(err.field, "["), err.field);
    assert_true(names_all(err.message, named));
}

static void test_a_field_out_of_bounds_is_refused_by_name(void **state)
{
    (void)state;
    fixture_init(&f);
    start();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        expect_refused(&bad[i], STATUS_INVALID_ARGUMENT);
    for (size_t i = 0; i < sizeof(unbuilt) / sizeof(unbuilt[0]); i++)
        expect_refused(&unbuilt[i], STATUS_UNIMPLEMENTED);
    assert_int_equal(fake_worker_read(&f.workers[0], &f.workers[0].n_submits), 0);
    fixture_stop(&f);
}

static void test_the_bounds_themselves_are_taken(void **state)
{
    struct error err;
    (void)state;
    fixture_init(&f);
    start();
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (ask(good[i].changes, &err))
            fail_msg("row %zu, %s: %s", i, good[i].changes[0], err.message);
    fixture_stop(&f);
}

#define AT(field) offsetof(struct gateway_limits, field)
static const struct limited {
    enum gateway_limit limit;
    size_t offset;
    uint64_t value;
    const char *field, *within[MAX_CHANGES], *beyond[MAX_CHANGES];
} limited[] = {
    {LIMIT_CHOICES, AT(max_choices), 2, "sampling.n", {"sampling.n 2"}, {"sampling.n 3"}},
    {LIMIT_STOP_STRINGS,
     AT(max_stop_strings),
     2,
     "stopping.stop",
     {"stopping.stop[2] q"},
     {"stopping.stop[3] q"}},
    {LIMIT_STOP_BYTES,
     AT(max_stop_bytes),
     5,
     "stopping.stop[0]",
     {"stopping.stop qwert"},
     {"stopping.stop qwertz"}},
    {LIMIT_STOP_IDS,
     AT(max_stop_ids),
     1,
     "stopping.stop_token_ids",
     {"stopping.stop_token_ids 9"},
     {"stopping.stop_token_ids[2] 9"}},
    {LIMIT_TOP_N,
     AT(max_top_n),
     3,
     "output.top_n",
     {"output.logprobs 1", "output.top_n 3"},
     {"output.logprobs 1", "output.top_n 4"}},
    {LIMIT_LOGIT_BIAS,
     AT(max_logit_bias),
     3,
     "sampling.logit_bias",
     {"sampling.logit_bias[3] bias=1"},
     {"sampling.logit_bias[4] bias=1"}},
    {LIMIT_ALLOWED_IDS,
     AT(max_allowed_ids),
     2,
     "sampling.allowed_token_ids",
     {"sampling.allowed_token_ids[2] 70"},
     {"sampling.allowed_token_ids[3] 70"}},
    {LIMIT_BAD_WORDS,
     AT(max_bad_words),
     1,
     "sampling.bad_words",
     {"sampling.bad_words q"},
     {"sampling.bad_words[2] q"}},
    {LIMIT_BAD_WORD_BYTES,
     AT(max_bad_word_bytes),
     4,
     "sampling.bad_words[0]",
     {"sampling.bad_words qwer"},
     {"sampling.bad_words qwert"}},
    {LIMIT_MESSAGES,
     AT(max_messages),
     2,
     "chat.messages",
     {"chat.messages[2] role=user"},
     {"chat.messages[3] role=user"}},
    {LIMIT_TOOLS,
     AT(max_tools),
     1,
     "chat.tools_json",
     {"chat.messages role=user", "chat.tools_json {}"},
     {"chat.messages role=user", "chat.tools_json[2] {}"}},
    {LIMIT_REATTACH,
     AT(max_reattach_ms),
     2000,
     "reattach_window_ms",
     {NULL},
     {"reattach_window_ms 2001"}},
};

static void test_each_limit_holds_where_it_is_set_and_is_counted(void **state)
{
    struct error err;
    (void)state;
    fixture_init(&f);
    for (size_t i = 0; i < sizeof(limited) / sizeof(limited[0]); i++)
        *(uint64_t *)((char *)&f.config.limits + limited[i].offset) = limited[i].value;
    start();
    client_run(&f, &(struct client_request){.max_tokens = 4, .window_ms = 2000});
    for (size_t i = 0; i < sizeof(limited) / sizeof(limited[0]); i++) {
        const struct limited *row = &limited[i];
        assert_int_equal(gateway_limit_rows[row->limit].option.offset, row->offset);
        if (ask(row->within, &err))
            fail_msg("%s: %s", row->field, err.message);
        assert_int_equal(gateway_n_refusals(f.gateway, row->limit), 0);
        assert_int_equal(ask(row->beyond, &err), STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, row->field);
        char value[24];
        snprintf(value, sizeof(value), "%llu", (unsigned long long)row->value);
        if (!names_all(err.message, value))
            fail_msg("%s does not name %s: %s", row->field, value, err.message);
        assert_int_equal(gateway_n_refusals(f.gateway, row->limit), 1);
    }
    for (size_t i = 0; i < sizeof(limited) / sizeof(limited[0]); i++)
        assert_int_equal(gateway_n_refusals(f.gateway, limited[i].limit), 1);
    fixture_stop(&f);
}

int main(int argc, char *argv[])
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_field_out_of_bounds_is_refused_by_name, forget),
        cmocka_unit_test_setup(test_the_bounds_themselves_are_taken, forget),
        cmocka_unit_test_setup(test_each_limit_holds_where_it_is_set_and_is_counted, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
