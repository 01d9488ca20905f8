/* GenerateStream: many requests on one call, what each frame does, and what a client's errors,
 * slowness and disappearance do to the others: nothing. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "proto/rpc/rpc_client.h"
#include "proto/rpc/rpc_stream.h"
#include "support_stream.h"
#include "tests/unit/base/support_cmocka.h"

static struct fixture f;
static struct client_bidi bidi;

/* A test that failed left its own behind. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void pause_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * NS_PER_MS};
    nanosleep(&pause, NULL);
}

static void finish(void)
{
    bidi_close(&bidi);
    fixture_stop(&f);
}

static void test_requests_when_many_then_each_is_whole_and_none_waits_for_the_others(void **state)
{
    (void)state;
    enum { N = 64 };
    static struct client_request requests[N];
    static char ids[N][16];
    fixture_init(&f);
    f.workers[0].hold = 2;
    fixture_start(&f, 2);
    bidi_open(&f, NULL, 0, &bidi);
    for (unsigned i = 0; i < N; i++) {
        snprintf(ids[i], sizeof(ids[i]), "r%u", i);
        requests[i] = (struct client_request){
            .seed = i, .text = ids[i], .max_tokens = 40 + i, .n = 1 + i % 3, .logprobs = i % 2};
        bidi_start(&bidi, ids[i], &requests[i]);
    }
    bidi_half_close(&bidi);
    assert_int_equal(bidi_wait_end(&bidi), 0);
    unsigned n_turns = 0;
    for (unsigned i = 0; i < N; i++) {
        bidi_expect_tokens(&bidi, ids[i], &requests[i], true);
        assert_int_equal(bidi_answer(&bidi, ids[i])->n_infos, 1);
        assert_int_equal(bidi_answer(&bidi, ids[i])->n_errors, 0);
    }
    for (unsigned i = 1; i < bidi.n_order; i++)
        n_turns += bidi.order[i] != bidi.order[i - 1];
    assert_true(n_turns > bidi.n_order / 2);
    assert_int_equal(fixture_wait_rest(&f).ok, N);
    finish();
}

/* A reader that comes back finds every request's turn, one message each. */
static void test_requests_when_the_reader_rests_then_they_take_turns(void **state)
{
    (void)state;
    enum { N = 8 };
    char id[8];
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.config.limits.max_pending_bytes = 4096;
    f.workers[0].text_bytes = 500; /* much at once: the connection holds megabytes */
    f.workers[0].tokens_per_step = 40;
    f.workers[0].step_us = 5000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        bidi_start(&bidi, id, &endless);
        bidi_wait_tokens(&bidi, id, 1);
    }
    rpc_stream_pause_reads(bidi.stream);
    /* All of them stand still: each has its own limit. */
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, N));
    pthread_mutex_lock(&bidi.lock);
    unsigned n_before = bidi.n_order;
    pthread_mutex_unlock(&bidi.lock);
    rpc_stream_resume_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        const struct client_answer *answer = bidi_answer(&bidi, id);
        pthread_mutex_lock(&bidi.lock);
        unsigned n_more = answer->n_tokens + 100;
        pthread_mutex_unlock(&bidi.lock);
        bidi_wait_tokens(&bidi, id, n_more);
    }
    pthread_mutex_lock(&bidi.lock);
    unsigned seen[N] = {0}, most = 0, least = UINT32_MAX;
    for (unsigned i = n_before; i < bidi.n_order; i++)
        seen[bidi.order[i] % N]++;
    for (unsigned i = 0; i < N; i++) {
        most = seen[i] > most ? seen[i] : most;
        least = seen[i] < least ? seen[i] : least;
    }
    pthread_mutex_unlock(&bidi.lock);
    assert_true(least * 3 + 10 > most);
    finish();
}

