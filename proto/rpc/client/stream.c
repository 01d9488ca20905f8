#include "proto/rpc/client/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/client/client_internal.h"
#include "proto/rpc/core/core.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/message/status.h"

/* MAX_ARENA_BYTES: memory kept between messages. */
enum { ARENA_BYTES = 16 << 10, MAX_ARENA_BYTES = 1 << 20 };

/* References: one for the user, one for the batches (dropped after on_status). The client's list
 * has none, because a stream leaves the list before that reference is dropped. */
struct rpc_stream {
    struct rpc_live live; /* first member: see rpc_stream_cancel_live */
    struct rpc_client *client;
    const ProtobufCMessageDescriptor *output;
    const struct rpc_stream_events *events;
    void *arg;
    size_t max_pending_bytes;
    atomic_uint n_refs;      /* all references */
    atomic_uint n_user_refs; /* part of n_refs: references of the user */
    struct rpc_tag send_tag, read_tag, status_tag;

    /* filled by the status batch */
    grpc_metadata_array initial_metadata, trailing_metadata;
    grpc_status_code code;
    grpc_slice details;
    grpc_byte_buffer *read_buffer;
    struct arena arena; /* client thread only: memory of the message lent to on_message */

    pthread_mutex_t lock; /* protects everything below, and the start of batches */
    grpc_call *core;      /* NULL after the end */
    struct rpc_queue queue;
    size_t n_in_flight_bytes;
    bool send_in_flight, reading, reads_paused, end_of_messages;
    bool close_wanted, close_sent;
    bool status_known; /* the status batch has completed */
    bool over;
    struct error local; /* a fault found on this side; it takes precedence over the peer's status */
};

static void on_sent(struct rpc_tag *tag, bool ok);
static void on_read(struct rpc_tag *tag, bool ok);
static void on_peer_status(struct rpc_tag *tag, bool ok);

