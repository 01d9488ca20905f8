#include "proto/rpc/server/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>

#include "base/clock.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/message/status.h"
#include "proto/rpc/server/call_internal.h"

enum { HPACK_OVERHEAD = 32 };

static void on_close(struct rpc_tag *tag, bool ok);
static void on_sent(struct rpc_tag *tag, bool ok);
static void on_wake(struct rpc_tag *tag, bool ok);

/* --- creation and destruction --- */

/* The client's clock starts first. gRPC also rounds time-outs up: those of 1 s and more to a
 * multiple of 10 ms. From 10 s on the step is 100 ms, from 100 s on it is 1 s. So the client's
 * deadline passes before ours. A fiftieth is twice the coarsest rounding; 10 ms are for the
 * network. */
static int64_t deadline_slack_ns(int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - clock_now_ns();
    return 10 * NS_PER_MS + (deadline_ns == INT64_MAX || left_ns < 0 ? 0 : left_ns / 50);
}

/* Metadata over the limit is only counted: the call is refused for it later. */
static bool copy_metadata(struct rpc_call *call, const grpc_metadata_array *metadata,
                          size_t max_bytes)
{
    size_t n_bytes = 1;
    for (size_t i = 0; i < metadata->count; i++) {
        size_t n_text = GRPC_SLICE_LENGTH(metadata->metadata[i].key) +
                        GRPC_SLICE_LENGTH(metadata->metadata[i].value);
        n_bytes += n_text + 2;
        call->n_metadata_bytes += n_text + HPACK_OVERHEAD;
    }
    if (call->n_metadata_bytes > max_bytes)
        return true;
    call->headers = calloc(metadata->count + 1, sizeof(*call->headers));
    call->header_bytes = malloc(n_bytes);
    if (call->headers == NULL || call->header_bytes == NULL)
        return false;
    char *at = call->header_bytes;
    for (size_t i = 0; i < metadata->count; i++) {
        const grpc_slice *parts[2] = {&metadata->metadata[i].key, &metadata->metadata[i].value};
        const char *copies[2];
        for (size_t j = 0; j < 2; j++) {
            size_t n = GRPC_SLICE_LENGTH(*parts[j]);
            memcpy(at, GRPC_SLICE_START_PTR(*parts[j]), n);
            at[n] = '\0';
            copies[j] = at;
            at += n + 1;
        }
        call->headers[i] =
            (struct rpc_call_header){copies[0], copies[1], GRPC_SLICE_LENGTH(*parts[1])};
    }
    call->n_headers = metadata->count;
    return true;
}