static void test_requests_when_all_together_are_too_much_then_they_pause(void **state)
{
    (void)state;
    enum { N = 6 };
    char id[8];
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.config.limits.max_stream_pending_bytes = 65536;
    f.config.limits.max_pending_bytes = 1 << 30; /* never reached by one of them */
    f.workers[0].text_bytes = 500;
    f.workers[0].tokens_per_step = 40;
    f.workers[0].step_us = 5000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        bidi_start(&bidi, id, &endless);
        bidi_wait_tokens(&bidi, id, 1);
    }
    rpc_stream_pause_reads(bidi.stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, N));
    assert_true(gateway_n_refusals(f.gateway, LIMIT_STREAM_PENDING_BYTES) >= 1);
    rpc_stream_resume_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        pthread_mutex_lock(&bidi.lock);
        unsigned n = bidi.answers[i].n_tokens;
        pthread_mutex_unlock(&bidi.lock);
        bidi_wait_tokens(&bidi, id, n + 400);
    }
    assert_true(fake_worker_read(&f.workers[0], &f.workers[0].n_resumes) >= N);
    finish();
}

static void expect_error(const char *id, unsigned n, int status, const char *reason,
                         const char *field, bool goes_on)
{
    struct error err = bidi_wait_error(&bidi, id, n);
    if (err.status != status || strcmp(err.reason, reason) != 0 || strcmp(err.field, field) != 0 ||
        bidi_answer(&bidi, id)->goes_on[n] != goes_on)
        fail_msg("%s[%u]: %d %s %s %s", id, n, err.status, err.reason, err.field, err.message);
}

static void send_empty(const char *id)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    frame.request_id = (char *)(uintptr_t)id;
    bidi_send(&bidi, &frame);
}

static void test_frames_when_bad_then_answered_and_the_others_go_on(void **state)
{
    (void)state;
    static char long_id[131];
    struct client_request request = {.max_tokens = 40, .seed = 3};
    memset(long_id, 'x', sizeof(long_id) - 1);
    fixture_init(&f);
    f.workers[0].stop_after = 10;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "good", &request);
    bidi_wait_tokens(&bidi, "good", 10);
    send_empty("a");
    expect_error("a", 0, STATUS_INVALID_ARGUMENT, "", "frame", false);
    send_empty("");
    expect_error("", 0, STATUS_INVALID_ARGUMENT, "", "frame", false);
    bidi_cancel(&bidi, "");
    expect_error("", 1, STATUS_INVALID_ARGUMENT, "", "request_id", false);
    bidi_cancel(&bidi, long_id);
    expect_error("", 2, STATUS_INVALID_ARGUMENT, "", "request_id", false);
    bidi_start(&bidi, "", &request);
    expect_error("", 3, STATUS_INVALID_ARGUMENT, "", "request_id", false);
    bidi_start(&bidi, "b", &(struct client_request){.request_id = "c"});
    expect_error("b", 0, STATUS_INVALID_ARGUMENT, "", "start.request_id", false);
    bidi_start(&bidi, "d", &(struct client_request){.model = "nobody"});
    expect_error("d", 0, STATUS_NOT_FOUND, "MODEL_NOT_FOUND", "", false);
    bidi_start(&bidi, "e", &(struct client_request){.n = 9});
    expect_error("e", 0, STATUS_INVALID_ARGUMENT, "", "sampling.n", false);
    bidi_start_with(&bidi, "w", &request, &(struct bidi_extra){.window_ms = 30001});
    expect_error("w", 0, STATUS_INVALID_ARGUMENT, "", "reattach_window_ms", false);
    bidi_start(&bidi, "good", &request);
    expect_error("good", 0, STATUS_ALREADY_EXISTS, "REQUEST_ID_LIVE", "", true);
    bidi_update(&bidi, "good", 9);
    expect_error("good", 1, STATUS_INVALID_ARGUMENT, "", "update.max_tokens", true);
    bidi_credit(&bidi, "good", 9);
    expect_error("good", 2, STATUS_FAILED_PRECONDITION, "NO_CREDIT_NEEDED", "", true);
    bidi_credit(&bidi, "good", 0);
    expect_error("good", 3, STATUS_INVALID_ARGUMENT, "", "credit.n_tokens", true);
    bidi_reattach(&bidi, "good", 0, NULL);
    expect_error("good", 4, STATUS_FAILED_PRECONDITION, "NOT_REATTACHABLE", "", true);
    bidi_cancel(&bidi, "nobody");
    bidi_pause(&bidi, "nobody", true);
    bidi_credit(&bidi, "nobody", 1);
    bidi_update(&bidi, "nobody", 1);
    bidi_reattach(&bidi, "nobody", 0, NULL);
    for (unsigned i = 0; i < 5; i++)
        expect_error("nobody", i, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    bidi_expect_tokens(&bidi, "good", &request, true);
    finish();
}

