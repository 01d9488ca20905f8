/* GenerateStream: requests that are changed while they run: paused, given credit, updated. */
#include <string.h>

#include "proto/rpc/client/stream.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_stream.h"

static struct fixture f;
static struct client_bidi bidi;

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void finish(void)
{
    bidi_close(&bidi);
    fixture_stop(&f);
}

/* A request continues only when both reasons for the pause are gone. Another replica gets both
 * reasons. */
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
        /* The other replica gets the remaining credit: first none, then INT32_MAX. */
        unsigned first = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
        fake_worker_kill(&f.workers[first]);
        assert_true(fake_worker_wait(&f.workers[1 - first], &f.workers[1 - first].n_resumed, 1));
        assert_int_equal(bidi_quiet(&bidi, "c"), n);
        bidi_credit(&bidi, "c", INT32_MAX);
        bidi_expect_tokens(&bidi, "c", &request, true);
        finish();
    }
}

/* A change arrives after its request has ended, while the answer is still on its way. Symptom: an
 * error that looked like the request's last frame cut the answer off. */
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
    while (!n_errors) { /* until the server has seen the end, too */
        bidi_pause(&bidi, "c", false);
        fixture_pause_ms(20);
        pthread_mutex_lock(&bidi.lock);
        n_errors = bidi.answers[0].n_errors;
        pthread_mutex_unlock(&bidi.lock);
    }
    bidi_expect_error(&bidi, "c", 0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", true);
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
    bidi_expect_error(&bidi, "c", 0, STATUS_INVALID_ARGUMENT, "", "credit.n_tokens", true);
    bidi_wait_tokens(&bidi, "c", 15);
    bidi_credit(&bidi, "c", 1);
    bidi_wait_tokens(&bidi, "c", 16);
    bidi_credit(&bidi, "c", INT32_MAX);
    bidi_expect_tokens(&bidi, "c", &request, true);
    bidi_start_with(&bidi, "d", &request,
                    &(struct bidi_extra){.has_credit = true, .credit = (uint32_t)INT32_MAX + 1});
    bidi_expect_error(&bidi, "d", 0, STATUS_INVALID_ARGUMENT, "", "credit_tokens", false);
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
    bidi_expect_error(&bidi, "u", 0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    finish();
}

/* A worker that pauses for a while is not lost because a client sends more changes. */
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
            fixture_pause_ms(1);
        bidi_send(&bidi, &frame);
        pthread_mutex_lock(&bidi.lock);
        n_errors = bidi.answers[0].n_errors;
        pthread_mutex_unlock(&bidi.lock);
    }
    bidi_expect_error(&bidi, "u", 0, STATUS_RESOURCE_EXHAUSTED, "QUEUE_FULL", "", true);
    assert_true(gateway_n_refusals(f.gateway, LIMIT_QUEUED) > 0);
    fake_worker_stop(&f.workers[0], false);
    bidi_expect_tokens(&bidi, "u", &request, true);
    assert_int_equal(bidi_answer(&bidi, "u")->n_resumes, 0);
    finish();
}

int main(int argc, char *argv[])
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_pause_outlives_back_pressure_and_the_replica, forget),
        cmocka_unit_test_setup(test_credit_is_taken_to_the_token, forget),
        cmocka_unit_test_setup(test_change_when_the_request_has_ended_then_the_answer_still_comes,
                               forget),
        cmocka_unit_test_setup(test_credit_has_a_limit, forget),
        cmocka_unit_test_setup(test_update_holds_at_the_next_replica_too, forget),
        cmocka_unit_test_setup(test_changes_when_the_worker_reads_none_then_they_are_refused,
                               forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
