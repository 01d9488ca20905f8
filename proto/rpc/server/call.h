/* call.h: a call on the server's side. Reference counted. Any thread unless said otherwise, even
 * after the end of the call (sends are refused then). Callbacks run on the call's server thread,
 * one at a time. No function blocks. */
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
    /* A message of a client stream, decoded and validated; borrowed for the callback. The next
     * message is read after the return, unless reads are paused. A message that cannot be
     * decoded ends the call with INVALID_ARGUMENT, or goes to on_bad_message. */
    void (*on_message)(void *arg, struct rpc_call *call, const ProtobufCMessage *message);
    /* Called for an invalid message, which is dropped, in place of ending the call. `err` is the
     * reason. The next message is read then. */
    void (*on_bad_message)(void *arg, struct rpc_call *call, const struct error *err);
    /* The client has half-closed the call. */
    void (*on_half_close)(void *arg, struct rpc_call *call);
    /* Called after rpc_call_send refused a message: half of max_pending_bytes is free again. */
    void (*on_writable)(void *arg, struct rpc_call *call);
    /* Flow control has taken a message, and the next message from `next` is on its way. */
    void (*on_taken)(void *arg, struct rpc_call *call);
    /* The client cancelled or is gone, the deadline passed, or the call was aborted
     * (rpc_call_abort, shutdown). At most once; queued messages are dropped. */
    void (*on_cancel)(void *arg, struct rpc_call *call);
    /* The call has ended, with any status. Exactly once if events were set, as the last
     * callback. */
    void (*on_done)(void *arg, struct rpc_call *call);
    /* Pull side, in place of rpc_call_send. Nothing is in flight: put the next message
     * (rpc_out_put), the end (rpc_out_finish), both, or nothing. Runs under the call's lock,
     * from rpc_call_kick or on a server thread. The callback must not block, and may use the
     * call only through `out`. Put all that is ready into one message: a slow reader gets bigger
     * messages, not a longer queue. */
    void (*next)(void *arg, struct rpc_out *out);
};

/* From the handler only, before it returns. `events` is borrowed until on_done. */
void rpc_call_set_events(struct rpc_call *call, const struct rpc_call_events *events, void *arg);

void rpc_call_retain(struct rpc_call *call);
void rpc_call_release(struct rpc_call *call); /* NULL is accepted */

/* Packs a message and sends it, or queues it behind the one in flight. 0, or RESOURCE_EXHAUSTED
 * if the queue would exceed max_pending_bytes: nothing is queued, and on_writable follows. An
 * empty queue always takes a message. CANCELLED if the call was finished, cancelled or lost. */
int rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);

/* Sends the response headers now, unless a message or the end has already sent them. Afterwards
 * the end is no trailers-only answer. For calls that are accepted and wait. The caller holds no
 * lock that `next` takes. */
void rpc_call_send_headers(struct rpc_call *call);

/* Ends the call after the queued messages; the last message and the status go together. `status`
 * NULL or status->status 0: OK. Details travel as google.rpc.Status (status.h). 0, or CANCELLED
 * as above. The first end counts. A unary call that ends OK must have sent exactly one message. */
int rpc_call_finish(struct rpc_call *call, const struct error *status);

/* Ends the call now. Queued messages are dropped, and a stuck message is overtaken: the client
 * gets code and message without details. Then on_cancel follows. For slow readers and shutdown. */
void rpc_call_abort(struct rpc_call *call, const struct error *status);
/* The same, after the message in flight, so that a reading client gets the details. A client
 * that does not read holds the call until rpc_call_abort. */
void rpc_call_abort_behind(struct rpc_call *call, const struct error *status);

/* Unary calls: sends one message and OK. */
int rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message);

/* Calls `next` if nothing is in flight: at once on the call's own thread, else soon on that
 * thread. The caller holds no lock that `next` takes. */
void rpc_call_kick(struct rpc_call *call);
/* Inside `next` only; a second message in the same call is ignored. */
void rpc_out_put(struct rpc_out *out, const ProtobufCMessage *message);
void rpc_out_finish(struct rpc_out *out, const struct error *status);

/* Pause and resume reading from the client, at the next message boundary. */
void rpc_call_pause_reads(struct rpc_call *call);
void rpc_call_resume_reads(struct rpc_call *call);

/* Returns the bytes that flow control has not taken yet. */
size_t rpc_call_pending_bytes(struct rpc_call *call);
/* True if the call was cancelled, lost or has expired (not: finished). */
bool rpc_call_cancelled(struct rpc_call *call);
/* Returns the status that the client saw, as the server's statistics count it. In on_cancel and
 * on_done only. */
int rpc_call_result(const struct rpc_call *call);

/* Facts, constant from the start; strings are borrowed from the call. */
const char *rpc_call_method(const struct rpc_call *call); /* "/sluice.v1.Inference/Generate" */
const char *rpc_call_peer(const struct rpc_call *call);   /* "ipv4:127.0.0.1:51234", "unix:" */
/* clock_now_ns() based; INT64_MAX without a deadline. */
int64_t rpc_call_deadline_ns(const struct rpc_call *call);
/* Returns the value of a request metadata key (lower case; "-bin" values decoded), or NULL. The
 * value has a NUL after its length; out_n_bytes may be NULL. */
const char *rpc_call_metadata(const struct rpc_call *call, const char *key, size_t *out_n_bytes);
/* Returns how often the key occurs; rpc_call_metadata returns the first value. */
size_t rpc_call_n_metadata(const struct rpc_call *call, const char *key);

/* Copies the name in the peer's verified certificate: its first URI, else its first DNS name,
 * else its common name. In the authorize hook only. NOT_FOUND without a certificate or TLS.
 * INVALID_ARGUMENT if the name is longer than n_out - 1, or not printable ASCII without spaces. */
int rpc_call_peer_name(const struct rpc_call *call, char *out_name, size_t n_out);

/* The caller's identity. Set only by the server's authorize hook, before the handler runs;
 * copied. INVALID_ARGUMENT if longer than RPC_MAX_TENANT. */
enum { RPC_MAX_TENANT = 128 };
int rpc_call_set_tenant(struct rpc_call *call, const char *tenant);
/* Never NULL; empty if not set. */
const char *rpc_call_tenant(const struct rpc_call *call);
/* The caller's role, set the same way; ROLE_NONE if not set. */
void rpc_call_set_role(struct rpc_call *call, enum role role);
enum role rpc_call_role(const struct rpc_call *call);
/* The user behind a unix socket, from the kernel. False over TCP. */
bool rpc_call_peer_uid(const struct rpc_call *call, uint32_t *out_uid);

/* Adds trailing metadata to the answer (ASCII, at most 8 entries), before the end only.
 * RESOURCE_EXHAUSTED beyond 8, INVALID_ARGUMENT for a key or value that gRPC would refuse. */
int rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value);
