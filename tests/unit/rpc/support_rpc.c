#include "tests/unit/rpc/support_rpc.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/message/message.h"

/* --- Tokenize --- */

static void reply_version(struct rpc_call *call, const Sluice__V1__TokenizeRequest *request)
{
    Sluice__V1__TokenizeResponse response = SLUICE__V1__TOKENIZE_RESPONSE__INIT;
    response.version = request->text;
    rpc_call_reply(call, &response.base);
}

struct late {
    struct rpc_call *call;
    const Sluice__V1__TokenizeRequest *request;
};

static void *reply_late(void *arg)
{
    struct late *late = arg;
    struct timespec pause = {0, 20 * NS_PER_MS};
    nanosleep(&pause, NULL);
    reply_version(late->call, late->request);
    rpc_call_release(late->call);
    free(late);
    return NULL;
}

static void start_late(struct rpc_call *call, const Sluice__V1__TokenizeRequest *request)
{
    pthread_t thread;
    struct late *late = malloc(sizeof(*late));
    assert_non_null(late);
    *late = (struct late){call, request};
    rpc_call_retain(call);
    assert_int_equal(pthread_create(&thread, NULL, reply_late, late), 0);
    pthread_detach(thread);
}

static void count_cancel(void *arg, struct rpc_call *call)
{
    struct rpc_fixture *fixture = arg;
    (void)call;
    pthread_mutex_lock(&fixture->lock);
    fixture->n_cancelled++;
    fixture->cancelled_ns = clock_now_ns();
    pthread_cond_broadcast(&fixture->changed);
    pthread_mutex_unlock(&fixture->lock);
}

static void count_done(void *arg, struct rpc_call *call)
{
    struct rpc_fixture *fixture = arg;
    (void)call;
    pthread_mutex_lock(&fixture->lock);
    fixture->n_done++;
    pthread_cond_broadcast(&fixture->changed);
    pthread_mutex_unlock(&fixture->lock);
}

static const struct rpc_call_events hang_events = {
    .on_cancel = count_cancel,
    .on_done = count_done,
};

static void hang(struct rpc_fixture *fixture, struct rpc_call *call)
{
    rpc_call_set_events(call, &hang_events, fixture);
    pthread_mutex_lock(&fixture->lock);
    fixture->n_hanging++;
    pthread_cond_broadcast(&fixture->changed);
    pthread_mutex_unlock(&fixture->lock);
}

static void fail_with_details(struct rpc_call *call)
{
    struct error err;
    error_field(&err, "stopping.max_tokens", "0 is below 1 – naïve");
    error_reason_parse(&err, "TOO_SMALL");
    err.retry_after_ms = 1250;
    rpc_call_add_trailer(call, "x-test", "trailer");
    rpc_call_finish(call, &err);
}

static void handle_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)message;
    if (strcmp(request->model, "late") == 0)
        start_late(call, request);
    else if (strcmp(request->model, "fail") == 0)
        fail_with_details(call);
    else if (strcmp(request->model, "never") == 0)
        hang(context, call);
    else if (strcmp(request->model, "silent") == 0)
        rpc_call_finish(call, NULL);
    else
        reply_version(call, request);
}

/* --- Generate --- */

struct generation {
    struct rpc_fixture *fixture;
    struct rpc_call *call;
    uint64_t n_left, n_sent, n_padding;
    char *padding;
};

static void generation_done(void *arg, struct rpc_call *call)
{
    struct generation *generation = arg;
    count_done(generation->fixture, call);
    free(generation->padding);
    free(generation);
}

static void make_chunk(struct generation *generation, Sluice__V1__Tokens *tokens,
                       Sluice__V1__GenerateResponse *response)
{
    sluice__v1__tokens__init(tokens);
    sluice__v1__generate_response__init(response);
    tokens->first_index = (uint32_t)generation->n_sent;
    tokens->text = generation->padding;
    response->event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS;
    response->tokens = tokens;
}

static void push_all(void *arg, struct rpc_call *call)
{
    struct generation *generation = arg;
    Sluice__V1__Tokens tokens;
    Sluice__V1__GenerateResponse response;
    struct rpc_fixture *fixture = generation->fixture;
    while (generation->n_left > 0) {
        make_chunk(generation, &tokens, &response);
        int status = rpc_call_send(call, &response.base);
        size_t pending = rpc_call_pending_bytes(call);
        pthread_mutex_lock(&fixture->lock);
        if (pending > fixture->max_pending_seen)
            fixture->max_pending_seen = pending;
        fixture->n_refused += status == STATUS_RESOURCE_EXHAUSTED;
        pthread_cond_broadcast(&fixture->changed);
        pthread_mutex_unlock(&fixture->lock);
        if (status != 0)
            return;
        generation->n_sent++;
        generation->n_left--;
    }
    rpc_call_finish(call, NULL);
}

