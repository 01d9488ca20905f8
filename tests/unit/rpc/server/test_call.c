/* Calls over a real socket: every shape, both ways of sending, cancel, deadline, errors, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "sluice/worker/v1/worker.pb-c.h"
#include "tests/support/names.h"
#include "tests/unit/rpc/support_rpc.h"

#define INFERENCE (&sluice__v1__inference__descriptor)

static struct rpc_fixture fx;

static int setup(void **state)
{
    (void)state;
    rpc_fixture_start(&fx, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_fixture_stop(&fx);
    return 0;
}

static void sleep_ms(int64_t ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * NS_PER_MS};
    nanosleep(&pause, NULL);
}

static void test_unary_when_answered_then_message_arrives(void **state)
{
    static const char *const texts[] = {"", "hello", "naïve ☃ 𝄞"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct error err;
        char *version = NULL;
        assert_int_equal(rpc_fixture_tokenize(fx.client, "echo", texts[i], 5000, &version, &err),
                         0);
        assert_string_equal(version, texts[i]);
        free(version);
        assert_int_equal(rpc_fixture_tokenize(fx.client, "late", texts[i], 5000, &version, &err),
                         0);
        assert_string_equal(version, texts[i]);
        free(version);
    }
}

static void test_unary_when_failed_then_details_arrive(void **state)
{
    struct error err;
    (void)state;
    assert_int_equal(rpc_fixture_tokenize(fx.client, "fail", "", 5000, NULL, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "stopping.max_tokens");
    assert_string_equal(error_reason_name(&err), "TOO_SMALL");
    assert_int_equal(err.retry_after_ms, 1250);
    assert_string_equal(err.message, "stopping.max_tokens: 0 is below 1 – naïve");
}

static void test_unary_when_handler_sends_nothing_then_internal(void **state)
{
    struct error err;
    (void)state;
    assert_int_equal(rpc_fixture_tokenize(fx.client, "silent", "", 5000, NULL, &err),
                     STATUS_INTERNAL);
    assert_non_null(strstr(err.message, "Tokenize"));
}

static void test_unary_when_deadline_passes_then_both_sides_know(void **state)
{
    struct error err;
    (void)state;
    int64_t start_ns = clock_now_ns();
    unsigned n_before = rpc_fixture_read(&fx, &fx.n_cancelled);
    assert_int_equal(rpc_fixture_tokenize(fx.client, "never", "", 150, NULL, &err),
                     STATUS_DEADLINE_EXCEEDED);
    assert_in_range(clock_now_ns() - start_ns, 140 * NS_PER_MS, 5 * NS_PER_S);
    assert_true(rpc_fixture_wait(&fx, &fx.n_cancelled, n_before + 1));
}

static void test_method_when_unbuilt_then_unimplemented_with_name(void **state)
{
    struct error err;
    ProtobufCMessage *response = NULL;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    (void)state;
    assert_int_equal(
        rpc_client_unary(fx.client, INFERENCE, "Complete", &request.base, NULL, &response, &err),
        STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "sluice.v1.Inference/Complete"));
    assert_int_equal(err.reason, REASON_NOT_BUILT);
}

static void test_method_when_unknown_then_unimplemented_with_path(void **state)
{
    struct error err;
    ProtobufCMessage *response = NULL;
    Sluice__Worker__V1__DrainRequest request = SLUICE__WORKER__V1__DRAIN_REQUEST__INIT;
    (void)state;
    /* This server does not serve Worker. */
    assert_int_equal(rpc_client_unary(fx.client, &sluice__worker__v1__worker__descriptor, "Drain",
                                      &request.base, NULL, &response, &err),
                     STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "/sluice.worker.v1.Worker/Drain"));
}

/* --- bad messages --- */

static int tokenize_raw(ProtobufCMessage *request, struct error *err)
{
    struct rpc_call_options options = {.timeout_ms = 5000};
    ProtobufCMessage *response = NULL;
    int status =
        rpc_client_unary(fx.client, INFERENCE, "Tokenize", request, &options, &response, err);
    rpc_message_free(response);
    return status;
}