/* More bad frames than answers may wait: the rest is read when they are taken. */
static void test_frames_when_bad_without_end_then_reading_waits(void **state)
{
    (void)state;
    enum { N = 4 * 64 };
    struct client_request request = {.seed = 1};
    char id[16];
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    rpc_stream_pause_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "n%u", i);
        bidi_cancel(&bidi, id);
    }
    bidi_start(&bidi, "good", &request);
    pause_ms(100);
    rpc_stream_resume_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "n%u", i);
        expect_error(id, 0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    }
    bidi_expect_tokens(&bidi, "good", &request, true);
    finish();
}

static void test_cancel_ends_one_and_frees_its_id(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000},
                          request = {.seed = 2, .max_tokens = 50};
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "x", &endless);
    bidi_start(&bidi, "y", &request);
    bidi_wait_tokens(&bidi, "x", 5);
    int64_t since_ns = clock_now_ns();
    bidi_cancel(&bidi, "x");
    expect_error("x", 0, STATUS_CANCELLED, "", "", false);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 1));
    assert_true(f.workers[0].cancel_ns - since_ns < 100 * NS_PER_MS);
    bidi_expect_tokens(&bidi, "y", &request, true);
    bidi_cancel(&bidi, "x");
    expect_error("x", 1, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.cancelled, 1);
    assert_int_equal(c.ok, 1);
    finish();
}

/* Both reasons to stand still must be gone, and another replica is told of them. */
static void test_pause_outlives_back_pressure_and_the_replica(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 4000, .seed = 8};
    fixture_init(&f);
    f.config.limits.max_pending_bytes = 2048;
    f.workers[0].text_bytes = f.workers[1].text_bytes = 3000;
    f.workers[0].step_us = f.workers[1].step_us = 100;
    fixture_start(&f, 2);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "p", &request);
    bidi_wait_tokens(&bidi, "p", 3);
    rpc_stream_pause_reads(bidi.stream);
    unsigned first = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
    assert_true(fake_worker_wait(&f.workers[first], &f.workers[first].n_pauses, 1));
    bidi_pause(&bidi, "p", true);
    rpc_stream_resume_reads(bidi.stream);
    unsigned n = bidi_quiet(&bidi, "p");
    assert_true(n < 4000);
    fake_worker_kill(&f.workers[first]);
    assert_true(fake_worker_wait(&f.workers[1 - first], &f.workers[1 - first].n_pauses, 1));
    assert_int_equal(bidi_quiet(&bidi, "p"), n);
    bidi_pause(&bidi, "p", false);
    bidi_expect_tokens(&bidi, "p", &request, true);
    assert_int_equal(bidi_answer(&bidi, "p")->n_resumes, 1);
    finish();
}

static void test_credit_is_taken_to_the_token(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, hold, late, per_step;
        bool no_shares;
    } rows[] = {{1, 0, 0, 1, false}, {1, 2, 3, 1, false}, {3, 0, 2, 1, false},
                {1, 0, 5, 4, false}, {2, 3, 0, 3, false}, {1, 0, 0, 1, true}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static const uint32_t more[] = {1, 2, 7, 11};
        struct client_request request = {.max_tokens = 40, .n = rows[i].n, .seed = i};
        fixture_init(&f);
        for (unsigned k = 0; k < 2; k++) {
            f.workers[k].hold = rows[i].hold;
            f.workers[k].late_credit = rows[i].late;
            f.workers[k].tokens_per_step = rows[i].per_step;
            f.workers[k].no_shares = rows[i].no_shares;
        }
        fixture_start(&f, 2);
        bidi_open(&f, NULL, 0, &bidi);
        bidi_start_with(&bidi, "c", &request, &(struct bidi_extra){.has_credit = true});
        assert_int_equal(bidi_quiet(&bidi, "c"), 0);
        unsigned n = 0;
        for (size_t k = 0; k < 4; k++) {
            bidi_credit(&bidi, "c", more[k]);
            n += more[k];
            bidi_wait_tokens(&bidi, "c", n);
            assert_int_equal(bidi_quiet(&bidi, "c"), n);
        }
        /* The other replica is told what is left of it: nothing, and then all. */
        unsigned first = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
        fake_worker_kill(&f.workers[first]);
        assert_true(fake_worker_wait(&f.workers[1 - first], &f.workers[1 - first].n_resumed, 1));
        assert_int_equal(bidi_quiet(&bidi, "c"), n);
        bidi_credit(&bidi, "c", INT32_MAX);
        bidi_expect_tokens(&bidi, "c", &request, true);
        finish();
    }
}

