#include "tests/unit/gateway/support/support_gateway.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "grpc/health/v1/health.pb-c.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"
#include "tests/unit/base/support_cmocka.h"

enum { WAIT_S = 10 };

static void init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

/* --- the manager --- */

struct watcher {
    struct watcher *next;
    struct fake_manager *manager;
    struct rpc_call *call;
};

static void tell(struct watcher *watcher)
{
    ProtobufCMessage *table;
    struct error err;
    if (!watcher->manager->table)
        return;
    assert_int_equal(rpc_message_parse(&sluice__manager__v1__route_table__descriptor,
                                       watcher->manager->table, watcher->manager->n_table, &table,
                                       &err),
                     0);
    rpc_call_send(watcher->call, table);
    rpc_message_free(table);
}

static void watcher_done(void *arg, struct rpc_call *call)
{
    struct watcher *watcher = arg;
    pthread_mutex_lock(&watcher->manager->lock);
    struct watcher **at = &watcher->manager->watchers;
    while (*at != watcher)
        at = &(*at)->next;
    *at = watcher->next;
    pthread_mutex_unlock(&watcher->manager->lock);
    rpc_call_release(call);
    free(watcher);
}

static const struct rpc_call_events watcher_events = {.on_done = watcher_done};

static void handle_watch(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct fake_manager *manager = context;
    struct watcher *watcher = calloc(1, sizeof(*watcher));
    assert_non_null(watcher);
    watcher->manager = manager;
    watcher->call = call;
    rpc_call_retain(call);
    rpc_call_set_events(call, &watcher_events, watcher);
    pthread_mutex_lock(&manager->lock);
    watcher->next = manager->watchers;
    manager->watchers = watcher;
    manager->n_watches++;
    manager->known_generation =
        ((const Sluice__Manager__V1__WatchRoutesRequest *)message)->known_generation;
    pthread_cond_broadcast(&manager->changed);
    tell(watcher);
    pthread_mutex_unlock(&manager->lock);
}

static void handle_wake(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct fake_manager *manager = context;
    Sluice__Manager__V1__WakeVersionResponse response =
        SLUICE__MANAGER__V1__WAKE_VERSION_RESPONSE__INIT;
    (void)message;
    struct error err;
    manager->n_wakes++;
    if (manager->refusal) {
        error_set(&err, STATUS_INVALID_ARGUMENT, "%s", manager->refusal);
        rpc_call_finish(call, &err);
        return;
    }
    if (manager->refuses_wakes) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "no room");
        error_reason(&err, REASON_DEVICE_MEMORY);
        rpc_call_finish(call, &err);
        return;
    }
    response.n_woken = 1;
    rpc_call_reply(call, &response.base);
}

void fake_manager_start(struct fake_manager *manager)
{
    static const struct rpc_method methods[] = {
        {"WatchRoutes", RPC_SHAPE_SERVER_STREAM, handle_watch},
        {"WakeVersion", RPC_SHAPE_UNARY, handle_wake}};
    struct rpc_service service = {&sluice__manager__v1__routing__descriptor, methods, 2, manager};
    struct rpc_server_config config;
    struct error err;
    rpc_server_config_init(&config);
    config.services = &service;
    config.n_services = 1;
    config.n_threads = 1;
    error_clear(&err);
    if (rpc_server_create(&config, &manager->server, &err) != 0 ||
        rpc_server_listen_unix(manager->server, manager->socket, &err) != 0 ||
        rpc_server_start(manager->server, &err) != 0)
        fail_msg("fake manager: %s", err.message);
}

void fake_manager_kill(struct fake_manager *manager)
{
    rpc_server_destroy(manager->server);
    manager->server = NULL;
}

