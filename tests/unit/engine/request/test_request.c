/* Tests of request fields: every field has the name that callers know and its limits. Also tests
 * the request's own data (copies, counts, biases, sampler parameters). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/request/sequence.h"
#include "tests/support/names.h"

enum { VOCAB = 500, CONTEXT = 100 };

static const struct request_limits limits = {.vocab_size = VOCAB,
                                             .context_tokens = CONTEXT,
                                             .max_concurrent = 4,
                                             .end_ids = {2, 7},
                                             .n_end_ids = 2};

static uint32_t prompt[CONTEXT + 1] = {10, 11, 12, 11};

static struct engine_request valid(void)
{
    struct engine_request req;
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 4;
    return req;
}

static void assert_refused(const struct engine_request *req, const char *field, const char *what)
{
    struct error err = {0};
    int rc = request_check(req, &limits, &err);
    if (rc != STATUS_INVALID_ARGUMENT || strcmp(err.field, field) != 0)
        fail_msg("%s: %s, field \"%s\": %s; expected a refusal of %s", what, status_name(rc),
                 err.field, err.message, field);
    assert_memory_equal(err.message, field, strlen(field)); /* the text begins with the name */
}

/* --- numbers --- */

struct number_row {
    const char *field;
    size_t offset;
    float good[3], bad[5];
};

#define AT(member) offsetof(struct engine_sampling, member)

static const struct number_row numbers[] = {
    {"sampling.temperature", AT(temperature), {0, 1, 100}, {-0.1f, 100.5f, NAN, INFINITY, 1e38f}},
    {"sampling.top_p", AT(top_p), {1e-6f, 0.5f, 1}, {0, -1, 1.01f, NAN, INFINITY}},
    {"sampling.min_p", AT(min_p), {0, 0.5f, 1}, {-0.1f, 1.01f, NAN, INFINITY, -INFINITY}},
    {"sampling.typical_p", AT(typical_p), {1e-6f, 0.5f, 1}, {0, -1, 1.01f, NAN, INFINITY}},
    {"sampling.repetition_penalty",
     AT(repetition_penalty),
     {1e-6f, 1, 10},
     {0, -1, 10.1f, NAN, INFINITY}},
    {"sampling.presence_penalty",
     AT(presence_penalty),
     {-2, 0, 2},
     {-2.1f, 2.1f, NAN, INFINITY, -INFINITY}},
    {"sampling.frequency_penalty",
     AT(frequency_penalty),
     {-2, 0, 2},
     {-2.1f, 2.1f, NAN, INFINITY, -INFINITY}},
};

static void test_check_numbers_in_their_ranges(void **state)
{
    (void)state;
    struct error err;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct engine_request req = valid();
        float *at = (float *)(void *)((char *)&req.sampling + numbers[i].offset);
        for (int k = 0; k < 3; k++) {
            *at = numbers[i].good[k];
            assert_int_equal(request_check(&req, &limits, &err), 0);
        }
        for (int k = 0; k < 5; k++) {
            *at = numbers[i].bad[k];
            assert_refused(&req, numbers[i].field, numbers[i].field);
        }
    }
}

/* --- a single bad field at a time --- */

static uint32_t big_ids[REQUEST_MAX_STOP_IDS + 1];
static struct sample_bias big_biases[REQUEST_MAX_LOGIT_BIAS + 1];
static char long_text[2000];
static const char *stop_list[5];

