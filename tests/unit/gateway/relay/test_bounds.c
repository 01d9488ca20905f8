/* Tests of the memory that a broken or malicious worker can make the server use, and of the largest
 * answer. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_stream.h"

static struct fixture f;

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

/* Runs Complete and ignores the answer. */
static int complete(const struct client_request *request, size_t *out_bytes, struct error *err)
{
    struct client_message message;
    struct rpc_call_options options = {.timeout_ms = 20000};
    ProtobufCMessage *answer = NULL;
    client_message_fill(request, &message);
    int rc = rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Complete",
                              &message.request.base, &options, &answer, err);
    if (rc)
        return rc;
    *out_bytes = protobuf_c_message_get_packed_size(answer);
    rpc_message_free(answer);
    return 0;
}

static void expect_worker_text(const struct client_request *request, const char *values)
{
    struct error err;
    size_t n_bytes;
    fixture_start(&f, 1);
    int status = complete(request, &n_bytes, &err);
    if (status != STATUS_INTERNAL || err.reason != REASON_WORKER_TEXT ||
        !names_all(err.message, values))
        fail_msg("%d %s %s", status, error_reason_name(&err), err.message);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 1));
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    fixture_stop(&f);
}

static void test_worker_when_it_sends_text_without_ids_then_the_request_ends(void **state)
{
    (void)state;
    fixture_init(&f);
    f.workers[0].stop_after = 3;
    f.workers[0].idle_text = true;
    expect_worker_text(&(struct client_request){.max_tokens = 100}, "3");
}

static void test_worker_when_it_makes_more_than_max_tokens_then_the_request_ends(void **state)
{
    (void)state;
    fixture_init(&f);
    f.workers[0].more_tokens = 1;
    expect_worker_text(&(struct client_request){.max_tokens = 40}, "41|0");
}

/* A worker that has not yet received a lower limit may send more tokens. The gateway must not treat
 * that as a fault. */
static void test_worker_when_the_limit_was_lowered_meanwhile_then_all_is_well(void **state)
{
    (void)state;
    static struct client_bidi bidi;
    struct client_request request = {.max_tokens = 60, .seed = 4};
    fixture_init(&f);
    f.workers[0].stop_after = 30;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "u", &request);
    bidi_wait_tokens(&bidi, "u", 30);
    bidi_update(&bidi, "u", 35);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_updates, 1));
    pthread_mutex_lock(&f.workers[0].lock);
    f.workers[0].more_tokens = 5; /* the worker makes these before the update arrives */
    pthread_mutex_unlock(&f.workers[0].lock);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    request.max_tokens = 40;
    bidi_expect_tokens(&bidi, "u", &request, true);
    bidi_close(&bidi);
    fixture_stop(&f);
}

static void test_worker_when_it_goes_on_though_paused_then_the_request_ends(void **state)
{
    (void)state;
    static struct client_bidi bidi;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.workers[0].deaf = true;
    f.workers[0].tokens_per_step = 40;
    f.workers[0].text_bytes = 4000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "p", &endless);
    bidi_wait_tokens(&bidi, "p", 1);
    rpc_stream_pause_reads(bidi.stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 1));
    rpc_stream_resume_reads(bidi.stream);
    struct error err = bidi_wait_error(&bidi, "p", 0);
    assert_int_equal(err.status, STATUS_INTERNAL);
    assert_int_equal(err.reason, REASON_WORKER_TEXT);
    bidi_close(&bidi);
    fixture_stop(&f);
}

/* The receipt's times may make an answer a byte longer. An answer that will be far too large is
 * refused before its end. */
static void test_complete_when_its_answer_is_too_large_then_refused_by_name(void **state)
{
    (void)state;
    enum { TIMES = 32 };
    struct client_request request = {
        .max_tokens = 100, .n = 2, .seed = 3, .logprobs = true, .request_id = "same-length"};
    size_t n_bytes = 0;
    struct error err;
    for (int less = -1; less <= 1; less++) {
        fixture_init(&f);
        f.workers[0].text_bytes = 50;
        if (n_bytes)
            f.config.limits.max_answer_bytes = less > 0 ? n_bytes - TIMES : n_bytes + TIMES;
        fixture_start(&f, 1);
        int rc = complete(&request, &n_bytes, &err);
        assert_int_equal(rc, less > 0 ? STATUS_RESOURCE_EXHAUSTED : 0);
        assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_ANSWER_BYTES), less > 0);
        fixture_stop(&f);
    }
    assert_non_null(strstr(err.message, "(max_answer_bytes)"));
    assert_int_equal(err.reason, REASON_ANSWER_TOO_LARGE);
    fixture_init(&f);
    f.config.limits.max_answer_bytes = 20000;
    f.workers[0].text_bytes = 50;
    fixture_start(&f, 1);
    request.max_tokens = 1000000;
    assert_int_equal(complete(&request, &n_bytes, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_ANSWER_TOO_LARGE);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 1));
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    fixture_stop(&f);
}

/* The server holds the answers until the best is known. Together they are larger than a message may
 * be. */
static void test_answer_when_it_was_held_back_then_it_comes_in_parts(void **state)
{
    (void)state;
    static struct client_bidi bidi;
    struct client_request request = {.max_tokens = 2000, .seed = 5};
    fixture_init(&f);
    f.workers[0].text_bytes = 4000;
    f.workers[0].tokens_per_step = 100;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start_with(&bidi, "b", &request, &(struct bidi_extra){.best_of = 2});
    assert_int_equal(bidi_wait_over(&bidi, "b")->n_tokens, 2000); /* 8 MB */
    assert_int_equal(bidi_answer(&bidi, "b")->n_errors, 0);
    assert_in_range(bidi.n_order, 8, 100);
    bidi_close(&bidi);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_worker_when_it_sends_text_without_ids_then_the_request_ends,
                               forget),
        cmocka_unit_test_setup(test_worker_when_it_makes_more_than_max_tokens_then_the_request_ends,
                               forget),
        cmocka_unit_test_setup(test_worker_when_the_limit_was_lowered_meanwhile_then_all_is_well,
                               forget),
        cmocka_unit_test_setup(test_worker_when_it_goes_on_though_paused_then_the_request_ends,
                               forget),
        cmocka_unit_test_setup(test_complete_when_its_answer_is_too_large_then_refused_by_name,
                               forget),
        cmocka_unit_test_setup(test_answer_when_it_was_held_back_then_it_comes_in_parts, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
