#include <stdlib.h>

#include <grpc/grpc.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/guard/cork.h"
#include "proto/rpc/guard/share.h"
#include "proto/rpc/server/call_internal.h"
#include "proto/rpc/server/health_internal.h"
#include "proto/rpc/server/server_internal.h"

enum { ABORT_MS = 1000, CLOSE_MS = 500, CUT_MS = 500, SETTLE_MS = 500 };
/* Times of the first part of a shutdown, before gRPC's own; see leave(). */
enum { REFUSE_MS = 100, LEAVE_MS = 1000, CALM_MS = 50, LOOK_MS = 5 };

void rpc_server_drain(struct rpc_server *server)
{
    atomic_store(&server->draining, true);
    rpc_health_shutdown(server->table.health);
}

static void on_shutdown(struct rpc_tag *tag, bool ok)
{
    struct rpc_server *server = tag->object;
    (void)ok;
    pthread_mutex_lock(&server->lock);
    server->core_is_down = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void wait_for_calls(struct rpc_server *server, uint32_t grace_ms)
{
    int64_t end_ns = clock_now_ns() + grace_ms * NS_PER_MS;
    struct timespec until = {end_ns / NS_PER_S, end_ns % NS_PER_S};
    pthread_mutex_lock(&server->lock);
    while (server->n_live_user > 0 && !server->hurried && clock_now_ns() < end_ns)
        pthread_cond_timedwait(&server->changed, &server->lock, &until);
    pthread_mutex_unlock(&server->lock);
}

/* Waits until the clients have closed their connections, as gRPC's GOAWAY asks. A client whose
 * connection ends with an error may retry its calls there until their deadlines (gRPC 1.85 as a
 * client). */
static void wait_for_core(struct rpc_server *server, uint32_t limit_ms)
{
    int64_t end_ns = clock_now_ns() + limit_ms * NS_PER_MS;
    struct timespec until = {end_ns / NS_PER_S, end_ns % NS_PER_S};
    pthread_mutex_lock(&server->lock);
    while (!server->core_is_down && !server->hurried && clock_now_ns() < end_ns)
        pthread_cond_timedwait(&server->changed, &server->lock, &until);
    pthread_mutex_unlock(&server->lock);
}

/* Ends the remaining calls with a reason; clients that do not read are ended in the second
 * round. */
static void abort_calls(struct rpc_server *server,
                        void (*end)(struct rpc_call *call, const struct error *status))
{
    struct error err;
    error_set(&err, STATUS_UNAVAILABLE, "the server is shutting down");
    error_reason(&err, REASON_DRAINING);
    pthread_mutex_lock(&server->lock);
    for (struct rpc_call *call = server->live; call != NULL; call = call->next_live)
        end(call, &err);
    pthread_mutex_unlock(&server->lock);
}

void rpc_server_end_overdue(struct rpc_server *server, int64_t now_ns, uint64_t limit_ms)
{
    struct error err;
    error_set(&err, STATUS_DEADLINE_EXCEEDED, "the request was incomplete after %llu ms",
              (unsigned long long)limit_ms);
    error_reason(&err, REASON_REQUEST_TIMEOUT);
    pthread_mutex_lock(&server->lock);
    for (struct rpc_call *call = server->live; call != NULL; call = call->next_live)
        if (rpc_call_is_overdue(call, now_ns, (int64_t)limit_ms * NS_PER_MS)) {
            rpc_server_count_limit(server, RPC_LIMIT_REQUEST_TIME);
            rpc_call_abort(call, &err);
        }
    pthread_mutex_unlock(&server->lock);
}

uint32_t rpc_server_end_stuck(struct rpc_server *server, int64_t now_ns, uint64_t limit_ms,
                              const struct error *why)
{
    uint32_t n_ended = 0;
    pthread_mutex_lock(&server->lock);
    for (struct rpc_call *call = server->live; call != NULL; call = call->next_live)
        if (rpc_call_is_stuck(call, now_ns, (int64_t)limit_ms * NS_PER_MS)) {
            rpc_call_abort(call, why);
            n_ended++;
        }
    pthread_mutex_unlock(&server->lock);
    return n_ended;
}

/* The state of leave(). Without leave(), gRPC would stop taking calls before any client knows.
 * New calls would end with CANCELLED, which clients do not retry. So clients get a GOAWAY first,
 * and new calls are refused with a retry time for a while. Busy clients come again at once on
 * new connections. Once the first clients know (at the latest at half_ns, not before least_ns),
 * new connections are closed at once. Then the clients that came meanwhile get a GOAWAY, too
 * (goaway.h explains the delay). Calls that a client began before it knew arrive before its
 * acknowledgement; calm_ns later they have been seen. */
struct leaving {
    int64_t half_ns, least_ns, known_ns;
    int64_t calm_ns;
    bool shut;
};

/* True if all clients know and the calm time is over. */
static bool all_have_left(struct rpc_server *server, struct leaving *leaving, int64_t now_ns)
{
    uint32_t n = rpc_accept_n_leaving(server, leaving->shut);
    bool shuts =
        !leaving->shut && now_ns >= leaving->least_ns && (n == 0 || now_ns >= leaving->half_ns);
    if (shuts)
        rpc_accept_shut(server);
    leaving->shut = leaving->shut || shuts;
    if (n > 0 || shuts)
        leaving->known_ns = now_ns + leaving->calm_ns;
    return leaving->shut && now_ns >= leaving->known_ns;
}

/* Returns how many milliseconds of the grace were used. */
static uint32_t leave(struct rpc_server *server, uint32_t grace_ms)
{
    int64_t begin_ns = clock_now_ns(), now_ns = begin_ns;
    int64_t end_ns = begin_ns + (grace_ms < LEAVE_MS ? grace_ms : LEAVE_MS) * NS_PER_MS;
    struct leaving leaving = {.half_ns = begin_ns + LEAVE_MS / 2 * NS_PER_MS};
    if (grace_ms == 0)
        return 0;
    if (rpc_accept_leave(server) + rpc_server_n_connections(server) > 0)
        leaving.calm_ns = CALM_MS * NS_PER_MS;
    pthread_mutex_lock(&server->lock);
    leaving.least_ns = begin_ns + (server->stats.n_live > 0 ? REFUSE_MS * NS_PER_MS : 0);
    while (!server->hurried && now_ns < end_ns && !all_have_left(server, &leaving, now_ns)) {
        int64_t until_ns = now_ns + LOOK_MS * NS_PER_MS;
        struct timespec until = {until_ns / NS_PER_S, until_ns % NS_PER_S};
        pthread_cond_timedwait(&server->changed, &server->lock, &until);
        now_ns = clock_now_ns();
    }
    pthread_mutex_unlock(&server->lock);
    rpc_accept_leave_end(server);
    uint64_t took_ms = (uint64_t)((now_ns - begin_ns) / NS_PER_MS);
    return took_ms < grace_ms ? (uint32_t)took_ms : grace_ms;
}

/* True if everything has ended within the time. */
static bool is_down(struct rpc_server *server, uint32_t limit_ms)
{
    int64_t end_ns = clock_now_ns() + limit_ms * NS_PER_MS;
    struct timespec until = {end_ns / NS_PER_S, end_ns % NS_PER_S};
    pthread_mutex_lock(&server->lock);
    bool down = server->stats.n_live == 0 && server->core_is_down;
    while (!down && clock_now_ns() < end_ns) {
        pthread_cond_timedwait(&server->changed, &server->lock, &until);
        down = server->stats.n_live == 0 && server->core_is_down;
    }
    pthread_mutex_unlock(&server->lock);
    return down;
}

static void stop_core(struct rpc_server *server, uint32_t grace_ms)
{
    rpc_tag_init(&server->shutdown_tag, on_shutdown, server);
    rpc_tag_arm(&server->shutdown_tag);
    grpc_server_shutdown_and_notify(server->core, server->lanes[0].queue, &server->shutdown_tag);
    wait_for_calls(server, grace_ms);
    pthread_mutex_lock(&server->lock);
    uint64_t n_left = server->n_live_user;
    pthread_mutex_unlock(&server->lock);
    while (n_left-- > 0)
        rpc_server_count_limit(server, RPC_LIMIT_DRAIN);
    abort_calls(server, rpc_call_abort_behind);
    pthread_mutex_lock(&server->lock);
    server->hurried = false; /* these calls get their answer even after a hurry */
    pthread_mutex_unlock(&server->lock);
    wait_for_calls(server, ABORT_MS);
    abort_calls(server, rpc_call_abort);
    wait_for_calls(server, ABORT_MS);
    wait_for_core(server, CLOSE_MS);
    grpc_server_cancel_all_calls(server->core);
    while (!is_down(server, CUT_MS))
        rpc_accept_cut(server);
}

/* Empties a queue that has no thread because start failed half-way. */
static void stop_queues(struct rpc_server *server)
{
    for (uint32_t i = 0; i < server->config.n_threads; i++)
        grpc_completion_queue_shutdown(server->lanes[i].queue);
    for (uint32_t i = 0; i < server->config.n_threads; i++) {
        if (i < server->n_threads)
            pthread_join(server->threads[i], NULL);
        else
            rpc_core_run_queue(server->lanes[i].queue);
    }
    server->n_threads = 0;
}

void rpc_server_shutdown(struct rpc_server *server, uint32_t grace_ms)
{
    pthread_mutex_lock(&server->lock);
    bool again = server->shut_down;
    server->shut_down = true;
    pthread_mutex_unlock(&server->lock);
    if (again)
        return;
    if (server->table.health != NULL)
        rpc_server_drain(server);
    if (server->n_threads > 0) {
        stop_core(server, grace_ms - leave(server, grace_ms));
    } else {
        /* The server never ran, but gRPC allows the destroy only after a completed shutdown. */
        rpc_tag_init(&server->shutdown_tag, on_shutdown, server);
        rpc_tag_arm(&server->shutdown_tag);
        grpc_server_shutdown_and_notify(server->core, server->lanes[0].queue,
                                        &server->shutdown_tag);
    }
    stop_queues(server);
    grpc_server_destroy(server->core);
    for (uint32_t i = 0; i < server->config.n_threads; i++)
        grpc_completion_queue_destroy(server->lanes[i].queue);
    for (uint32_t i = 0; i < server->config.n_threads; i++)
        rpc_lane_fini(&server->lanes[i]);
    for (uint32_t i = 0; i < MAX_PORTS; i++) {
        if (server->sockets[i] != NULL)
            rpc_share_forget(server->sockets[i]);
        free(server->sockets[i]);
        server->sockets[i] = NULL;
    }
    rpc_core_fini();
}

void rpc_server_hurry(struct rpc_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->hurried = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

void rpc_server_destroy(struct rpc_server *server)
{
    if (server == NULL)
        return;
    rpc_server_shutdown(server, 0);
    rpc_cork_settle(SETTLE_MS); /* the process may end next */
    rpc_table_destroy(&server->table);
    free(server->slots);
    pthread_cond_destroy(&server->changed);
    for (uint32_t i = 0; i < server->n_ports; i++)
        rpc_accept_forget(server->ports[i]);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