/* A change that crosses the end of its request came too late, but the answer is still on its way:
 * it was once cut off there by an error that looked like its last frame. */
static void test_change_when_the_request_has_ended_then_the_answer_still_comes(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 40, .seed = 6};
    fixture_init(&f);
    f.workers[0].late_credit = 100;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start_with(&bidi, "c", &request, &(struct bidi_extra){.has_credit = true, .credit = 7});
    bidi_wait_tokens(&bidi, "c", 7);
    unsigned n_errors = 0;
    while (!n_errors) { /* until the server knows of the end, too */
        bidi_pause(&bidi, "c", false);
        pause_ms(20);
        pthread_mutex_lock(&bidi.lock);
        n_errors = bidi.answers[0].n_errors;
        pthread_mutex_unlock(&bidi.lock);
    }
    expect_error("c", 0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", true);
    bidi_credit(&bidi, "c", 100);
    bidi_expect_tokens(&bidi, "c", &request, true);
    finish();
}

static void test_credit_has_a_limit(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 20};
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start_with(&bidi, "c", &request, &(struct bidi_extra){.has_credit = true, .credit = 5});
    bidi_wait_tokens(&bidi, "c", 5);
    bidi_credit(&bidi, "c", 10);
    bidi_credit(&bidi, "c", (uint32_t)INT32_MAX + 1);
    expect_error("c", 0, STATUS_INVALID_ARGUMENT, "", "credit.n_tokens", true);
    bidi_wait_tokens(&bidi, "c", 15);
    bidi_credit(&bidi, "c", 1);
    bidi_wait_tokens(&bidi, "c", 16);
    bidi_credit(&bidi, "c", INT32_MAX);
    bidi_expect_tokens(&bidi, "c", &request, true);
    bidi_start_with(&bidi, "d", &request,
                    &(struct bidi_extra){.has_credit = true, .credit = (uint32_t)INT32_MAX + 1});
    expect_error("d", 0, STATUS_INVALID_ARGUMENT, "", "credit_tokens", false);
    finish();
}

static void test_update_holds_at_the_next_replica_too(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 200, .seed = 4};
    fixture_init(&f);
    f.workers[0].stop_after = f.workers[1].stop_after = 30;
    fixture_start(&f, 2);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "u", &request);
    bidi_wait_tokens(&bidi, "u", 30);
    unsigned first = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
    bidi_update(&bidi, "u", 55);
    assert_true(fake_worker_wait(&f.workers[first], &f.workers[first].n_updates, 1));
    fake_worker_stop_after(&f.workers[1 - first], UINT32_MAX);
    fake_worker_kill(&f.workers[first]);
    request.max_tokens = 55;
    bidi_expect_tokens(&bidi, "u", &request, true);
    bidi_update(&bidi, "u", 60);
    expect_error("u", 0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    finish();
}