static void test_message_when_over_4_mib_then_resource_exhausted_and_server_lives(void **state)
{
    struct error err;
    char *text = malloc((4u << 20) + 1);
    (void)state;
    assert_non_null(text);
    memset(text, 'a', 4u << 20);
    text[4u << 20] = '\0';
    assert_int_equal(rpc_fixture_tokenize(fx.client, "echo", text, 5000, NULL, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    free(text);
    assert_int_equal(rpc_fixture_tokenize(fx.client, "echo", "alive", 5000, NULL, &err), 0);
}

static void test_message_when_string_is_not_utf8_then_field_is_named(void **state)
{
    static char bad[] = "ab\xC0\xAF";
    struct error err;
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    (void)state;
    request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    request.text = bad;
    assert_int_equal(tokenize_raw(&request.base, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "text");
    assert_non_null(strstr(err.message, "byte 2"));
}

static void test_message_when_string_holds_nul_then_field_is_named(void **state)
{
    static uint8_t bytes[] = {'a', 0, 'b'};
    struct error err;
    /* Field 8 of Submit is bytes; of GenerateRequest a message; field 7 a string there. */
    Sluice__V1__TokenLogprob request = SLUICE__V1__TOKEN_LOGPROB__INIT;
    (void)state;
    request.token.data = bytes; /* field 3: TokenizeRequest.text */
    request.token.len = sizeof(bytes);
    assert_int_equal(tokenize_raw(&request.base, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "text");
    assert_true(names_all(err.message, "byte 1|NUL"));
}

static void test_message_when_malformed_then_message_and_offset_are_named(void **state)
{
    static uint8_t garbage[] = {0x0A, 0xFF, 0xFF, 0xFF, 0x0F, 0x00};
    struct error err;
    struct rpc_reader *reader = NULL;
    ProtobufCMessage *message = NULL;
    Sluice__Worker__V1__Submit request = SLUICE__WORKER__V1__SUBMIT__INIT;
    (void)state;
    request.cache_key.data = garbage; /* field 8: GenerateRequest.stopping */
    request.cache_key.len = sizeof(garbage);
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "Generate", &request.base, NULL, &reader, &err), 0);
    assert_int_equal(rpc_reader_next(reader, &message, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "sluice.v1.GenerateRequest"));
    assert_int_equal(err.reason, REASON_MESSAGE_MALFORMED);
    rpc_reader_close(reader);
}

/* --- server streaming --- */

static void read_n(const char *model, uint64_t n, uint32_t n_padding)
{
    struct error err;
    struct rpc_reader *reader = NULL;
    ProtobufCMessage *message = NULL;
    char name[16];
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    snprintf(name, sizeof(name), "%s", model);
    request.model = name;
    request.sampling = &sampling;
    sampling.has_seed = 1;
    sampling.seed = n;
    sampling.has_top_k = 1;
    sampling.top_k = n_padding;
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "Generate", &request.base, NULL, &reader, &err), 0);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
        assert_non_null(message);
        const Sluice__V1__GenerateResponse *response =
            (const Sluice__V1__GenerateResponse *)message;
        assert_int_equal(response->event_case, SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS);
        assert_int_equal(response->tokens->first_index, i);
        assert_int_equal(strlen(response->tokens->text), n_padding);
        rpc_message_free(message);
    }
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    assert_null(message);
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    assert_null(message);
    rpc_reader_close(reader);
}

static void test_stream_when_pushed_then_all_arrive_in_order(void **state)
{
    (void)state;
    read_n("push", 0, 0);
    read_n("push", 1, 0);
    read_n("push", 1000, 0);
    read_n("push", 200, 5000);
}

static void test_stream_when_pulled_then_all_arrive_in_order(void **state)
{
    (void)state;
    read_n("pull", 0, 0);
    read_n("pull", 1, 0);
    read_n("pull", 1000, 0);
}

static void test_stream_when_reader_is_slow_then_pending_stays_under_cap(void **state)
{
    struct error err;
    struct rpc_reader *reader = NULL;
    ProtobufCMessage *message = NULL;
    static char name[] = "push";
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    (void)state;
    request.model = name;
    request.sampling = &sampling;
    sampling.has_seed = 1;
    sampling.seed = 3000;
    sampling.has_top_k = 1;
    sampling.top_k = 10000; /* 30 MB in all */
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "Generate", &request.base, NULL, &reader, &err), 0);
    sleep_ms(300);
    pthread_mutex_lock(&fx.lock);
    assert_true(fx.n_refused > 0);
    assert_true(fx.max_pending_seen <= 64u << 10);
    pthread_mutex_unlock(&fx.lock);
    for (uint32_t i = 0; i < 3000; i++) {
        assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
        assert_non_null(message);
        assert_int_equal(((Sluice__V1__GenerateResponse *)message)->tokens->first_index, i);
        rpc_message_free(message);
    }
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    assert_null(message);
    rpc_reader_close(reader);
    pthread_mutex_lock(&fx.lock);
    assert_true(fx.max_pending_seen <= 64u << 10);
    pthread_mutex_unlock(&fx.lock);
}

