#include "server/worker/group/group_leader.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"
#include "server/worker/base/wake.h"
#include "server/worker/group/group_book.h"

enum {
    TICK_MS = 100,
    N_THREADS = 2,
    MAX_CONNECTIONS = 256,
    MAX_PENDING_BYTES = 1 << 20,
    HANDSHAKE_MS = 5000,
    CLOSE_GRACE_MS = 1000,
};

static const char UNIX_PREFIX[] = "unix:";

enum phase {
    PHASE_GATHERING,  /* followers join and go */
    PHASE_CONNECTING, /* all have the roster */
    PHASE_RUNNING,
    PHASE_ENDED, /* `why` has the cause */
};

/* A call of Join, from its arrival to its on_done. */
struct follower {
    struct group_leader *leader;
    struct rpc_call *call; /* valid while the follower is in the list */
    struct follower *next;
    int64_t heard_ns; /* time of the last frame, or of the arrival */
    bool has_joined, is_connected, is_ended;
    uint32_t place; /* in the book, if it has joined */
    char name[128];
};

struct group_leader {
    struct rpc_server *server;
    struct access *access;
    uint32_t silence_ms, member_ms;
    uint16_t port;
    group_end_fn *on_end;
    void *arg;
    struct wake stop; /* ends the thread of ticks */
    pthread_t ticks;
    bool has_ticks;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum phase phase;
    struct error why;
    bool is_reported, is_closing;
    struct group_book *book;
    struct follower *followers;
};

/* --- ends; all under the lock --- */

static void end_call(struct follower *f, const struct error *why)
{
    f->is_ended = true;
    rpc_call_abort(f->call, why); /* overtakes a peer that reads nothing */
}

static void end_group(struct group_leader *leader, const struct error *why)
{
    if (leader->phase == PHASE_ENDED)
        return;
    leader->phase = PHASE_ENDED;
    leader->why = *why;
    for (struct follower *f = leader->followers; f; f = f->next)
        if (!f->is_ended)
            end_call(f, why);
    pthread_cond_broadcast(&leader->changed);
}

/* A follower that has joined goes away. */
static void lose(struct follower *f, const struct error *why)
{
    struct group_leader *leader = f->leader;
    if (!f->has_joined)
        return;
    f->has_joined = false;
    log_warn(LOG_EVENT("group member lost"), LOG_STR("member", f->name),
             LOG_STR("why", why->message));
    if (leader->phase == PHASE_GATHERING)
        group_book_leave(leader->book, f->place);
    else
        end_group(leader, why);
}

/* Releases the lock, and reports the end of the group if it is new. */
static void unlock(struct group_leader *leader)
{
    bool reports = leader->phase == PHASE_ENDED && !leader->is_reported && !leader->is_closing;
    struct error why = leader->why;
    if (reports)
        leader->is_reported = true;
    pthread_mutex_unlock(&leader->lock);
    if (reports && leader->on_end)
        leader->on_end(leader->arg, &why);
}

/* --- frames --- */

static bool all_connected(const struct group_leader *leader)
{
    for (const struct follower *f = leader->followers; f; f = f->next)
        if (f->has_joined && !f->is_connected)
            return false;
    return true;
}

static int on_member(struct follower *f, const Sluice__Worker__V1__GroupMember *member,
                     struct error *err)
{
    struct group_leader *leader = f->leader;
    if (f->has_joined)
        return error_field(err, "member", "was sent twice");
    if (leader->phase != PHASE_GATHERING)
        return error_set(err, STATUS_FAILED_PRECONDITION, "member: the group is complete");
    int rc = group_book_join(leader->book, member, &f->place, err);
    if (rc)
        return rc;
    f->has_joined = true;
    snprintf(f->name, sizeof(f->name), "%.80s (ranks %u to %u)", member->machine,
             member->first_rank, member->first_rank + (uint32_t)member->n_rank_addresses - 1);
    log_info(LOG_EVENT("group member joined"), LOG_STR("member", f->name));
    pthread_cond_broadcast(&leader->changed);
    return 0;
}

