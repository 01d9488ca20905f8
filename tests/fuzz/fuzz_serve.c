/* fuzz_serve.c: fuzzes both directions of a Serve stream. The first byte chooses the client's
 * request. Records follow: a kind, a length of two bytes, and that many bytes. Kind 0 is a
 * ServeResponse. Its step items go to the request's relay in a real gateway, and from there to a
 * client. The client checks the promises of the wire: indices without gaps, complete UTF-8, one
 * end. Kind 1 is a ServeRequest, whose submit is translated as the worker does. Kind 2 loses the
 * replica: the resume state must pack and parse again. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/gateway.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/relay_sink.h"
#include "server/gateway/relay/upstream.h"
#include "server/worker/serve/request_build.h"
#include "sluice/worker/v1/worker.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_CHOICES = 3 };

struct client {
    struct relay_sink sink;
    uint64_t n[RELAY_MAX_CHOICES];
    bool last;
};

static void promise(bool kept)
{
    if (!kept)
        abort();
}

static void nothing(struct relay_sink *sink)
{
    (void)sink;
}

static void say(struct relay_sink *sink, const struct error *status)
{
    (void)sink;
    promise(status->status != 0 && status->message[0]);
}

static const struct relay_sink_ops ops = {
    .name = "fuzz", .ready = nothing, .cut_off = say, .taken_over = say, .destroy = nothing};

static void on_frame(void *ctx, const struct relay_frame *frame)
{
    struct client *client = ctx;
    promise(!client->last);
    client->last = frame->last;
    if (frame->kind == RELAY_FRAME_TOKENS) {
        const Sluice__V1__Tokens *tokens = &frame->tokens;
        promise(tokens->choice < RELAY_MAX_CHOICES &&
                tokens->first_index == client->n[tokens->choice]);
        promise(utf8_valid(tokens->text, strlen(tokens->text), NULL));
        client->n[tokens->choice] += tokens->n_ids;
    }
}

static struct gateway *open_gateway(void)
{
    static struct gateway *gateway;
    struct gateway_config config = {.listen = "",
                                    .listen_unix = "",
                                    .manager_socket = "",
                                    .routes_file = "",
                                    .threads = 1,
                                    .keepalive_time_ms = 60000,
                                    .keepalive_timeout_ms = 20000};
    struct error err;
    if (gateway)
        return gateway;
    log_init("fuzz", LOG_LEVEL_ERROR, LOG_FORMAT_KV);
    gateway_limits_init(&config.limits);
    promise(gateway_create(&config, &gateway, &err) == 0);
    return gateway;
}

static struct relay *open_relay(uint8_t kind, struct client *client)
{
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    Sluice__V1__Output output = SLUICE__V1__OUTPUT__INIT;
    struct trace_context trace;
    struct relay_params params = {
        .request = &request, .caller = "fuzz", .trace = &trace, .deadline_ns = INT64_MAX};
    struct relay *relay;
    struct error err;
    char model[] = "m", text[] = "prompt";
    memset(&trace, 0, sizeof(trace));
    request.model = model;
    request.text = text;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.sampling = &sampling;
    request.output = &output;
    sampling.has_n = true;
    sampling.n = 1 + kind % MAX_CHOICES;
    sampling.has_best_of = (kind & 4) != 0;
    sampling.best_of = sampling.n + 1;
    output.logprobs = (kind & 8) != 0;
    output.prompt_logprobs = (kind & 16) != 0;
    params.whole = (kind & 32) != 0;
    promise(relay_create(&open_gateway()->relays, &params, &relay, &err) == 0);
    dispatch_count_begin(&open_gateway()->relays, relay);
    relay_retain(relay); /* dispatch_close drops the first reference */
    relay_sink_init(&client->sink, &ops);
    relay_attach(relay, &client->sink);
    return relay;
}

static void take(struct relay *relay, struct client *client)
{
    while (!client->last && relay_deliver(relay, &client->sink, on_frame, client) == RELAY_PUT)
        ;
}

static void on_response(struct relay *relay, struct client *client, const uint8_t *bytes,
                        size_t n_bytes)
{
    ProtobufCMessage *message;
    struct error err;
    if (rpc_message_parse(&sluice__worker__v1__serve_response__descriptor, bytes, n_bytes, &message,
                          &err) != 0)
        return;
    const Sluice__Worker__V1__ServeResponse *response =
        (const Sluice__Worker__V1__ServeResponse *)message;
    if (response->frame_case == SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP)
        for (size_t i = 0; i < response->step->n_items; i++) {
            relay_on_item(relay, response->step->items[i], false);
            if (i % 2)
                take(relay, client);
        }
    take(relay, client);
    rpc_message_free(message);
}

static void on_request(const uint8_t *bytes, size_t n_bytes)
{
    ProtobufCMessage *message;
    struct engine_request request;
    struct arena arena;
    struct error err;
    if (rpc_message_parse(&sluice__worker__v1__serve_request__descriptor, bytes, n_bytes, &message,
                          &err) != 0)
        return;
    const Sluice__Worker__V1__ServeRequest *frame =
        (const Sluice__Worker__V1__ServeRequest *)message;
    const Sluice__Worker__V1__Submit *submit =
        frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT ? frame->submit : NULL;
    arena_init(&arena, 0, 16 << 20);
    /* Bad words need a tokenizer, which has a fuzzer of its own. */
    if (submit && submit->request && request_build_check(submit->request, &err) == 0 &&
        !(submit->request->sampling && submit->request->sampling->n_bad_words)) {
        memset(&request, 0, sizeof(request));
        if (request_build(submit, NULL, &arena, &request, &err) != 0)
            promise(err.message[0]);
    }
    arena_fini(&arena);
    rpc_message_free(message);
}

static void on_loss(struct relay *relay)
{
    static struct relay_submit fill;
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    void *bytes;
    size_t n_bytes;
    pthread_mutex_lock(&relay->lock);
    relay_fill_submit(relay, &fill);
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
    frame.submit = &fill.submit;
    promise(rpc_message_pack(&frame.base, &bytes, &n_bytes, &err) == 0);
    pthread_mutex_unlock(&relay->lock);
    promise(rpc_message_parse(&sluice__worker__v1__serve_request__descriptor, bytes, n_bytes,
                              &message, &err) == 0);
    rpc_message_free(message);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct client client;
    if (!size)
        return 0;
    memset(&client, 0, sizeof(client));
    struct relay *relay = open_relay(data[0], &client);
    data++;
    size--;
    while (size >= 3) {
        uint8_t kind = data[0] % 3;
        size_t n_bytes = (size_t)data[1] | (size_t)data[2] << 8;
        data += 3;
        size -= 3;
        n_bytes = n_bytes < size ? n_bytes : size;
        if (kind == 0)
            on_response(relay, &client, data, n_bytes);
        else if (kind == 1)
            on_request(data, n_bytes);
        else
            on_loss(relay);
        data += n_bytes;
        size -= n_bytes;
    }
    dispatch_sink_gone(relay, &client.sink, 0);
    relay_release(relay);
    return 0;
}