static void break_n_zero(struct engine_request *r)
{
    r->sampling.n = 0;
}
static void break_n_nine(struct engine_request *r)
{
    r->sampling.n = 9;
}
static void break_n_huge(struct engine_request *r)
{
    r->sampling.n = UINT32_MAX;
}
static void break_n_places(struct engine_request *r)
{
    r->sampling.n = 5; /* more choices than may run at once */
}
static void break_max_tokens(struct engine_request *r)
{
    r->stopping.max_tokens = 0;
}
static void break_min_tokens(struct engine_request *r)
{
    r->stopping.max_tokens = 5;
    r->stopping.min_tokens = 6;
}
static void break_n_stop(struct engine_request *r)
{
    for (int i = 0; i < 5; i++)
        stop_list[i] = "x";
    r->stopping.stop = stop_list;
    r->stopping.n_stop = 5;
}
static void break_stop(struct engine_request *r, const char *text)
{
    stop_list[0] = stop_list[1] = "x";
    stop_list[2] = text;
    r->stopping.stop = stop_list;
    r->stopping.n_stop = 3;
}
static void break_stop_empty(struct engine_request *r)
{
    break_stop(r, "");
}
static void break_stop_long(struct engine_request *r)
{
    memset(long_text, 'a', 257);
    long_text[257] = '\0';
    break_stop(r, long_text);
}
static void break_stop_utf8(struct engine_request *r)
{
    break_stop(r, "ab\xC3");
}
static void break_stop_id(struct engine_request *r)
{
    static const uint32_t ids[] = {1, VOCAB};
    r->stopping.stop_token_ids = ids;
    r->stopping.n_stop_token_ids = 2;
}
static void break_n_stop_ids(struct engine_request *r)
{
    r->stopping.stop_token_ids = big_ids;
    r->stopping.n_stop_token_ids = REQUEST_MAX_STOP_IDS + 1;
}
static void break_bias_id(struct engine_request *r)
{
    static const struct sample_bias b[] = {{1, 1}, {VOCAB, 1}};
    r->sampling.logit_bias = b;
    r->sampling.n_logit_bias = 2;
}
static void break_bias_value(struct engine_request *r)
{
    static const struct sample_bias b[] = {{1, NAN}};
    r->sampling.logit_bias = b;
    r->sampling.n_logit_bias = 1;
}
static void break_bias_large(struct engine_request *r)
{
    static const struct sample_bias b[] = {{1, 1}, {2, 100.5f}};
    r->sampling.logit_bias = b;
    r->sampling.n_logit_bias = 2;
}
static void break_bias_twice(struct engine_request *r)
{
    static const struct sample_bias b[] = {{1, 1}, {3, 1}, {1, 2}};
    r->sampling.logit_bias = b;
    r->sampling.n_logit_bias = 3;
}
static void break_n_bias(struct engine_request *r)
{
    r->sampling.logit_bias = big_biases;
    r->sampling.n_logit_bias = REQUEST_MAX_LOGIT_BIAS + 1;
}
static void break_prompt_empty(struct engine_request *r)
{
    r->n_prompt_ids = 0;
}
static void break_prompt_long(struct engine_request *r)
{
    r->n_prompt_ids = CONTEXT;
}
static void break_prompt_id(struct engine_request *r)
{
    static const uint32_t ids[] = {1, 2, UINT32_MAX};
    r->prompt_ids = ids;
    r->n_prompt_ids = 3;
}
static void break_top_n(struct engine_request *r)
{
    r->want_logprobs = true;
    r->n_top_logprobs = 21;
}
static void break_top_n_alone(struct engine_request *r)
{
    r->n_top_logprobs = 2;
}
static void break_priority(struct engine_request *r)
{
    r->priority = 101;
}
static void break_deadline(struct engine_request *r)
{
    r->deadline_ns = -1;
}
static void break_salt(struct engine_request *r)
{
    memset(long_text, 'a', REQUEST_MAX_SALT_BYTES + 1);
    long_text[REQUEST_MAX_SALT_BYTES + 1] = '\0';
    r->cache_salt = long_text;
}
static void break_caller(struct engine_request *r)
{
    memset(long_text, 'a', REQUEST_MAX_CALLER_BYTES + 1);
    long_text[REQUEST_MAX_CALLER_BYTES + 1] = '\0';
    r->caller = long_text;
}
static void break_resume_many(struct engine_request *r)
{
    static const uint32_t ids[CONTEXT];
    static const struct engine_resume resume = {ids, CONTEXT, 0, false};
    r->resume = &resume;
}

