/* stream.h: streaming calls on the client's side: server streaming and bidirectional.
 * rpc_stream has callbacks, on the client's thread, one at a time per stream; rpc_reader is for a
 * program that simply waits for the next message. Functions may be called from any thread unless
 * said otherwise. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct error;
struct rpc_call_options;
struct rpc_client;
struct rpc_out;
struct rpc_reader;
struct rpc_stream;

/* Callbacks, all optional save on_status. */
struct rpc_stream_events {
    /* A message, decoded and validated; borrowed for the callback, or, with takes_messages, the
     * callback's (rpc_message_free). The next one is read after it returns, unless reads are
     * paused. */
    void (*on_message)(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message);
    bool takes_messages;
    /* After rpc_stream_send refused a message: half of the cap is free again. */
    void (*on_writable)(void *arg, struct rpc_stream *stream);
    /* The end: status->status 0 or what went wrong. Exactly once, the last callback. */
    void (*on_status)(void *arg, struct rpc_stream *stream, const struct error *status);
    /* Pull side, as rpc_call_events.next (rpc_out_finish half-closes). */
    void (*next)(void *arg, struct rpc_out *out);
};

/* Starts a streaming call. `request` is the one request of a server-streaming method, and NULL for
 * a bidirectional one. `events` is borrowed until on_status. *out_stream is owned (release).
 * Callbacks may come before it returns. On a negative return there will be none. */
int rpc_stream_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request,
                    const struct rpc_call_options *options, const struct rpc_stream_events *events,
                    void *arg, struct rpc_stream **out_stream, struct error *err);

void rpc_stream_retain(struct rpc_stream *stream);
/* Dropping the last reference of a live stream cancels it; its callbacks still come. */
void rpc_stream_release(struct rpc_stream *stream); /* NULL is accepted */

/* As rpc_call_send: 0, RESOURCE_EXHAUSTED (on_writable follows) or CANCELLED (it has ended). */
int rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message);
/* Asks `next` for work if nothing is in flight. */
void rpc_stream_kick(struct rpc_stream *stream);
/* No more messages from here, after what is queued. */
void rpc_stream_close_send(struct rpc_stream *stream);
/* Ends it; on_status follows with CANCELLED unless it had ended. */
void rpc_stream_cancel(struct rpc_stream *stream);

void rpc_stream_pause_reads(struct rpc_stream *stream);
void rpc_stream_resume_reads(struct rpc_stream *stream);
size_t rpc_stream_pending_bytes(struct rpc_stream *stream);
size_t rpc_stream_pending_messages(struct rpc_stream *stream);

/* A streaming call read by one thread; `request` is NULL for a bidirectional one. */
int rpc_reader_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request,
                    const struct rpc_call_options *options, struct rpc_reader **out_reader,
                    struct error *err);
/* Waits for the next message: 0 and *out_message (owned, rpc_message_free), or 0 and NULL at an end
 * that is OK, or the status it ended with. */
int rpc_reader_next(struct rpc_reader *reader, ProtobufCMessage **out_message, struct error *err);
/* Bidirectional calls, from any thread: waits while more than the client's max_pending_bytes is
 * unsent. CANCELLED, or the status the call ended with. */
int rpc_reader_send(struct rpc_reader *reader, const ProtobufCMessage *message, struct error *err);
void rpc_reader_close_send(struct rpc_reader *reader); /* no more messages from here */
/* From any thread, also while another one waits in rpc_reader_next. */
void rpc_reader_cancel(struct rpc_reader *reader);
void rpc_reader_close(struct rpc_reader *reader); /* NULL is accepted */