static void destroy(struct rpc_stream *stream)
{
    grpc_metadata_array_destroy(&stream->initial_metadata);
    grpc_metadata_array_destroy(&stream->trailing_metadata);
    grpc_slice_unref(stream->details);
    arena_fini(&stream->arena);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

static void drop(struct rpc_stream *stream)
{
    if (atomic_fetch_sub_explicit(&stream->n_refs, 1, memory_order_acq_rel) == 1)
        destroy(stream);
}

void rpc_stream_retain(struct rpc_stream *stream)
{
    atomic_fetch_add_explicit(&stream->n_user_refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->n_refs, 1, memory_order_relaxed);
}

void rpc_stream_release(struct rpc_stream *stream)
{
    if (stream == NULL)
        return;
    if (atomic_fetch_sub_explicit(&stream->n_user_refs, 1, memory_order_acq_rel) == 1)
        rpc_stream_cancel(stream);
    drop(stream);
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    if (stream->core != NULL && !stream->status_known)
        grpc_call_cancel(stream->core, NULL);
    pthread_mutex_unlock(&stream->lock);
}

void rpc_stream_cancel_live(struct rpc_live *live)
{
    rpc_stream_cancel((struct rpc_stream *)live);
}

/* Client thread only: reports the end once nothing is outstanding. */
static void end_if_over(struct rpc_stream *stream)
{
    struct error status;
    pthread_mutex_lock(&stream->lock);
    bool over =
        stream->status_known && !stream->send_in_flight && !stream->reading && !stream->over;
    grpc_call *core = over ? stream->core : NULL;
    if (over) {
        stream->over = true;
        stream->core = NULL;
        rpc_queue_clear(&stream->queue);
    }
    status = stream->local;
    pthread_mutex_unlock(&stream->lock);
    if (!over)
        return;
    if (status.status == 0) {
        const grpc_metadata_array *trailers = &stream->trailing_metadata;
        const void *details = NULL;
        size_t n_details = 0;
        for (size_t i = 0; i < trailers->count; i++) {
            if (grpc_slice_str_cmp(trailers->metadata[i].key, "grpc-status-details-bin") != 0)
                continue;
            details = GRPC_SLICE_START_PTR(trailers->metadata[i].value);
            n_details = GRPC_SLICE_LENGTH(trailers->metadata[i].value);
        }
        rpc_status_unpack((int)stream->code, (const char *)GRPC_SLICE_START_PTR(stream->details),
                          GRPC_SLICE_LENGTH(stream->details), details, n_details, &status);
    }
    stream->events->on_status(stream->arg, stream, &status);
    grpc_call_unref(core);
    rpc_client_leave(stream->client, &stream->live);
    drop(stream);
}

static void on_peer_status(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->object;
    (void)ok;
    pthread_mutex_lock(&stream->lock);
    stream->status_known = true;
    pthread_mutex_unlock(&stream->lock);
    end_if_over(stream);
}

/* --- sending --- */

/* Under the lock: starts a send batch. */
static void start_send(struct rpc_stream *stream, grpc_byte_buffer *buffer, size_t n_bytes,
                       bool close)
{
    grpc_op ops[2];
    size_t n_ops = 0;
    memset(ops, 0, sizeof(ops));
    if (buffer != NULL) {
        ops[n_ops].op = GRPC_OP_SEND_MESSAGE;
        ops[n_ops++].data.send_message.send_message = buffer;
    }
    if (close)
        ops[n_ops++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    stream->close_sent |= close;
    stream->n_in_flight_bytes = n_bytes;
    stream->send_in_flight = rpc_core_start(stream->core, ops, n_ops, &stream->send_tag);
    if (buffer != NULL)
        grpc_byte_buffer_destroy(buffer);
}

static void pump(struct rpc_stream *stream)
{
    if (stream->over || stream->status_known || stream->send_in_flight || stream->close_sent)
        return;
    size_t n_bytes = 0;
    grpc_byte_buffer *buffer = rpc_queue_pop(&stream->queue, &n_bytes);
    bool close = stream->close_wanted && stream->queue.head == NULL;
    if (buffer != NULL || close)
        start_send(stream, buffer, n_bytes, close);
}

static void on_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->object;
    pthread_mutex_lock(&stream->lock);
    stream->send_in_flight = false;
    bool writable =
        rpc_queue_sent(&stream->queue, stream->n_in_flight_bytes, stream->max_pending_bytes);
    stream->n_in_flight_bytes = 0;
    if (ok)
        pump(stream);
    writable = writable && ok && !stream->close_wanted && !stream->status_known;
    pthread_mutex_unlock(&stream->lock);
    if (writable && stream->events->on_writable != NULL)
        stream->events->on_writable(stream->arg, stream);
    end_if_over(stream);
}

int rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message)
{
    size_t n_bytes = 0;
    int status = STATUS_CANCELLED;
    grpc_byte_buffer *buffer = rpc_core_pack(message, &n_bytes);
    pthread_mutex_lock(&stream->lock);
    if (stream->over || stream->status_known || stream->close_wanted) {
        grpc_byte_buffer_destroy(buffer);
    } else if (!rpc_queue_push(&stream->queue, buffer, n_bytes, stream->max_pending_bytes)) {
        status = STATUS_RESOURCE_EXHAUSTED;
    } else {
        status = 0;
        pump(stream);
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

void rpc_stream_close_send(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->close_wanted = true;
    pump(stream);
    pthread_mutex_unlock(&stream->lock);
}

size_t rpc_stream_pending_bytes(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    size_t n_bytes = stream->queue.pending_bytes;
    pthread_mutex_unlock(&stream->lock);
    return n_bytes;
}

size_t rpc_stream_pending_messages(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    size_t n = stream->queue.n_messages;
    pthread_mutex_unlock(&stream->lock);
    return n;
}

/* --- receiving --- */

/* Under the lock: starts a read batch. */
static void start_read(struct rpc_stream *stream)
{
    grpc_op op;
    if (stream->reading || stream->reads_paused || stream->end_of_messages || stream->over ||
        stream->core == NULL)
        return;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &stream->read_buffer;
    stream->read_buffer = NULL;
    stream->reading = rpc_core_start(stream->core, &op, 1, &stream->read_tag);
}

static void fail_locally(struct rpc_stream *stream, struct error *err)
{
    pthread_mutex_lock(&stream->lock);
    error_prefix(err, "the server's answer");
    if (err->status != STATUS_RESOURCE_EXHAUSTED ||
        err->reason) /* without a reason: this process has no memory for the answer */
        err->status = STATUS_INTERNAL;
    if (stream->local.status == 0)
        stream->local = *err;
    stream->end_of_messages = true;
    if (stream->core != NULL)
        grpc_call_cancel(stream->core, NULL);
    pthread_mutex_unlock(&stream->lock);
}

/* Resets the memory of the lent message. A message of unusual size does not keep its memory. */
static void reset_arena(struct rpc_stream *stream)
{
    if (stream->arena.used_bytes <= MAX_ARENA_BYTES) {
        arena_reset(&stream->arena);
    } else {
        arena_fini(&stream->arena);
        arena_init(&stream->arena, ARENA_BYTES, 0);
    }
}

static void on_read(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->object;
    struct error err;
    struct arena *arena = stream->events->takes_messages ? NULL : &stream->arena;
    ProtobufCMessage *message = NULL;
    size_t n_bytes = 0;
    grpc_byte_buffer *buffer = stream->read_buffer;
    stream->read_buffer = NULL;
    if (!ok || buffer == NULL) {
        if (buffer != NULL)
            grpc_byte_buffer_destroy(buffer);
    } else if (rpc_core_parse(stream->output, buffer, arena, &message, &n_bytes, &err) != 0) {
        fail_locally(stream, &err);
    } else {
        if (stream->events->on_message != NULL)
            stream->events->on_message(stream->arg, stream, message);
        else if (arena == NULL)
            rpc_message_free(message);
    }
    reset_arena(stream);
    pthread_mutex_lock(&stream->lock);
    stream->reading = false;
    stream->end_of_messages |= !ok || buffer == NULL;
    start_read(stream);
    pthread_mutex_unlock(&stream->lock);
    end_if_over(stream);
}

void rpc_stream_pause_reads(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->reads_paused = true;
    pthread_mutex_unlock(&stream->lock);
}

void rpc_stream_resume_reads(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->reads_paused = false;
    start_read(stream);
    pthread_mutex_unlock(&stream->lock);
}

/* --- opening --- */

static gpr_timespec call_deadline(const struct rpc_call_options *options)
{
    int64_t deadline_ns = INT64_MAX;
    if (options != NULL && options->deadline_ns != 0)
        deadline_ns = options->deadline_ns;
    if (options != NULL && options->timeout_ms != 0) {
        uint64_t timeout_ms = options->timeout_ms < INT32_MAX ? options->timeout_ms : INT32_MAX;
        int64_t end_ns = clock_now_ns() + (int64_t)timeout_ms * NS_PER_MS;
        deadline_ns = end_ns < deadline_ns ? end_ns : deadline_ns;
    }
    return rpc_core_deadline(deadline_ns);
}

/* Checks keys and values. The array borrows the caller's strings until the batch is started,
 * which copies them. */
static int fill_metadata(const struct rpc_client *client, const struct rpc_call_options *options,
                         grpc_metadata **out_metadata, size_t *out_n, struct error *err)
{
    size_t n = options != NULL ? options->n_metadata : 0;
    const char *authorization = rpc_client_authorization(client);
    grpc_metadata *metadata = calloc(n + 1, sizeof(*metadata));
    if (metadata == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for metadata");
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        metadata[i].key = grpc_slice_from_copied_string(options->metadata[i].key);
        metadata[i].value = grpc_slice_from_copied_string(options->metadata[i].value);
        if (rc == 0 && (!grpc_header_key_is_legal(metadata[i].key) ||
                        (!grpc_is_binary_header(metadata[i].key) &&
                         !grpc_header_nonbin_value_is_legal(metadata[i].value))))
            rc = error_set(err, STATUS_INVALID_ARGUMENT, "metadata %.64s: invalid key or value",
                           options->metadata[i].key);
    }
    if (authorization != NULL) {
        metadata[n].key = grpc_slice_from_static_string("authorization");
        metadata[n++].value = grpc_slice_from_copied_string(authorization);
    }
    *out_metadata = metadata;
    *out_n = n;
    return rc;
}

static void free_metadata(grpc_metadata *metadata, size_t n)
{
    for (size_t i = 0; metadata != NULL && i < n; i++) {
        grpc_slice_unref(metadata[i].key);
        grpc_slice_unref(metadata[i].value);
    }
    free(metadata);
}

/* Under the lock: starts the first batches of a call. */
static void start_call(struct rpc_stream *stream, grpc_byte_buffer *request, size_t n_request,
                       const struct rpc_call_options *options, grpc_metadata *metadata,
                       size_t n_metadata)
{
    grpc_op ops[3];
    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &stream->initial_metadata;
    ops[1].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[1].data.recv_status_on_client.trailing_metadata = &stream->trailing_metadata;
    ops[1].data.recv_status_on_client.status = &stream->code;
    ops[1].data.recv_status_on_client.status_details = &stream->details;
    stream->status_known = !rpc_core_start(stream->core, ops, 2, &stream->status_tag);

    memset(ops, 0, sizeof(ops));
    size_t n_ops = 0;
    ops[n_ops].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[n_ops].flags = options != NULL && options->wait_for_ready
                           ? GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                                 GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET
                           : 0;
    ops[n_ops].data.send_initial_metadata.count = n_metadata;
    ops[n_ops++].data.send_initial_metadata.metadata = metadata;
    if (request != NULL) {
        ops[n_ops].op = GRPC_OP_SEND_MESSAGE;
        ops[n_ops++].data.send_message.send_message = request;
        ops[n_ops++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        stream->close_wanted = true;
        stream->close_sent = true;
        stream->n_in_flight_bytes = n_request;
        stream->queue.pending_bytes = n_request;
    }
    stream->send_in_flight = rpc_core_start(stream->core, ops, n_ops, &stream->send_tag);
    start_read(stream);
}

static struct rpc_stream *create(struct rpc_client *client, const ProtobufCMethodDescriptor *method,
                                 const struct rpc_stream_events *events, void *arg)
{
    struct rpc_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return NULL;
    stream->client = client;
    stream->output = method->output;
    stream->events = events;
    stream->arg = arg;
    stream->max_pending_bytes = rpc_client_max_pending(client);
    stream->details = grpc_empty_slice();
    arena_init(&stream->arena, ARENA_BYTES, 0);
    atomic_init(&stream->n_refs, 2);
    atomic_init(&stream->n_user_refs, 1);
    pthread_mutex_init(&stream->lock, NULL);
    grpc_metadata_array_init(&stream->initial_metadata);
    grpc_metadata_array_init(&stream->trailing_metadata);
    rpc_tag_init(&stream->send_tag, on_sent, stream);
    rpc_tag_init(&stream->read_tag, on_read, stream);
    rpc_tag_init(&stream->status_tag, on_peer_status, stream);
    return stream;
}

static void create_core(struct rpc_stream *stream, const char *service, const char *method,
                        const struct rpc_call_options *options)
{
    char path[256];
    snprintf(path, sizeof(path), "/%s/%s", service, method);
    grpc_slice slice = grpc_slice_from_copied_string(path);
    stream->core = grpc_channel_create_call(
        rpc_client_channel(stream->client), NULL, GRPC_PROPAGATE_DEFAULTS,
        rpc_client_queue(stream->client), slice, NULL, call_deadline(options), NULL);
    grpc_slice_unref(slice);
}

int rpc_stream_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request,
                    const struct rpc_call_options *options, const struct rpc_stream_events *events,
                    void *arg, struct rpc_stream **out_stream, struct error *err)
{
    grpc_metadata *metadata = NULL;
    size_t n_metadata = 0, n_request = 0;
    const ProtobufCMethodDescriptor *row = rpc_core_method(service, method);
    if (row == NULL)
        return error_set(err, STATUS_UNIMPLEMENTED, "%s has no method %s", service->name, method);
    int rc = fill_metadata(client, options, &metadata, &n_metadata, err);
    struct rpc_stream *stream = rc == 0 ? create(client, row, events, arg) : NULL;
    if (rc == 0 && stream == NULL)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a call");
    if (rc != 0) {
        free_metadata(metadata, n_metadata);
        return rc;
    }
    if (!rpc_client_enter(client, &stream->live)) {
        destroy(stream);
        free_metadata(metadata, n_metadata);
        return error_set(err, STATUS_CANCELLED, "the client is being closed");
    }
    grpc_byte_buffer *buffer = request != NULL ? rpc_core_pack(request, &n_request) : NULL;
    *out_stream = stream; /* set before any callback can read it */
    pthread_mutex_lock(&stream->lock);
    create_core(stream, service->name, method, options);
    start_call(stream, buffer, n_request, options, metadata, n_metadata);
    pthread_mutex_unlock(&stream->lock);
    if (buffer != NULL)
        grpc_byte_buffer_destroy(buffer);
    free_metadata(metadata, n_metadata);
    return 0;
}