static void pull_one(void *arg, struct rpc_out *out)
{
    struct generation *generation = arg;
    Sluice__V1__Tokens tokens;
    Sluice__V1__GenerateResponse response;
    if (generation->n_left > 0) {
        make_chunk(generation, &tokens, &response);
        rpc_out_put(out, &response.base);
        generation->n_sent++;
        generation->n_left--;
    }
    if (generation->n_left == 0)
        rpc_out_finish(out, NULL);
}

static const struct rpc_call_events push_events = {
    .on_writable = push_all,
    .on_cancel = NULL,
    .on_done = generation_done,
};
static const struct rpc_call_events pull_events = {
    .next = pull_one,
    .on_done = generation_done,
};

static void generation_cancelled(void *arg, struct rpc_call *call)
{
    struct generation *generation = arg;
    count_cancel(generation->fixture, call);
}

static void *abort_later(void *arg)
{
    struct timespec pause = {0, 100 * NS_PER_MS};
    struct error err;
    nanosleep(&pause, NULL);
    error_set(&err, STATUS_RESOURCE_EXHAUSTED, "the reader is too slow");
    error_reason(&err, REASON_SLOW_READER);
    rpc_call_abort(arg, &err);
    rpc_call_release(arg);
    return NULL;
}

static const struct rpc_call_events stuck_events = {
    .on_writable = push_all,
    .on_cancel = generation_cancelled,
    .on_done = generation_done,
};

static void handle_generate(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__GenerateRequest *request = (const Sluice__V1__GenerateRequest *)message;
    struct generation *generation = calloc(1, sizeof(*generation));
    assert_non_null(generation);
    generation->fixture = context;
    generation->call = call;
    generation->n_left = request->sampling != NULL ? request->sampling->seed : 1;
    generation->n_padding =
        request->sampling != NULL && request->sampling->has_top_k ? request->sampling->top_k : 0;
    generation->padding = malloc(generation->n_padding + 1);
    assert_non_null(generation->padding);
    memset(generation->padding, 'x', generation->n_padding);
    generation->padding[generation->n_padding] = '\0';
    if (strcmp(request->model, "pull") == 0) {
        rpc_call_set_events(call, &pull_events, generation);
        rpc_call_kick(call);
    } else if (strcmp(request->model, "push") == 0) {
        rpc_call_set_events(call, &push_events, generation);
        push_all(generation, call);
    } else if (strcmp(request->model, "stuck") == 0) {
        pthread_t thread;
        rpc_call_set_events(call, &stuck_events, generation);
        push_all(generation, call);
        rpc_call_retain(call);
        assert_int_equal(pthread_create(&thread, NULL, abort_later, call), 0);
        pthread_detach(thread);
    } else {
        Sluice__V1__Tokens tokens;
        Sluice__V1__GenerateResponse response;
        make_chunk(generation, &tokens, &response);
        rpc_call_send(call, &response.base);
        free(generation->padding);
        free(generation);
        hang(context, call);
    }
}

/* --- GenerateStream --- */

static void *resume_later(void *arg)
{
    struct timespec pause = {0, 50 * NS_PER_MS};
    nanosleep(&pause, NULL);
    rpc_call_resume_reads(arg);
    rpc_call_release(arg);
    return NULL;
}

static void echo(void *arg, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__GenerateStreamRequest *request =
        (const Sluice__V1__GenerateStreamRequest *)message;
    Sluice__V1__GenerateStreamResponse response = SLUICE__V1__GENERATE_STREAM_RESPONSE__INIT;
    Sluice__V1__Tokens tokens = SLUICE__V1__TOKENS__INIT;
    (void)arg;
    tokens.first_index = request->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CREDIT
                             ? request->credit->n_tokens
                             : 0;
    response.request_id = request->request_id;
    response.frame_case = SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_TOKENS;
    response.tokens = &tokens;
    rpc_call_send(call, &response.base);
    if (strcmp(request->request_id, "pause") == 0) {
        pthread_t thread;
        rpc_call_pause_reads(call);
        rpc_call_retain(call);
        assert_int_equal(pthread_create(&thread, NULL, resume_later, call), 0);
        pthread_detach(thread);
    }
}

static void echo_half_close(void *arg, struct rpc_call *call)
{
    (void)arg;
    rpc_call_finish(call, NULL);
}

static const struct rpc_call_events echo_events = {
    .on_message = echo,
    .on_half_close = echo_half_close,
    .on_cancel = count_cancel,
    .on_done = count_done,
};

static void handle_stream(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    assert_null(message);
    rpc_call_set_events(call, &echo_events, context);
}

