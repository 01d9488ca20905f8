/* What goes up to the worker: submits, cancels, pauses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/client/stream.h"
#include "server/gateway/gateway.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link_internal.h"

/* Retained, or NULL. */
static struct rpc_stream *live_stream(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    struct rpc_stream *stream = link->stream;
    if (stream)
        rpc_stream_retain(stream);
    pthread_mutex_unlock(&link->lock);
    return stream;
}

static int lost_before_submit(struct error *err)
{
    error_set(err, STATUS_UNAVAILABLE, "the replica is not reachable");
    err->retry_after_ms = 1000;
    return error_reason(err, "REPLICA_LOST");
}

/* Under the relay's lock: what came before is part of the answer. */
static bool has_results(const struct relay *relay)
{
    size_t n = relay->n_prompt_logprobs;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n += relay->choices[i].generated.n;
    return n > 0;
}

/* Enters the relay under a fresh id, and on success leaves the relay locked: nothing may move it
 * elsewhere before its submit is on the stream. *out_id is 0 where the relay has ended. */
static int adopt(struct link *link, struct relay *relay, uint64_t *out_id, struct error *err)
{
    int rc = 0;
    *out_id = 0;
    pthread_mutex_lock(&link->lock);
    uint64_t id = link->next_id++;
    pthread_mutex_lock(&relay->lock);
    if (relay->ended) {
        /* Nothing to do, and no work for the dead. */
    } else if (link->state != LINK_READY || link->retired || !link->stream || link->stall.stalled) {
        rc = lost_before_submit(err);
    } else if (!hash_map_put(&link->live, &id, sizeof(id), relay)) {
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    } else {
        relay_retain(relay);
        link_retain(link);
        relay->link = link;
        meter_placed(&relay->meter, link->replica_id);
        relay->link_id = id;
        relay->stage = RELAY_SENT;
        if (link->live.n_entries == 1)
            link->last_end_ns = clock_now_ns(); /* what went before was no work */
        relay->stream = link->stream;
        rpc_stream_retain(relay->stream);
        if (has_results(relay) && strcmp(relay->numerics_id, link->facts.numerics_id) != 0)
            relay->numerics_changed = true;
        else
            snprintf(relay->numerics_id, sizeof(relay->numerics_id), "%s", link->facts.numerics_id);
        *out_id = id;
    }
    if (!*out_id)
        pthread_mutex_unlock(&relay->lock);
    pthread_mutex_unlock(&link->lock);
    return rc;
}

static int behind(struct error *err)
{
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "model: the replica does not keep up with what it is sent");
    err->retry_after_ms = 1000;
    return error_reason(err, "QUEUE_FULL");
}

int link_check_backlog(struct rpc_stream *stream, struct error *err)
{
    return rpc_stream_pending_bytes(stream) > MAX_BACKLOG_BYTES ||
                   rpc_stream_pending_messages(stream) > MAX_BACKLOG_MESSAGES
               ? behind(err)
               : 0;
}

/* Under the relay's lock. */
static int send_submit(struct relay *relay, struct relay_submit *fill, struct error *err)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    int rc = link_check_backlog(relay->stream, err);
    if (rc)
        return rc;
    relay_fill_submit(relay, fill);
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
    frame.submit = &fill->submit;
    rc = rpc_stream_send(relay->stream, &frame.base);
    if (rc == STATUS_RESOURCE_EXHAUSTED)
        return behind(err);
    return rc ? lost_before_submit(err) : 0;
}

int link_submit(struct link *link, struct relay *relay, struct error *err)
{
    uint64_t id;
    struct relay_submit *fill = malloc(sizeof(*fill));
    if (!fill)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    int rc = adopt(link, relay, &id, err);
    if (!id) {
        free(fill);
        return rc;
    }
    rc = send_submit(relay, fill, err);
    if (!rc && relay->lost_ns) {
        relay->resumed_lost_ns = relay->lost_ns;
        relay->lost_ns = 0;
    }
    pthread_mutex_unlock(&relay->lock);
    free(fill);
    struct relay *mine = rc ? link_take_live(link, id, false) : NULL;
    if (!mine) /* sent; or ended or handed back meanwhile by whoever took it off the list */
        return 0;
    relay_leave(relay);
    relay_release(mine);
    return rc;
}

/* A worker that takes nothing any more is a lost worker. */
static void send_frame(struct rpc_stream *stream, const Sluice__Worker__V1__ServeRequest *frame)
{
    if (rpc_stream_send(stream, &frame->base) == STATUS_RESOURCE_EXHAUSTED)
        rpc_stream_cancel(stream);
}

void link_cancel(struct link *link, uint64_t id)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Cancel cancel = SLUICE__WORKER__V1__CANCEL__INIT;
    struct rpc_stream *stream = live_stream(link);
    struct relay *relay = link_take_live(link, id, true);
    cancel.id = id;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL;
    frame.cancel = &cancel;
    if (relay && stream)
        send_frame(stream, &frame);
    relay_release(relay);
    rpc_stream_release(stream);
}

void link_send_pause(struct rpc_stream *stream, uint64_t id, bool paused)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Pause pause = SLUICE__WORKER__V1__PAUSE__INIT;
    Sluice__Worker__V1__Resume resume = SLUICE__WORKER__V1__RESUME__INIT;
    if (paused) {
        pause.id = id;
        frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE;
        frame.pause = &pause;
    } else {
        resume.id = id;
        frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_RESUME;
        frame.resume = &resume;
    }
    send_frame(stream, &frame);
}

void link_send_credit(struct rpc_stream *stream, uint64_t id, uint32_t n_tokens)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Credit credit = SLUICE__WORKER__V1__CREDIT__INIT;
    credit.id = id;
    credit.n_tokens = n_tokens;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT;
    frame.credit = &credit;
    send_frame(stream, &frame);
}

void link_send_update(struct rpc_stream *stream, uint64_t id, const Sluice__V1__UpdateFrame *change)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Update update = SLUICE__WORKER__V1__UPDATE__INIT;
    update.id = id;
    update.update = (Sluice__V1__UpdateFrame *)(uintptr_t)change;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_UPDATE;
    frame.update = &update;
    send_frame(stream, &frame);
}