static const uint32_t word_ids[] = {5, 6, 7}, bad_word_ids[] = {5, VOCAB};
static struct engine_bad_word words[ENGINE_MAX_BAD_WORDS + 1];
static void set_words(struct engine_request *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        words[i] = (struct engine_bad_word){word_ids, 3, i / 2};
    r->sampling.bad_words = words;
    r->sampling.n_bad_words = n;
}
static void break_n_words(struct engine_request *r)
{
    set_words(r, ENGINE_MAX_BAD_WORDS + 1);
}
static void break_word_empty(struct engine_request *r)
{
    set_words(r, 8);
    words[7].n_ids = 0;
}
static void break_word_long(struct engine_request *r)
{
    set_words(r, 4);
    words[1].n_ids = ENGINE_MAX_BAD_WORD_IDS + 1;
}
static void break_word_id(struct engine_request *r)
{
    set_words(r, 4);
    words[3] = (struct engine_bad_word){bad_word_ids, 2, 1};
}
static void break_allowed(struct engine_request *r)
{
    r->sampling.allowed_ids = bad_word_ids;
    r->sampling.n_allowed_ids = 2;
}
static void break_n_allowed(struct engine_request *r)
{
    r->sampling.allowed_ids = bad_word_ids;
    r->sampling.n_allowed_ids = REQUEST_MAX_ALLOWED_IDS + 1;
}
static void break_known(struct engine_request *r)
{
    r->want_prompt_logprobs = true;
    r->n_prompt_logprobs_known = r->n_prompt_ids + 1;
}

static const struct {
    const char *field;
    void (*apply)(struct engine_request *);
} broken[] = {
    {"sampling.bad_words", break_n_words},
    {"sampling.bad_words[3]", break_word_empty},
    {"sampling.bad_words[0]", break_word_long},
    {"sampling.bad_words[1][1]", break_word_id},
    {"sampling.allowed_token_ids[1]", break_allowed},
    {"sampling.allowed_token_ids", break_n_allowed},
    {"resume.n_prompt_logprobs", break_known},
    {"sampling.n", break_n_zero},
    {"sampling.n", break_n_nine},
    {"sampling.n", break_n_huge},
    {"sampling.n", break_n_places},
    {"sampling.logit_bias[1].token_id", break_bias_id},
    {"sampling.logit_bias[0].bias", break_bias_value},
    {"sampling.logit_bias[1].bias", break_bias_large},
    {"sampling.logit_bias[2].token_id", break_bias_twice},
    {"sampling.logit_bias", break_n_bias},
    {"stopping.max_tokens", break_max_tokens},
    {"stopping.min_tokens", break_min_tokens},
    {"stopping.stop", break_n_stop},
    {"stopping.stop[2]", break_stop_empty},
    {"stopping.stop[2]", break_stop_long},
    {"stopping.stop[2]", break_stop_utf8},
    {"stopping.stop_token_ids[1]", break_stop_id},
    {"stopping.stop_token_ids", break_n_stop_ids},
    {"prompt", break_prompt_empty},
    {"prompt", break_prompt_long},
    {"prompt.token_ids[2]", break_prompt_id},
    {"output.top_n", break_top_n},
    {"output.top_n", break_top_n_alone},
    {"priority", break_priority},
    {"deadline", break_deadline},
    {"cache_salt", break_salt},
    {"caller", break_caller},
    {"resume[0].generated_ids", break_resume_many},
};

