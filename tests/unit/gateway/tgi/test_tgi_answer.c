/* The bytes of answers as text-generation-inference 3 sends them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/relay/relay_sink.h"
#include "server/gateway/tgi/tgi_answer.h"
#include "server/gateway/tgi/tgi_error.h"
#include "tests/unit/base/support_cmocka.h"

enum { MAX_TOKENS = 8, END_ID = 2 };

/* A token that a test feeds: its id, the token's own bytes, and the text that it adds. */
struct piece {
    uint32_t id;
    const char *bytes, *text;
};

struct fed {
    Sluice__V1__TokenLogprob logprobs[MAX_TOKENS], *list[MAX_TOKENS];
    Sluice__V1__TopLogprob tops[MAX_TOKENS], *top_list[MAX_TOKENS];
    uint32_t ids[MAX_TOKENS], ends[MAX_TOKENS];
    char text[64];
    struct relay_frame frame;
};

/* Fills the parts of an answer with n pieces; returns the end of the text. */
static uint64_t fill(struct fed *fed, const struct piece *pieces, size_t n, uint64_t begin,
                     bool with_top)
{
    *fed = (struct fed){.frame = {.kind = RELAY_FRAME_TOKENS,
                                  .tokens = SLUICE__V1__TOKENS__INIT,
                                  .text_begin = begin}};
    for (size_t i = 0; i < n; i++) {
        Sluice__V1__TokenLogprob *logprob = &fed->logprobs[i];
        sluice__v1__token_logprob__init(logprob);
        logprob->id = fed->ids[i] = pieces[i].id;
        logprob->logprob = -0.5f - (float)i;
        logprob->token.data = (uint8_t *)(uintptr_t)pieces[i].bytes;
        logprob->token.len = strlen(pieces[i].bytes);
        fed->list[i] = logprob;
        size_t used = strlen(fed->text);
        snprintf(fed->text + used, sizeof(fed->text) - used, "%s", pieces[i].text);
        fed->ends[i] = (uint32_t)(begin + strlen(fed->text));
        if (!with_top)
            continue;
        sluice__v1__top_logprob__init(&fed->tops[i]);
        fed->tops[i].id = END_ID;
        fed->tops[i].logprob = -INFINITY;
        fed->tops[i].token = logprob->token;
        fed->top_list[i] = &fed->tops[i];
        logprob->top = &fed->top_list[i];
        logprob->n_top = 1;
    }
    Sluice__V1__Tokens *tokens = &fed->frame.tokens;
    tokens->ids = fed->ids;
    tokens->n_ids = tokens->n_logprobs = n;
    tokens->logprobs = fed->list;
    tokens->text = fed->text;
    fed->frame.text_ends = fed->ends;
    return begin + strlen(fed->text);
}

static const struct tgi_answer plain = {.end_ids = {END_ID}, .n_end_ids = 1};

static void expect(struct strbuf *out, const char *wanted)
{
    assert_string_equal(strbuf_str(out), wanted);
    strbuf_clear(out);
}

static void feed(struct tgi_answer *answer, const struct piece *pieces, size_t n, uint64_t *at,
                 struct strbuf *out)
{
    struct fed fed;
    *at = fill(&fed, pieces, n, *at, answer->top_n > 0);
    tgi_answer_frame(answer, &fed.frame, out);
}

static void feed_end(struct tgi_answer *answer, int reason, struct strbuf *out)
{
    struct relay_frame frame = {.kind = RELAY_FRAME_FINISHED,
                                .finished = SLUICE__V1__FINISHED__INIT};
    frame.finished.reason = (Sluice__V1__FinishReason)reason;
    tgi_answer_frame(answer, &frame, out);
}

/* --- streams --- */