static void destroy(struct rpc_call *call)
{
    for (size_t i = 0; i < call->n_trailers; i++) {
        grpc_slice_unref(call->trailers[i].key);
        grpc_slice_unref(call->trailers[i].value);
    }
    rpc_message_free(call->request);
    free(call->headers);
    free(call->header_bytes);
    free(call->peer);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

/* Refuses a call for which memory is exhausted. */
static void turn_away(grpc_call *core)
{
    grpc_call_cancel_with_status(core, GRPC_STATUS_RESOURCE_EXHAUSTED, "the server has no memory",
                                 NULL);
    grpc_call_unref(core);
}

struct rpc_call *rpc_call_create(struct rpc_server *server, struct rpc_lane *lane, grpc_call *core,
                                 const grpc_call_details *details,
                                 const grpc_metadata_array *metadata,
                                 const struct rpc_server_config *config)
{
    struct rpc_call *call = calloc(1, sizeof(*call));
    if (call == NULL) {
        turn_away(core);
        return NULL;
    }
    call->server = server;
    call->lane = lane;
    call->core = core;
    call->max_pending_bytes = config->max_pending_bytes;
    call->deadline_ns = rpc_core_deadline_ns(details->deadline);
    call->deadline_slack_ns = deadline_slack_ns(call->deadline_ns);
    atomic_init(&call->n_refs, 1);
    pthread_mutex_init(&call->lock, NULL);
    rpc_tag_init(&call->close_tag, on_close, call);
    rpc_tag_init(&call->read_tag, rpc_call_on_read, call);
    rpc_tag_init(&call->send_tag, on_sent, call);
    rpc_tag_init(&call->wake_tag, on_wake, call);
    snprintf(call->path, sizeof(call->path), "%.*s", (int)GRPC_SLICE_LENGTH(details->method),
             (const char *)GRPC_SLICE_START_PTR(details->method));
    char *peer = grpc_call_get_peer(core);
    call->peer_known = rpc_peer_parse(peer, &call->peer_ids);
    call->peer = strdup(call->peer_known ? "unix:" : peer);
    gpr_free(peer);
    if (call->peer == NULL || !copy_metadata(call, metadata, config->max_metadata_bytes)) {
        turn_away(core);
        destroy(call);
        return NULL;
    }
    return call;
}

void rpc_call_retain(struct rpc_call *call)
{
    atomic_fetch_add_explicit(&call->n_refs, 1, memory_order_relaxed);
}

void rpc_call_release(struct rpc_call *call)
{
    if (call == NULL || atomic_fetch_sub_explicit(&call->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    destroy(call);
}

static int final_code(const struct rpc_call *call)
{
    if (call->oversized)
        return status_to_grpc(STATUS_RESOURCE_EXHAUSTED);
    if (!call->peer_cancelled || call->aborted)
        return status_to_grpc(call->status.status);
    bool expired = call->deadline_ns != INT64_MAX &&
                   clock_now_ns() >= call->deadline_ns - call->deadline_slack_ns;
    return status_to_grpc(expired ? STATUS_DEADLINE_EXCEEDED : STATUS_CANCELLED);
}

void rpc_call_end_if_over(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    bool over =
        call->closed && !call->send_in_flight && !call->reading && !call->waking && !call->done;
    grpc_call *core = over ? call->core : NULL;
    if (over) {
        call->done = true;
        call->dead = true;
        call->core = NULL;
        rpc_queue_clear(&call->queue);
    }
    pthread_mutex_unlock(&call->lock);
    if (!over)
        return;
    if (call->events != NULL && call->events->on_done != NULL)
        call->events->on_done(call->events_arg, call);
    grpc_call_unref(core);
    rpc_server_call_done(call->server, call, final_code(call));
    rpc_call_release(call);
}

void rpc_call_watch_close(struct rpc_call *call)
{
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->peer_cancelled;
    if (!rpc_core_start(call->core, &op, 1, &call->close_tag))
        call->closed = true;
}

static void on_close(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->object;
    (void)ok;
    pthread_mutex_lock(&call->lock);
    call->closed = true;
    bool cancelled = call->peer_cancelled != 0 || call->aborted;
    if (cancelled) {
        call->dead = true;
        rpc_queue_clear(&call->queue);
    }
    pthread_mutex_unlock(&call->lock);
    if (cancelled && call->events != NULL && call->events->on_cancel != NULL) {
        call->events->on_cancel(call->events_arg, call);
    }
    rpc_call_end_if_over(call);
}

/* --- sending --- */

/* Fills the status op. The caller's variables keep the slices alive until the batch is started. */
static void add_status_op(struct rpc_call *call, grpc_op *op, grpc_metadata *metadata,
                          grpc_slice *message, grpc_slice *details)
{
    void *bytes = NULL;
    size_t n_bytes = 0;
    size_t n_metadata = 0;
    char pushback[16];
    for (size_t i = 0; i < call->n_trailers; i++) {
        metadata[n_metadata].key = call->trailers[i].key;
        metadata[n_metadata++].value = call->trailers[i].value;
    }
    if (call->status.status != 0)
        rpc_status_pack(&call->status, &bytes, &n_bytes);
    *message = grpc_slice_from_copied_string(call->status.message);
    *details = grpc_slice_from_copied_buffer(bytes, n_bytes);
    free(bytes);
    if (call->status.status != 0 && call->status.retry_after_ms > 0) {
        snprintf(pushback, sizeof(pushback), "%u", call->status.retry_after_ms);
        metadata[n_metadata].key = grpc_slice_from_static_string("grpc-retry-pushback-ms");
        metadata[n_metadata++].value = grpc_slice_from_copied_buffer(pushback, strlen(pushback));
    }
    if (n_bytes > 0) {
        metadata[n_metadata].key = grpc_slice_from_static_string("grpc-status-details-bin");
        metadata[n_metadata++].value = *details;
    }
    op->data.send_status_from_server.status = (grpc_status_code)status_to_grpc(call->status.status);
    op->data.send_status_from_server.status_details = message;
    op->data.send_status_from_server.trailing_metadata = metadata;
    op->data.send_status_from_server.trailing_metadata_count = n_metadata;
}

static grpc_op *add_op(grpc_op *ops, size_t *n_ops, grpc_op_type type)
{
    grpc_op *op = &ops[(*n_ops)++];
    memset(op, 0, sizeof(*op));
    op->op = type;
    return op;
}

static bool start_last(struct rpc_call *call, grpc_op *ops, size_t n_ops)
{
    grpc_metadata metadata[RPC_CALL_MAX_TRAILERS + 2];
    grpc_slice message = grpc_empty_slice(), details = grpc_empty_slice();
    memset(metadata, 0, sizeof(metadata));
    add_status_op(call, add_op(ops, &n_ops, GRPC_OP_SEND_STATUS_FROM_SERVER), metadata, &message,
                  &details);
    bool started = rpc_core_start(call->core, ops, n_ops, &call->send_tag);
    grpc_slice_unref(message);
    grpc_slice_unref(details);
    return started;
}

/* Starts one batch: initial metadata if not yet sent, a message if there is one, the status at
 * the end. */
static void start_send(struct rpc_call *call, grpc_byte_buffer *buffer, size_t n_bytes, bool end)
{
    grpc_op ops[3];
    size_t n_ops = 0;
    if (!call->headers_sent)
        add_op(ops, &n_ops, GRPC_OP_SEND_INITIAL_METADATA);
    if (buffer != NULL)
        add_op(ops, &n_ops, GRPC_OP_SEND_MESSAGE)->data.send_message.send_message = buffer;
    call->headers_sent = true;
    call->status_sent = end;
    call->n_in_flight_bytes = n_bytes;
    call->n_sends++;
    call->send_in_flight = end ? start_last(call, ops, n_ops)
                               : rpc_core_start(call->core, ops, n_ops, &call->send_tag);
    if (!call->send_in_flight)
        call->dead = true;
    if (buffer != NULL) {
        grpc_byte_buffer_destroy(buffer);
        rpc_server_count_message(call->server, false, n_bytes);
    }
}

static bool answers_once(const struct rpc_call *call)
{
    return call->route != NULL && (call->route->method->shape == RPC_SHAPE_UNARY ||
                                   call->route->method->shape == RPC_SHAPE_CLIENT_STREAM);
}

void rpc_out_put(struct rpc_out *out, const ProtobufCMessage *message)
{
    if (out->buffer == NULL)
        out->buffer = rpc_core_pack(message, &out->n_bytes);
}

void rpc_out_finish(struct rpc_out *out, const struct error *status)
{
    if (out->finished)
        return;
    out->finished = true;
    if (status != NULL)
        out->status = *status;
    else
        error_clear(&out->status);
}

/* Under the lock: sends the next message if nothing is in flight. */
static void pump(struct rpc_call *call)
{
    if (call->dead || call->send_in_flight || call->status_sent)
        return;
    size_t n_bytes = 0;
    grpc_byte_buffer *buffer = rpc_queue_pop(&call->queue, &n_bytes);
    if (buffer == NULL && !call->ended && call->events != NULL && call->events->next != NULL) {
        struct rpc_out out;
        rpc_out_init(&out);
        call->events->next(call->events_arg, &out);
        buffer = out.buffer;
        n_bytes = out.n_bytes;
        call->queue.pending_bytes += n_bytes;
        if (out.finished) {
            call->ended = true;
            call->status = out.status;
        }
    }
    bool end = call->ended && call->queue.head == NULL;
    call->has_messages |= buffer != NULL;
    if (end && call->status.status == 0 && !call->has_messages && answers_once(call))
        error_set(&call->status, STATUS_INTERNAL, "%s ended without an answer", call->path);
    if (buffer != NULL || end || (call->wants_headers && !call->headers_sent))
        start_send(call, buffer, n_bytes, end);
}

static void on_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->object;
    pthread_mutex_lock(&call->lock);
    call->send_in_flight = false;
    bool writable = rpc_queue_sent(&call->queue, call->n_in_flight_bytes, call->max_pending_bytes);
    call->n_in_flight_bytes = 0;
    if (ok) {
        pump(call);
    } else {
        call->dead = true;
        rpc_queue_clear(&call->queue);
    }
    writable = writable && !call->dead && !call->ended;
    bool closed = call->closed; /* changed by this thread only */
    pthread_mutex_unlock(&call->lock);
    if (writable && call->events != NULL && call->events->on_writable != NULL) {
        call->events->on_writable(call->events_arg, call);
    }
    if (ok && call->events != NULL && call->events->on_taken != NULL) {
        call->events->on_taken(call->events_arg, call);
    }
    if (closed)
        rpc_call_end_if_over(call);
}

static int queue_message(struct rpc_call *call, const ProtobufCMessage *message, bool finish)
{
    size_t n_bytes = 0;
    int status = STATUS_CANCELLED;
    grpc_byte_buffer *buffer = rpc_core_pack(message, &n_bytes);
    pthread_mutex_lock(&call->lock);
    bool alone = call->queue.pending_bytes == 0;
    if (call->dead || call->ended) {
        grpc_byte_buffer_destroy(buffer);
    } else if (!rpc_queue_push(&call->queue, buffer, n_bytes, call->max_pending_bytes)) {
        /* An exhausted memory must not leave the client waiting. An empty queue refuses only for
         * that reason, and no send is under way that on_writable could follow. */
        status = STATUS_RESOURCE_EXHAUSTED;
        call->ended = finish || alone;
        if (call->ended)
            error_set(&call->status, status, "no memory for the answer");
        pump(call);
    } else {
        status = 0;
        call->ended = finish;
        pump(call);
    }
    pthread_mutex_unlock(&call->lock);
    return status;
}

int rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    return queue_message(call, message, false);
}

int rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message)
{
    return queue_message(call, message, true);
}

