#include "tests/unit/worker/support_worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "server/worker/base/settings.h"
#include "server/worker/serve/serve.h"

enum { WAIT_S = 60, MAX_FLAGS = 40 };

static const ProtobufCServiceDescriptor *service = &sluice__worker__v1__worker__descriptor;

/* --- the worker --- */

struct start {
    struct test_worker *worker;
    struct settings settings;
    struct options *options;
    char model[4096]; /* `settings` points into this array */
};

/* SLUICE_MODEL, or where etc/fetch_model.sh puts it. */
static const char *sample_path(void)
{
    static char path[2048];
    const char *given = getenv("SLUICE_MODEL");
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    const char *file = "sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (given && given[0])
        return given;
    if (cache && cache[0])
        snprintf(path, sizeof(path), "%s/%s", cache, file);
    else
        snprintf(path, sizeof(path), "%s/.cache/%s", home ? home : "", file);
    return path;
}

static void *run(void *arg)
{
    struct start *start = arg;
    start->worker->status = serve_run(&start->settings);
    settings_free(&start->settings, start->options);
    free(start);
    return NULL;
}

static void wait_ready(struct test_worker *worker)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    for (int i = 0; i < WAIT_S * 50; i++) {
        struct error err;
        if (rpc_client_wait_connected(worker->client, 1000, &err) == 0) {
            Sluice__Worker__V1__WorkerStatus *status = test_worker_status(worker);
            bool ready = status->state == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
            if (status->error)
                fail_msg("%s", status->error->message);
            rpc_message_free(&status->base);
            if (ready)
                return;
        }
        nanosleep(&pause, NULL);
    }
    fail_msg("the worker does not become ready");
}

void test_worker_start(struct test_worker *worker, const char *model, const char *const *flags,
                       bool wait)
{
    char target[128];
    char *argv[MAX_FLAGS];
    int argc = 0;
    struct start *start = calloc(1, sizeof(*start));
    struct rpc_client_config config;
    struct error err;
    memset(worker, 0, sizeof(*worker));
    assert_non_null(start);
    start->worker = worker;
    snprintf(worker->dir, sizeof(worker->dir), "/tmp/sluice-worker-XXXXXX");
    assert_non_null(mkdtemp(worker->dir));
    snprintf(worker->socket, sizeof(worker->socket), "%s/worker.sock", worker->dir);
    snprintf(worker->exit_report, sizeof(worker->exit_report), "%s/exit.pb", worker->dir);
    if (model)
        snprintf(start->model, sizeof(start->model), "%s/%s", SLUICE_SOURCE_DIR, model);
    else
        snprintf(start->model, sizeof(start->model), "%s", sample_path());
    const char *const fixed[] = {"serve",
                                 "--socket",
                                 worker->socket,
                                 "--exit-report",
                                 worker->exit_report,
                                 "--model",
                                 start->model,
                                 "--replica",
                                 "r1",
                                 "--epoch",
                                 "7",
                                 "--name",
                                 "tiny",
                                 "--version-id",
                                 "1",
                                 "--device-group",
                                 "cpu",
                                 "--devices",
                                 "cpu:0",
                                 "--threads",
                                 "1",
                                 "--log-level",
                                 "error"};
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        argv[argc++] = (char *)(uintptr_t)fixed[i];
    for (size_t i = 0; flags && flags[i] && argc < MAX_FLAGS - 1; i++)
        argv[argc++] = (char *)(uintptr_t)flags[i];
    argv[argc] = NULL;
    if (settings_parse(MODE_SERVE, argc, argv, &start->settings, &start->options, &err) != 0)
        fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&worker->thread, NULL, run, start), 0);
    rpc_client_config_init(&config);
    snprintf(target, sizeof(target), "unix:%s", worker->socket);
    config.target = target;
    config.reconnect_min_ms = 20;
    config.reconnect_max_ms = 100;
    assert_int_equal(rpc_client_create(&config, &worker->client, &err), 0);
    if (wait)
        wait_ready(worker);
}

Sluice__Worker__V1__WorkerStatus *test_worker_status(struct test_worker *worker)
{
    Sluice__Worker__V1__WatchStatusRequest request = SLUICE__WORKER__V1__WATCH_STATUS_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 20000, .wait_for_ready = true};
    struct rpc_reader *reader;
    ProtobufCMessage *message = NULL;
    struct error err;
    request.interval_ms = 50;
    assert_int_equal(rpc_reader_open(worker->client, service, "WatchStatus", &request.base,
                                     &options, &reader, &err),
                     0);
    if (rpc_reader_next(reader, &message, &err) != 0 || !message)
        fail_msg("WatchStatus: %s", err.message);
    rpc_reader_close(reader);
    return (Sluice__Worker__V1__WorkerStatus *)message;
}

