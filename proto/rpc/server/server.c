#include "proto/rpc/server/server.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/core/core.h"
#include "proto/rpc/core/tls_internal.h"
#include "proto/rpc/core/unix_path.h"
#include "proto/rpc/guard/accept.h"
#include "proto/rpc/guard/cork.h"
#include "proto/rpc/guard/reserve.h"
#include "proto/rpc/server/call_internal.h"
#include "proto/rpc/server/listen.h"
#include "proto/rpc/server/server_internal.h"
#include "proto/rpc/server/table.h"

enum { SLOTS_PER_THREAD = 4, RETRY_MS = 100 };
enum { CORE_THREADS = 16 }; /* threads of gRPC itself: timers, pollers, resolvers */
enum { MIN_BLOCK_BYTES = 128 << 10, READ_CHUNK_BYTES = 128 << 10 };
enum { MESSAGE_SLACK = 16 << 20, STREAM_HELD = 256 << 10 };

void rpc_server_config_init(struct rpc_server_config *config)
{
    *config = (struct rpc_server_config){
        .n_threads = 2,
        .max_message_bytes = 4u << 20,
        .max_metadata_bytes = 16u << 10,
        .max_pending_bytes = 64u << 10,
        .max_streams = 100,
        .max_connections = 1024,
        .max_resets = 500,
        .max_calls = 4096,
        .keepalive_time_ms = 60000,
        .keepalive_timeout_ms = 20000,
        .handshake_timeout_ms = 10000,
    };
}

void rpc_unimplemented(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct error err;
    const char *path = rpc_call_method(call);
    (void)context;
    (void)request;
    error_set(&err, STATUS_UNIMPLEMENTED, "%s is declared but not implemented in this version",
              path[0] == '/' ? path + 1 : path);
    error_reason(&err, REASON_NOT_BUILT);
    rpc_call_finish(call, &err);
}

/* --- creation --- */

static grpc_arg int_arg(const char *key, uint64_t value)
{
    union {
        const char *in;
        char *out;
    } name = {key};
    grpc_arg arg;
    memset(&arg, 0, sizeof(arg));
    arg.type = GRPC_ARG_INTEGER;
    arg.key = name.out;
    arg.value.integer = value > INT32_MAX ? INT32_MAX : (int)value;
    return arg;
}

static grpc_server *create_core(const struct rpc_server_config *config)
{
    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, config->max_message_bytes),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, INT32_MAX),
        /* A call over the limit should arrive here and get a reason. A refusal by gRPC may close
         * the whole connection. */
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, 16 * config->max_metadata_bytes),
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, config->max_streams),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, config->keepalive_time_ms),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config->keepalive_timeout_ms),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, config->handshake_timeout_ms),
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        /* The default of 4 MiB would apply to each connection that sends a lot. */
        int_arg(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, READ_CHUNK_BYTES),
        /* Only identity encoding; the filters for other encodings are not created. */
        int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
    };
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    return grpc_server_create(&list, NULL);
}

int rpc_server_create(const struct rpc_server_config *config, struct rpc_server **out_server,
                      struct error *err)
{
    int rc = rpc_core_check_threads(config->n_threads + CORE_THREADS, err);
    if (rc != 0)
        return rc;
    rpc_reserve_start();
    struct rpc_server *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a server");
    server->config = *config;
    if (server->config.n_threads == 0 || server->config.n_threads > MAX_THREADS)
        server->config.n_threads = server->config.n_threads == 0 ? 1 : MAX_THREADS;
    pthread_mutex_init(&server->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rpc_core_init();
    server->core = create_core(&server->config);
    for (uint32_t i = 0; i < server->config.n_threads; i++) {
        rpc_lane_init(&server->lanes[i], grpc_completion_queue_create_for_next(NULL));
        grpc_server_register_completion_queue(server->core, server->lanes[i].queue, NULL);
    }
    rc = rpc_table_build(&server->table, server->config.services, server->config.n_services, err);
    if (rc != 0) {
        rpc_server_destroy(server);
        return rc;
    }
    *out_server = server;
    return 0;
}

/* --- listening --- */

static int bind_core(struct rpc_server *server, const char *address, struct rpc_tls *tls)
{
    grpc_server_credentials *credentials =
        tls != NULL ? rpc_tls_server_credentials(tls) : grpc_insecure_server_credentials_create();
    if (credentials == NULL)
        return 0;
    int port = grpc_server_add_http2_port(server->core, address, credentials);
    grpc_server_credentials_release(credentials);
    return port;
}

/* gRPC removes the file that it has bound, unless another process owns the file by then. */
static int own_socket(struct rpc_server *server, const char *path, struct error *err)
{
    for (uint32_t i = 0; i < MAX_PORTS; i++) {
        if (server->sockets[i] != NULL)
            continue;
        server->sockets[i] = strdup(path);
        if (server->sockets[i] == NULL)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for socket %s", path);
        rpc_share_own(server->sockets[i]);
        return 0;
    }
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "socket %s: the server already listens on %d sockets", path, MAX_PORTS);
}