void fixture_routes(struct fixture *f, const struct fixture_route *routes, size_t n_routes)
{
    Sluice__Manager__V1__RouteTable table = SLUICE__MANAGER__V1__ROUTE_TABLE__INIT;
    Sluice__Manager__V1__Route rows[FIXTURE_ROUTES], *list[FIXTURE_ROUTES];
    Sluice__Manager__V1__RouteReplica replicas[FIXTURE_ROUTES][FIXTURE_WORKERS];
    Sluice__Manager__V1__RouteReplica *replica_list[FIXTURE_ROUTES][FIXTURE_WORKERS];
    struct error err;
    assert_true(n_routes <= FIXTURE_ROUTES);
    for (size_t i = 0; i < n_routes; i++) {
        rows[i] = (Sluice__Manager__V1__Route)SLUICE__MANAGER__V1__ROUTE__INIT;
        rows[i].model = (char *)(uintptr_t)routes[i].model;
        rows[i].version = (char *)(uintptr_t)routes[i].version;
        rows[i].loaded = routes[i].loaded;
        rows[i].sequence = i + 1;
        rows[i].wakes = f->wakes;
        rows[i].traffic_weight = f->weight;
        rows[i].sticky = f->weight > 0;
        rows[i].info = f->info;
        rows[i].replicas = replica_list[i];
        for (unsigned k = 0; k < FIXTURE_WORKERS; k++) {
            bool draining = routes[i].draining >> k & 1, pending = f->pending >> k & 1;
            if (!(routes[i].workers >> k & 1) && !draining && !pending)
                continue;
            Sluice__Manager__V1__RouteReplica *replica = &replicas[i][k];
            *replica = (Sluice__Manager__V1__RouteReplica)SLUICE__MANAGER__V1__ROUTE_REPLICA__INIT;
            replica->id = f->workers[k].replica_id;
            replica->epoch = f->workers[k].epoch;
            if (!f->parked && !pending)
                replica->socket_path = f->workers[k].socket;
            replica->state = pending     ? SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING
                             : f->parked ? SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED
                             : draining ? SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING
                                        : SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY;
            replica_list[i][rows[i].n_replicas++] = replica;
        }
        list[i] = &rows[i];
    }
    table.generation = ++f->generation;
    table.routes = list;
    table.n_routes = n_routes;
    pthread_mutex_lock(&f->manager.lock);
    free(f->manager.table);
    assert_int_equal(rpc_message_pack(&table.base, &f->manager.table, &f->manager.n_table, &err),
                     0);
    for (struct watcher *w = f->manager.watchers; w; w = w->next)
        tell(w);
    pthread_mutex_unlock(&f->manager.lock);
}

/* --- the fixture --- */

void fixture_pause_ms(int64_t ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * NS_PER_MS};
    nanosleep(&pause, NULL);
}

unsigned fixture_busy_worker(struct fixture *f, unsigned n_workers)
{
    /* A request that was sent may not have reached its worker yet. */
    for (int round = 0; round < WAIT_S * 200; round++) {
        for (unsigned i = 0; i < n_workers; i++)
            if (fake_worker_read(&f->workers[i], &f->workers[i].n_live))
                return i;
        fixture_pause_ms(5);
    }
    fail_msg("no worker has the request");
    return 0;
}

