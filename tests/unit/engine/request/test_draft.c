/* Tests of the drafter alone: its drafts, its trust in them and its cost. Also tests the cost of a
 * row as measured from steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/step_cost.h"
#include "tests/support/names.h"

enum { VOCAB = 5000, MAX_TOKENS = 20000 };

static const struct request_limits limits = {
    .vocab_size = VOCAB, .context_tokens = 100000, .max_concurrent = 8, .draft_tokens = 4};

static uint32_t place[DRAFT_LOOKUP * DRAFT_LARGEST_INDEX];

static void take_place(struct request *r)
{
    assert_true(draft_index_len(limits.context_tokens) * sizeof(*place) <= sizeof(place));
    memset(place, 0xAA, sizeof(place)); /* leftover index of another sequence */
    draft_take_place(r->choices[0].draft, &r->choices[0], place, limits.context_tokens);
}

static struct request *make(const uint32_t *prompt, uint32_t n)
{
    struct engine_request req;
    struct request *r;
    struct error err;
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = n;
    req.stopping.max_tokens = MAX_TOKENS;
    assert_int_equal(request_create(&req, &limits, &r, &err), 0);
    assert_non_null(r->choices[0].draft);
    take_place(r);
    return r;
}

static uint32_t rng = 1;
static uint32_t below(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

static void test_it_proposes_what_followed_the_longest_match(void **state)
{
    static const uint32_t prompt[] = {5, 1, 2, 3, 10, 11, 12, 9, 3, 20, 21, 7, 2, 3, 30, 31, 1, 2};
    (void)state;
    struct request *r = make(prompt, sizeof(prompt) / sizeof(prompt[0]));
    struct sequence *seq = &r->choices[0];
    struct draft *d = seq->draft;
    assert_int_equal(draft_propose(d, seq, 3, 0), 3); /* the text has "1 2" once before */
    assert_int_equal(d->ids[0], 3);
    assert_int_equal(d->ids[1], 10);
    assert_int_equal(d->ids[2], 11);
    sequence_append(seq, 3); /* the longer match "1 2 3" wins over the later "2 3" */
    assert_int_equal(draft_propose(d, seq, 2, 0), 2);
    assert_int_equal(d->ids[0], 10);
    assert_int_equal(d->ids[1], 11);
    sequence_append(seq, 9); /* "3 9" is new, so "9" decides: 3 20 21 followed */
    assert_int_equal(draft_propose(d, seq, 16, 0), 16);
    assert_int_equal(d->ids[0], 3);
    assert_int_equal(d->ids[1], 20);
    sequence_append(seq, 4000); /* never seen */
    assert_int_equal(draft_propose(d, seq, 16, 0), 0);
    request_release(r);
}

static void test_a_loop_is_foretold_beyond_the_end(void **state)
{
    static const uint32_t prompt[] = {8, 40, 41, 42, 40, 41, 42, 40};
    (void)state;
    struct request *r = make(prompt, 8);
    struct sequence *seq = &r->choices[0];
    assert_int_equal(draft_propose(seq->draft, seq, 16, 0), 16);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(seq->draft->ids[i], 40 + (i + 1) % 3);
    request_release(r);
}

/* On repeated text the trust grows. On noise the trust is lost after few drafts. Learning needs no
 * rows. */
static void test_trust_follows_what_comes(void **state)
{
    uint32_t prompt[64], n_drafted = 0, n_right = 0;
    (void)state;
    for (uint32_t i = 0; i < 64; i++)
        prompt[i] = 3 + i;
    struct request *r = make(prompt, 64);
    struct sequence *seq = &r->choices[0];
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t next = prompt[i % 64];
        if (draft_propose(seq->draft, seq, 1, 0.5f)) {
            n_drafted++;
            n_right += seq->draft->ids[0] == next;
        }
        sequence_append(seq, next);
    }
    assert_true(n_drafted > 380 && n_right == n_drafted);
    assert_int_equal(draft_propose(seq->draft, seq, 16, 0.5f), 16);
    n_drafted = 0;
    for (uint32_t i = 0; i < 4000; i++) { /* texts of 16 tokens: each pair has been seen */
        n_drafted += draft_propose(seq->draft, seq, 16, 0.2f);
        sequence_append(seq, 100 + below(16));
    }
    assert_true(n_drafted < 100);
    request_release(r);
}

static void test_no_draft_goes_on_behind_a_stop_id(void **state)
{
    static const uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 1, 2}, stops[] = {4};
    struct engine_request req;
    struct request *r;
    struct error err;
    (void)state;
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 8;
    req.stopping.stop_token_ids = stops;
    req.stopping.n_stop_token_ids = 1;
    assert_int_equal(request_create(&req, &limits, &r, &err), 0);
    take_place(r);
    assert_int_equal(draft_propose(r->choices[0].draft, &r->choices[0], 16, 0), 2);
    assert_int_equal(r->choices[0].draft->ids[1], 4);
    request_release(r);
}