static int on_frame(struct follower *f, const Sluice__Worker__V1__JoinRequest *frame,
                    struct error *err)
{
    struct group_leader *leader = f->leader;
    if (frame->frame_case == SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_MEMBER)
        return on_member(f, frame->member, err);
    if (!f->has_joined)
        return error_field(err, "member", "must come first");
    switch (frame->frame_case) {
    case SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_CONNECTED:
        if (leader->phase != PHASE_CONNECTING)
            return error_field(err, "connected", "must follow the roster");
        f->is_connected = true;
        pthread_cond_broadcast(&leader->changed);
        return 0;
    case SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_BEAT:
        return 0;
    default:
        return error_field(err, "frame", "is empty or unknown to this leader");
    }
}

static void on_message(void *arg, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct follower *f = arg;
    struct group_leader *leader = f->leader;
    struct error err;
    pthread_mutex_lock(&leader->lock);
    f->heard_ns = clock_now_ns();
    if (!f->is_ended && on_frame(f, (const Sluice__Worker__V1__JoinRequest *)message, &err) != 0) {
        log_warn(LOG_EVENT("group member refused"), LOG_STR("peer", rpc_call_peer(call)),
                 LOG_STR("why", err.message));
        if (err.status == STATUS_ALREADY_EXISTS) /* perhaps a lost one, which is noticed soon */
            err.retry_after_ms = leader->silence_ms;
        f->is_ended = true;
        rpc_call_finish(call, &err);
        lose(f, &err);
    }
    unlock(leader);
}

static void on_half_close(void *arg, struct rpc_call *call)
{
    struct follower *f = arg;
    struct error why;
    pthread_mutex_lock(&f->leader->lock);
    error_set(&why, STATUS_UNAVAILABLE, "%s: has left the group", f->name);
    f->is_ended = true;
    rpc_call_finish(call, NULL);
    lose(f, &why);
    unlock(f->leader);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct follower *f = arg;
    struct group_leader *leader = f->leader;
    struct error why;
    (void)call;
    pthread_mutex_lock(&leader->lock);
    struct follower **link = &leader->followers;
    while (*link != f)
        link = &(*link)->next;
    *link = f->next;
    error_set(&why, STATUS_UNAVAILABLE, "%s: the connection ended", f->name);
    lose(f, &why);
    unlock(leader);
    free(f);
}

static const struct rpc_call_events events = {
    .on_message = on_message, .on_half_close = on_half_close, .on_done = on_done};

/* Without access, the socket file's mode has chosen the callers. */
static int check_role(const struct group_leader *leader, struct rpc_call *call, struct error *err)
{
    if (!leader->access || role_may(rpc_call_role(call), ROLE_OPERATOR))
        return 0;
    access_count(leader->access, ACCESS_ROLE_REQUIRED);
    error_set(err, STATUS_PERMISSION_DENIED, "Join needs the role operator, the caller is %s",
              role_name(rpc_call_role(call)));
    return error_reason(err, REASON_ROLE_REQUIRED);
}

static void handle_join(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct group_leader *leader = context;
    struct error err;
    (void)request;
    int rc = check_role(leader, call, &err);
    struct follower *f = rc ? NULL : calloc(1, sizeof(*f));
    if (!f) {
        if (!rc)
            error_set(&err, STATUS_RESOURCE_EXHAUSTED, "Join: out of memory");
        rpc_call_finish(call, &err);
        return;
    }
    f->leader = leader;
    f->call = call;
    f->heard_ns = clock_now_ns();
    snprintf(f->name, sizeof(f->name), "%.100s", rpc_call_peer(call));
    pthread_mutex_lock(&leader->lock);
    f->next = leader->followers;
    leader->followers = f;
    pthread_mutex_unlock(&leader->lock);
    rpc_call_set_events(call, &events, f);
}

/* --- ticks --- */

static void check_follower(struct follower *f, int64_t now_ns)
{
    const struct group_leader *leader = f->leader;
    int64_t silent_ms = (now_ns - f->heard_ns) / NS_PER_MS;
    struct error why;
    if (!f->has_joined && silent_ms > leader->member_ms) {
        error_set(&why, STATUS_DEADLINE_EXCEEDED, "member: not received within %u ms",
                  leader->member_ms);
        error_reason(&why, REASON_REQUEST_TIMEOUT);
        end_call(f, &why);
    } else if (f->has_joined && silent_ms > leader->silence_ms) {
        error_set(&why, STATUS_UNAVAILABLE, "%s: silent for %u ms", f->name, leader->silence_ms);
        end_call(f, &why);
        lose(f, &why);
    }
}

