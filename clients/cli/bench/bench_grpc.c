#include "clients/cli/bench/bench_grpc.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "clients/cli/bench/bench_load.h"
#include "clients/cli/bench/bench_transport.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "sluice/v1/inference.pb-c.h"

enum {
    STREAMS_PER_CONNECTION = 64, /* a server accepts 100 */
    MAX_CONNECTIONS = BENCH_MAX_CLIENTS / STREAMS_PER_CONNECTION,
    CONNECT_MS = 10000,
};

struct connection {
    struct rpc_client *client;
    _Atomic uint32_t n_live;
};

struct bench_grpc {
    struct bench_transport base;
    const struct bench_grpc_config *config;
    struct connection connections[MAX_CONNECTIONS];
    uint32_t n_connections;
};

struct call {
    struct rpc_stream *rpc;
    struct connection *connection;
    struct bench_slot *slot;
};

/* --- answers; on a connection's thread --- */

static void take_finished(struct bench_slot *slot, const Sluice__V1__Finished *finished)
{
    /* an end-of-sequence token counts as generated but is not sent */
    const struct bench_finish finish = {
        .n_tokens = finished->n_tokens,
        .is_length = finished->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH,
        .hides_one = finished->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_EOS};
    bench_slot_finished(slot, &finish);
    if (finished->receipt)
        bench_slot_drafts(slot, finished->receipt->n_drafted_tokens,
                          finished->receipt->n_accepted_tokens, finished->receipt->numerics_id);
}

static void on_message(void *arg, struct rpc_stream *rpc, const ProtobufCMessage *message)
{
    struct call *call = arg;
    const Sluice__V1__GenerateResponse *response = (const Sluice__V1__GenerateResponse *)message;
    (void)rpc;
    if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS)
        bench_slot_tokens(call->slot, response->tokens->n_ids);
    else if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_PROMPT_INFO)
        bench_slot_prompt(call->slot, response->prompt_info->n_prompt_tokens,
                          response->prompt_info->n_cached_tokens);
    else if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_FINISHED)
        take_finished(call->slot, response->finished);
}

/* The load may release the call as soon as the end is reported. */
static void on_status(void *arg, struct rpc_stream *rpc, const struct error *status)
{
    struct call *call = arg;
    (void)rpc;
    atomic_fetch_sub(&call->connection->n_live, 1);
    bench_slot_end(call->slot, status);
}

static const struct rpc_stream_events stream_events = {.on_message = on_message,
                                                       .on_status = on_status};

/* --- connections --- */