static void test_stream_when_client_cancels_then_server_knows_within_100_ms(void **state)
{
    struct error err;
    struct rpc_reader *reader = NULL;
    ProtobufCMessage *message = NULL;
    static char name[] = "hang";
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    (void)state;
    request.model = name;
    unsigned n_before = rpc_fixture_read(&fx, &fx.n_cancelled);
    unsigned n_done = rpc_fixture_read(&fx, &fx.n_done);
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "Generate", &request.base, NULL, &reader, &err), 0);
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    rpc_message_free(message);
    int64_t cancel_ns = clock_now_ns();
    rpc_reader_cancel(reader);
    assert_int_equal(rpc_reader_next(reader, &message, &err), STATUS_CANCELLED);
    assert_true(rpc_fixture_wait(&fx, &fx.n_cancelled, n_before + 1));
    assert_true(rpc_fixture_wait(&fx, &fx.n_done, n_done + 1));
    pthread_mutex_lock(&fx.lock);
    assert_true(fx.cancelled_ns - cancel_ns < NS_PER_S);
    pthread_mutex_unlock(&fx.lock);
    rpc_reader_close(reader);
}

static void *never_next(void *arg)
{
    struct rpc_reader *reader = arg;
    struct error err;
    ProtobufCMessage *message = NULL;
    int status = 0;
    do {
        status = rpc_reader_next(reader, &message, &err);
        rpc_message_free(status == 0 ? message : NULL);
    } while (status == 0 && message != NULL);
    return (void *)(intptr_t)status;
}

/* A reader that has stopped reading still ends, with the reason. */
static void test_abort_when_reader_is_stuck_then_it_ends_with_status(void **state)
{
    static char name[] = "stuck";
    struct error err;
    struct rpc_reader *reader = NULL;
    pthread_t thread;
    void *status = NULL;
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    (void)state;
    request.model = name;
    request.sampling = &sampling;
    sampling.has_seed = 1;
    sampling.seed = 3000;
    sampling.has_top_k = 1;
    sampling.top_k = 10000;
    unsigned n_before = rpc_fixture_read(&fx, &fx.n_cancelled);
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "Generate", &request.base, NULL, &reader, &err), 0);
    assert_true(rpc_fixture_wait(&fx, &fx.n_cancelled, n_before + 1));
    assert_int_equal(pthread_create(&thread, NULL, never_next, reader), 0);
    pthread_join(thread, &status);
    assert_int_equal((intptr_t)status, STATUS_RESOURCE_EXHAUSTED);
    rpc_reader_close(reader);
}

/* --- bidirectional --- */

struct conversation {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_received, n_ended;
    uint32_t next_index;
    bool in_order;
    int status;
};

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct conversation *talk = arg;
    const Sluice__V1__GenerateStreamResponse *response =
        (const Sluice__V1__GenerateStreamResponse *)message;
    (void)stream;
    pthread_mutex_lock(&talk->lock);
    talk->in_order &= response->tokens != NULL && response->tokens->first_index == talk->next_index;
    talk->next_index++;
    talk->n_received++;
    pthread_cond_broadcast(&talk->changed);
    pthread_mutex_unlock(&talk->lock);
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct conversation *talk = arg;
    (void)stream;
    pthread_mutex_lock(&talk->lock);
    talk->status = status->status;
    talk->n_ended++;
    pthread_cond_broadcast(&talk->changed);
    pthread_mutex_unlock(&talk->lock);
}

static const struct rpc_stream_events talk_events = {
    .on_message = on_message,
    .on_status = on_status,
};

static void talk_init(struct conversation *talk)
{
    memset(talk, 0, sizeof(*talk));
    pthread_mutex_init(&talk->lock, NULL);
    pthread_cond_init(&talk->changed, NULL);
    talk->in_order = true;
}

static void talk_wait(struct conversation *talk, const unsigned *counter, unsigned n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int failed = 0;
    pthread_mutex_lock(&talk->lock);
    while (*counter < n && failed == 0)
        failed = pthread_cond_timedwait(&talk->changed, &talk->lock, &until);
    pthread_mutex_unlock(&talk->lock);
    assert_int_equal(failed, 0);
}

static void say(struct rpc_stream *stream, const char *id, uint32_t index)
{
    char name[32];
    Sluice__V1__GenerateStreamRequest request = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__CreditFrame credit = SLUICE__V1__CREDIT_FRAME__INIT;
    snprintf(name, sizeof(name), "%s", id);
    credit.n_tokens = index;
    request.request_id = name;
    request.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CREDIT;
    request.credit = &credit;
    assert_int_equal(rpc_stream_send(stream, &request.base), 0);
}

