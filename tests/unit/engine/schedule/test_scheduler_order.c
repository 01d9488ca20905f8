/* Tests which requests run, in which order, and which wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/step.h"
#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "tests/unit/engine/support/support_scheduler.h"

static void test_decodes_come_before_prefill_and_chunks_fill_the_budget(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[3];
    struct scheduler_config cfg = bench_small;
    cfg.max_rows = 20;
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < 2; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, 4, 50, 1, 0, ""));
    assert_true(bench_step(b));
    scheduler_add(b->sched, r[2] = bench_make(b, 2, 100, 5, 1, 0, ""));
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(bench_step(b));
        assert_int_equal(b->plan.n_decode_rows, 2);
        assert_int_equal(b->plan.n_decode_ready, 2);
        assert_int_equal(b->plan.n_prefill_rows, 16); /* the chunk, within 20 − 2 rows */
    }
    assert_int_equal(r[2]->choices[0].n_computed, 96);
    assert_int_equal(r[0]->choices[0].n_ids, 7);
    for (uint32_t i = 0; i < 3; i++) {
        scheduler_end_request(b->sched, r[i]);
        request_release(r[i]);
    }
    bench_close(b);
}

/* Prompts are prepared in parallel: the first request may be submitted last. */
static void test_queue_order_is_that_of_arrival_not_of_submission(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 1;
    bench_open(b, &cfg);
    struct request *first = bench_make(b, 0, 4, 2, 1, 0, "");
    struct request *second = bench_make(b, 1, 4, 2, 1, 0, "");
    scheduler_add(b->sched, second);
    scheduler_add(b->sched, first);
    assert_true(bench_step(b));
    assert_int_equal(b->plan.n_started, 1);
    assert_ptr_equal(b->plan.started[0], first);
    while (bench_step(b))
        ;
    request_release(first);
    request_release(second);
    bench_close(b);
}

static void test_queue_order_priority_then_arrival(void **state)
{
    (void)state;
    enum { N = 12 };
    struct bench *b = &bench;
    struct request *r[N], *started[N];
    uint32_t n_started = 0;
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 1;
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < N; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, 4, 2, 1, (int32_t)(i % 3), ""));
    scheduler_set_priority(b->sched, r[11], -1);
    while (bench_step(b))
        for (uint32_t i = 0; i < b->plan.n_started; i++)
            started[n_started++] = b->plan.started[i];
    assert_int_equal(n_started, N);
    assert_ptr_equal(started[N - 1], r[11]);
    for (uint32_t i = 1; i < N; i++)
        assert_true(started[i - 1]->priority > started[i]->priority ||
                    (started[i - 1]->priority == started[i]->priority &&
                     started[i - 1]->arrival < started[i]->arrival));
    for (uint32_t i = 0; i < N; i++)
        request_release(r[i]);
    bench_close(b);
}

/* A caller with 60 queued requests does not delay another caller. Over time both get the same
 * number of tokens, though one caller's requests are four times as long. */
static void test_fairness_callers_share_tokens(void **state)
{
    (void)state;
    enum { N = 60, M = 15 };
    struct bench *b = &bench;
    struct request *greedy[N], *modest[M];
    struct scheduler_config cfg = bench_small;
    uint64_t tokens[2] = {0};
    cfg.max_seqs = 1;
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < N; i++)
        scheduler_add(b->sched, greedy[i] = bench_make(b, i, 40, 40, 1, 0, "greedy"));
    for (uint32_t i = 0; i < M; i++)
        scheduler_add(b->sched, modest[i] = bench_make(b, i, 160, 160, 1, 0, "modest"));
    while (modest[M - 1]->state == REQUEST_WAITING) {
        assert_true(bench_step(b));
        for (uint32_t i = 0; i < b->plan.n_started; i++) {
            const struct request *r = b->plan.started[i];
            tokens[r->caller[0] == 'm'] += r->n_prompt + r->max_tokens;
        }
        uint64_t apart = tokens[0] > tokens[1] ? tokens[0] - tokens[1] : tokens[1] - tokens[0];
        assert_true(apart <= 1024 + 320 + 80); /* a quantum and a request of each caller */
    }
    while (scheduler_any(b->sched))
        assert_true(bench_step(b));
    for (uint32_t i = 0; i < N; i++)
        request_release(greedy[i]);
    for (uint32_t i = 0; i < M; i++)
        request_release(modest[i]);
    bench_close(b);
}