void test_worker_wait_idle(struct test_worker *worker)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int i = 0; i < WAIT_S * 100; i++) {
        Sluice__Worker__V1__WorkerStatus *status = test_worker_status(worker);
        bool idle = !status->load->n_running && !status->load->n_queued &&
                    status->load->free_kv_tokens == status->load->total_kv_tokens;
        rpc_message_free(&status->base);
        if (idle)
            return;
        nanosleep(&pause, NULL);
    }
    fail_msg("requests or KV blocks stay behind");
}

void test_worker_join(struct test_worker *worker)
{
    pthread_join(worker->thread, NULL);
    rpc_client_destroy(worker->client);
    worker->client = NULL;
}

void test_worker_stop(struct test_worker *worker, uint32_t grace_ms)
{
    Sluice__Worker__V1__ShutdownRequest request = SLUICE__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 30000};
    ProtobufCMessage *reply = NULL;
    struct error err = {0};
    request.has_grace_ms = true;
    request.grace_ms = grace_ms;
    if (rpc_client_unary(worker->client, service, "Shutdown", &request.base, &options, &reply,
                         &err) != 0)
        fail_msg("Shutdown: %s", err.message);
    rpc_message_free(reply);
    test_worker_join(worker);
    assert_int_equal(worker->status, 0);
    unlink(worker->exit_report);
    rmdir(worker->dir);
}

Sluice__Worker__V1__ExitReport *test_worker_exit_report(struct test_worker *worker)
{
    uint8_t bytes[8192];
    FILE *file = fopen(worker->exit_report, "rb");
    if (!file)
        return NULL;
    size_t n = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    return sluice__worker__v1__exit_report__unpack(NULL, n, bytes);
}

/* --- the stream --- */

static void copy_error(struct answer *a, const Sluice__V1__Error *error)
{
    a->failed = true;
    error_set(&a->error, status_from_grpc(error->code), "%s", error->message);
    snprintf(a->error.field, sizeof(a->error.field), "%s", error->field);
    error_reason_parse(&a->error, error->reason);
}

/* Checks that every released id has a share of the text, and that the shares add up to the text. */
static void check_shares(const Sluice__Worker__V1__StepItem *item)
{
    size_t n_bytes = 0;
    assert_int_equal(item->n_released_text_bytes, item->n_released);
    for (size_t i = 0; i < item->n_released_text_bytes; i++)
        n_bytes += item->released_text_bytes[i];
    assert_int_equal(n_bytes, strlen(item->text));
}

static void on_item(struct test_stream *s, const Sluice__Worker__V1__StepItem *item)
{
    assert_true(item->id < MAX_ANSWERS);
    struct answer *a = &s->answers[item->id];
    a->n_items++;
    check_shares(item);
    if (item->prompt_info) {
        a->has_prompt = true;
        a->n_prompt = (uint32_t)item->prompt_info->n_prompt_token_ids;
        a->n_cached = item->prompt_info->n_cached_tokens;
    }
    if (item->error)
        copy_error(a, item->error);
    if (item->finished) {
        if (item->finished->receipt && item->finished->usage)
            a->has_receipt = true;
        a->n_finished++;
    }
    if (item->choice)
        return;
    for (size_t i = 0; i < item->n_token_ids && a->n_ids < MAX_ANSWER_IDS; i++)
        a->ids[a->n_ids++] = item->token_ids[i];
    a->n_released += item->n_released;
    strbuf_add_str(&a->text, item->text);
    if (item->finished) {
        a->finished = true;
        a->reason = (int)item->finished->reason;
        a->n_tokens = item->finished->n_tokens;
    }
}

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct test_stream *s = arg;
    const Sluice__Worker__V1__ServeResponse *r = (const Sluice__Worker__V1__ServeResponse *)message;
    (void)stream;
    pthread_mutex_lock(&s->lock);
    if (r->frame_case == SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_HELLO) {
        s->hello = true;
        s->heartbeat_ms = r->hello->heartbeat_ms;
        snprintf(s->numerics_id, sizeof(s->numerics_id), "%s", r->hello->numerics_id);
    } else if (r->frame_case == SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_DRAINING) {
        s->draining = true;
    } else if (r->frame_case == SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_LOAD) {
        s->n_heartbeats++;
        s->n_ready = r->load->n_ready;
    } else if (r->frame_case == SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP) {
        s->n_steps++;
        s->last_step = r->step->step;
        for (size_t i = 0; i < r->step->n_items; i++)
            on_item(s, r->step->items[i]);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct test_stream *s = arg;
    (void)stream;
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    s->status = *status;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static const struct rpc_stream_events events = {.on_message = on_message, .on_status = on_status};

/* Under the lock. */
static void wait_until(struct test_stream *s,
                       bool (*done)(struct test_stream *, uint64_t, uint32_t), uint64_t id,
                       uint32_t n)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_S;
    pthread_mutex_lock(&s->lock);
    int rc = 0;
    while (!done(s, id, n) && !s->ended && rc == 0)
        rc = pthread_cond_timedwait(&s->changed, &s->lock, &end);
    bool well = done(s, id, n);
    struct error status = s->status;
    pthread_mutex_unlock(&s->lock);
    if (!well)
        fail_msg("nothing came for %llu (%s)", (unsigned long long)id, status.message);
}