static void test_a_stream_has_an_event_per_token_and_the_text_in_the_last(void **state)
{
    static const struct piece first[] = {{7, " Pa", " Pa"}, {8, "ris", "ris"}};
    static const struct piece last[] = {{END_ID, "<|end|>", ""}};
    struct tgi_answer answer = plain;
    struct relay_frame info = {.kind = RELAY_FRAME_PROMPT_INFO,
                               .prompt_info = SLUICE__V1__PROMPT_INFO__INIT};
    struct strbuf out = {0};
    uint64_t at = 0;
    (void)state;
    answer.details = true;
    info.prompt_info.n_prompt_tokens = 5;
    tgi_answer_frame(&answer, &info, &out);
    feed(&answer, first, 2, &at, &out);
    expect(&out, "data:{\"index\":1,\"token\":{\"id\":7,\"text\":\" Pa\",\"logprob\":-0.5,"
                 "\"special\":false},\"generated_text\":null,\"details\":null}\n\n");
    tgi_answer_flush(&answer, &out);
    expect(&out, "data:{\"index\":2,\"token\":{\"id\":8,\"text\":\"ris\",\"logprob\":-1.5,"
                 "\"special\":false},\"generated_text\":null,\"details\":null}\n\n");
    tgi_answer_flush(&answer, &out);
    expect(&out, "");
    feed(&answer, last, 1, &at, &out);
    expect(&out, "");
    feed_end(&answer, SLUICE__V1__FINISH_REASON__FINISH_REASON_EOS, &out);
    expect(&out, "data:{\"index\":3,\"token\":{\"id\":2,\"text\":\"<|end|>\",\"logprob\":-0.5,"
                 "\"special\":true},\"generated_text\":\" Paris\",\"details\":{\"finish_reason\":"
                 "\"eos_token\",\"generated_tokens\":3,\"seed\":null,\"input_length\":5}}\n\n");
    strbuf_fini(&out);
    tgi_answer_fini(&answer);
}

/* The bytes of a cut character are no text of their own: they come with the last token. */
static void test_a_cut_character_comes_whole_with_its_last_token(void **state)
{
    static const struct piece pieces[] = {{5, "\xf0\x9f", ""}, {6, "\x98\x80", "\xf0\x9f\x98\x80"}};
    struct tgi_answer answer = plain;
    struct strbuf out = {0};
    uint64_t at = 0;
    (void)state;
    feed(&answer, pieces, 2, &at, &out);
    tgi_answer_flush(&answer, &out);
    expect(&out, "data:{\"index\":1,\"token\":{\"id\":5,\"text\":\"\",\"logprob\":-0.5,"
                 "\"special\":false},\"generated_text\":null,\"details\":null}\n\n"
                 "data:{\"index\":2,\"token\":{\"id\":6,\"text\":\"\xf0\x9f\x98\x80\","
                 "\"logprob\":-1.5,\"special\":false},\"generated_text\":null,\"details\":null}"
                 "\n\n");
    strbuf_fini(&out);
    tgi_answer_fini(&answer);
}

static void test_alternatives_full_text_and_seed_are_in_the_events(void **state)
{
    static const struct piece only[] = {{7, "a\"", "a\""}};
    struct tgi_answer answer = plain;
    struct relay_frame info = {.kind = RELAY_FRAME_PROMPT_INFO,
                               .prompt_info = SLUICE__V1__PROMPT_INFO__INIT};
    struct strbuf out = {0};
    uint64_t at = 0;
    (void)state;
    answer.top_n = 1;
    answer.samples = answer.details = true;
    answer.full_text = strdup("Q\n");
    info.prompt_info.seed = UINT64_MAX;
    tgi_answer_frame(&answer, &info, &out);
    feed(&answer, only, 1, &at, &out);
    feed_end(&answer, SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH, &out);
    expect(&out,
           "data:{\"index\":1,\"token\":{\"id\":7,\"text\":\"a\\\"\",\"logprob\":-0.5,\"special\":"
           "false},\"top_tokens\":[{\"id\":2,\"text\":\"a\\\"\",\"logprob\":-3.4028234e+38,"
           "\"special\":true}],\"generated_text\":\"Q\\na\\\"\",\"details\":{\"finish_reason\":"
           "\"length\",\"generated_tokens\":1,\"seed\":18446744073709551615,\"input_length\":0}}"
           "\n\n");
    strbuf_fini(&out);
    tgi_answer_fini(&answer);
}