static uint32_t n_ready(struct bench *b)
{
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    return s.n_ready;
}

/* A stall means no progress while requests are ready. A request that waits for the place of a
 * paused request is not ready. */
static void test_ready_when_paused_ones_hold_every_place_then_none_is(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *held[2], *queued;
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 2;
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < 2; i++)
        scheduler_add(b->sched, held[i] = bench_make(b, i, 4, 50, 1, 0, ""));
    assert_int_equal(n_ready(b), 2);
    while (held[0]->choices[0].n_ids < 6 || held[1]->choices[0].n_ids < 6)
        assert_true(bench_step(b));
    for (uint32_t i = 0; i < 2; i++)
        scheduler_pause(b->sched, held[i], true);
    scheduler_add(b->sched, queued = bench_make(b, 2, 4, 5, 1, 0, ""));
    assert_false(bench_step(b));
    assert_int_equal(n_ready(b), 0);
    scheduler_pause(b->sched, held[0], false);
    assert_int_equal(n_ready(b), 2); /* the request that continues, and the request behind it */
    scheduler_pause(b->sched, held[1], false);
    while (bench_step(b))
        ;
    for (uint32_t i = 0; i < 2; i++)
        request_release(held[i]);
    request_release(queued);
    bench_close(b);
}

static void test_paused_requests_never_block_others(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *big, *little;
    struct scheduler_config cfg = bench_small;
    cfg.n_blocks = 10;
    bench_open(b, &cfg);
    scheduler_add(b->sched, big = bench_make(b, 0, 60, 19, 1, 9, ""));
    while (big->choices[0].n_ids < 15)
        assert_true(bench_step(b));
    assert_int_equal(n_ready(b), 1);
    scheduler_pause(b->sched, big, true);
    assert_false(bench_step(b));
    assert_int_equal(n_ready(b), 0); /* no request is ready, so this is no stall */
    scheduler_add(b->sched, little = bench_make(b, 1, 50, 20, 1, -5, ""));
    while (little->state != REQUEST_ENDED)
        assert_true(bench_step(b)); /* takes the paused request's blocks */
    bench_assert_answer(little, true);
    assert_true(big->n_preemptions > 0);
    assert_false(bench_step(b));
    scheduler_pause(b->sched, big, false);
    while (bench_step(b))
        ;
    bench_assert_answer(big, true);
    request_release(big);
    request_release(little);
    bench_close(b);
}

