/* generate_stream.h: one GenerateStream call: many requests, each a relay with a sink of its own
 * here. Requests that have something ready stand in a queue; each turn puts one frame of the first
 * one and sends it to the back, so that none waits for more than one frame of every other one.
 * Refused frames are answered before them.
 *
 * Threads: callbacks come from the call's thread, `ready` from any; lock inside, taken after the
 * call's and before a relay's. generate_stream.c is the call and its queue,
 * generate_stream_frames.c what a client's frames do, generate_stream_answers.c what it is told. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash_map.h"
#include "proto/rpc/server/server.h"
#include "server/gateway/relay/relay_sink.h"

struct service;
struct relay;
struct relay_frame;
struct rpc_call;

/* Answers to refused frames that wait for the client; while there are so many no further frame is
 * read. */
enum { STREAM_MAX_REFUSALS = 64 };

struct generate_stream;

/* One request of the stream. The stream's map holds a reference, the relay one. */
struct stream_member {
    struct relay_sink base;
    struct generate_stream *stream; /* retained */
    struct relay *relay;            /* retained */
    /* the stream's lock */
    struct stream_member *next_ready; /* queued: retained */
    bool queued, gone;
};

/* A frame that was refused, or a request that ended without its relay's doing. */
struct stream_refusal {
    struct stream_refusal *next;
    char request_id[129];
    bool goes_on;
    struct error error;
};

struct generate_stream {
    _Atomic uint32_t n_refs;
    struct service *service;
    struct rpc_call *call;         /* retained */
    struct generate_stream *next;  /* service->streams, under the service's lock */
    _Atomic int64_t pending_bytes; /* of all members */
    _Atomic int64_t put_ns;        /* awake_ns when the message in flight was put; 0: none is */
    _Atomic bool crowded;          /* they were too many; the members are to be told */

    pthread_mutex_t lock;
    struct hash_map members; /* by request id */
    struct stream_member *ready_first, *ready_last;
    struct stream_member *in_flight; /* whose frame was put last; retained */
    struct stream_refusal *refusals, **refusals_end;
    uint32_t n_refusals;
    bool half_closed, over, reads_paused;
    int64_t last_put_ns; /* of the last message */
};

rpc_handler_fn handle_generate_stream;

/* The ticker: ends streams whose client takes no message, and those that are idle while the server
 * is leaving. */
void generate_streams_tick(struct service *service, int64_t awake_ns);
/* The server is leaving: streams without requests end now, the others soon after their last one. */
void generate_streams_drain(struct service *service);

/* --- between the files --- */

/* rpc_call_events.on_message and on_bad_message; arg is the stream. */
void generate_stream_on_frame(void *arg, struct rpc_call *call, const ProtobufCMessage *message);
void generate_stream_on_bad_frame(void *arg, struct rpc_call *call, const struct error *err);

/* The member of that id, retained, or NULL. */
struct stream_member *generate_stream_find(struct generate_stream *stream, const char *request_id);
/* Makes a member for the relay. RESOURCE_EXHAUSTED where there are as many as may be or memory is
 * exhausted. *out_member is retained for the caller. Its relay must be attached next. */
int generate_stream_add(struct generate_stream *stream, struct relay *relay,
                        struct stream_member **out_member, struct error *err);
/* Whether it is one still: it may have been taken over, or the stream be done. */
bool generate_stream_has(struct generate_stream *stream, const struct stream_member *member);
/* Takes a member off; its relay is left alone. */
void generate_stream_remove(struct generate_stream *stream, struct stream_member *member);
/* Queues an error frame. The request goes on where it is the member's and that has not left. */
void generate_stream_refuse(struct generate_stream *stream, const char *request_id,
                            const struct error *err, const struct stream_member *member);

/* Whose frame goes where. */
struct stream_put {
    struct rpc_out *out;
    char *request_id;
};

/* relay_put_fn; ctx is a struct stream_put. */
void generate_stream_put_frame(void *ctx, const struct relay_frame *frame);
/* The oldest refusal that waits, under the lock; false: there is none. */
bool generate_stream_put_refusal(struct generate_stream *stream, struct rpc_out *out);

/* To queue a refusal in one step with other changes under the lock: made before (NULL: no memory),
 * queued under it (takes the refusal; true where reads are to be paused), told after. */
struct stream_refusal *generate_stream_make_refusal(const char *request_id,
                                                    const struct error *err);
bool generate_stream_queue_refusal(struct generate_stream *stream, struct stream_refusal *refusal);
void generate_stream_tell_refusal(struct generate_stream *stream, bool pause);