static void send_beat(struct follower *f)
{
    Sluice__Worker__V1__JoinResponse response = SLUICE__WORKER__V1__JOIN_RESPONSE__INIT;
    Sluice__Worker__V1__GroupBeat beat = SLUICE__WORKER__V1__GROUP_BEAT__INIT;
    response.frame_case = SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_BEAT;
    response.beat = &beat;
    (void)rpc_call_send(f->call, &response.base); /* a peer that reads nothing is silent, too */
}

static void *run_ticks(void *arg)
{
    struct group_leader *leader = arg;
    int64_t last_ns = clock_now_ns(), beat_ns = 0;
    while (!wake_wait(&leader->stop, TICK_MS * NS_PER_MS)) {
        int64_t now_ns = clock_now_ns();
        /* This process has slept: what the others sent meanwhile is not read yet. */
        bool slept = now_ns - last_ns > leader->silence_ms / 2 * NS_PER_MS;
        bool beats = now_ns - beat_ns >= GROUP_BEAT_MS * NS_PER_MS;
        last_ns = now_ns;
        if (beats)
            beat_ns = now_ns;
        pthread_mutex_lock(&leader->lock);
        for (struct follower *f = leader->followers; f; f = f->next) {
            if (f->is_ended)
                continue;
            if (slept)
                f->heard_ns = now_ns;
            check_follower(f, now_ns);
            if (beats && f->has_joined && !f->is_ended)
                send_beat(f);
        }
        unlock(leader);
    }
    return NULL;
}

/* --- life --- */

static int open_server(struct group_leader *leader, const struct group_leader_config *cfg,
                       struct error *err)
{
    static const struct rpc_method methods[] = {{"Join", RPC_SHAPE_BIDI, handle_join}};
    const struct rpc_service service = {.descriptor = &sluice__worker__v1__group__descriptor,
                                        .methods = methods,
                                        .n_methods = 1,
                                        .context = leader};
    bool is_unix = strncmp(cfg->listen, UNIX_PREFIX, sizeof(UNIX_PREFIX) - 1) == 0;
    if (!is_unix && !cfg->access)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: a group over TCP needs TLS, and client certificates or keys",
                         cfg->listen);
    struct rpc_server_config config;
    rpc_server_config_init(&config);
    config.services = &service;
    config.n_services = 1;
    config.n_threads = N_THREADS;
    config.max_pending_bytes = MAX_PENDING_BYTES;
    config.max_connections = MAX_CONNECTIONS;
    config.max_calls = MAX_CONNECTIONS;
    config.handshake_timeout_ms = HANDSHAKE_MS;
    if (cfg->access) {
        config.authorize = access_authorize;
        config.authorize_context = cfg->access;
        config.tls = access_tls(cfg->access);
    }
    int rc = rpc_server_create(&config, &leader->server, err);
    if (!rc && is_unix)
        rc = rpc_server_listen_unix(leader->server, cfg->listen + sizeof(UNIX_PREFIX) - 1, err);
    else if (!rc)
        rc = rpc_server_listen_tcp(leader->server, cfg->listen, &leader->port, err);
    return rc ? rc : rpc_server_start(leader->server, err);
}

int group_leader_open(const struct group_leader_config *cfg, struct group_leader **out_leader,
                      struct error *err)
{
    pthread_condattr_t monotonic;
    struct group_leader *leader = calloc(1, sizeof(*leader));
    if (!leader)
        return error_no_memory(err);
    leader->access = cfg->access;
    leader->silence_ms = cfg->silence_ms ? cfg->silence_ms : GROUP_SILENCE_MS;
    leader->member_ms = cfg->member_ms ? cfg->member_ms : GROUP_MEMBER_MS;
    leader->on_end = cfg->on_end;
    leader->arg = cfg->arg;
    wake_init(&leader->stop);
    pthread_mutex_init(&leader->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&leader->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = group_book_create(cfg->self, &leader->book, err);
    if (!rc)
        rc = open_server(leader, cfg, err);
    if (!rc) {
        leader->has_ticks = pthread_create(&leader->ticks, NULL, run_ticks, leader) == 0;
        if (!leader->has_ticks)
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "group: cannot start a thread");
    }
    if (rc) {
        group_leader_close(leader);
        return rc;
    }
    *out_leader = leader;
    return 0;
}