static void test_bidi_when_64_streams_talk_then_each_is_in_order(void **state)
{
    enum { N_STREAMS = 64, N_MESSAGES = 50 };
    static struct conversation talks[N_STREAMS];
    struct rpc_stream *streams[N_STREAMS];
    struct error err;
    (void)state;
    for (size_t i = 0; i < N_STREAMS; i++) {
        talk_init(&talks[i]);
        assert_int_equal(rpc_stream_open(fx.client, INFERENCE, "GenerateStream", NULL, NULL,
                                         &talk_events, &talks[i], &streams[i], &err),
                         0);
    }
    for (uint32_t j = 0; j < N_MESSAGES; j++)
        for (size_t i = 0; i < N_STREAMS; i++)
            say(streams[i], j == 10 && i % 8 == 0 ? "pause" : "go", j);
    for (size_t i = 0; i < N_STREAMS; i++) {
        rpc_stream_close_send(streams[i]);
        talk_wait(&talks[i], &talks[i].n_ended, 1);
        assert_int_equal(talks[i].status, 0);
        assert_int_equal(talks[i].n_received, N_MESSAGES);
        assert_true(talks[i].in_order);
        rpc_stream_release(streams[i]);
    }
}

enum { N_LARGE = 40, LARGE_BYTES = 200000 };

/* 8 MB, while 1 MiB may wait and the other side stops reading now and then. */
static void *send_large(void *arg)
{
    static char text[LARGE_BYTES + 1];
    char *stop[] = {text}, pause[] = "pause", go[] = "go";
    Sluice__V1__GenerateStreamRequest request = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__UpdateFrame update = SLUICE__V1__UPDATE_FRAME__INIT;
    struct error err;
    intptr_t status = 0;
    memset(text, 'x', LARGE_BYTES);
    update.stop = stop;
    update.n_stop = 1;
    request.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_UPDATE;
    request.update = &update;
    for (size_t i = 0; i < N_LARGE && !status; i++) {
        request.request_id = i % 10 == 0 ? pause : go;
        status = rpc_reader_send(arg, &request.base, &err);
    }
    rpc_reader_close_send(arg);
    if (!status && rpc_reader_send(arg, &request.base, &err) != STATUS_CANCELLED)
        status = STATUS_INTERNAL;
    return (void *)status;
}

static void test_bidi_when_a_reader_sends_more_than_may_wait_then_it_waits(void **state)
{
    struct rpc_reader *reader = NULL;
    ProtobufCMessage *message = NULL;
    struct error err;
    pthread_t sender;
    void *sent;
    size_t n = 0;
    (void)state;
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "GenerateStream", NULL, NULL, &reader, &err), 0);
    assert_int_equal(pthread_create(&sender, NULL, send_large, reader), 0);
    while (rpc_reader_next(reader, &message, &err) == 0 && message) {
        rpc_message_free(message);
        n++;
    }
    pthread_join(sender, &sent);
    assert_int_equal((intptr_t)sent, 0);
    assert_null(message);
    assert_int_equal(n, N_LARGE);
    rpc_reader_close(reader);
}

static void test_bidi_when_a_reader_is_cancelled_then_senders_are_told(void **state)
{
    struct rpc_reader *reader = NULL;
    ProtobufCMessage *message = NULL;
    struct error err;
    Sluice__V1__GenerateStreamRequest request = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    (void)state;
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "GenerateStream", NULL, NULL, &reader, &err), 0);
    rpc_reader_cancel(reader);
    assert_int_equal(rpc_reader_next(reader, &message, &err), STATUS_CANCELLED);
    assert_int_equal(rpc_reader_send(reader, &request.base, &err), STATUS_CANCELLED);
    rpc_reader_close(reader);
}

static void test_bidi_when_last_reference_goes_then_stream_is_cancelled(void **state)
{
    struct conversation talk;
    struct rpc_stream *stream = NULL;
    struct error err;
    (void)state;
    talk_init(&talk);
    unsigned n_before = rpc_fixture_read(&fx, &fx.n_cancelled);
    assert_int_equal(rpc_stream_open(fx.client, INFERENCE, "GenerateStream", NULL, NULL,
                                     &talk_events, &talk, &stream, &err),
                     0);
    say(stream, "go", 0);
    talk_wait(&talk, &talk.n_received, 1);
    rpc_stream_release(stream);
    talk_wait(&talk, &talk.n_ended, 1);
    assert_int_equal(talk.status, STATUS_CANCELLED);
    assert_true(rpc_fixture_wait(&fx, &fx.n_cancelled, n_before + 1));
}