static void test_deadlines_queue_prefill_and_decode(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[4], *late;
    struct scheduler_config cfg = bench_small;
    uint32_t n_late = 0;
    cfg.max_seqs = 2;
    bench_open(b, &cfg);
    assert_true(scheduler_next_deadline(b->sched) == INT64_MAX);
    /* decoding, in prefill, waiting, waiting without a deadline */
    for (uint32_t i = 0; i < 4; i++) {
        r[i] = bench_make(b, i, i == 1 ? 200 : 4, 100, 1, 0, "");
        r[i]->deadline_ns = i < 3 ? 5000 - i : 0;
        scheduler_add(b->sched, r[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(bench_step(b));
        assert_null(scheduler_expired(b->sched, b->now));
    }
    assert_true(scheduler_next_deadline(b->sched) == 4998);
    assert_int_equal(r[2]->state, REQUEST_WAITING);
    while ((late = scheduler_expired(b->sched, 5000))) {
        assert_true(late != r[3]);
        scheduler_end_request(b->sched, late);
        n_late++;
    }
    assert_int_equal(n_late, 3);
    assert_true(scheduler_next_deadline(b->sched) == INT64_MAX);
    while (bench_step(b))
        ;
    bench_assert_answer(r[3], true);
    for (uint32_t i = 0; i < 4; i++)
        request_release(r[i]);
    bench_close(b);
}

static void add_all(struct bench *b, struct request **r, uint32_t n, uint32_t n_tokens,
                    int32_t priority, const char *caller)
{
    for (uint32_t i = 0; i < n; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, 4, n_tokens, 1, priority, caller));
}

static void finish_all(struct bench *b, struct request **r, uint32_t n)
{
    while (bench_step(b))
        ;
    for (uint32_t i = 0; i < n; i++) {
        bench_assert_answer(r[i], true);
        request_release(r[i]);
    }
    bench_close(b);
}

/* Where all places that could be freed are too few, no request is preempted. Where they suffice, as
 * few as possible are. */
static void test_many_choices_send_nobody_back_for_nothing(void **state)
{
    (void)state;
    static const char *const callers[] = {"b", "c", "d", "e", "f", "g"};
    struct bench *b = &bench;
    struct request *r[9];
    bench_open(b, &bench_small);
    add_all(b, r, 2, 60, 0, "a");
    for (uint32_t i = 0; i < 6; i++)
        add_all(b, &r[2 + i], 1, 60, 0, callers[i]);
    assert_true(bench_step(b));
    scheduler_add(b->sched, r[8] = bench_make(b, 8, 4, 10, 4, 0, "h"));
    for (uint32_t i = 0; i < 20; i++)
        assert_true(bench_step(b));
    assert_int_equal(r[0]->n_preemptions + r[1]->n_preemptions, 0);
    assert_int_equal(b->plan.n_decode_rows, 8);
    finish_all(b, r, 9);

    bench_open(b, &bench_small);
    add_all(b, r, 6, 60, 0, "a");
    add_all(b, &r[6], 2, 60, 0, "b");
    assert_true(bench_step(b));
    scheduler_add(b->sched, r[8] = bench_make(b, 8, 4, 10, 4, 0, "h"));
    for (uint32_t i = 0; i < 3; i++)
        assert_true(bench_step(b));
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_preemptions, 4);
    assert_int_equal(r[8]->state, REQUEST_ACTIVE);
    assert_int_equal(r[6]->n_preemptions + r[7]->n_preemptions, 0);
    finish_all(b, r, 9);
}

/* A request takes the place of a request with a lower priority. The other continues later and then
 * keeps its place: a stream of higher priorities cannot preempt it for ever. */
static void test_a_higher_priority_takes_a_place_once(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[4];
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 2;
    bench_open(b, &cfg);
    add_all(b, r, 1, 60, -1, "");
    add_all(b, &r[1], 1, 60, 0, "");
    for (uint32_t i = 0; i < 10; i++)
        assert_true(bench_step(b));
    r[0]->n_preemptions = 3; /* earlier preemptions do not protect the request */
    add_all(b, &r[2], 1, 5, 7, "");
    assert_true(bench_step(b));
    assert_int_equal(r[2]->state, REQUEST_ACTIVE);
    assert_int_equal(r[0]->state, REQUEST_WAITING); /* the request of priority -1 */
    assert_int_equal(r[1]->n_preemptions, 0);
    while (r[0]->state == REQUEST_WAITING)
        assert_true(bench_step(b));
    add_all(b, &r[3], 1, 5, 7, "");
    assert_true(bench_step(b));
    assert_int_equal(r[0]->n_preemptions, 4);
    assert_int_equal(r[0]->state, REQUEST_ACTIVE);
    assert_int_equal(r[1]->state, REQUEST_WAITING);
    finish_all(b, r, 4);
}

/* The same between callers. A caller with less service preempts another caller's request once, not
 * with each new request. */
static void test_anothers_higher_priority_takes_a_place_once(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[6];
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 2;
    bench_open(b, &cfg);
    add_all(b, r, 2, 60, -1, "a");
    for (uint32_t i = 0; i < 10; i++)
        assert_true(bench_step(b));
    for (uint32_t i = 2; i < 6; i++) {
        add_all(b, &r[i], 1, 2, 5, "b");
        for (uint32_t n = 0; n < 6; n++)
            assert_true(bench_step(b));
    }
    assert_true(r[0]->n_preemptions <= 1 && r[1]->n_preemptions <= 1);
    assert_int_equal(r[0]->n_preemptions + r[1]->n_preemptions, 2);
    finish_all(b, r, 6);
}

