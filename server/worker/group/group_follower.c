#include "server/worker/group/group_follower.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "server/worker/base/wake.h"
#include "server/worker/group/group_book.h"

enum { TICK_MS = 100, LEAVE_MS = 500 };

enum phase {
    PHASE_JOINING,
    PHASE_CONNECTING, /* the roster is here */
    PHASE_RUNNING,
    PHASE_ENDED, /* `why` has the cause */
};

struct group_follower {
    const Sluice__Worker__V1__GroupMember *self;
    struct rpc_client *client;
    struct rpc_stream *stream;
    uint32_t silence_ms;
    group_end_fn *on_end;
    void *arg;
    struct wake stop; /* ends the thread of ticks */
    pthread_t ticks;
    bool has_ticks;
    char target[96];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum phase phase;
    struct error why;
    bool is_reported, is_closing;
    int64_t heard_ns;                         /* time of the last frame; 0: none yet */
    Sluice__Worker__V1__JoinResponse *answer; /* with the roster; owned */
};

/* --- ends --- */

/* Under the lock. */
static void end(struct group_follower *f, const struct error *why)
{
    if (f->phase == PHASE_ENDED)
        return;
    f->phase = PHASE_ENDED;
    f->why = *why;
    pthread_cond_broadcast(&f->changed);
}

/* Releases the lock. Reports the end, if it is new; join reports its own failure. */
static void unlock(struct group_follower *f)
{
    bool reports = f->phase == PHASE_ENDED && f->answer && !f->is_reported && !f->is_closing;
    struct error why = f->why;
    if (reports)
        f->is_reported = true;
    pthread_mutex_unlock(&f->lock);
    if (reports && f->on_end)
        f->on_end(f->arg, &why);
}

/* --- from the leader; the client's thread --- */

static int take_roster(struct group_follower *f, Sluice__Worker__V1__JoinResponse *response,
                       struct error *err)
{
    if (f->phase != PHASE_JOINING)
        return error_field(err, "roster", "was sent twice");
    int rc = group_book_check_roster(response->roster, f->self, err);
    if (rc)
        return rc;
    f->answer = response;
    f->phase = PHASE_CONNECTING;
    pthread_cond_broadcast(&f->changed);
    return 0;
}

static int take_frame(struct group_follower *f, Sluice__Worker__V1__JoinResponse *response,
                      struct error *err)
{
    switch (response->frame_case) {
    case SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_ROSTER:
        return take_roster(f, response, err);
    case SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_STARTED:
        if (f->phase != PHASE_CONNECTING)
            return error_field(err, "started", "must follow the roster");
        f->phase = PHASE_RUNNING;
        pthread_cond_broadcast(&f->changed);
        return 0;
    case SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_BEAT:
        return 0;
    default:
        return error_field(err, "frame", "is empty or unknown to this follower");
    }
}

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct group_follower *f = arg;
    struct error err;
    Sluice__Worker__V1__JoinResponse *response =
        (Sluice__Worker__V1__JoinResponse *)(uintptr_t)message; /* owned: takes_messages */
    pthread_mutex_lock(&f->lock);
    f->heard_ns = clock_now_ns();
    if (f->phase != PHASE_ENDED && take_frame(f, response, &err) != 0) {
        error_prefix(&err, "leader %s", f->target);
        end(f, &err);
        rpc_stream_cancel(stream);
    }
    bool kept = f->answer == response;
    unlock(f);
    if (!kept)
        rpc_message_free(&response->base);
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct group_follower *f = arg;
    struct error why = *status;
    (void)stream;
    if (why.status == 0)
        error_set(&why, STATUS_UNAVAILABLE, "has left the group");
    error_prefix(&why, "leader %s", f->target);
    pthread_mutex_lock(&f->lock);
    end(f, &why);
    unlock(f);
}

static const struct rpc_stream_events events = {
    .on_message = on_message, .takes_messages = true, .on_status = on_status};

/* --- to the leader --- */

static void send_beat(struct group_follower *f)
{
    Sluice__Worker__V1__JoinRequest request = SLUICE__WORKER__V1__JOIN_REQUEST__INIT;
    Sluice__Worker__V1__GroupBeat beat = SLUICE__WORKER__V1__GROUP_BEAT__INIT;
    request.frame_case = SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_BEAT;
    request.beat = &beat;
    (void)rpc_stream_send(f->stream, &request.base); /* a leader that reads nothing is silent */
}

static void *run_ticks(void *arg)
{
    struct group_follower *f = arg;
    int64_t last_ns = clock_now_ns(), beat_ns = 0;
    while (!wake_wait(&f->stop, TICK_MS * NS_PER_MS)) {
        int64_t now_ns = clock_now_ns();
        /* This process has slept: what the leader sent meanwhile is not read yet. */
        bool slept = now_ns - last_ns > f->silence_ms / 2 * NS_PER_MS;
        last_ns = now_ns;
        if (now_ns - beat_ns >= GROUP_BEAT_MS * NS_PER_MS) {
            send_beat(f);
            beat_ns = now_ns;
        }
        pthread_mutex_lock(&f->lock);
        if (slept && f->heard_ns)
            f->heard_ns = now_ns;
        if (f->phase != PHASE_ENDED && f->heard_ns &&
            now_ns - f->heard_ns > f->silence_ms * NS_PER_MS) {
            struct error why;
            error_set(&why, STATUS_UNAVAILABLE, "leader %s: silent for %u ms", f->target,
                      f->silence_ms);
            end(f, &why);
            rpc_stream_cancel(f->stream);
        }
        unlock(f);
    }
    return NULL;
}