void fixture_init(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    const char *base = getenv("TMPDIR");
    snprintf(f->dir, sizeof(f->dir), "%.40s/sluice-gw-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->socket, sizeof(f->socket), "%s/g.sock", f->dir);
    snprintf(f->routes_file, sizeof(f->routes_file), "%s/routes.pb", f->dir);
    snprintf(f->manager.socket, sizeof(f->manager.socket), "%s/m.sock", f->dir);
    pthread_mutex_init(&f->manager.lock, NULL);
    init_cond(&f->manager.changed);
    for (unsigned i = 0; i < FIXTURE_WORKERS; i++) {
        char id[8];
        snprintf(id, sizeof(id), "w%u", i);
        fake_worker_init(&f->workers[i], f->dir, id);
    }
    f->config = (struct gateway_config){
        .listen = "",
        .listen_unix = f->socket,
        .manager_socket = f->manager.socket,
        .routes_file = f->routes_file,
        .threads = 2,
        .keepalive_time_ms = 60000,
        .keepalive_timeout_ms = 20000,
        .drain_grace_ms = 1000,
    };
    gateway_limits_init(&f->config.limits);
    f->config.limits.max_message_bytes = 1 << 20;
    f->config.limits.max_streams = 200;
    f->config.limits.resume_ms = 10000;
    f->config.limits.replica_wait_ms = 10000;
    fake_manager_start(&f->manager);
}

void fixture_start_gateway(struct fixture *f)
{
    struct error err;
    struct rpc_client_config config;
    char target[128];
    error_clear(&err);
    if (gateway_create(&f->config, &f->gateway, &err) != 0)
        fail_msg("gateway: %s", err.message);
    rpc_client_config_init(&config);
    snprintf(target, sizeof(target), "unix:%s", f->socket);
    config.target = target;
    assert_int_equal(rpc_client_create(&config, &f->client, &err), 0);
    if (rpc_client_wait_connected(f->client, 10000, &err) != 0)
        fail_msg("client: %s", err.message);
}

void fixture_start(struct fixture *f, unsigned n_workers)
{
    struct fixture_route row = {"m", "1", true, (1U << n_workers) - 1, 0};
    if (!f->dir[0])
        fixture_init(f);
    for (unsigned i = 0; i < n_workers; i++)
        fake_worker_start(&f->workers[i]);
    fixture_routes(f, &row, 1);
    fixture_start_gateway(f);
    fixture_wait_usable(f, n_workers);
}

void fixture_stop_gateway(struct fixture *f, uint32_t grace_ms)
{
    gateway_destroy(f->gateway, grace_ms);
    f->gateway = NULL;
    rpc_client_destroy(f->client);
    f->client = NULL;
}

void fixture_stop(struct fixture *f)
{
    if (f->gateway) {
        fixture_wait_rest(f);
        for (unsigned i = 0; i < FIXTURE_WORKERS; i++)
            assert_true(fake_worker_wait_live(&f->workers[i], 0));
        fixture_stop_gateway(f, 0);
    }
    for (unsigned i = 0; i < FIXTURE_WORKERS; i++) {
        assert_int_equal(f->workers[i].n_wrong, 0);
        fake_worker_fini(&f->workers[i]);
    }
    fake_manager_kill(&f->manager);
    free(f->manager.table);
    pthread_cond_destroy(&f->manager.changed);
    pthread_mutex_destroy(&f->manager.lock);
    unlink(f->routes_file);
    assert_int_equal(rmdir(f->dir), 0);
    memset(f, 0, sizeof(*f));
}

void fixture_wait_usable(struct fixture *f, unsigned n)
{
    for (int i = 0; i < WAIT_S * 200; i++) {
        unsigned n_usable = 0;
        pthread_mutex_lock(&f->gateway->replicas.lock);
        for (uint32_t k = 0; k < f->gateway->replicas.n_links; k++)
            n_usable += link_serves(f->gateway->replicas.links[k], "m", "1") &&
                        link_usable(f->gateway->replicas.links[k]);
        pthread_mutex_unlock(&f->gateway->replicas.lock);
        if (n_usable == n)
            return;
        fixture_pause_ms(5);
    }
    fail_msg("never had %u usable replicas", n);
}

void fixture_wait_detached(struct fixture *f, uint64_t n)
{
    for (int i = 0; i < WAIT_S * 200; i++) {
        if (atomic_load(&f->gateway->relays.n_detached) == n)
            return;
        fixture_pause_ms(5);
    }
    fail_msg("never had %llu requests without a client", (unsigned long long)n);
}

static void read_stage(void *ctx, struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    if (relay->seat.link)
        *(int *)ctx = (int)relay->stage;
    pthread_mutex_unlock(&relay->lock);
}

void fixture_wait_stage(struct fixture *f, int stage)
{
    int at = -1;
    for (int i = 0; i < WAIT_S * 200; i++) {
        at = -1;
        registry_each(&f->gateway->relays.registry, read_stage, &at);
        if (at == stage)
            return;
        fixture_pause_ms(5);
    }
    fail_msg("the request never came to stage %d: %d", stage, at);
}

static int check_health(struct fixture *f, const char *name)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    struct rpc_call_options options = {.timeout_ms = 5000};
    struct error err;
    request.service = (char *)(uintptr_t)name;
    int rc = rpc_client_unary(f->client, &grpc__health__v1__health__descriptor, "Check",
                              &request.base, &options, &response, &err);
    if (rc == STATUS_NOT_FOUND)
        return -1;
    assert_int_equal(rc, 0);
    int serving = ((Grpc__Health__V1__HealthCheckResponse *)response)->status == 1;
    rpc_message_free(response);
    return serving;
}

void fixture_wait_health(struct fixture *f, const char *name, int serving)
{
    for (int i = 0; i < WAIT_S * 100; i++) {
        if (check_health(f, name) == serving)
            return;
        fixture_pause_ms(10);
    }
    fail_msg("health of \"%s\" never became %d", name, serving);
}

struct gateway_counters fixture_wait_rest(struct fixture *f)
{
    struct gateway_counters c = {0};
    for (int i = 0; i < WAIT_S * 200; i++) {
        gateway_get_counters(f->gateway, &c);
        assert_int_equal(c.accepted, c.ok + c.failed + c.cancelled + c.live);
        if (!c.live)
            return c;
        fixture_pause_ms(5);
    }
    fail_msg("%llu requests never ended", (unsigned long long)c.live);
    return c;
}

/* --- the client --- */

static void complain(struct client_stream *stream, const char *what)
{
    if (!stream->complaint)
        stream->complaint = what;
}