/* Among lower priorities the victim is the request with the least lost work, not a request of the
 * busiest caller. */
static void test_a_higher_priority_takes_the_place_that_costs_least(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[4];
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 3;
    bench_open(b, &cfg);
    add_all(b, r, 2, 60, 0, "many");
    for (uint32_t i = 0; i < 30; i++)
        assert_true(bench_step(b));
    add_all(b, &r[2], 1, 60, 0, "one");
    for (uint32_t i = 0; i < 3; i++)
        assert_true(bench_step(b));
    add_all(b, &r[3], 1, 5, 5, "other");
    assert_true(bench_step(b));
    assert_int_equal(r[3]->state, REQUEST_ACTIVE);
    assert_int_equal(r[2]->state, REQUEST_WAITING);
    assert_int_equal(r[0]->n_preemptions + r[1]->n_preemptions, 0);
    finish_all(b, r, 4);
}

/* Two callers with equal service. A preempted request must not take its place back at once, or the
 * two would preempt each other in every step. */
static void test_who_was_given_a_place_has_it_before_who_gave_it(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[3];
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 2;
    bench_open(b, &cfg);
    add_all(b, r, 1, 60, 0, "a");
    r[0]->sent_back = true; /* so the other request of "a" must yield */
    add_all(b, &r[1], 1, 60, 1, "a");
    assert_true(bench_step(b));
    add_all(b, &r[2], 1, 60, 1, "b");
    for (uint32_t i = 0; i < 12; i++)
        assert_true(bench_step(b));
    assert_int_equal(r[1]->n_preemptions, 1);
    assert_int_equal(r[2]->state, REQUEST_ACTIVE);
    assert_true(r[2]->choices[0].n_ids > 5);
    finish_all(b, r, 3);
}

/* A place was freed for a request with a high priority. Another request that waits longer must not
 * take this place. */
static void test_a_place_that_was_made_is_not_anothers(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[4];
    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 2;
    cfg.n_blocks = 256;
    bench_open(b, &cfg);
    add_all(b, r, 1, 300, -1, "");
    assert_true(bench_step(b));
    scheduler_add(b->sched, r[1] = bench_make(b, 1, 4, 5, 1, -1, ""));
    scheduler_add(b->sched, r[2] = bench_make(b, 2, 480, 5, 1, 5, ""));
    for (uint32_t i = 0; i < 20; i++) /* the long prompt holds 20 of its 30 blocks */
        assert_true(bench_step(b));
    assert_int_equal(r[1]->state, REQUEST_WAITING);
    add_all(b, &r[3], 1, 5, 7, "");
    assert_true(bench_step(b));
    assert_int_equal(r[3]->state, REQUEST_ACTIVE);
    assert_int_equal(r[0]->state, REQUEST_WAITING);
    finish_all(b, r, 4);
}

/* A lookup index takes 96 KiB a choice and belongs to a place. With an index each, 512 waiting
 * choices would take 48 MiB. */
static void test_only_who_runs_has_an_index_to_look_up_in(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[2];
    struct scheduler_config cfg = bench_small;
    const struct sequence *seq;
    cfg.max_seqs = 2;
    cfg.n_draft_rows = 8;
    bench_open(b, &cfg);
    b->limits.draft_tokens = 4;
    b->repeats = true;
    scheduler_add(b->sched, r[0] = bench_make(b, 0, 4, 120, 2, 0, "a"));
    scheduler_add(b->sched, r[1] = bench_make(b, 1, 4, 40, 1, 0, "a"));
    for (uint32_t i = 0; i < 20; i++)
        assert_true(bench_step(b));
    assert_non_null(r[0]->choices[0].draft->index);
    assert_non_null(r[0]->choices[1].draft->index);
    assert_ptr_not_equal(r[0]->choices[0].draft->index, r[0]->choices[1].draft->index);
    seq = &r[1]->choices[0];
    assert_non_null(seq->draft);
    assert_null(seq->draft->index);
    scheduler_set_priority(b->sched, r[1], 1); /* takes both places */
    for (uint32_t i = 0; i < 10; i++)
        assert_true(bench_step(b));
    assert_int_equal(r[0]->state, REQUEST_WAITING);
    assert_null(r[0]->choices[0].draft->index);
    assert_non_null(seq->draft->index);
    while (bench_step(b))
        ;
    assert_true(b->n_accepted > 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_null(r[i]->choices[0].draft->index);
        bench_assert_answer(r[i], true);
        request_release(r[i]);
    }
    bench_close(b);
}

