/* Messages from the client of a call. */
#include <string.h>

#include <grpc/byte_buffer.h>

#include "proto/rpc/message/message.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/call_internal.h"

enum { BUILT_IN_PENDING_BYTES = 1 << 20 };

/* Under the lock: starts a read batch. */
static void start_read(struct rpc_call *call)
{
    grpc_op op;
    if (call->reading || call->reads_paused || call->half_closed || call->dead || call->closed)
        return;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->read_buffer;
    call->read_buffer = NULL;
    call->reading = rpc_core_start(call->core, &op, 1, &call->read_tag);
}

static bool client_streams(const struct rpc_call *call)
{
    return call->route->method->shape == RPC_SHAPE_BIDI ||
           call->route->method->shape == RPC_SHAPE_CLIENT_STREAM;
}

void rpc_call_dispatch(struct rpc_call *call, const struct rpc_route *route)
{
    call->route = route;
    if (route->built_in)
        call->max_pending_bytes = BUILT_IN_PENDING_BYTES; /* reflection's answers are whole files */
    if (client_streams(call)) {
        route->method->handle(route->context, call, NULL);
    }
    pthread_mutex_lock(&call->lock);
    start_read(call);
    pthread_mutex_unlock(&call->lock);
    rpc_call_end_if_over(call);
}

bool rpc_call_is_overdue(struct rpc_call *call, int64_t now_ns, int64_t limit_ns)
{
    pthread_mutex_lock(&call->lock); /* `reading` also shows that the route is set */
    bool awaits = call->reading && !call->ended && !client_streams(call);
    if (awaits && !call->awaits_ns)
        call->awaits_ns = now_ns;
    bool overdue = awaits && now_ns - call->awaits_ns > limit_ns;
    pthread_mutex_unlock(&call->lock);
    return overdue;
}

static void deliver(struct rpc_call *call, ProtobufCMessage *message)
{
    if (client_streams(call)) {
        if (call->events != NULL && call->events->on_message != NULL)
            call->events->on_message(call->events_arg, call, message);
        rpc_message_free(message);
    } else {
        call->request = message;
        call->route->method->handle(call->route->context, call, message);
    }
}

/* The client half-closed, or a read failed because the call has ended. */
static void end_of_reads(struct rpc_call *call, bool ok)
{
    struct error err;
    bool streams = client_streams(call);
    if (!ok || (call->request != NULL && !streams))
        return;
    if (!streams) {
        error_set(&err, STATUS_INVALID_ARGUMENT, "no %s was sent",
                  call->route->descriptor->input->name);
        rpc_call_finish(call, &err);
    } else if (call->events != NULL && call->events->on_half_close != NULL) {
        call->events->on_half_close(call->events_arg, call);
    }
}

static void read_on(struct rpc_call *call)
{
    if (!client_streams(call))
        return;
    pthread_mutex_lock(&call->lock);
    if (!call->ended)
        start_read(call);
    pthread_mutex_unlock(&call->lock);
}

static void refuse_message(struct rpc_call *call, const struct error *err)
{
    if (client_streams(call) && call->events != NULL && call->events->on_bad_message != NULL) {
        call->events->on_bad_message(call->events_arg, call, err);
        read_on(call);
    } else {
        rpc_call_finish(call, err);
    }
}

void rpc_call_on_read(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->object;
    struct error err;
    ProtobufCMessage *message = NULL;
    size_t n_bytes = 0;
    grpc_byte_buffer *buffer = call->read_buffer;
    call->read_buffer = NULL;
    pthread_mutex_lock(&call->lock);
    call->reading = false;
    call->half_closed = !ok || buffer == NULL;
    bool dead = call->dead;
    pthread_mutex_unlock(&call->lock);

    if (!ok && !dead && grpc_call_failed_before_recv_message(call->core) == 0) {
        call->oversized = true; /* gRPC has ended the call */
        rpc_server_count_limit(call->server, RPC_LIMIT_MESSAGE);
    }
    if (!ok || buffer == NULL) {
        if (buffer != NULL)
            grpc_byte_buffer_destroy(buffer);
        end_of_reads(call, ok && !dead && grpc_call_failed_before_recv_message(call->core) == 0);
    } else if (rpc_core_parse(call->route->descriptor->input, buffer, NULL, &message, &n_bytes,
                              &err) != 0) {
        if (!dead)
            refuse_message(call, &err);
    } else if (dead) {
        rpc_message_free(message);
    } else {
        rpc_server_count_message(call->server, true, n_bytes);
        deliver(call, message);
        read_on(call);
    }
    rpc_call_end_if_over(call);
}

void rpc_call_pause_reads(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->reads_paused = true;
    pthread_mutex_unlock(&call->lock);
}

void rpc_call_resume_reads(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->reads_paused = false;
    if (!call->ended && client_streams(call))
        start_read(call);
    pthread_mutex_unlock(&call->lock);
}
