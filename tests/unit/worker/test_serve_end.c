/* Tests of the ends of a replica: drained, shut down, or with a model that cannot be loaded. Also
 * tests the exit report. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "tests/unit/worker/support_worker.h"

/* The answer of a Drain that is waited for elsewhere. */
static _Atomic int drain_finished = -1;

static void on_drained(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    (void)arg;
    drain_finished = status->status
                         ? -2
                         : (int)((const Sluice__Worker__V1__DrainResponse *)response)->n_finished;
}

static void test_drain_when_asked_then_running_finish_and_new_are_refused(void **state)
{
    (void)state;
    struct test_worker w;
    struct test_stream s;
    struct text_request r;
    Sluice__Worker__V1__DrainRequest drain = SLUICE__WORKER__V1__DRAIN_REQUEST__INIT;
    struct error err = {0};
    test_worker_start(&w, TEST_SAMPLE_MODEL, NULL, true);
    test_stream_open(&s, &w, TEST_EPOCH);
    test_stream_submit_held(&s, 1, "let it finish", 60);
    test_stream_wait_tokens(&s, 1, 1);
    assert_int_equal(rpc_client_unary_async(w.client, &sluice__worker__v1__worker__descriptor,
                                            "Drain", &drain.base, NULL, on_drained, NULL, &err),
                     0);
    for (int i = 0; i < 1000 && !s.draining; i++)
        usleep(10000);
    assert_true(s.draining);
    text_request_init(&r, "too late", 2);
    test_stream_submit(&s, 2, &r.request);
    struct answer *refused = test_stream_wait(&s, 2);
    assert_int_equal(refused->error.status, STATUS_UNAVAILABLE);
    assert_int_equal(refused->error.reason, REASON_DRAINING);
    assert_int_equal(drain_finished, -1);
    test_stream_credit(&s, 1, 100000);
    struct answer *a = test_stream_wait(&s, 1);
    assert_false(a->failed);
    assert_int_equal(a->n_ids, 60);
    for (int i = 0; i < 1000 && drain_finished == -1; i++)
        usleep(10000);
    assert_int_equal(drain_finished, 1);
    test_stream_close(&s);
    test_worker_stop(&w, 0);
}

static void test_shutdown_when_grace_is_over_then_running_end_and_a_report_is_left(void **state)
{
    (void)state;
    struct test_worker w;
    struct test_stream s;
    Sluice__Worker__V1__ShutdownRequest request = SLUICE__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 30000};
    ProtobufCMessage *reply = NULL;
    struct error err = {0};
    test_worker_start(&w, TEST_SAMPLE_MODEL, NULL, true);
    test_stream_open(&s, &w, TEST_EPOCH);
    test_stream_submit_held(&s, 1, "it will be cut", 2000);
    test_stream_wait_tokens(&s, 1, 1);
    request.has_grace_ms = true;
    request.grace_ms = 1;
    assert_int_equal(rpc_client_unary(w.client, &sluice__worker__v1__worker__descriptor, "Shutdown",
                                      &request.base, &options, &reply, &err),
                     0);
    assert_int_equal(((Sluice__Worker__V1__ShutdownResponse *)reply)->n_ended, 1);
    rpc_message_free(reply);
    struct answer *a = test_stream_wait(&s, 1);
    assert_int_equal(a->error.status, STATUS_UNAVAILABLE);
    assert_int_equal(a->error.reason, REASON_DRAINING);
    test_stream_wait_ended(&s);
    assert_int_equal(s.status.status, STATUS_UNAVAILABLE);
    test_stream_close(&s);
    test_worker_join(&w);
    assert_int_equal(w.status, 0);
    Sluice__Worker__V1__ExitReport *report = test_worker_exit_report(&w);
    assert_non_null(report);
    assert_int_equal(report->cause, SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_REQUESTED);
    assert_string_equal(report->replica_id, "r1");
    assert_int_equal(report->epoch, TEST_EPOCH);
    assert_int_equal(report->exit_status, 0);
    rpc_message_free(&report->base);
    assert_int_equal(access(w.socket, F_OK), -1);
    unlink(w.exit_report);
    rmdir(w.dir);
}

static void test_load_when_it_fails_then_status_report_and_exit_say_why(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        const char *flags[3];
        int status;
        const char *reason;
    } rows[] = {
        {"README.md", {NULL}, STATUS_INVALID_ARGUMENT, "MODEL_FILE_INVALID"},
        {"tests/golden/tiny/absent.gguf", {NULL}, STATUS_NOT_FOUND, ""},
        {TEST_TINY_MODEL,
         {"--digest", "00", NULL},
         STATUS_FAILED_PRECONDITION,
         "MODEL_FILE_CHANGED"},
        {TEST_TINY_MODEL, {"--pp", "8", NULL}, STATUS_INVALID_ARGUMENT, ""},
        {TEST_TINY_MODEL, {"--chat-template-file", "/nonexistent", NULL}, STATUS_NOT_FOUND, ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct test_worker w;
        test_worker_start(&w, rows[i].model, rows[i].flags, false);
        test_worker_join(&w);
        assert_int_equal(w.status, 1);
        Sluice__Worker__V1__ExitReport *report = test_worker_exit_report(&w);
        assert_non_null(report);
        assert_non_null(report->error);
        if (report->error->code != -rows[i].status ||
            strcmp(report->error->reason, rows[i].reason) != 0)
            fail_msg("row %zu: %d %s: %s", i, report->error->code, report->error->reason,
                     report->error->message);
        assert_int_equal(report->exit_status, 1);
        rpc_message_free(&report->base);
        unlink(w.exit_report);
        rmdir(w.dir);
    }
}

int main(void)
{
    log_init("test", LOG_LEVEL_ERROR, LOG_FORMAT_KV); /* before other threads exist */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drain_when_asked_then_running_finish_and_new_are_refused),
        cmocka_unit_test(test_shutdown_when_grace_is_over_then_running_end_and_a_report_is_left),
        cmocka_unit_test(test_load_when_it_fails_then_status_report_and_exit_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