static void pause_all(struct bench *b, struct request **r, uint32_t n, bool paused)
{
    for (uint32_t i = 0; i < n; i++)
        scheduler_pause(b->sched, r[i], paused);
}

/* Idle readers hold places, and the next request of their caller has too few or may take none.
 * Other requests start anyway. */
static void test_one_without_room_does_not_keep_out_those_with_it(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[6];
    bench_open(b, &bench_small); /* 8 places */
    add_all(b, r, 4, 60, 0, "hog");
    for (uint32_t i = 0; i < 3; i++)
        assert_true(bench_step(b));
    pause_all(b, r, 4, true);
    scheduler_add(b->sched, r[4] = bench_make(b, 4, 4, 20, 8, 0, "hog"));
    assert_false(bench_step(b));
    scheduler_add(b->sched, r[5] = bench_make(b, 5, 4, 5, 1, 0, "modest"));
    for (uint32_t i = 0; i < 6; i++)
        bench_step(b);
    assert_int_equal(r[5]->state, REQUEST_ENDED);
    assert_int_equal(r[4]->state, REQUEST_WAITING);
    pause_all(b, r, 4, false);
    finish_all(b, r, 6);

    struct scheduler_config cfg = bench_small;
    cfg.max_seqs = 4;
    bench_open(b, &cfg);
    add_all(b, r, 4, 60, 0, "hog");
    for (uint32_t i = 0; i < 3; i++)
        assert_true(bench_step(b));
    pause_all(b, r, 4, true);
    add_all(b, &r[4], 1, 20, 0, "hog");
    bench_step(b);
    add_all(b, &r[5], 1, 5, 0, "modest");
    for (uint32_t i = 0; i < 8; i++)
        bench_step(b);
    assert_int_equal(r[5]->state, REQUEST_ENDED);
    pause_all(b, r, 5, false);
    finish_all(b, r, 6);
}

/* A request that needs all places at once waits for a long answer of a higher priority. Others of
 * that priority start meanwhile, but the request must find the places free in the end. */
static void test_who_needs_many_places_neither_stops_others_nor_starves(void **state)
{
    (void)state;
    enum { N = 400 };
    struct bench *b = &bench;
    struct request *many, *longest, *r[N];
    struct scheduler_config cfg = bench_small;
    uint64_t most = 0;
    cfg.n_blocks = 256;
    bench_open(b, &cfg);
    scheduler_add(b->sched, longest = bench_make(b, 0, 4, 400, 1, 10, "a"));
    assert_true(bench_step(b));
    scheduler_add(b->sched, many = bench_make(b, 1, 4, 5, 8, -10, "a"));
    uint32_t n = 0;
    for (; n < N && many->state == REQUEST_WAITING; n++) {
        scheduler_add(b->sched, r[n] = bench_make(b, n, 4, 30, 1, 10, "a"));
        uint64_t since = b->n_steps;
        while (r[n]->state == REQUEST_WAITING)
            assert_true(bench_step(b));
        most = b->n_steps - since > most ? b->n_steps - since : most;
        for (uint32_t i = 0; i < 4; i++)
            assert_true(bench_step(b));
    }
    assert_true(most <= SCHEDULER_HOLD_STEPS + 40);
    assert_true(many->state != REQUEST_WAITING);
    assert_true(n > SCHEDULER_MOST_PASSED);
    while (bench_step(b))
        ;
    for (uint32_t i = 0; i < n; i++)
        request_release(r[i]);
    bench_assert_answer(longest, true);
    bench_assert_answer(many, true);
    request_release(longest);
    request_release(many);
    bench_close(b);
}

