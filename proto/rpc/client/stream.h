/* stream.h: client-side streaming calls: server streaming and bidirectional. An rpc_stream has
 * callbacks on the client's thread, one at a time per stream. An rpc_reader is for a program
 * that waits for the next message. Any thread unless said otherwise. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct error;
struct rpc_call_options;
struct rpc_client;
struct rpc_reader;
struct rpc_stream;

/* Callbacks, all optional except on_status. */
struct rpc_stream_events {
    /* A message, decoded and validated. Borrowed for the callback, or, with takes_messages,
     * owned by the callback (rpc_message_free). The next message is read after the return,
     * unless reads are paused. */
    void (*on_message)(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message);
    bool takes_messages;
    /* Called after rpc_stream_send refused a message: half of max_pending_bytes is free again. */
    void (*on_writable)(void *arg, struct rpc_stream *stream);
    /* The end: status->status is 0 or the error. Called exactly once, as the last callback. */
    void (*on_status)(void *arg, struct rpc_stream *stream, const struct error *status);
};

/* Starts a streaming call. `request` is the request of a server-streaming method, and NULL for a
 * bidirectional method. `events` is borrowed until on_status. *out_stream is owned (release).
 * Callbacks may come before the return. After a negative return there are none. */
int rpc_stream_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request,
                    const struct rpc_call_options *options, const struct rpc_stream_events *events,
                    void *arg, struct rpc_stream **out_stream, struct error *err);

void rpc_stream_retain(struct rpc_stream *stream);
/* Releasing the last reference cancels a live stream; its callbacks still come. */
void rpc_stream_release(struct rpc_stream *stream); /* NULL is accepted */

/* Like rpc_call_send: 0, RESOURCE_EXHAUSTED (on_writable follows) or CANCELLED (the stream has
 * ended). */
int rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message);
/* Half-closes the stream after the queued messages. */
void rpc_stream_close_send(struct rpc_stream *stream);
/* Cancels the stream; on_status follows with CANCELLED unless the stream had ended. */
void rpc_stream_cancel(struct rpc_stream *stream);

void rpc_stream_pause_reads(struct rpc_stream *stream);
void rpc_stream_resume_reads(struct rpc_stream *stream);
size_t rpc_stream_pending_bytes(struct rpc_stream *stream);
size_t rpc_stream_pending_messages(struct rpc_stream *stream);

/* Opens a streaming call that one thread reads; `request` is NULL for a bidirectional method. */
int rpc_reader_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request,
                    const struct rpc_call_options *options, struct rpc_reader **out_reader,
                    struct error *err);
/* Waits for the next message. Returns 0 and *out_message (owned, rpc_message_free), 0 and NULL
 * after an OK end, or the stream's error. */
int rpc_reader_next(struct rpc_reader *reader, ProtobufCMessage **out_message, struct error *err);
/* Bidirectional calls, from any thread: waits while more than the client's max_pending_bytes is
 * unsent. CANCELLED, or the call's error. */
int rpc_reader_send(struct rpc_reader *reader, const ProtobufCMessage *message, struct error *err);
void rpc_reader_close_send(struct rpc_reader *reader); /* half-closes the call */
/* Any thread, even while another thread waits in rpc_reader_next. */
void rpc_reader_cancel(struct rpc_reader *reader);
void rpc_reader_close(struct rpc_reader *reader); /* NULL is accepted */