/* An error after the first event shows the tokens that came before, then the error. */
static void test_an_error_in_a_stream_is_an_event(void **state)
{
    static const struct piece only[] = {{7, "x", "x"}};
    struct tgi_answer answer = plain;
    struct strbuf out = {0};
    struct error err;
    uint64_t at = 0;
    (void)state;
    feed(&answer, only, 1, &at, &out);
    error_set(&err, STATUS_UNAVAILABLE, "gone");
    error_tokens_sent(&err, 1);
    tgi_answer_fail(&answer, &err, &out);
    expect(&out, "data:{\"index\":1,\"token\":{\"id\":7,\"text\":\"x\",\"logprob\":-0.5,"
                 "\"special\":false},\"generated_text\":null,\"details\":null}\n\n"
                 "data:{\"error\":\"Incomplete generation: gone\",\"error_type\":"
                 "\"incomplete_generation\"}\n\n");
    strbuf_fini(&out);
    tgi_answer_fini(&answer);
}

/* --- whole answers --- */

/* Feeds a whole answer with a choice per list of pieces. */
static void feed_whole(struct tgi_answer *answer, const struct piece *pieces, size_t n_choices,
                       Sluice__V1__PromptInfo *info)
{
    Sluice__V1__CompleteResponse whole = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    Sluice__V1__Choice choices[2], *list[2];
    struct fed fed[2];
    struct relay_frame frame = {.kind = RELAY_FRAME_WHOLE, .whole = &whole};
    finished.reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    for (size_t i = 0; i < n_choices; i++) {
        fill(&fed[i], &pieces[2 * i], 2, 0, answer->top_n > 0);
        sluice__v1__choice__init(&choices[i]);
        choices[i].text = fed[i].text;
        choices[i].ids = fed[i].ids;
        choices[i].n_ids = choices[i].n_logprobs = 2;
        choices[i].logprobs = fed[i].list;
        choices[i].finished = &finished;
        list[i] = &choices[i];
        frame.whole_text_ends[i] = fed[i].ends;
    }
    if (n_choices > 1) /* the second is the better one */
        fed[1].logprobs[1].logprob = -0.25f;
    whole.choices = list;
    whole.n_choices = n_choices;
    whole.prompt_info = info;
    tgi_answer_whole(answer, &frame);
}

static const struct piece two[] = {{7, " a", " a"}, {8, "b", "b"}, {7, " a", " a"}, {9, "c", "c"}};

static void test_an_answer_without_details_is_its_text(void **state)
{
    struct tgi_answer answer = plain;
    (void)state;
    feed_whole(&answer, two, 1, NULL);
    expect(&answer.whole, "{\"generated_text\":\" ab\"}");
    answer.is_list = true;
    answer.full_text = strdup("Q");
    feed_whole(&answer, two, 1, NULL);
    expect(&answer.whole, "[{\"generated_text\":\"Q ab\"}]");
    tgi_answer_fini(&answer);
}

static void test_details_have_prompt_tokens_and_alternatives(void **state)
{
    Sluice__V1__PromptInfo info = SLUICE__V1__PROMPT_INFO__INIT;
    Sluice__V1__TokenLogprob entry = SLUICE__V1__TOKEN_LOGPROB__INIT, *list[] = {&entry};
    struct tgi_answer answer = plain;
    static char token[] = "Q";
    (void)state;
    entry.id = 3;
    entry.logprob = NAN;
    entry.token = (ProtobufCBinaryData){1, (uint8_t *)token};
    info.prompt_logprobs = list;
    info.n_prompt_logprobs = 1;
    answer.details = true;
    answer.top_n = 1;
    feed_whole(&answer, two, 1, &info);
    expect(&answer.whole,
           "{\"generated_text\":\" ab\",\"details\":{\"finish_reason\":\"length\","
           "\"generated_tokens\":2,\"seed\":null,\"prefill\":[{\"id\":3,\"text\":\"Q\",\"logprob\":"
           "null}],\"tokens\":[{\"id\":7,\"text\":\" a\",\"logprob\":-0.5,\"special\":false},"
           "{\"id\":8,\"text\":\"b\",\"logprob\":-1.5,\"special\":false}],\"top_tokens\":[[{\"id\":"
           "2,\"text\":\" a\",\"logprob\":-3.4028234e+38,\"special\":true}],[{\"id\":2,\"text\":"
           "\"b\",\"logprob\":-3.4028234e+38,\"special\":true}]]}}");
    tgi_answer_fini(&answer);
}