static bool watch(struct rpc_server *server, const struct rpc_accept_config *config)
{
    if (server->n_ports == MAX_LISTENERS)
        return false;
    struct rpc_accept *accept = rpc_accept_watch(config);
    if (accept != NULL)
        server->ports[server->n_ports++] = accept;
    return accept != NULL;
}

static int bind_unix(struct rpc_server *server, const char *path, struct error *err)
{
    const struct rpc_accept_config config = {.path = path, .arg = server};
    if (!watch(server, &config))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory to watch socket %s", path);
    char *address = rpc_unix_path_address(path);
    mode_t mask = umask(0177);
    int port = address != NULL ? bind_core(server, address, NULL) : 0;
    umask(mask);
    free(address);
    return port != 0 ? 0 : error_set(err, STATUS_UNAVAILABLE, "cannot listen on socket %s", path);
}

int rpc_server_listen_unix(struct rpc_server *server, const char *path, struct error *err)
{
    char name[120];
    bool beside = server->config.share == RPC_SHARE_BESIDE;
    int rc =
        beside ? rpc_share_name(path, name, sizeof(name), err) : rpc_listen_claim_unix(path, err);
    if (rc == 0)
        rc = bind_unix(server, beside ? name : path, err);
    if (rc == 0 && beside)
        rc = rpc_share_move(name, path, err);
    if (rc == 0 && server->config.share != RPC_SHARE_NONE)
        rc = own_socket(server, path, err);
    return rc;
}

/* The group is set before its members may use the socket. */
int rpc_server_listen_unix_group(struct rpc_server *server, const char *path, uint32_t gid,
                                 struct error *err)
{
    int rc = rpc_server_listen_unix(server, path, err);
    if (rc == 0 && (lchown(path, (uid_t)-1, (gid_t)gid) != 0 || chmod(path, 0660) != 0))
        rc = error_errno(err, errno, "socket %s: cannot set its group to %u", path, gid);
    return rc;
}

static void count_refused_connection(void *arg, enum rpc_guard_verdict why)
{
    if (why == RPC_GUARD_GOOD)
        rpc_server_count_limit(arg, RPC_LIMIT_CONNECTIONS);
    else if (why == RPC_GUARD_HEADER_BLOCK)
        rpc_server_count_limit(arg, RPC_LIMIT_METADATA);
    else if (why == RPC_GUARD_RESETS)
        rpc_server_count_limit(arg, RPC_LIMIT_RESETS);
    else if (why == RPC_GUARD_MESSAGE)
        rpc_server_count_limit(arg, RPC_LIMIT_MESSAGE);
    else if (why == RPC_GUARD_STREAMS)
        rpc_server_count_limit(arg, RPC_LIMIT_STREAMS);
}

static void count_silent_connection(void *arg, bool is_new)
{
    rpc_server_count_limit(arg, is_new ? RPC_LIMIT_HANDSHAKE : RPC_LIMIT_KEEPALIVE);
}

/* The guard's limits are wider than the server's: mistakes of honest clients are refused later,
 * with a reason. */
static struct rpc_guard_limits guard_limits(const struct rpc_server_config *c)
{
    size_t max_block = 4 * c->max_metadata_bytes;
    size_t slack = c->max_message_bytes < MESSAGE_SLACK ? MESSAGE_SLACK : c->max_message_bytes;
    size_t max_message = c->max_message_bytes + slack;
    return (struct rpc_guard_limits){
        .max_block_bytes = (uint32_t)(max_block < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES : max_block),
        .max_resets_per_second = c->max_resets,
        .max_message_bytes = max_message > INT32_MAX ? INT32_MAX : (uint32_t)max_message,
        .max_held_bytes = 4 * (uint64_t)c->max_message_bytes + MESSAGE_SLACK +
                          (uint64_t)c->max_streams * STREAM_HELD,
        .max_streams = 2 * c->max_streams,
        .max_read_bytes = READ_CHUNK_BYTES,
    };
}

