/* upstream.h: the frames to a worker for one request on the Serve stream: submit, pause, resume,
 * credit, update, cancel. Any thread. The functions take the stream itself, so that a relay can
 * call them under its lock. Frames leave in the order of the decisions. */
#pragma once

#include "server/gateway/relay/relay.h"

/* The submit frame. Everything in it is borrowed from the relay under its lock, which the caller
 * holds. */
struct relay_submit {
    Sluice__Worker__V1__Submit submit;
    Sluice__Worker__V1__ResumeState resume;
    Sluice__Worker__V1__ResumedChoice choices[RELAY_MAX_CHOICES];
    Sluice__Worker__V1__ResumedChoice *choice_list[RELAY_MAX_CHOICES];
    uint8_t cache_key[400];
};
void relay_fill_submit(struct relay *relay, struct relay_submit *out);

/* Sends the submit of the relay at its seat, under the relay's lock; `fill` is memory for the
 * frame. RESOURCE_EXHAUSTED if the worker does not keep up, UNAVAILABLE if the stream is gone. */
int upstream_submit(struct relay *relay, struct relay_submit *fill, struct error *err);
/* Fills UNAVAILABLE (REPLICA_LOST): the replica is not reachable. */
int upstream_lost(struct error *err);

/* RESOURCE_EXHAUSTED if the worker behind the stream does not keep up. Commands of clients must
 * be refused then. */
int upstream_check_backlog(struct rpc_stream *stream, struct error *err);
/* True if the worker refused or gave back a request because the worker ends: it drains, or its
 * engine failed. Another worker may be tried. */
bool upstream_is_ending(const struct error *refusal);
/* True if the worker refused a request before the request had a place. */
bool upstream_is_queue_refusal(enum reason refusal);

/* Pauses the sequence (takes it out of the batch), or resumes it. */
void upstream_pause(struct rpc_stream *stream, uint64_t id, bool paused);
void upstream_credit(struct rpc_stream *stream, uint64_t id, uint32_t n_tokens);
void upstream_update(struct rpc_stream *stream, uint64_t id, const Sluice__V1__UpdateFrame *update);
void upstream_cancel(struct rpc_stream *stream, uint64_t id);