/* --- the fixture --- */

static const struct rpc_method methods[] = {
    {"Generate", RPC_SHAPE_SERVER_STREAM, handle_generate},
    {"GenerateStream", RPC_SHAPE_BIDI, handle_stream},
    {"Complete", RPC_SHAPE_UNARY, rpc_unimplemented},
    {"Tokenize", RPC_SHAPE_UNARY, handle_tokenize},
    {"Detokenize", RPC_SHAPE_UNARY, rpc_unimplemented},
    {"ApplyChatTemplate", RPC_SHAPE_UNARY, rpc_unimplemented},
    {"ListModels", RPC_SHAPE_UNARY, rpc_unimplemented},
    {"GetModel", RPC_SHAPE_UNARY, rpc_unimplemented},
    {"Cancel", RPC_SHAPE_UNARY, rpc_unimplemented},
};

int rpc_fixture_server(struct rpc_fixture *fixture, const struct rpc_server_config *config,
                       struct rpc_server **out_server, struct error *err)
{
    struct rpc_server_config own;
    struct rpc_service service = {&sluice__v1__inference__descriptor, methods,
                                  sizeof(methods) / sizeof(methods[0]), fixture};
    rpc_server_config_init(&own);
    if (config != NULL)
        own = *config;
    own.services = &service;
    own.n_services = 1;
    return rpc_server_create(&own, out_server, err);
}

void rpc_fixture_dir(char out_dir[64])
{
    const char *base = getenv("TMPDIR");
    snprintf(out_dir, 64, "%.40s/sluice-rpc-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(out_dir));
}

void rpc_fixture_start(struct rpc_fixture *fixture, const struct rpc_server_config *config)
{
    struct error err;
    struct rpc_client_config client;
    memset(fixture, 0, sizeof(*fixture));
    pthread_mutex_init(&fixture->lock, NULL);
    pthread_cond_init(&fixture->changed, NULL);
    rpc_fixture_dir(fixture->dir);
    snprintf(fixture->socket, sizeof(fixture->socket), "%s/s.sock", fixture->dir);
    snprintf(fixture->target, sizeof(fixture->target), "unix:%s", fixture->socket);
    error_clear(&err);
    if (rpc_fixture_server(fixture, config, &fixture->server, &err) != 0)
        fail_msg("server: %s", err.message);
    if (rpc_server_listen_unix(fixture->server, fixture->socket, &err) != 0)
        fail_msg("listen: %s", err.message);
    assert_int_equal(rpc_server_start(fixture->server, &err), 0);
    rpc_client_config_init(&client);
    client.target = fixture->target;
    assert_int_equal(rpc_client_create(&client, &fixture->client, &err), 0);
    if (rpc_client_wait_connected(fixture->client, 5000, &err) != 0)
        fail_msg("connect: %s", err.message);
}

void rpc_fixture_stop(struct rpc_fixture *fixture)
{
    rpc_client_destroy(fixture->client);
    rpc_server_destroy(fixture->server);
    assert_int_equal(access(fixture->socket, F_OK), -1);
    assert_int_equal(rmdir(fixture->dir), 0);
    pthread_cond_destroy(&fixture->changed);
    pthread_mutex_destroy(&fixture->lock);
}

bool rpc_fixture_wait(struct rpc_fixture *fixture, const unsigned *counter, unsigned n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    int failed = 0;
    pthread_mutex_lock(&fixture->lock);
    while (*counter < n && failed == 0)
        failed = pthread_cond_timedwait(&fixture->changed, &fixture->lock, &until);
    bool reached = *counter >= n;
    pthread_mutex_unlock(&fixture->lock);
    return reached;
}

unsigned rpc_fixture_read(struct rpc_fixture *fixture, const unsigned *counter)
{
    pthread_mutex_lock(&fixture->lock);
    unsigned n = *counter;
    pthread_mutex_unlock(&fixture->lock);
    return n;
}

static char *dup_text(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    return copy;
}

int rpc_fixture_tokenize(struct rpc_client *client, const char *model, const char *text,
                         uint64_t timeout_ms, char **out_version, struct error *err)
{
    struct rpc_call_options options = {.timeout_ms = timeout_ms};
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    char *model_copy = dup_text(model), *text_copy = dup_text(text);
    request.model = model_copy;
    request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    request.text = text_copy;
    int status = rpc_client_unary(client, &sluice__v1__inference__descriptor, "Tokenize",
                                  &request.base, &options, &response, err);
    if (status == 0 && out_version != NULL)
        *out_version = dup_text(((Sluice__V1__TokenizeResponse *)response)->version);
    rpc_message_free(response);
    free(model_copy);
    free(text_copy);
    return status;
}