static bool watch_port(struct rpc_server *server, uint16_t port)
{
    const struct rpc_server_config *c = &server->config;
    const struct rpc_accept_config config = {.port = port,
                                             .tls = c->tls != NULL,
                                             .max_connections = c->max_connections,
                                             .handshake_timeout_ms = c->handshake_timeout_ms,
                                             .keepalive_timeout_ms = c->keepalive_timeout_ms,
                                             .user_timeout_ms = c->user_timeout_ms,
                                             .guard = guard_limits(c),
                                             .on_refused = count_refused_connection,
                                             .on_silent = count_silent_connection,
                                             .arg = server};
    return watch(server, &config);
}

int rpc_server_listen_tcp(struct rpc_server *server, const char *address, uint16_t *out_port,
                          struct error *err)
{
    bool beside = server->config.share == RPC_SHARE_BESIDE;
    int rc = rpc_listen_probe_tcp(address, beside, err);
    if (rc != 0)
        return rc;
    rpc_share_begin(server->config.share);
    int port = bind_core(server, address, server->config.tls);
    rpc_share_end();
    if (port == 0)
        return error_set(err, STATUS_UNAVAILABLE, "cannot listen on %s", address);
    if (!watch_port(server, (uint16_t)port))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory to watch %s", address);
    if (out_port != NULL)
        *out_port = (uint16_t)port;
    return 0;
}

void rpc_server_settle(struct rpc_server *server, bool stays)
{
    if (server->config.share == RPC_SHARE_BESIDE)
        rpc_share_settle(stays);
}

bool rpc_server_lost_socket(void)
{
    return rpc_share_is_lost();
}

void rpc_server_restore_sockets(void)
{
    rpc_share_restore();
}

void rpc_server_hand_over(struct rpc_server *server)
{
    if (server->config.share != RPC_SHARE_NONE)
        rpc_share_hand_over();
}

/* --- dispatch --- */

static void arm(struct slot *slot)
{
    grpc_call_details_init(&slot->details);
    grpc_metadata_array_init(&slot->metadata);
    slot->core = NULL;
    rpc_tag_arm(&slot->tag);
    if (grpc_server_request_call(slot->server->core, &slot->core, &slot->details, &slot->metadata,
                                 slot->lane->queue, slot->lane->queue,
                                 &slot->tag) != GRPC_CALL_OK) {
        grpc_call_details_destroy(&slot->details);
        grpc_metadata_array_destroy(&slot->metadata);
    }
}

/* Counts the call; negative if it must be refused. */
static int admit(struct rpc_server *server, const struct rpc_route *route, struct rpc_call *call,
                 struct error *err)
{
    bool built_in = route != NULL && route->built_in;
    pthread_mutex_lock(&server->lock);
    server->stats.n_accepted++;
    uint64_t n_live = built_in ? server->stats.n_live - server->n_live_user : server->n_live_user;
    bool full = n_live >= server->config.max_calls;
    server->stats.n_live++;
    server->n_live_user += built_in ? 0 : 1;
    call->next_live = server->live;
    call->at_live = &server->live;
    if (call->next_live != NULL)
        call->next_live->at_live = &call->next_live;
    server->live = call;
    pthread_mutex_unlock(&server->lock);
    if (atomic_load(&server->draining) && !built_in) {
        rpc_server_count_limit(server, RPC_LIMIT_DRAINING);
        error_set(err, STATUS_UNAVAILABLE, "the server is shutting down");
        err->retry_after_ms = RETRY_MS;
        return error_reason(err, REASON_DRAINING);
    }
    if (full) {
        rpc_server_count_limit(server, RPC_LIMIT_CALLS);
        error_set(err, STATUS_RESOURCE_EXHAUSTED, "more than %u calls are live",
                  server->config.max_calls);
        err->retry_after_ms = 1000;
        return error_reason(err, REASON_TOO_MANY_CALLS);
    }
    return 0;
}