static void test_the_best_choice_comes_first_and_the_others_in_details(void **state)
{
    struct tgi_answer answer = plain;
    (void)state;
    answer.details = answer.samples = true;
    feed_whole(&answer, two, 2, NULL);
    expect(&answer.whole,
           "{\"generated_text\":\" ac\",\"details\":{\"finish_reason\":\"length\","
           "\"generated_tokens\":2,\"seed\":0,\"prefill\":[],\"tokens\":[{\"id\":7,\"text\":\" a\","
           "\"logprob\":-0.5,\"special\":false},{\"id\":9,\"text\":\"c\",\"logprob\":-0.25,"
           "\"special\":false}],\"best_of_sequences\":[{\"generated_text\":\" ab\","
           "\"finish_reason\":\"length\",\"generated_tokens\":2,\"seed\":0,\"prefill\":[],"
           "\"tokens\":[{\"id\":7,\"text\":\" a\",\"logprob\":-0.5,\"special\":false},{\"id\":8,"
           "\"text\":\"b\",\"logprob\":-1.5,\"special\":false}]}]}}");
    tgi_answer_fini(&answer);
}

/* --- errors --- */

static void test_each_status_has_its_http_status_and_type(void **state)
{
    static const struct {
        int status;
        enum reason reason;
        uint64_t n_sent;
        unsigned http;
        const char *type;
    } rows[] = {
        {STATUS_INVALID_ARGUMENT, REASON_NONE, 0, 422, "validation"},
        {STATUS_FAILED_PRECONDITION, REASON_NONE, 0, 422, "validation"},
        {STATUS_UNIMPLEMENTED, REASON_NONE, 0, 422, "validation"},
        {STATUS_UNAUTHENTICATED, REASON_API_KEY_MISSING, 0, 401, "authentication"},
        {STATUS_PERMISSION_DENIED, REASON_ROLE_REQUIRED, 0, 403, "permission"},
        {STATUS_NOT_FOUND, REASON_NONE, 0, 404, "model_not_found"},
        {STATUS_RESOURCE_EXHAUSTED, REASON_QUEUE_FULL, 0, 429, "overloaded"},
        {STATUS_RESOURCE_EXHAUSTED, REASON_ANSWER_TOO_LARGE, 0, 422, "validation"},
        {STATUS_UNAVAILABLE, REASON_DRAINING, 0, 503, "overloaded"},
        {STATUS_UNAVAILABLE, REASON_REPLICA_LOST, 0, 424, "generation"},
        {STATUS_UNAVAILABLE, REASON_REPLICA_LOST, 3, 500, "incomplete_generation"},
        {STATUS_INTERNAL, REASON_NONE, 0, 424, "generation"},
        {STATUS_DEADLINE_EXCEEDED, REASON_NONE, 0, 424, "generation"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strbuf out = {0};
        struct error err;
        char type[64];
        error_set(&err, rows[i].status, "x");
        err.reason = rows[i].reason;
        if (rows[i].n_sent)
            error_tokens_sent(&err, rows[i].n_sent);
        assert_int_equal(tgi_error_status(&err), rows[i].http);
        tgi_error_write(&err, &out);
        snprintf(type, sizeof(type), "\"error_type\":\"%s\"}", rows[i].type);
        assert_non_null(strstr(strbuf_str(&out), type));
        strbuf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_has_an_event_per_token_and_the_text_in_the_last),
        cmocka_unit_test(test_a_cut_character_comes_whole_with_its_last_token),
        cmocka_unit_test(test_alternatives_full_text_and_seed_are_in_the_events),
        cmocka_unit_test(test_an_error_in_a_stream_is_an_event),
        cmocka_unit_test(test_an_answer_without_details_is_its_text),
        cmocka_unit_test(test_details_have_prompt_tokens_and_alternatives),
        cmocka_unit_test(test_the_best_choice_comes_first_and_the_others_in_details),
        cmocka_unit_test(test_each_status_has_its_http_status_and_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