static void test_check_names_the_field_that_is_wrong(void **state)
{
    (void)state;
    struct error err;
    struct engine_request req = valid();
    assert_int_equal(request_check(&req, &limits, &err), 0);
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        req = valid();
        broken[i].apply(&req);
        assert_refused(&req, broken[i].field, broken[i].field);
    }
    req = valid();
    break_prompt_long(&req);
    assert_int_equal(request_check(&req, &limits, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(err.reason, REASON_CONTEXT_TOO_LONG);
}

static void test_check_limits_themselves_are_taken(void **state)
{
    (void)state;
    struct error err;
    struct engine_request req = valid();
    for (uint32_t i = 0; i < REQUEST_MAX_STOP_IDS; i++)
        big_ids[i] = i;
    for (uint32_t i = 0; i < VOCAB; i++)
        big_biases[i] = (struct sample_bias){i, i % 2 ? -INFINITY : 100.0f};
    memset(long_text, 'a', ENGINE_MAX_STOP_BYTES);
    long_text[ENGINE_MAX_STOP_BYTES] = '\0';
    for (int i = 0; i < 4; i++)
        stop_list[i] = long_text;
    req.n_prompt_ids = CONTEXT - 1;
    req.sampling.n = 4;
    req.sampling.logit_bias = big_biases;
    req.sampling.n_logit_bias = VOCAB;
    req.stopping.stop = stop_list;
    req.stopping.n_stop = 4;
    req.stopping.stop_token_ids = big_ids;
    req.stopping.n_stop_token_ids = REQUEST_MAX_STOP_IDS;
    req.stopping.min_tokens = req.stopping.max_tokens;
    req.want_logprobs = true;
    req.n_top_logprobs = 20;
    req.priority = -100;
    assert_int_equal(request_check(&req, &limits, &err), 0);
}

/* --- data of the request --- */

/* A request over an operator's limit is refused. A request over the context is only cut. A resume
 * was accepted before and is not refused. */
static void test_check_input_and_total_tokens_name_the_limit(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_prompt, max_tokens, max_input, max_total;
        const char *field, *reason, *text; /* field NULL: the request is accepted */
        uint32_t room;                     /* max_tokens of an accepted request */
    } rows[] = {
        {20, 5, 20, 0, NULL, NULL, NULL, 5},
        {21, 5, 20, 0, "prompt", "INPUT_TOO_LONG",
         "21|max_input_tokens|maximum context length is 20 tokens", 0},
        {20, 30, 0, 50, NULL, NULL, NULL, 30},
        {20, 31, 0, 50, "stopping.max_tokens", "TOTAL_TOO_LONG", "31|20|max_total_tokens|50", 0},
        {49, 1, 0, 50, NULL, NULL, NULL, 1},
        {50, 1, 0, 50, "prompt", "TOTAL_TOO_LONG",
         "max_total_tokens|maximum context length is 50 tokens", 0},
        {20, UINT32_MAX, 0, 50, NULL, NULL, NULL, 30},
        {20, UINT32_MAX, 0, 5000, NULL, NULL, NULL, CONTEXT - 20},
        {20, 5000, 0, 0, NULL, NULL, NULL, CONTEXT - 20},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static const struct engine_resume resume[1];
        struct request_limits with = limits;
        struct engine_request req = valid();
        struct request *r;
        struct error err = {0};
        with.max_input_tokens = rows[i].max_input;
        with.max_total_tokens = rows[i].max_total;
        req.n_prompt_ids = rows[i].n_prompt;
        req.stopping.max_tokens = rows[i].max_tokens;
        int rc = request_check(&req, &with, &err);
        if (rows[i].field) {
            assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
            assert_string_equal(err.field, rows[i].field);
            assert_string_equal(error_reason_name(&err), rows[i].reason);
            assert_true(names_all(err.message, rows[i].text));
            req.resume = resume;
            assert_int_equal(request_check(&req, &with, &err), 0);
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(request_create(&req, &with, &r, &err), 0);
        assert_int_equal(r->max_tokens, rows[i].room);
        request_release(r);
    }
}

static void test_create_copies_and_cuts(void **state)
{
    (void)state;
    uint32_t own[4] = {10, 11, 12, 11};
    uint32_t stops[] = {33};
    struct sample_bias bias = {44, 1.5f};
    struct engine_request req = valid();
    struct request *r;
    struct error err;
    struct sample_params params;
    req.prompt_ids = own;
    req.sampling.n = 2;
    req.sampling.repetition_penalty = 1.1f;
    req.sampling.logit_bias = &bias;
    req.sampling.n_logit_bias = 1;
    req.stopping.stop_token_ids = stops;
    req.stopping.n_stop_token_ids = 1;
    req.stopping.min_tokens = 1;
    assert_int_equal(request_create(&req, &limits, &r, &err), 0);
    memset(own, 0, sizeof(own));
    stops[0] = bias.id = 0;
    assert_int_equal(r->prompt[3], 11);
    assert_int_equal(r->max_tokens, CONTEXT - 4);
    assert_true(request_is_stop_id(r, 2) && request_is_stop_id(r, 7) && request_is_stop_id(r, 33));
    assert_false(request_is_stop_id(r, 0));

    /* Before min_tokens every stop id is banned. */
    sequence_sample_params(&r->choices[1], &params);
    assert_int_equal(params.choice, 1);
    assert_int_equal(params.position, 0);
    assert_int_equal(params.n_biases, 4);
    assert_int_equal(params.biases[0].id, 44);
    assert_true(params.biases[1].value == -INFINITY);
    assert_int_equal(params.n_counts, 3); /* 10, 11 and 12 of the prompt */
    sequence_append(&r->choices[1], 11);
    sequence_append(&r->choices[1], 50);
    sequence_append(&r->choices[1], 50);
    sequence_sample_params(&r->choices[1], &params);
    assert_int_equal(params.position, 3);
    assert_int_equal(params.n_biases, 1);
    assert_int_equal(params.n_counts, 4);
    assert_int_equal(params.counts[1].n_generated, 1);
    assert_int_equal(params.counts[3].id, 50);
    assert_int_equal(params.counts[3].n_generated, 2);
    assert_int_equal(sequence_token(&r->choices[1], 6), 50);
    assert_int_equal(sequence_n_tokens(&r->choices[0]), 4);

    struct request_limits longer = limits;
    longer.context_tokens = 504;
    assert_true(r->cut_to_context);
    assert_true(request_resize(r, 500, &longer)); /* counts and ids survive */
    assert_int_equal(r->choices[1].max_ids, 500);
    assert_false(r->cut_to_context);
    sequence_sample_params(&r->choices[1], &params);
    assert_int_equal(params.n_counts, 4);
    assert_int_equal(params.counts[3].n_generated, 2);
    assert_true(request_resize(r, 501, &longer));
    assert_int_equal(r->max_tokens, 500);
    assert_true(r->cut_to_context);
    request_release(r);
    request_release(NULL);
}

static void test_create_ignore_eos_leaves_the_callers_stops(void **state)
{
    (void)state;
    static const uint32_t stops[] = {33};
    struct engine_request req = valid();
    struct request *r;
    struct error err;
    req.stopping.ignore_eos = true;
    req.stopping.stop_token_ids = stops;
    req.stopping.n_stop_token_ids = 1;
    assert_int_equal(request_create(&req, &limits, &r, &err), 0);
    assert_false(request_is_stop_id(r, 2));
    assert_true(request_is_stop_id(r, 33));
    request_release(r);
}

static void test_create_salts_differ_by_text(void **state)
{
    (void)state;
    static const char *const salts[] = {NULL, "a", "b", "ab"};
    struct request *r[4];
    struct error err;
    for (int i = 0; i < 4; i++) {
        struct engine_request req = valid();
        req.cache_salt = salts[i];
        assert_int_equal(request_create(&req, &limits, &r[i], &err), 0);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&r[i]->salt, &r[j]->salt, sizeof(r[i]->salt));
    }
    for (int i = 0; i < 4; i++)
        request_release(r[i]);
}