int rpc_call_finish(struct rpc_call *call, const struct error *status)
{
    int result = STATUS_CANCELLED;
    pthread_mutex_lock(&call->lock);
    if (!call->dead && !call->ended) {
        call->ended = true;
        if (status != NULL)
            call->status = *status;
        pump(call);
        result = 0;
    }
    pthread_mutex_unlock(&call->lock);
    return result;
}

/* Under the lock: lets the lane's thread pump the call. */
static void hand_over(struct rpc_call *call)
{
    if (call->dead || call->send_in_flight || call->status_sent || call->kicked)
        return;
    call->kicked = true;
    rpc_call_retain(call);
    if (rpc_lane_add(call->lane, call))
        call->waking = rpc_core_start(call->core, NULL, 0, &call->wake_tag);
}

void rpc_call_kick(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    if (!call->done && rpc_lane_is_mine(call->lane))
        pump(call);
    else
        hand_over(call);
    pthread_mutex_unlock(&call->lock);
}

void rpc_call_send_headers(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->wants_headers = true;
    bool sent = call->headers_sent;
    pthread_mutex_unlock(&call->lock);
    if (!sent)
        rpc_call_kick(call);
}

void rpc_call_pump_kicked(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->kicked = false;
    pump(call);
    pthread_mutex_unlock(&call->lock);
    rpc_call_release(call);
}