static void test_bidi_when_message_is_bad_then_stream_ends_invalid(void **state)
{
    static char bad[] = "\xFF";
    struct conversation talk;
    struct rpc_stream *stream = NULL;
    struct error err;
    Sluice__V1__GenerateStreamRequest request = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    (void)state;
    talk_init(&talk);
    request.request_id = bad;
    assert_int_equal(rpc_stream_open(fx.client, INFERENCE, "GenerateStream", NULL, NULL,
                                     &talk_events, &talk, &stream, &err),
                     0);
    assert_int_equal(rpc_stream_send(stream, &request.base), 0);
    talk_wait(&talk, &talk.n_ended, 1);
    assert_int_equal(talk.status, STATUS_INVALID_ARGUMENT);
    assert_int_equal(rpc_stream_send(stream, &request.base), STATUS_CANCELLED);
    rpc_stream_release(stream);
}

/* Unread messages stay with flow control: the end must not overtake them. */
static void test_stream_when_reads_are_paused_then_end_waits_for_messages(void **state)
{
    struct conversation talk;
    struct rpc_stream *stream = NULL;
    struct error err;
    (void)state;
    talk_init(&talk);
    assert_int_equal(rpc_stream_open(fx.client, INFERENCE, "GenerateStream", NULL, NULL,
                                     &talk_events, &talk, &stream, &err),
                     0);
    rpc_stream_pause_reads(stream);
    for (uint32_t i = 0; i < 10; i++)
        say(stream, "go", i);
    rpc_stream_close_send(stream);
    sleep_ms(100);
    pthread_mutex_lock(&talk.lock);
    assert_int_equal(talk.n_ended, 0);
    pthread_mutex_unlock(&talk.lock);
    rpc_stream_resume_reads(stream);
    talk_wait(&talk, &talk.n_ended, 1);
    assert_int_equal(talk.n_received, 10);
    assert_int_equal(talk.status, 0);
    rpc_stream_release(stream);
}

static void test_stats_when_calls_ended_then_books_balance(void **state)
{
    struct rpc_server_stats stats;
    uint64_t n_ended = 0;
    (void)state;
    sleep_ms(50);
    rpc_server_stats(fx.server, &stats);
    for (size_t i = 0; i < 17; i++)
        n_ended += stats.n_ended[i];
    assert_int_equal(stats.n_accepted, n_ended + stats.n_live);
    assert_int_equal(stats.n_live, 0);
    assert_true(stats.n_ended[0] > 64);
    assert_true(stats.n_ended[3] >= 4);
    assert_true(stats.n_ended[4] >= 1);
    assert_true(stats.n_ended[12] >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary_when_answered_then_message_arrives),
        cmocka_unit_test(test_unary_when_failed_then_details_arrive),
        cmocka_unit_test(test_unary_when_handler_sends_nothing_then_internal),
        cmocka_unit_test(test_unary_when_deadline_passes_then_both_sides_know),
        cmocka_unit_test(test_method_when_unbuilt_then_unimplemented_with_name),
        cmocka_unit_test(test_method_when_unknown_then_unimplemented_with_path),
        cmocka_unit_test(test_message_when_over_4_mib_then_resource_exhausted_and_server_lives),
        cmocka_unit_test(test_message_when_string_is_not_utf8_then_field_is_named),
        cmocka_unit_test(test_message_when_string_holds_nul_then_field_is_named),
        cmocka_unit_test(test_message_when_malformed_then_message_and_offset_are_named),
        cmocka_unit_test(test_stream_when_pushed_then_all_arrive_in_order),
        cmocka_unit_test(test_stream_when_pulled_then_all_arrive_in_order),
        cmocka_unit_test(test_stream_when_reader_is_slow_then_pending_stays_under_cap),
        cmocka_unit_test(test_stream_when_client_cancels_then_server_knows_within_100_ms),
        cmocka_unit_test(test_abort_when_reader_is_stuck_then_it_ends_with_status),
        cmocka_unit_test(test_bidi_when_64_streams_talk_then_each_is_in_order),
        cmocka_unit_test(test_bidi_when_a_reader_sends_more_than_may_wait_then_it_waits),
        cmocka_unit_test(test_bidi_when_a_reader_is_cancelled_then_senders_are_told),
        cmocka_unit_test(test_bidi_when_last_reference_goes_then_stream_is_cancelled),
        cmocka_unit_test(test_bidi_when_message_is_bad_then_stream_ends_invalid),
        cmocka_unit_test(test_stream_when_reads_are_paused_then_end_waits_for_messages),
        cmocka_unit_test(test_stats_when_calls_ended_then_books_balance),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