/* A worker that stands still for a while is not lost because a client goes on changing things. */
static void test_changes_when_the_worker_reads_none_then_they_are_refused(void **state)
{
    (void)state;
    enum { N = 100000, AT_ONCE = 500 };
    static char text[251];
    char *stop[4] = {text, text, text, text};
    Sluice__V1__UpdateFrame update = SLUICE__V1__UPDATE_FRAME__INIT;
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    struct client_request request = {.max_tokens = 400, .seed = 4};
    memset(text, '~', sizeof(text) - 1);
    update.replace_stop = true;
    update.stop = stop;
    update.n_stop = 4;
    frame.request_id = (char *)(uintptr_t) "u";
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_UPDATE;
    frame.update = &update;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "u", &request);
    bidi_wait_tokens(&bidi, "u", 1);
    fake_worker_stop(&f.workers[0], true);
    unsigned n_errors = 0;
    for (unsigned i = 0; i < N && !n_errors; i++) {
        while (rpc_stream_pending_messages(bidi.stream) > AT_ONCE)
            pause_ms(1);
        bidi_send(&bidi, &frame);
        pthread_mutex_lock(&bidi.lock);
        n_errors = bidi.answers[0].n_errors;
        pthread_mutex_unlock(&bidi.lock);
    }
    expect_error("u", 0, STATUS_RESOURCE_EXHAUSTED, "QUEUE_FULL", "", true);
    assert_true(gateway_n_refusals(f.gateway, LIMIT_QUEUED) > 0);
    fake_worker_stop(&f.workers[0], false);
    bidi_expect_tokens(&bidi, "u", &request, true);
    assert_int_equal(bidi_answer(&bidi, "u")->n_resumes, 0);
    finish();
}

/* Which of best_of choices is the k-th most likely. */
static uint32_t ranked(const char *text, uint64_t seed, uint32_t n, uint32_t max_tokens, uint32_t k)
{
    uint32_t prompt[64], order[STREAM_MAX_CHOICES];
    double sums[STREAM_MAX_CHOICES];
    size_t n_prompt = strlen(text);
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = (unsigned char)text[i];
    for (uint32_t i = 0; i < n; i++) {
        sums[i] = fake_logprob_sum(prompt, n_prompt, seed, i, max_tokens);
        order[i] = i;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++)
            if (sums[order[j]] > sums[order[i]]) {
                uint32_t t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
    return order[k];
}

static void expect_best(const char *id, const struct client_request *request, uint32_t best_of)
{
    struct client_answer *answer = bidi_wait_over(&bidi, id);
    uint32_t prompt[64];
    size_t n_prompt = strlen(request->text);
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = (unsigned char)request->text[i];
    assert_int_equal(answer->n_finished, request->n);
    assert_int_equal(answer->n_usage_tokens, best_of * request->max_tokens);
    for (uint32_t k = 0; k < request->n; k++) {
        uint32_t choice = ranked(request->text, request->seed, best_of, request->max_tokens, k);
        assert_int_equal(answer->n_ids[k], request->max_tokens);
        for (uint32_t i = 0; i < request->max_tokens; i++)
            assert_int_equal(answer->ids[k][i],
                             fake_token(prompt, n_prompt, request->seed, choice, i));
    }
    assert_int_equal(answer->n_ids[request->n], 0);
}

static void test_best_of_sends_the_most_likely_when_all_have_ended(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct client_request request = {
            .max_tokens = 40, .n = 1 + (uint32_t)seed % 3, .seed = seed, .text = "the best"};
        fixture_init(&f);
        f.workers[0].stop_after = f.workers[1].stop_after = 20;
        fixture_start(&f, 2);
        bidi_open(&f, NULL, 0, &bidi);
        bidi_start_with(&bidi, "b", &request,
                        &(struct bidi_extra){.best_of = 6, .window_ms = 1000});
        pause_ms(100);
        assert_int_equal(bidi_answer(&bidi, "b")->n_tokens, 0);
        unsigned first = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
        fake_worker_stop_after(&f.workers[1 - first], UINT32_MAX);
        fake_worker_kill(&f.workers[first]);
        expect_best("b", &request, 6);
        finish();
    }
}

/* What is held back until the best are known is no reason for others to stand still. */
static void test_best_of_when_it_has_much_then_the_others_go_on(void **state)
{
    (void)state;
    struct client_request best = {.max_tokens = 300, .seed = 1},
                          request = {.max_tokens = 40, .seed = 2};
    fixture_init(&f);
    f.config.limits.max_stream_pending_bytes = 65536;
    f.workers[0].text_bytes = 500;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start_with(&bidi, "b", &best, &(struct bidi_extra){.best_of = 8});
    pause_ms(150); /* beyond the limit, where 20 steps were made */
    bidi_pause(&bidi, "b", true);
    bidi_start(&bidi, "r", &request);
    bidi_expect_tokens(&bidi, "r", &request, true);
    bidi_pause(&bidi, "b", false);
    assert_int_equal(bidi_wait_over(&bidi, "b")->n_tokens, 300);
    finish();
}