/* Symptom: a queued request held an unused lookup index of 96 KiB per choice. */
static void test_without_a_place_nothing_is_kept_nor_foretold(void **state)
{
    static const uint32_t prompt[] = {8, 40, 41, 42, 40, 41, 42, 40};
    (void)state;
    struct request *r = make(prompt, 8);
    struct sequence *seq = &r->choices[0];
    struct draft *d = seq->draft, before;
    for (uint32_t i = 0; i < 20; i++)
        sequence_append(seq, 40 + (i + 1) % 3);
    assert_int_equal(draft_propose(d, seq, 16, 0), 16);
    before = *d;
    draft_leave_place(d);
    assert_null(d->index);
    assert_int_equal(draft_propose(d, seq, 16, 0), 0);
    take_place(r); /* same state as before, and no token is learned twice */
    assert_int_equal(draft_propose(d, seq, 16, 0), 16);
    assert_memory_equal(d->ids, before.ids, sizeof(d->ids));
    assert_memory_equal(d->trust, before.trust, sizeof(d->trust));
    assert_memory_equal(d->n_seen, before.n_seen, sizeof(d->n_seen));
    assert_int_equal(d->n_match, before.n_match);
    draft_leave_place(d);
    sequence_append(seq, 40); /* a token of the step that ran when the place was lost */
    take_place(r);
    assert_int_equal(draft_propose(d, seq, 16, 0), 16);
    assert_int_equal(d->ids[0], 41);
    request_release(r);
}

static void test_who_drafts_is_the_requests_word_then_the_engines(void **state)
{
    static const struct {
        struct engine_speculate asked;
        uint32_t engine, drafts;
        const char *refused;
    } rows[] = {
        {{ENGINE_DRAFTER_DEFAULT, 0}, 0, 0, NULL},
        {{ENGINE_DRAFTER_DEFAULT, 0}, 6, 6, NULL},
        {{ENGINE_DRAFTER_DEFAULT, 3}, 0, 3, NULL},
        {{ENGINE_DRAFTER_NONE, 0}, 6, 0, NULL},
        {{ENGINE_DRAFTER_NGRAM, 0}, 0, ENGINE_DEFAULT_DRAFT_TOKENS, NULL},
        {{ENGINE_DRAFTER_NGRAM, 0}, 7, 7, NULL},
        {{ENGINE_DRAFTER_NGRAM, 16}, 2, 16, NULL},
        {{ENGINE_DRAFTER_NGRAM, 17}, 2, 0, "speculate.max_draft_tokens|17|16"},
        {{ENGINE_DRAFTER_NONE, 2}, 2, 0, "speculate.max_draft_tokens|2"},
    };
    static const uint32_t prompt[] = {1, 2};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct request_limits l = limits;
        struct engine_request req;
        struct request *r;
        struct error err;
        engine_request_init(&req);
        req.prompt_ids = prompt;
        req.n_prompt_ids = 2;
        req.speculate = rows[i].asked;
        l.draft_tokens = rows[i].engine;
        int rc = request_check(&req, &l, &err);
        if (rows[i].refused) {
            assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
            assert_true(names_all(err.message, rows[i].refused));
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(request_create(&req, &l, &r, &err), 0);
        assert_int_equal(r->max_draft_tokens, rows[i].drafts);
        assert_int_equal(r->choices[0].draft != NULL, rows[i].drafts > 0);
        request_release(r);
    }
}

static void test_cost_of_a_row_is_told_by_steps_of_several_sizes(void **state)
{
    struct step_cost cost = {0};
    (void)state;
    assert_true(step_cost_base_rows(&cost) == 8.0f);
    for (int i = 0; i < 50; i++)
        step_cost_saw(&cost, 4, 1000);
    assert_true(step_cost_base_rows(&cost) == 8.0f); /* steps of a single size give no estimate */
    for (int i = 0; i < 2000; i++)
        step_cost_saw(&cost, 1 + i % 5, 3000 + 100 * (1 + i % 5));
    float base = step_cost_base_rows(&cost);
    assert_true(base > 20 && base < 40);
    step_cost_saw(&cost, 5, 1000000000); /* an outlier: the machine was busy */
    base = step_cost_base_rows(&cost);
    assert_true(base >= 10 && base <= 256);
    for (int i = 0; i < 1000; i++)
        step_cost_saw(&cost, 1 + i % 5, 5000); /* the time does not depend on the rows */
    assert_true(step_cost_base_rows(&cost) == 256.0f);
    for (int i = 0; i < 1000; i++)
        step_cost_saw(&cost, 1 + i % 5,
                      5000 * (1 + i % 5)); /* the time is proportional to the rows */
    assert_true(step_cost_base_rows(&cost) == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_proposes_what_followed_the_longest_match),
        cmocka_unit_test(test_a_loop_is_foretold_beyond_the_end),
        cmocka_unit_test(test_trust_follows_what_comes),
        cmocka_unit_test(test_no_draft_goes_on_behind_a_stop_id),
        cmocka_unit_test(test_without_a_place_nothing_is_kept_nor_foretold),
        cmocka_unit_test(test_who_drafts_is_the_requests_word_then_the_engines),
        cmocka_unit_test(test_cost_of_a_row_is_told_by_steps_of_several_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
