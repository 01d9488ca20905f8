/* How requests come to a link and leave it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/client/stream.h"
#include "server/gateway/relay/upstream.h"
#include "server/gateway/replicas/link_internal.h"

/* Returns the stream, retained, or NULL. */
static struct rpc_stream *live_stream(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    struct rpc_stream *stream = link->stream;
    if (stream)
        rpc_stream_retain(stream);
    pthread_mutex_unlock(&link->lock);
    return stream;
}

/* Under the relay's lock: true if results exist that are part of the answer. */
static bool has_results(const struct relay *relay)
{
    size_t n = relay->n_prompt_logprobs;
    for (uint32_t i = 0; i < relay->n_choices; i++)
        n += relay->choices[i].generated.n;
    return n > 0;
}

static void take_numerics(struct relay *relay, const struct link_facts *facts)
{
    snprintf(relay->numerics_id, sizeof(relay->numerics_id), "%s", facts->numerics_id);
    snprintf(relay->fingerprint, sizeof(relay->fingerprint), "%s", facts->fingerprint);
}

/* Enters the relay under a new id. On success the relay stays locked: no thread may move it
 * before its submit is on the stream. *out_id is 0 if the relay has ended. */
static int adopt(struct link *link, struct relay *relay, uint64_t *out_id, struct error *err)
{
    int rc = 0;
    *out_id = 0;
    pthread_mutex_lock(&link->lock);
    uint64_t id = link->next_id++;
    pthread_mutex_lock(&relay->lock);
    if (relay->ended) {
        /* The request has ended: nothing is submitted. */
    } else if (link->state != LINK_READY || link->retired || !link->stream || link->stall.stalled) {
        rc = upstream_lost(err);
    } else if (!hash_map_put(&link->live, &id, sizeof(id), relay)) {
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    } else {
        relay_retain(relay);
        link_retain(link);
        relay->seat.link = link;
        meter_placed(&relay->meter, link->replica_id);
        relay->seat.id = id;
        relay->stage = RELAY_SENT;
        if (link->live.n_entries == 1)
            link->last_end_ns = clock_now_ns(); /* the idle time before was no work */
        relay->seat.stream = link->stream;
        rpc_stream_retain(relay->seat.stream);
        if (has_results(relay) && strcmp(relay->numerics_id, link->facts.numerics_id) != 0)
            relay->numerics_changed = true;
        else
            take_numerics(relay, &link->facts);
        *out_id = id;
    }
    if (!*out_id)
        pthread_mutex_unlock(&relay->lock);
    pthread_mutex_unlock(&link->lock);
    return rc;
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
    rc = upstream_submit(relay, fill, err);
    if (!rc && relay->lost_ns) {
        relay->resumed_lost_ns = relay->lost_ns;
        relay->lost_ns = 0;
    }
    pthread_mutex_unlock(&relay->lock);
    free(fill);
    struct relay *mine = rc ? link_take_live(link, id, false) : NULL;
    if (!mine) /* sent, or another thread has ended or returned the request meanwhile */
        return 0;
    link_leave(relay);
    relay_release(mine);
    return rc;
}

static void cancel(struct link *link, uint64_t id)
{
    struct rpc_stream *stream = live_stream(link);
    struct relay *relay = link_take_live(link, id, true);
    if (relay && stream)
        upstream_cancel(stream, id);
    relay_release(relay);
    rpc_stream_release(stream);
}

void link_release_seat(struct relay_seat *seat)
{
    rpc_stream_release(seat->stream);
    link_release(seat->link);
}

void link_leave(struct relay *relay)
{
    struct relay_seat seat = relay_leave_seat(relay);
    if (seat.link)
        cancel(seat.link, seat.id);
    link_release_seat(&seat);
}