static int add_connection(struct bench_grpc *t, struct error *err)
{
    struct connection *connection = &t->connections[t->n_connections];
    if (t->n_connections == MAX_CONNECTIONS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no connection has a free stream");
    int rc = t->config->connect(t->config->ctx, &connection->client, err);
    if (rc)
        return rc;
    t->n_connections++;
    return rpc_client_wait_connected(connection->client, CONNECT_MS, err);
}

/* Open loop: enough connections for a mean request time of 10 s. */
static int prepare(struct bench_transport *transport, uint32_t n_requests, struct error *err)
{
    struct bench_grpc *t = (struct bench_grpc *)transport;
    uint32_t n = n_requests / STREAMS_PER_CONNECTION + 1;
    int rc = 0;
    while (!rc && t->n_connections < n && t->n_connections < MAX_CONNECTIONS)
        rc = add_connection(t, err);
    return rc;
}

/* Finds the first connection with a free stream, so that no call waits inside a connection. */
static int connect_next(struct bench_transport *transport, void **out_connection, struct error *err)
{
    struct bench_grpc *t = (struct bench_grpc *)transport;
    for (uint32_t i = 0; i < t->n_connections; i++)
        if (atomic_load(&t->connections[i].n_live) < STREAMS_PER_CONNECTION) {
            *out_connection = &t->connections[i];
            return 0;
        }
    int rc = add_connection(t, err);
    if (!rc)
        *out_connection = &t->connections[t->n_connections - 1];
    return rc;
}

static uint32_t n_connections(const struct bench_transport *transport)
{
    return ((const struct bench_grpc *)transport)->n_connections;
}

/* --- requests --- */

/* A request with storage for its parts. */
struct parts {
    Sluice__V1__GenerateRequest request;
    Sluice__V1__TokenIds ids;
    Sluice__V1__Chat chat;
    Sluice__V1__ChatMessage message, *messages[1];
    Sluice__V1__Stopping stopping;
    Sluice__V1__Sampling sampling;
    Sluice__V1__Speculate speculate;
};

static void fill_prompt(const struct bench_load_config *c, const struct bench_prompt *prompt,
                        struct parts *p)
{
    if (!prompt->text) {
        p->ids.ids = (uint32_t *)(uintptr_t)prompt->ids;
        p->ids.n_ids = prompt->n_ids;
        p->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
        p->request.token_ids = &p->ids;
    } else if (c->chat) {
        p->message.role = (char *)(uintptr_t) "user";
        p->message.content = (char *)(uintptr_t)prompt->text;
        p->chat.messages = p->messages;
        p->chat.n_messages = 1;
        p->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
        p->request.chat = &p->chat;
    } else {
        p->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        p->request.text = (char *)(uintptr_t)prompt->text;
    }
}

static void fill_request(const struct bench_load_config *c, const struct bench_request *request,
                         struct parts *p)
{
    *p = (struct parts){SLUICE__V1__GENERATE_REQUEST__INIT,
                        SLUICE__V1__TOKEN_IDS__INIT,
                        SLUICE__V1__CHAT__INIT,
                        SLUICE__V1__CHAT_MESSAGE__INIT,
                        {&p->message},
                        SLUICE__V1__STOPPING__INIT,
                        SLUICE__V1__SAMPLING__INIT,
                        SLUICE__V1__SPECULATE__INIT};
    p->request.model = (char *)(uintptr_t)c->model;
    p->request.version = (char *)(uintptr_t)c->version;
    fill_prompt(c, &request->prompt, p);
    p->stopping.has_max_tokens = true;
    p->stopping.max_tokens = request->prompt.max_tokens;
    p->stopping.has_ignore_eos = true;
    p->stopping.ignore_eos = c->ignore_eos;
    p->sampling.has_temperature = true;
    p->sampling.temperature = (float)c->temperature;
    p->sampling.has_seed = true;
    p->sampling.seed = request->seed;
    p->request.cache_salt = (char *)(uintptr_t)c->cache_salt;
    p->request.has_priority = c->has_priority;
    p->request.priority = c->priority;
    p->request.stopping = &p->stopping;
    p->request.sampling = &p->sampling;
    p->speculate.drafter =
        c->n_drafts ? SLUICE__V1__DRAFTER__DRAFTER_UNSPECIFIED /* the drafter of the load */
                    : SLUICE__V1__DRAFTER__DRAFTER_NONE;
    p->speculate.has_max_draft_tokens = c->n_drafts > 0;
    p->speculate.max_draft_tokens = c->n_drafts > 0 ? (uint32_t)c->n_drafts : 0;
    p->request.speculate = c->n_drafts >= 0 ? &p->speculate : NULL;
}

static int start(struct bench_transport *transport, void *connection,
                 const struct bench_request *request, struct bench_slot *slot, void **out_call,
                 struct error *err)
{
    struct bench_grpc *t = (struct bench_grpc *)transport;
    struct rpc_call_options options = {.timeout_ms = t->config->load->timeout_ms};
    struct call *call = calloc(1, sizeof(*call));
    struct parts parts;
    if (!call)
        return error_no_memory(err);
    fill_request(t->config->load, request, &parts);
    *call = (struct call){.connection = connection, .slot = slot};
    atomic_fetch_add(&call->connection->n_live, 1);
    int rc =
        rpc_stream_open(call->connection->client, &sluice__v1__inference__descriptor, "Generate",
                        &parts.request.base, &options, &stream_events, call, &call->rpc, err);
    if (rc) {
        atomic_fetch_sub(&call->connection->n_live, 1);
        free(call);
        return rc;
    }
    *out_call = call;
    return 0;
}

static void cancel(struct bench_transport *transport, void *call)
{
    (void)transport;
    rpc_stream_cancel(((struct call *)call)->rpc);
}

static void release(struct bench_transport *transport, void *call)
{
    (void)transport;
    rpc_stream_release(((struct call *)call)->rpc);
    free(call);
}

/* --- life --- */

static void destroy(struct bench_transport *transport)
{
    struct bench_grpc *t = (struct bench_grpc *)transport;
    for (uint32_t i = 0; i < t->n_connections; i++)
        rpc_client_destroy(t->connections[i].client);
    free(t);
}

static const struct bench_transport_ops ops = {.name = "grpc",
                                               .prepare = prepare,
                                               .connect = connect_next,
                                               .start = start,
                                               .cancel = cancel,
                                               .release = release,
                                               .n_connections = n_connections,
                                               .destroy = destroy};

int bench_grpc_create(const struct bench_grpc_config *config,
                      struct bench_transport **out_transport, struct error *err)
{
    struct bench_grpc *t = calloc(1, sizeof(*t));
    if (!t)
        return error_no_memory(err);
    t->base.ops = &ops;
    t->config = config;
    *out_transport = &t->base;
    return 0;
}