/* --- life --- */

/* Waits until the phase is past `from`. */
static int wait_past(struct group_follower *f, enum phase from, int64_t deadline_ns,
                     struct error *err)
{
    struct timespec until = {deadline_ns / NS_PER_S, deadline_ns % NS_PER_S};
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    while (!rc && f->phase == from)
        if (pthread_cond_timedwait(&f->changed, &f->lock, &until) != 0)
            rc = STATUS_DEADLINE_EXCEEDED;
    if (f->phase == PHASE_ENDED) {
        *err = f->why;
        rc = err->status;
    } else if (f->phase == from) {
        rc = error_set(err, rc, "leader %s: %s", f->target,
                       from == PHASE_JOINING ? "other ranks have not joined in time"
                                             : "other ranks are not connected in time");
    }
    unlock(f);
    return rc;
}

static int send_member(struct group_follower *f, struct error *err)
{
    Sluice__Worker__V1__JoinRequest request = SLUICE__WORKER__V1__JOIN_REQUEST__INIT;
    Sluice__Worker__V1__GroupMember member = *f->self;
    int rc = rpc_stream_open(f->client, &sluice__worker__v1__group__descriptor, "Join", NULL, NULL,
                             &events, f, &f->stream, err);
    if (rc)
        return rc;
    request.frame_case = SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_MEMBER;
    request.member = &member;
    if (rpc_stream_send(f->stream, &request.base) == STATUS_RESOURCE_EXHAUSTED)
        return error_no_memory(err); /* a stream that has ended has on_status */
    f->has_ticks = pthread_create(&f->ticks, NULL, run_ticks, f) == 0;
    return f->has_ticks ? 0
                        : error_set(err, STATUS_RESOURCE_EXHAUSTED, "group: cannot start a thread");
}

int group_follower_join(const struct group_follower_config *cfg, uint32_t timeout_ms,
                        struct group_follower **out_follower, struct error *err)
{
    int64_t deadline_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    pthread_condattr_t monotonic;
    struct group_follower *f = calloc(1, sizeof(*f));
    if (!f)
        return error_no_memory(err);
    f->self = cfg->self;
    f->silence_ms = cfg->silence_ms ? cfg->silence_ms : GROUP_SILENCE_MS;
    f->on_end = cfg->on_end;
    f->arg = cfg->arg;
    snprintf(f->target, sizeof(f->target), "%s", cfg->client->target);
    wake_init(&f->stop);
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = rpc_client_create(cfg->client, &f->client, err);
    if (!rc)
        rc = rpc_client_wait_connected(f->client, timeout_ms, err);
    if (!rc)
        rc = send_member(f, err);
    if (!rc)
        rc = wait_past(f, PHASE_JOINING, deadline_ns, err);
    if (rc) {
        group_follower_close(f);
        return rc;
    }
    *out_follower = f;
    return 0;
}

const Sluice__Worker__V1__GroupRoster *group_follower_roster(const struct group_follower *f)
{
    return f->answer->roster;
}

int group_follower_start(struct group_follower *f, uint32_t timeout_ms, struct error *err)
{
    Sluice__Worker__V1__JoinRequest request = SLUICE__WORKER__V1__JOIN_REQUEST__INIT;
    Sluice__Worker__V1__GroupConnected connected = SLUICE__WORKER__V1__GROUP_CONNECTED__INIT;
    request.frame_case = SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_CONNECTED;
    request.connected = &connected;
    (void)rpc_stream_send(f->stream, &request.base); /* a lost stream has on_status */
    return wait_past(f, PHASE_CONNECTING, clock_now_ns() + timeout_ms * NS_PER_MS, err);
}

/* The leader answers by the end of the call, if it can. */
static void leave(struct group_follower *f)
{
    int64_t deadline_ns = clock_now_ns() + LEAVE_MS * NS_PER_MS;
    struct timespec until = {deadline_ns / NS_PER_S, deadline_ns % NS_PER_S};
    rpc_stream_close_send(f->stream);
    pthread_mutex_lock(&f->lock);
    while (f->phase != PHASE_ENDED)
        if (pthread_cond_timedwait(&f->changed, &f->lock, &until) != 0)
            break;
    pthread_mutex_unlock(&f->lock);
}

void group_follower_close(struct group_follower *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->is_closing = true;
    pthread_mutex_unlock(&f->lock);
    if (f->has_ticks) {
        wake_signal(&f->stop);
        pthread_join(f->ticks, NULL);
    }
    if (f->stream)
        leave(f);
    rpc_stream_release(f->stream);
    rpc_client_destroy(f->client);
    if (f->answer)
        rpc_message_free(&f->answer->base);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    wake_fini(&f->stop);
    free(f);
}