static void test_half_close_lets_requests_finish_but_for_those_that_cannot(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 60, .seed = 1}, endless = {.max_tokens = 100000};
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "r", &request);
    bidi_start(&bidi, "p", &endless);
    bidi_start_with(&bidi, "c", &endless, &(struct bidi_extra){.has_credit = true, .credit = 33});
    bidi_wait_tokens(&bidi, "p", 1);
    bidi_pause(&bidi, "p", true);
    bidi_half_close(&bidi);
    assert_int_equal(bidi_wait_end(&bidi), 0);
    bidi_expect_tokens(&bidi, "r", &request, true);
    assert_int_equal(bidi_answer(&bidi, "c")->n_tokens, 33);
    expect_error("c", 0, STATUS_FAILED_PRECONDITION, "STREAM_HALF_CLOSED", "", false);
    expect_error("p", 0, STATUS_FAILED_PRECONDITION, "STREAM_HALF_CLOSED", "", false);
    finish();
}

/* The last token takes the last credit; that the end comes after it is no want of credit. */
static void test_half_close_when_the_credit_is_just_enough_then_all_is_well(void **state)
{
    (void)state;
    enum { N = 200 };
    fixture_init(&f);
    f.workers[0].split_ends = true;
    fixture_start(&f, 1);
    for (unsigned i = 0; i < N; i++) {
        struct client_request request = {.max_tokens = 5, .n = 8, .seed = i};
        bidi_open(&f, NULL, 0, &bidi);
        bidi_start_with(&bidi, "c", &request,
                        &(struct bidi_extra){.has_credit = true, .credit = 40});
        bidi_half_close(&bidi);
        bidi_expect_tokens(&bidi, "c", &request, true);
        assert_int_equal(bidi_wait_end(&bidi), 0);
        bidi_close(&bidi);
    }
    fixture_stop(&f);
}

static void test_stream_when_it_ends_then_all_its_requests_do(void **state)
{
    (void)state;
    enum { N = 5 };
    for (int how = 0; how < 3; how++) {
        struct client_request endless = {.max_tokens = 1000000};
        char id[8];
        fixture_start(&f, 1);
        bidi_open(&f, NULL, how == 2 ? 400 : 0, &bidi);
        for (unsigned i = 0; i < N; i++) {
            snprintf(id, sizeof(id), "e%u", i);
            bidi_start(&bidi, id, &endless);
            bidi_wait_tokens(&bidi, id, 1);
        }
        int64_t since_ns = clock_now_ns();
        if (how == 0)
            rpc_stream_cancel(bidi.stream);
        if (how == 1) {
            rpc_client_destroy(f.client);
            f.client = NULL;
        }
        if (how == 2)
            assert_int_equal(bidi_wait_end(&bidi), STATUS_DEADLINE_EXCEEDED);
        assert_true(fake_worker_wait_live(&f.workers[0], 0));
        assert_true(how == 2 || f.workers[0].cancel_ns - since_ns < 100 * NS_PER_MS);
        struct gateway_counters c = fixture_wait_rest(&f);
        assert_int_equal(how == 2 ? c.failed : c.cancelled, N);
        finish();
    }
}

static void test_requests_when_too_many_then_the_next_is_refused(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.config.limits.max_stream_requests = 2;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "a", &endless);
    bidi_start(&bidi, "b", &endless);
    bidi_start(&bidi, "c", &endless);
    expect_error("c", 0, STATUS_RESOURCE_EXHAUSTED, "STREAM_REQUESTS", "", false);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_STREAM_REQUESTS), 1);
    bidi_cancel(&bidi, "a");
    expect_error("a", 0, STATUS_CANCELLED, "", "", false);
    bidi_start(&bidi, "d", &(struct client_request){.max_tokens = 3});
    bidi_wait_tokens(&bidi, "d", 3);
    finish();
}