static void dispatch(struct rpc_server *server, struct rpc_call *call)
{
    struct error err;
    const char *path = rpc_call_method(call);
    const struct rpc_route *route = rpc_table_find(&server->table, path);
    int rc = admit(server, route, call, &err);
    call->route = route;
    rpc_call_watch_close(call);
    if (rc == 0 && route == NULL) {
        rc = error_set(&err, STATUS_UNIMPLEMENTED, "unknown method %s", path);
        error_reason(&err, REASON_UNKNOWN_METHOD);
    }
    if (rc == 0 && call->n_metadata_bytes > server->config.max_metadata_bytes) {
        rpc_server_count_limit(server, RPC_LIMIT_METADATA);
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "metadata: %zu bytes exceed the limit of %zu",
                  call->n_metadata_bytes, server->config.max_metadata_bytes);
        rc = error_reason(&err, REASON_METADATA_TOO_LARGE);
    }
    if (rc == 0 && server->config.authorize != NULL)
        rc = server->config.authorize(server->config.authorize_context, call, &err);
    if (rc != 0)
        rpc_call_refuse(call, &err);
    else if (route->method->handle == rpc_unimplemented) {
        rpc_unimplemented(NULL, call, NULL);
        rpc_call_refuse(call, NULL);
    } else
        rpc_call_dispatch(call, route);
}

static void on_call(struct rpc_tag *tag, bool ok)
{
    struct slot *slot = tag->object;
    struct rpc_server *server = slot->server;
    struct rpc_call *call = NULL;
    if (ok)
        call = rpc_call_create(server, slot->lane, slot->core, &slot->details, &slot->metadata,
                               &server->config);
    grpc_call_details_destroy(&slot->details);
    grpc_metadata_array_destroy(&slot->metadata);
    if (!ok)
        return;
    arm(slot);
    if (call != NULL)
        dispatch(server, call);
}

int rpc_server_start(struct rpc_server *server, struct error *err)
{
    uint32_t n_threads = server->config.n_threads;
    server->slots = calloc((size_t)n_threads * SLOTS_PER_THREAD, sizeof(*server->slots));
    if (server->slots == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for call slots");
    grpc_server_start(server->core);
    server->started = true;
    for (uint32_t i = 0; i < n_threads; i++) {
        int err_no = pthread_create(&server->threads[i], NULL, rpc_lane_run, &server->lanes[i]);
        if (err_no != 0)
            return error_errno(err, err_no, "cannot start a server thread");
        server->n_threads++;
    }
    for (uint32_t i = 0; i < n_threads * SLOTS_PER_THREAD; i++) {
        struct slot *slot = &server->slots[server->n_slots++];
        slot->server = server;
        slot->lane = &server->lanes[i % n_threads];
        rpc_tag_init(&slot->tag, on_call, slot);
        arm(slot);
    }
    return 0;
}

/* --- statistics --- */

void rpc_server_call_done(struct rpc_server *server, struct rpc_call *call, int grpc_code)
{
    bool built_in = call->route != NULL && call->route->built_in;
    pthread_mutex_lock(&server->lock);
    *call->at_live = call->next_live;
    if (call->next_live != NULL)
        call->next_live->at_live = call->at_live;
    server->stats.n_live--;
    server->n_live_user -= built_in ? 0 : 1;
    if (grpc_code >= 0 && grpc_code < 17)
        server->stats.n_ended[grpc_code]++;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

void rpc_server_count_message(struct rpc_server *server, bool incoming, size_t n_bytes)
{
    size_t i = incoming ? 0 : 1;
    atomic_fetch_add_explicit(&server->n_messages[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&server->n_message_bytes[i], n_bytes, memory_order_relaxed);
}

void rpc_server_count_limit(struct rpc_server *server, enum rpc_limit limit)
{
    if (server->config.on_limit != NULL)
        server->config.on_limit(server->config.limit_context, limit);
}

uint32_t rpc_server_n_connections(struct rpc_server *server)
{
    return rpc_accept_n_open(server);
}

uint32_t rpc_server_lingering_files(void)
{
    return rpc_cork_max_lingering();
}

void rpc_server_stats(struct rpc_server *server, struct rpc_server_stats *out_stats)
{
    pthread_mutex_lock(&server->lock);
    *out_stats = server->stats;
    pthread_mutex_unlock(&server->lock);
    out_stats->n_messages_in = atomic_load(&server->n_messages[0]);
    out_stats->n_messages_out = atomic_load(&server->n_messages[1]);
    out_stats->bytes_in = atomic_load(&server->n_message_bytes[0]);
    out_stats->bytes_out = atomic_load(&server->n_message_bytes[1]);
}

struct rpc_health *rpc_server_health(struct rpc_server *server)
{
    return server->table.health;
}