static void test_counts_many_ids_with_collisions(void **state)
{
    (void)state;
    struct request_counts counts;
    assert_true(request_counts_init(&counts, 3000));
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = 0; i < 3000; i++)
            request_counts_add(&counts, i * 65536u + i, round > 0);
    assert_int_equal(counts.n, 3000);
    for (uint32_t i = 0; i < 3000; i++) {
        assert_int_equal(counts.counts[i].id, i * 65536u + i);
        assert_int_equal(counts.counts[i].n_generated, 2);
    }
    request_counts_fini(&counts);
}

/* A model with recurrent layers has fewer slots of states than sequences that may run at once. */
static void test_more_choices_than_state_slots_are_refused(void **state)
{
    (void)state;
    struct engine_request req = valid();
    struct request_limits few = limits;
    struct error err;
    few.n_running_states = 2;
    few.state_bytes = 1000;
    req.sampling.n = 2;
    assert_int_equal(request_check(&req, &few, &err), 0);
    req.sampling.n = 3;
    assert_int_equal(request_check(&req, &few, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "sampling.n");
    assert_int_equal(request_check(&req, &limits, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_choices_than_state_slots_are_refused),
        cmocka_unit_test(test_check_numbers_in_their_ranges),
        cmocka_unit_test(test_check_names_the_field_that_is_wrong),
        cmocka_unit_test(test_check_limits_themselves_are_taken),
        cmocka_unit_test(test_check_input_and_total_tokens_name_the_limit),
        cmocka_unit_test(test_create_copies_and_cuts),
        cmocka_unit_test(test_create_ignore_eos_leaves_the_callers_stops),
        cmocka_unit_test(test_create_salts_differ_by_text),
        cmocka_unit_test(test_counts_many_ids_with_collisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