static void test_reader_when_it_takes_nothing_then_the_stream_ends(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000}, other = {.max_tokens = 200, .seed = 9};
    fixture_init(&f);
    f.config.limits.slow_reader_ms = 500;
    f.workers[0].text_bytes = 2000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "s", &endless);
    bidi_wait_tokens(&bidi, "s", 1);
    rpc_stream_pause_reads(bidi.stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, 1));
    other.text_bytes = 2000;
    client_run(&f, &other);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.slow_readers, 1);
    assert_int_equal(c.ok, 1);
    rpc_stream_resume_reads(bidi.stream);
    assert_int_equal(bidi_wait_end(&bidi), STATUS_RESOURCE_EXHAUSTED);
    finish();
}

/* As the program does at SIGTERM. An idle stream once held it for the whole grace, and streams
 * started requests all the while. */
static void *drain_gateway(void *arg)
{
    struct fixture *fixture = arg;
    gateway_drain(fixture->gateway, 20000);
    gateway_destroy(fixture->gateway, 0);
    return NULL;
}

static void test_drain_refuses_what_is_new_and_ends_with_the_last_request(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 60, .seed = 5};
    static struct client_bidi idle;
    pthread_t thread;
    fixture_init(&f);
    f.workers[0].stop_after = 20;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_open(&f, NULL, 0, &idle);
    bidi_start(&bidi, "r", &request);
    bidi_wait_tokens(&bidi, "r", 20);
    int64_t since_ns = clock_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, drain_gateway, &f), 0);
    assert_int_equal(bidi_wait_end(&idle), STATUS_UNAVAILABLE);
    assert_string_equal(idle.status.reason, "DRAINING");
    bidi_start(&bidi, "late", &request);
    expect_error("late", 0, STATUS_UNAVAILABLE, "DRAINING", "", false);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    bidi_expect_tokens(&bidi, "r", &request, true);
    assert_int_equal(bidi_wait_end(&bidi), STATUS_UNAVAILABLE);
    pthread_join(thread, NULL);
    assert_true(clock_now_ns() - since_ns < 10 * NS_PER_S);
    f.gateway = NULL;
    bidi_close(&idle);
    bidi_close(&bidi);
    rpc_client_destroy(f.client);
    f.client = NULL;
    fixture_stop(&f);
}

int main(int argc, char *argv[])
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(
            test_requests_when_many_then_each_is_whole_and_none_waits_for_the_others, forget),
        cmocka_unit_test_setup(test_requests_when_the_reader_rests_then_they_take_turns, forget),
        cmocka_unit_test_setup(test_requests_when_all_together_are_too_much_then_they_pause,
                               forget),
        cmocka_unit_test_setup(test_frames_when_bad_then_answered_and_the_others_go_on, forget),
        cmocka_unit_test_setup(test_frames_when_bad_without_end_then_reading_waits, forget),
        cmocka_unit_test_setup(test_cancel_ends_one_and_frees_its_id, forget),
        cmocka_unit_test_setup(test_pause_outlives_back_pressure_and_the_replica, forget),
        cmocka_unit_test_setup(test_credit_is_taken_to_the_token, forget),
        cmocka_unit_test_setup(test_change_when_the_request_has_ended_then_the_answer_still_comes,
                               forget),
        cmocka_unit_test_setup(test_credit_has_a_limit, forget),
        cmocka_unit_test_setup(test_update_holds_at_the_next_replica_too, forget),
        cmocka_unit_test_setup(test_changes_when_the_worker_reads_none_then_they_are_refused,
                               forget),
        cmocka_unit_test_setup(test_best_of_sends_the_most_likely_when_all_have_ended, forget),
        cmocka_unit_test_setup(test_best_of_when_it_has_much_then_the_others_go_on, forget),
        cmocka_unit_test_setup(test_half_close_lets_requests_finish_but_for_those_that_cannot,
                               forget),
        cmocka_unit_test_setup(test_half_close_when_the_credit_is_just_enough_then_all_is_well,
                               forget),
        cmocka_unit_test_setup(test_stream_when_it_ends_then_all_its_requests_do, forget),
        cmocka_unit_test_setup(test_requests_when_too_many_then_the_next_is_refused, forget),
        cmocka_unit_test_setup(test_reader_when_it_takes_nothing_then_the_stream_ends, forget),
        cmocka_unit_test_setup(test_drain_refuses_what_is_new_and_ends_with_the_last_request,
                               forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