static void take_tokens(struct client_stream *stream, const Sluice__V1__Tokens *tokens)
{
    char text[FAKE_TEXT_BYTES];
    const char *at = tokens->text;
    uint32_t choice = tokens->choice;
    if (choice >= STREAM_MAX_CHOICES || stream->finished[choice]) {
        complain(stream, "tokens of a choice that is over or never was");
        return;
    }
    if (tokens->first_index != stream->n_ids[choice])
        complain(stream, "first_index leaves a gap or repeats");
    if (!tokens->n_ids)
        complain(stream, "tokens without ids");
    for (size_t i = 0; i < tokens->n_ids; i++) {
        fake_text(tokens->ids[i], stream->text_bytes, text);
        if (strncmp(at, text, strlen(text)) != 0)
            complain(stream, "the text is not that of the ids");
        else
            at += strlen(text);
    }
    if (*at)
        complain(stream, "more text than ids");
    for (size_t i = 0; i < tokens->n_logprobs; i++)
        if (i >= tokens->n_ids || tokens->logprobs[i]->id != tokens->ids[i])
            complain(stream, "logprobs of other ids");
    unsigned n = stream->n_ids[choice] + (unsigned)tokens->n_ids;
    stream->ids[choice] = realloc(stream->ids[choice], (n + 1) * sizeof(uint32_t));
    assert_non_null(stream->ids[choice]);
    if (tokens->n_ids)
        memcpy(stream->ids[choice] + stream->n_ids[choice], tokens->ids,
               tokens->n_ids * sizeof(uint32_t));
    stream->n_ids[choice] = n;
    stream->n_tokens += (unsigned)tokens->n_ids;
    stream->n_logprobs += (unsigned)tokens->n_logprobs;
    if (tokens->n_ids > stream->max_ids)
        stream->max_ids = (unsigned)tokens->n_ids;
}

static void take_finished(struct client_stream *stream, const Sluice__V1__Finished *finished)
{
    if (finished->choice >= STREAM_MAX_CHOICES || stream->finished[finished->choice] ||
        stream->has_receipt) {
        complain(stream, "finished twice, or after the receipt");
        return;
    }
    if (finished->n_tokens != stream->n_ids[finished->choice])
        complain(stream, "finished with another number of tokens");
    stream->finished[finished->choice] = true;
    stream->n_finished++;
    if (!finished->receipt)
        return;
    stream->has_receipt = true;
    stream->n_resumes = finished->receipt->n_resumes;
    stream->numerics_changed = finished->receipt->numerics_changed;
    snprintf(stream->receipt_replica, sizeof(stream->receipt_replica), "%s",
             finished->receipt->replica_id);
}