static bool is_greeted(struct test_stream *s, uint64_t id, uint32_t n)
{
    (void)id;
    (void)n;
    return s->hello || s->ended;
}

static bool is_over(struct test_stream *s, uint64_t id, uint32_t n)
{
    return s->answers[id].failed || s->answers[id].n_finished >= n;
}

static bool has_tokens(struct test_stream *s, uint64_t id, uint32_t n)
{
    return s->answers[id].n_ids >= n || s->answers[id].failed;
}

static bool has_ended(struct test_stream *s, uint64_t id, uint32_t n)
{
    (void)id;
    (void)n;
    return s->ended;
}

void test_stream_open(struct test_stream *s, struct test_worker *worker, uint64_t epoch)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Hello hello = SLUICE__WORKER__V1__HELLO__INIT;
    char server_id[] = "11111111-2222-4333-8444-555555555555";
    struct error err;
    memset(s, 0, sizeof(*s));
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (rpc_stream_open(worker->client, service, "Serve", NULL, NULL, &events, s, &s->stream,
                        &err) != 0)
        fail_msg("Serve: %s", err.message);
    if (!epoch)
        return;
    hello.protocol_min = hello.protocol_max = 1;
    hello.server_id = server_id;
    hello.server_epoch = 1;
    hello.expected_epoch = epoch;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_HELLO;
    frame.hello = &hello;
    test_stream_send(s, &frame);
    wait_until(s, is_greeted, 0, 0);
}

void test_stream_close(struct test_stream *s)
{
    rpc_stream_cancel(s->stream);
    wait_until(s, has_ended, 0, 0);
    rpc_stream_release(s->stream);
    for (size_t i = 0; i < MAX_ANSWERS; i++)
        strbuf_fini(&s->answers[i].text);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

void test_stream_send(struct test_stream *s, const Sluice__Worker__V1__ServeRequest *frame)
{
    rpc_stream_send(s->stream, &frame->base);
}

void test_stream_submit(struct test_stream *s, uint64_t id, Sluice__V1__GenerateRequest *request)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Submit submit = SLUICE__WORKER__V1__SUBMIT__INIT;
    submit.id = id;
    submit.seed = id;
    submit.request = request;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
    frame.submit = &submit;
    test_stream_send(s, &frame);
}

void test_stream_submit_held(struct test_stream *s, uint64_t id, const char *text,
                             uint32_t max_tokens)
{
    struct text_request r;
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Submit submit = SLUICE__WORKER__V1__SUBMIT__INIT;
    text_request_init(&r, text, max_tokens);
    submit.id = id;
    submit.request = &r.request;
    submit.has_credit_tokens = true;
    submit.credit_tokens = 4;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
    frame.submit = &submit;
    test_stream_send(s, &frame);
}

void test_stream_credit(struct test_stream *s, uint64_t id, uint32_t n_tokens)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Credit credit = SLUICE__WORKER__V1__CREDIT__INIT;
    credit.id = id;
    credit.n_tokens = n_tokens;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT;
    frame.credit = &credit;
    test_stream_send(s, &frame);
}

void test_stream_cancel(struct test_stream *s, uint64_t id)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Cancel cancel = SLUICE__WORKER__V1__CANCEL__INIT;
    cancel.id = id;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL;
    frame.cancel = &cancel;
    test_stream_send(s, &frame);
}

struct answer *test_stream_wait(struct test_stream *s, uint64_t id)
{
    wait_until(s, is_over, id, 1);
    return &s->answers[id];
}

void test_stream_wait_tokens(struct test_stream *s, uint64_t id, uint32_t n)
{
    wait_until(s, has_tokens, id, n);
}

static bool has_heartbeats(struct test_stream *s, uint64_t id, uint32_t n)
{
    (void)id;
    return s->n_heartbeats >= n;
}

void test_stream_wait_heartbeats(struct test_stream *s, uint32_t n)
{
    wait_until(s, has_heartbeats, 0, n);
}

void test_stream_wait_ended(struct test_stream *s)
{
    wait_until(s, has_ended, 0, 0);
}

void text_request_init(struct text_request *r, const char *text, uint32_t max_tokens)
{
    sluice__v1__generate_request__init(&r->request);
    sluice__v1__stopping__init(&r->stopping);
    sluice__v1__sampling__init(&r->sampling);
    sluice__v1__output__init(&r->output);
    r->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    r->request.text = (char *)(uintptr_t)text;
    r->request.stopping = &r->stopping;
    r->request.sampling = &r->sampling;
    r->request.output = &r->output;
    r->stopping.has_max_tokens = true;
    r->stopping.max_tokens = max_tokens;
    r->stopping.has_ignore_eos = true;
    r->stopping.ignore_eos = true;
}