uint16_t group_leader_port(const struct group_leader *leader)
{
    return leader->port;
}

/* Under the lock: waits for a change; false when the time is over. */
static bool wait_change(struct group_leader *leader, int64_t deadline_ns)
{
    struct timespec until = {deadline_ns / NS_PER_S, deadline_ns % NS_PER_S};
    return pthread_cond_timedwait(&leader->changed, &leader->lock, &until) == 0;
}

int group_leader_gather(struct group_leader *leader, uint32_t timeout_ms,
                        const Sluice__Worker__V1__GroupRoster **out_roster, struct error *err)
{
    int64_t deadline_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    uint32_t first = 0, n_missing;
    int rc = 0;
    pthread_mutex_lock(&leader->lock);
    while (!rc && (n_missing = group_book_n_missing(leader->book, &first)) > 0)
        if (!wait_change(leader, deadline_ns))
            rc = error_set(err, STATUS_DEADLINE_EXCEEDED,
                           "group: %u ranks have not joined within %u ms; the first is rank %u",
                           n_missing, timeout_ms, first);
    if (!rc) {
        Sluice__Worker__V1__JoinResponse response = SLUICE__WORKER__V1__JOIN_RESPONSE__INIT;
        Sluice__Worker__V1__GroupRoster roster = *group_book_roster(leader->book);
        response.frame_case = SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_ROSTER;
        response.roster = &roster;
        leader->phase = PHASE_CONNECTING;
        for (struct follower *f = leader->followers; f; f = f->next)
            if (f->has_joined)
                (void)rpc_call_send(f->call, &response.base); /* a lost call has on_done */
        *out_roster = group_book_roster(leader->book);
    }
    unlock(leader);
    return rc;
}

int group_leader_start(struct group_leader *leader, uint32_t timeout_ms, struct error *err)
{
    int64_t deadline_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    int rc = 0;
    pthread_mutex_lock(&leader->lock);
    while (!rc && leader->phase == PHASE_CONNECTING && !all_connected(leader))
        if (!wait_change(leader, deadline_ns))
            rc = STATUS_DEADLINE_EXCEEDED;
    if (leader->phase == PHASE_ENDED) {
        *err = leader->why;
        rc = err->status;
    } else if (rc) {
        const struct follower *f = leader->followers;
        while (f && (!f->has_joined || f->is_connected))
            f = f->next;
        error_set(err, rc, "group: %s is not connected within %u ms", f ? f->name : "a member",
                  timeout_ms);
    } else {
        Sluice__Worker__V1__JoinResponse response = SLUICE__WORKER__V1__JOIN_RESPONSE__INIT;
        Sluice__Worker__V1__GroupStarted started = SLUICE__WORKER__V1__GROUP_STARTED__INIT;
        response.frame_case = SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_STARTED;
        response.started = &started;
        leader->phase = PHASE_RUNNING;
        for (struct follower *f = leader->followers; f; f = f->next)
            if (f->has_joined)
                (void)rpc_call_send(f->call, &response.base);
    }
    unlock(leader);
    return rc;
}

void group_leader_close(struct group_leader *leader)
{
    if (!leader)
        return;
    pthread_mutex_lock(&leader->lock);
    leader->is_closing = true;
    for (struct follower *f = leader->followers; f; f = f->next)
        if (!f->is_ended) {
            f->is_ended = true;
            rpc_call_finish(f->call, NULL);
        }
    pthread_mutex_unlock(&leader->lock);
    if (leader->has_ticks) {
        wake_signal(&leader->stop);
        pthread_join(leader->ticks, NULL);
    }
    if (leader->server) {
        rpc_server_shutdown(leader->server, CLOSE_GRACE_MS);
        rpc_server_destroy(leader->server);
    }
    group_book_destroy(leader->book);
    pthread_cond_destroy(&leader->changed);
    pthread_mutex_destroy(&leader->lock);
    wake_fini(&leader->stop);
    free(leader);
}