static void on_message(void *arg, struct rpc_stream *rpc, const ProtobufCMessage *message)
{
    struct client_stream *stream = arg;
    const Sluice__V1__GenerateResponse *response = (const Sluice__V1__GenerateResponse *)message;
    (void)rpc;
    pthread_mutex_lock(&stream->lock);
    stream->n_messages++;
    if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_PROMPT_INFO) {
        if (stream->n_messages != 1)
            complain(stream, "prompt_info is not first");
        if (response->prompt_info->n_prompt_token_ids)
            complain(stream, "prompt ids nobody asked for");
        stream->n_infos++;
    } else if (stream->n_messages == 1) {
        complain(stream, "prompt_info is missing");
    }
    if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS)
        take_tokens(stream, response->tokens);
    if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_FINISHED)
        take_finished(stream, response->finished);
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void on_status(void *arg, struct rpc_stream *rpc, const struct error *status)
{
    struct client_stream *stream = arg;
    (void)rpc;
    pthread_mutex_lock(&stream->lock);
    stream->over = true;
    stream->status = *status;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

void client_message_fill(const struct client_request *request, struct client_message *out)
{
    sluice__v1__generate_request__init(&out->request);
    sluice__v1__sampling__init(&out->sampling);
    sluice__v1__stopping__init(&out->stopping);
    sluice__v1__output__init(&out->output);
    out->request.model = (char *)(uintptr_t)(request->model ? request->model : "m");
    out->request.version = (char *)(uintptr_t)(request->version ? request->version : "");
    out->request.request_id = (char *)(uintptr_t)(request->request_id ? request->request_id : "");
    out->request.session_key =
        (char *)(uintptr_t)(request->session_key ? request->session_key : "");
    out->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    out->request.text = (char *)(uintptr_t)(request->text ? request->text : "a prompt");
    out->request.reattach_window_ms = request->window_ms;
    out->sampling.has_seed = true;
    out->sampling.seed = request->seed;
    out->sampling.has_n = request->n > 0;
    out->sampling.n = request->n;
    out->stopping.has_max_tokens = request->max_tokens > 0;
    out->stopping.max_tokens = request->max_tokens;
    out->output.logprobs = request->logprobs;
    out->request.sampling = &out->sampling;
    out->request.stopping = &out->stopping;
    out->request.output = &out->output;
}

void client_open(struct fixture *f, const struct client_request *request,
                 struct client_stream *stream)
{
    static const struct rpc_stream_events events = {.on_message = on_message,
                                                    .on_status = on_status};
    struct rpc_call_options options = {.timeout_ms = request->timeout_ms};
    struct client_message message;
    struct error err;
    memset(stream, 0, sizeof(*stream));
    stream->text_bytes = request->text_bytes;
    pthread_mutex_init(&stream->lock, NULL);
    init_cond(&stream->changed);
    client_message_fill(request, &message);
    assert_int_equal(rpc_stream_open(f->client, &sluice__v1__inference__descriptor, "Generate",
                                     &message.request.base, &options, &events, stream,
                                     &stream->stream, &err),
                     0);
}

/* Waits for n tokens (UINT32_MAX: for the end). */
static bool wait_for(struct client_stream *stream, unsigned n)
{
    struct timespec until;
    int failed = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 2 * WAIT_S;
    pthread_mutex_lock(&stream->lock);
    while (!stream->over && stream->n_tokens < n && !failed)
        failed = pthread_cond_timedwait(&stream->changed, &stream->lock, &until);
    bool reached = n == UINT32_MAX ? stream->over : stream->n_tokens >= n;
    const char *complaint = stream->complaint;
    pthread_mutex_unlock(&stream->lock);
    if (complaint)
        fail_msg("client: %s", complaint);
    return reached;
}

void client_wait_tokens(struct client_stream *stream, unsigned n)
{
    if (!wait_for(stream, n))
        fail_msg("client: %u of %u tokens, status %d %s", stream->n_tokens, n,
                 stream->status.status, stream->status.message);
}

int client_wait_end(struct client_stream *stream)
{
    if (!wait_for(stream, UINT32_MAX))
        fail_msg("client: no end after %u tokens", stream->n_tokens);
    return stream->status.status;
}

bool client_is_over(struct client_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    bool is_over = stream->over;
    pthread_mutex_unlock(&stream->lock);
    return is_over;
}

void client_close(struct client_stream *stream)
{
    rpc_stream_cancel(stream->stream);
    client_wait_end(stream);
    rpc_stream_release(stream->stream);
    for (unsigned i = 0; i < STREAM_MAX_CHOICES; i++)
        free(stream->ids[i]);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
}

/* Checks that each token belongs to its prompt, seed, choice and index. */
static void expect_prefix(const struct client_stream *stream, const struct client_request *request)
{
    uint32_t prompt[256];
    const char *text = request->text ? request->text : "a prompt";
    size_t n_prompt = strlen(text);
    assert_true(n_prompt < 256);
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = (unsigned char)text[i];
    for (uint32_t choice = 0; choice < STREAM_MAX_CHOICES; choice++)
        for (uint32_t i = 0; i < stream->n_ids[choice]; i++)
            assert_int_equal(stream->ids[choice][i],
                             fake_token(prompt, n_prompt, request->seed, choice, i));
}

void client_expect_whole(struct client_stream *stream, const struct client_request *request)
{
    if (client_wait_end(stream) != 0)
        fail_msg("client: %d %s", stream->status.status, stream->status.message);
    uint32_t n = request->n ? request->n : 1;
    uint32_t max_tokens = request->max_tokens ? request->max_tokens : 16;
    expect_prefix(stream, request);
    assert_int_equal(stream->n_infos, 1);
    assert_int_equal(stream->n_finished, n);
    assert_true(stream->has_receipt);
    assert_int_equal(stream->n_tokens, n * max_tokens);
    assert_int_equal(stream->n_logprobs, request->logprobs ? n * max_tokens : 0);
}

void client_run(struct fixture *f, const struct client_request *request)
{
    struct client_stream stream;
    client_open(f, request, &stream);
    client_expect_whole(&stream, request);
    client_close(&stream);
}

int client_fail(struct fixture *f, const struct client_request *request, struct error *out)
{
    struct client_stream stream;
    client_open(f, request, &stream);
    int status = client_wait_end(&stream);
    expect_prefix(&stream, request);
    *out = stream.status;
    client_close(&stream);
    return status;
}
