/* call.h: one call on the server's side. Reference counted; every function may be called from
 * any thread unless said otherwise, and after the call has ended (sends are then refused).
 * Callbacks come from the call's server thread, one at a time. Nothing here blocks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/access/role.h"

struct error;
struct rpc_call;
struct rpc_out;

/* Callbacks, all optional. */
struct rpc_call_events {
    /* A message of a client stream, decoded and validated; borrowed for the callback. The next one
     * is read after it returns, unless reads are paused. A message that cannot be decoded never
     * gets here: it ends the call INVALID_ARGUMENT, or goes to on_bad_message. */
    void (*on_message)(void *arg, struct rpc_call *call, const ProtobufCMessage *message);
    /* Instead of ending the call there: the message is dropped, `err` says why, and the next one is
     * read. */
    void (*on_bad_message)(void *arg, struct rpc_call *call, const struct error *err);
    /* The client will send no more. */
    void (*on_half_close)(void *arg, struct rpc_call *call);
    /* After rpc_call_send refused a message: half of the cap is free again. */
    void (*on_writable)(void *arg, struct rpc_call *call);
    /* Flow control has taken a message, and what `next` put behind it is on its way. */
    void (*on_taken)(void *arg, struct rpc_call *call);
    /* The client cancelled or is gone, the deadline passed, or the call was aborted (by
     * rpc_call_abort or the server's shutdown). At most once; what is queued is dropped. */
    void (*on_cancel)(void *arg, struct rpc_call *call);
    /* The call is over, whether well or not. Exactly once if events were set, and the last
     * callback. */
    void (*on_done)(void *arg, struct rpc_call *call);
    /* Pull side, instead of rpc_call_send: nothing is in flight, so put the next message
     * (rpc_out_put) or the end (rpc_out_finish) or both, or nothing. Called under the call's lock,
     * by rpc_call_kick or on a server thread: it must not block nor use the call other than through
     * `out`. All that is ready belongs in one message: that is how a slow reader gets bigger
     * messages and not a longer queue. */
    void (*next)(void *arg, struct rpc_out *out);
};

/* From the handler only, before it returns. `events` is borrowed until on_done. */
void rpc_call_set_events(struct rpc_call *call, const struct rpc_call_events *events, void *arg);

void rpc_call_retain(struct rpc_call *call);
void rpc_call_release(struct rpc_call *call); /* NULL is accepted */

/* Packs a message and sends it, or queues it behind what is in flight. 0, or
 * RESOURCE_EXHAUSTED: the queue would hold more than max_pending_bytes (a message is always taken
 * by an empty queue); nothing was queued, on_writable will follow; CANCELLED: the call was
 * finished, cancelled or lost. */
int rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);

/* Sends the response headers now, unless a message or the end has taken them along. After that the
 * end of the call is no trailers-only answer: for calls that are accepted and wait. The caller
 * holds no lock that `next` takes. */
void rpc_call_send_headers(struct rpc_call *call);

/* Ends the call after what is queued; the last message rides with the status. `status` NULL or
 * status->status 0: OK. Its details travel as google.rpc.Status (status.h). 0, or CANCELLED as
 * above. The first end wins. A unary call that ends OK must have sent exactly one message. */
int rpc_call_finish(struct rpc_call *call, const struct error *status);

/* Ends the call now: what is queued is dropped, and a message stuck behind a reader that does not
 * read is overtaken (the client then gets code and message without details). on_cancel follows. For
 * slow readers and shutdown. */
void rpc_call_abort(struct rpc_call *call, const struct error *status);
/* The same, behind the message that is on its way: a client that reads gets the details too. One
 * that does not keeps the call until rpc_call_abort. */
void rpc_call_abort_behind(struct rpc_call *call, const struct error *status);

/* Unary: one message and OK. */
int rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message);

/* Asks `next` for work if nothing is in flight: on one of the call's own threads at once, from any
 * other thread soon, on the call's thread. The caller holds no lock that `next` takes. */
void rpc_call_kick(struct rpc_call *call);
/* Inside `next` only; a second message in one turn is ignored. */
void rpc_out_put(struct rpc_out *out, const ProtobufCMessage *message);
void rpc_out_finish(struct rpc_out *out, const struct error *status);

/* Stops and restarts reading from the client, at the next message boundary. */
void rpc_call_pause_reads(struct rpc_call *call);
void rpc_call_resume_reads(struct rpc_call *call);

/* Bytes queued and not yet taken by flow control. */
size_t rpc_call_pending_bytes(struct rpc_call *call);
/* Cancelled, lost or expired (not: finished). */
bool rpc_call_cancelled(struct rpc_call *call);
/* The status the client saw, as the server's statistics count it; in on_cancel and on_done only. */
int rpc_call_result(const struct rpc_call *call);

/* Facts, fixed from the start; strings are borrowed from the call. */
const char *rpc_call_method(const struct rpc_call *call); /* "/sluice.v1.Inference/Generate" */
const char *rpc_call_peer(const struct rpc_call *call);   /* "ipv4:127.0.0.1:51234", "unix:" */
/* On the clock of clock_now_ns(); INT64_MAX without a deadline. */
int64_t rpc_call_deadline_ns(const struct rpc_call *call);
/* Value of a request metadata key (lower case; "-bin" values decoded), or NULL. out_n_bytes may be
 * NULL; the value is NUL-terminated beyond its length. */
const char *rpc_call_metadata(const struct rpc_call *call, const char *key, size_t *out_n_bytes);
/* How often the key is there; rpc_call_metadata gives the first. */
size_t rpc_call_n_metadata(const struct rpc_call *call, const char *key);

/* The name in the peer's verified certificate: its first URI, else its first DNS name, else its
 * common name. In the authorize hook only. NOT_FOUND: it showed none (or the connection has no
 * TLS); INVALID_ARGUMENT: the name is longer than n_out - 1 or not printable ASCII without spaces.
 */
int rpc_call_peer_name(const struct rpc_call *call, char *out_name, size_t n_out);

/* Who calls, as far as that was established: set by the server's authorize hook and nobody else,
 * before the handler runs; copied. INVALID_ARGUMENT where it is longer than RPC_MAX_TENANT. */
enum { RPC_MAX_TENANT = 128 };
int rpc_call_set_tenant(struct rpc_call *call, const char *tenant);
/* Never NULL; empty where nobody said. */
const char *rpc_call_tenant(const struct rpc_call *call);
/* The same of what the caller may do: ROLE_NONE where nobody said. */
void rpc_call_set_role(struct rpc_call *call, enum role role);
enum role rpc_call_role(const struct rpc_call *call);
/* The user behind a Unix socket, as the kernel says. False over TCP. */
bool rpc_call_peer_uid(const struct rpc_call *call, uint32_t *out_uid);

/* Adds to the answer's trailing metadata (ASCII keys and values, at most 8); before the end only.
 * RESOURCE_EXHAUSTED beyond 8, INVALID_ARGUMENT for a key or value gRPC would refuse. */
int rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value);