static void on_wake(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->object;
    (void)ok;
    rpc_call_retain(call); /* the lane's reference may be the last */
    /* Cleared while the lane is awake: once it sleeps, the next kick may use this call to wake
     * it. */
    pthread_mutex_lock(&call->lock);
    call->waking = false;
    pthread_mutex_unlock(&call->lock);
    rpc_lane_pump(call->lane);
    rpc_call_end_if_over(call);
    rpc_call_release(call);
}

/* --- ends from outside --- */

bool rpc_call_is_stuck(struct rpc_call *call, int64_t now_ns, int64_t limit_ns)
{
    pthread_mutex_lock(&call->lock);
    bool in_flight = call->send_in_flight && !call->dead;
    if (!in_flight || !call->seen_ns || call->n_sends != call->n_sends_seen) {
        call->n_sends_seen = call->n_sends;
        call->seen_ns = in_flight ? now_ns : 0;
    }
    bool stuck = in_flight && now_ns - call->seen_ns > limit_ns;
    pthread_mutex_unlock(&call->lock);
    return stuck;
}

void rpc_call_refuse(struct rpc_call *call, const struct error *status)
{
    rpc_call_finish(call, status);
    rpc_call_end_if_over(call);
}

static void abort_call(struct rpc_call *call, const struct error *status, bool overtake)
{
    pthread_mutex_lock(&call->lock);
    if (!call->dead && (!call->status_sent || call->send_in_flight)) {
        rpc_queue_clear(&call->queue);
        if (call->status.status == 0) /* also after an OK end, which has not arrived */
            call->status = *status;
        call->aborted = true;
        call->ended = true;
        if (call->send_in_flight && overtake) {
            /* The message is stuck in flow control: only a cancel overtakes it. A cancel carries
             * code and message, but no details. */
            call->dead = true;
            grpc_call_cancel_with_status(call->core,
                                         (grpc_status_code)status_to_grpc(call->status.status),
                                         call->status.message, NULL);
        }
        pump(call);
    }
    pthread_mutex_unlock(&call->lock);
}

void rpc_call_abort(struct rpc_call *call, const struct error *status)
{
    abort_call(call, status, true);
}

void rpc_call_abort_behind(struct rpc_call *call, const struct error *status)
{
    abort_call(call, status, false);
}

int rpc_call_result(const struct rpc_call *call)
{
    return status_from_grpc(final_code(call));
}