/* A caller sends one-token requests. The prompts of another caller must not be preempted and
 * computed again each time. */
static void test_who_takes_places_pays_for_what_is_lost(void **state)
{
    (void)state;
    enum { N = 300 };
    struct bench *b = &bench;
    struct request *a[2], *r[N];
    struct scheduler_config cfg = bench_small;
    struct scheduler_stats s;
    cfg.max_seqs = 2;
    cfg.n_blocks = 512;
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < 2; i++)
        scheduler_add(b->sched, a[i] = bench_make(b, i, 200, 400, 1, 0, "a"));
    uint32_t n = 0;
    while (a[0]->state != REQUEST_ENDED && a[1]->state != REQUEST_ENDED && n < N) {
        scheduler_add(b->sched, r[n] = bench_make(b, n, 4, 1, 1, 0, "b"));
        for (n++; r[n - 1]->state != REQUEST_ENDED;)
            assert_true(bench_step(b));
    }
    scheduler_get_stats(b->sched, &s);
    if (s.n_preemptions > 12)
        fail_msg("%llu preemptions for %u requests", (unsigned long long)s.n_preemptions, n);
    while (bench_step(b))
        ;
    for (uint32_t i = 0; i < 2; i++)
        request_release(a[i]);
    for (uint32_t i = 0; i < n; i++)
        request_release(r[i]);
    bench_close(b);
}

/* More requests decode than a step has rows. Prompts and low priorities still progress. */
static void test_few_rows_everybody_gets_on(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[21];
    struct scheduler_config cfg = bench_small;
    cfg.max_rows = 16;
    cfg.max_seqs = 32;
    cfg.n_blocks = 512;
    bench_open(b, &cfg);
    add_all(b, r, 10, 200, 0, "");
    add_all(b, &r[10], 10, 200, -5, "");
    for (uint32_t i = 0; i < 40; i++)
        assert_true(bench_step(b));
    for (uint32_t i = 0; i < 20; i++)
        assert_true(r[i]->choices[0].n_ids >= 3);
    uint32_t before = r[19]->choices[0].n_ids;
    scheduler_add(b->sched, r[20] = bench_make(b, 20, 40, 4, 1, -5, ""));
    for (uint32_t i = 0; i < 12; i++)
        assert_true(bench_step(b));
    assert_true(r[20]->choices[0].n_ids > 0); /* 40 tokens, 4 a step at least */
    assert_true(r[19]->choices[0].n_ids > before);
    finish_all(b, r, 21);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decodes_come_before_prefill_and_chunks_fill_the_budget),
        cmocka_unit_test(test_queue_order_priority_then_arrival),
        cmocka_unit_test(test_queue_order_is_that_of_arrival_not_of_submission),
        cmocka_unit_test(test_fairness_callers_share_tokens),
        cmocka_unit_test(test_ready_when_paused_ones_hold_every_place_then_none_is),
        cmocka_unit_test(test_paused_requests_never_block_others),
        cmocka_unit_test(test_deadlines_queue_prefill_and_decode),
        cmocka_unit_test(test_many_choices_send_nobody_back_for_nothing),
        cmocka_unit_test(test_a_higher_priority_takes_a_place_once),
        cmocka_unit_test(test_only_who_runs_has_an_index_to_look_up_in),
        cmocka_unit_test(test_one_without_room_does_not_keep_out_those_with_it),
        cmocka_unit_test(test_who_needs_many_places_neither_stops_others_nor_starves),
        cmocka_unit_test(test_who_takes_places_pays_for_what_is_lost),
        cmocka_unit_test(test_who_was_given_a_place_has_it_before_who_gave_it),
        cmocka_unit_test(test_anothers_higher_priority_takes_a_place_once),
        cmocka_unit_test(test_a_higher_priority_takes_the_place_that_costs_least),
        cmocka_unit_test(test_a_place_that_was_made_is_not_anothers),
        cmocka_unit_test(test_few_rows_everybody_gets_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
