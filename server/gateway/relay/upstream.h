/* upstream.h: what goes up to a worker for one request, as frames of the Serve stream: its submit,
 * then pauses, credit, updates and its cancel. Any thread. The functions take the stream itself, so
 * that a relay calls them under its lock: frames leave in the order in which they were decided. */
#pragma once

#include "server/gateway/relay/relay.h"

/* The submit frame; everything in it is borrowed from the relay under its lock, which the caller
 * holds. */
struct relay_submit {
    Sluice__Worker__V1__Submit submit;
    Sluice__Worker__V1__ResumeState resume;
    Sluice__Worker__V1__ResumedChoice choices[RELAY_MAX_CHOICES];
    Sluice__Worker__V1__ResumedChoice *choice_list[RELAY_MAX_CHOICES];
    uint8_t cache_key[400];
};
void relay_fill_submit(struct relay *relay, struct relay_submit *out);

/* Sends the submit of the relay at its seat, under its lock; `fill` is room for the frame.
 * RESOURCE_EXHAUSTED where the worker does not keep up with what it is sent, UNAVAILABLE where the
 * stream is gone. */
int upstream_submit(struct relay *relay, struct relay_submit *fill, struct error *err);
/* UNAVAILABLE (REPLICA_LOST): the replica is not reachable. */
int upstream_lost(struct error *err);

/* RESOURCE_EXHAUSTED where the worker behind the stream does not keep up with what it is sent: what
 * a client asks for must then be refused. */
int upstream_check_backlog(struct rpc_stream *stream, struct error *err);
/* The worker refused or gave back what it was asked because it ends: it drains, or its engine
 * failed. Another worker may be asked. */
bool upstream_is_ending(const struct error *refusal);

/* Takes the sequence out of the batch, or back in. */
void upstream_pause(struct rpc_stream *stream, uint64_t id, bool paused);
void upstream_credit(struct rpc_stream *stream, uint64_t id, uint32_t n_tokens);
void upstream_update(struct rpc_stream *stream, uint64_t id, const Sluice__V1__UpdateFrame *update);
void upstream_cancel(struct rpc_stream *stream, uint64_t id);
