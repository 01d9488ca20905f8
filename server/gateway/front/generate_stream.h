/* generate_stream.h: a GenerateStream call: many requests, each a relay with its own sink here. The
 * same for the streams of other protocols (kserve/), whose messages differ (struct stream_form).
 * Requests with a ready frame wait in a queue. Each call of on_next puts a frame of the first
 * request and moves it to the back. So a request waits for at most one frame of every other
 * request. Answers to refused frames go first.
 *
 * Threads: callbacks come from the call's thread, `ready` from any thread. The lock inside is
 * taken after the call's lock and before a relay's. Files: generate_stream.c (the call and its
 * queue), generate_stream_frames.c (the client's frames), generate_stream_answers.c (frames to
 * the client). */
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
struct relay_params;
struct rpc_call;
struct rpc_out;

/* Refusals that wait for the client. At this number no further frame is read. */
enum { STREAM_MAX_REFUSALS = 64 };

struct generate_stream;
struct stream_refusal;

/* The messages of a stream's RPC. `answer` is the state of a request, or NULL. */
struct stream_form {
    /* A message of the client. From the call's thread. */
    void (*on_message)(struct generate_stream *stream, const ProtobufCMessage *message);
    /* Puts the message for a frame into `out`; false if the frame needs none. Under the relay's
     * lock. */
    bool (*put)(void *answer, const struct relay *relay, const struct relay_frame *frame,
                struct rpc_out *out);
    /* Puts the answer to a refused message. */
    void (*put_refusal)(const struct stream_refusal *refusal, struct rpc_out *out);
    void (*destroy)(void *answer); /* frees the state; optional */
};

/* A request of the stream. The stream's map and the relay hold a reference each. */
struct stream_member {
    struct relay_sink base;
    struct generate_stream *stream; /* retained */
    struct relay *relay;            /* retained */
    void *answer;                   /* owned; see struct stream_form */
    /* under the stream's lock */
    struct stream_member *next_ready; /* queued members are retained */
    bool queued, gone;
};

/* The error for a refused frame, or for a request that another stream took over. */
struct stream_refusal {
    struct stream_refusal *next;
    char request_id[129];
    bool goes_on;
    struct error error;
};

struct generate_stream {
    _Atomic uint32_t n_refs;
    struct service *service;
    const struct stream_form *form;
    struct rpc_call *call;         /* retained */
    struct generate_stream *next;  /* service->streams, under the service's lock */
    _Atomic int64_t pending_bytes; /* pending bytes of all members */
    _Atomic int64_t put_ns;        /* awake_ns when the message in flight was handed over; 0:
                                    * nothing is in flight */
    _Atomic bool crowded;          /* too many bytes waited; the members must recheck */

    pthread_mutex_t lock;
    struct hash_map members; /* by request id */
    struct stream_member *ready_first, *ready_last;
    struct stream_member *in_flight; /* member of the last frame; retained */
    struct stream_refusal *refusals, **refusals_end;
    uint32_t n_refusals;
    bool half_closed, over, reads_paused;
    int64_t last_put_ns; /* clock_now_ns() of the last message */
};

rpc_handler_fn handle_generate_stream;
/* Makes the call a stream of that form. From the call's handler only. */
void generate_stream_open(struct service *service, struct rpc_call *call,
                          const struct stream_form *form);
/* Starts a request. The stream adds its caller, trace and deadline to the parameters. Takes the
 * answer, on success only. Errors as generation_open; UNAUTHENTICATED if the key is valid no more;
 * UNAVAILABLE if the server is leaving. */
int generate_stream_start(struct generate_stream *stream, const struct relay_params *given,
                          void *answer, struct error *err);

/* Ticker thread: ends streams whose client takes no message, and idle streams while the server
 * is leaving. */
void generate_streams_tick(struct service *service, int64_t awake_ns);
/* The server is leaving: streams without requests end now, the others soon after their last
 * request. */
void generate_streams_drain(struct service *service);

/* --- between the files --- */

/* The form of GenerateStream. */
extern const struct stream_form generate_stream_form;
/* stream_form.on_message and put of GenerateStream. */
void generate_stream_on_frame(struct generate_stream *stream, const ProtobufCMessage *message);
bool generate_stream_put_frame(void *answer, const struct relay *relay,
                               const struct relay_frame *frame, struct rpc_out *out);
void generate_stream_put_refused(const struct stream_refusal *refusal, struct rpc_out *out);

/* Returns the member with that id, retained, or NULL. */
struct stream_member *generate_stream_find(struct generate_stream *stream, const char *request_id);
/* Makes a member for the relay. RESOURCE_EXHAUSTED if the limit of requests is reached or memory
 * is exhausted. *out_member is retained for the caller. The caller attaches the relay next. Takes
 * the answer, on success only. */
int generate_stream_add(struct generate_stream *stream, struct relay *relay, void *answer,
                        struct stream_member **out_member, struct error *err);
/* True if the member is still part of the stream. Another stream may have taken it over, or the
 * stream may have ended. */
bool generate_stream_has(struct generate_stream *stream, const struct stream_member *member);
/* Removes a member; its relay does not change. */
void generate_stream_remove(struct generate_stream *stream, struct stream_member *member);
/* Queues an error frame. The frame's goes_on is set if the request is the member's and still
 * part of the stream. */
void generate_stream_refuse(struct generate_stream *stream, const char *request_id,
                            const struct error *err, const struct stream_member *member);

/* Under the lock: puts the oldest queued refusal; false if there is none. */
bool generate_stream_put_refusal(struct generate_stream *stream, struct rpc_out *out);

/* Three steps to queue a refusal together with other changes under the lock. Before the lock:
 * make (NULL if memory is exhausted). Under the lock: queue (takes the refusal; true if reads
 * must pause). After the lock: tell. */
struct stream_refusal *generate_stream_make_refusal(const char *request_id,
                                                    const struct error *err);
bool generate_stream_queue_refusal(struct generate_stream *stream, struct stream_refusal *refusal);
void generate_stream_tell_refusal(struct generate_stream *stream, bool pause);
