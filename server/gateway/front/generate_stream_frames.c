/* Handles the frames of a GenerateStream's client. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "proto/rpc/server/access.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/identity.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/generation.h"
#include "server/gateway/front/generate_stream.h"
#include "server/gateway/front/service.h"
#include "server/gateway/relay/relay.h"

static int not_found(const char *request_id, struct error *err)
{
    error_set(err, STATUS_NOT_FOUND, "request_id: no live request \"%s\" on this stream",
              request_id);
    return error_reason(err, REASON_REQUEST_NOT_FOUND);
}

/* A stream may outlive its API key. Requests that start on the stream need a valid key. */
static int authorize(const struct generate_stream *stream, struct error *err)
{
    return access_authorize(stream->service->access, stream->call, err);
}

int generate_stream_start(struct generate_stream *stream, const struct relay_params *given,
                          void *answer, struct error *err)
{
    struct service *service = stream->service;
    struct trace_context trace;
    struct relay_params params = *given;
    int64_t deadline_ns = rpc_call_deadline_ns(stream->call);
    struct relay *relay;
    struct stream_member *member;
    params.caller = gateway_caller(stream->call);
    params.trace = &trace;
    if (deadline_ns < params.deadline_ns)
        params.deadline_ns = deadline_ns;
    if (atomic_load(&service->dispatch->relays->leaving)) {
        error_set(err, STATUS_UNAVAILABLE, "the server is going away");
        err->retry_after_ms = 1000;
        return error_reason(err, REASON_DRAINING);
    }
    int rc = authorize(stream, err);
    if (rc)
        return rc;
    gateway_trace(stream->call, &trace);
    rc = generation_open(service->dispatch, &params, &relay, err);
    if (rc)
        return rc;
    rc = generate_stream_add(stream, relay, answer, &member, err);
    if (rc) {
        dispatch_close(relay, rc);
    } else {
        relay_attach(relay, &member->base);
        generation_start(service->dispatch, relay);
        relay_sink_release(&member->base);
    }
    relay_release(relay);
    return rc;
}

static int start(struct generate_stream *stream, const char *request_id,
                 const Sluice__V1__GenerateRequest *frame, struct error *err)
{
    Sluice__V1__GenerateRequest request = *frame;
    const struct relay_params params = {
        .request = &request, .deadline_ns = INT64_MAX, .streams = true};
    request.request_id = (char *)(uintptr_t)request_id;
    return generate_stream_start(stream, &params, NULL, err);
}

/* Reattaches a request to this stream. A request that is already on this stream only goes back
 * to the received tokens. */
static int reattach(struct generate_stream *stream, struct stream_member *member,
                    const char *request_id, const Sluice__V1__ReattachFrame *frame,
                    struct error *err)
{
    struct stream_member *mine = member;
    int rc = authorize(stream, err);
    if (rc)
        return rc;
    struct relay *relay = registry_find(&stream->service->dispatch->relays->registry,
                                        gateway_caller(stream->call), request_id);
    if (relay && member && member->relay != relay) { /* the id belongs to another request by now */
        relay_release(relay);
        relay = NULL;
    }
    if (!relay) {
        error_set(err, STATUS_NOT_FOUND, "request_id: no request \"%s\" to reattach to",
                  request_id);
        return error_reason(err, REASON_REQUEST_NOT_FOUND);
    }
    if (!member)
        rc = generate_stream_add(stream, relay, NULL, &mine, err);
    if (!rc)
        rc = relay_reattach(relay, &mine->base, frame->received, frame->n_received, err);
    if (!member && mine && rc)
        generate_stream_remove(stream, mine);
    /* Another stream took the request over and told its client before this reattach. No client
     * reads this member, so the request waits for the next reattach. */
    if (!rc && !generate_stream_has(stream, mine))
        dispatch_sink_gone(relay, &mine->base, STATUS_CANCELLED);
    else if (!rc)
        relay_tell(relay);
    if (!member && mine)
        relay_sink_release(&mine->base);
    relay_release(relay);
    return rc;
}

static int update(struct generate_stream *stream, struct relay *relay,
                  const Sluice__V1__UpdateFrame *frame, struct error *err)
{
    struct limit_check check = {.limits = stream->service->dispatch->relays->limits};
    int rc = validate_update(frame, &check, err);
    if (check.over != LIMIT_NONE)
        counters_refusal(stream->service->dispatch->relays->counters, check.over);
    return rc ? rc : relay_update(relay, frame, err);
}

/* Applies a frame to a request of this stream. */
static int change(struct generate_stream *stream, struct relay *relay,
                  const Sluice__V1__GenerateStreamRequest *frame, struct error *err)
{
    struct error why;
    switch (frame->frame_case) {
    case SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CANCEL:
        error_set(&why, STATUS_CANCELLED, "cancelled by a frame of its stream");
        dispatch_cancel(relay, &why);
        return 0;
    case SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_UPDATE:
        return update(stream, relay, frame->update, err);
    case SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CREDIT:
        return relay_credit(relay, frame->credit->n_tokens, err);
    default:
        return relay_pause_by_client(
            relay, frame->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_PAUSE, err);
    }
}

void generate_stream_on_frame(struct generate_stream *stream, const ProtobufCMessage *message)
{
    const Sluice__V1__GenerateStreamRequest *frame =
        (const Sluice__V1__GenerateStreamRequest *)message;
    struct stream_member *member = NULL;
    struct error err;
    const char *id;
    int rc = validate_frame(frame, &id, &err);
    if (id[0])
        member = generate_stream_find(stream, id);
    if (rc)
        ;
    else if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_START)
        rc = start(stream, id, frame->start, &err);
    else if (frame->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_REATTACH)
        rc = reattach(stream, member, id, frame->reattach, &err);
    else if (!member)
        rc = not_found(id, &err);
    else
        rc = change(stream, member->relay, frame, &err);
    /* A request that has just ended still counts as live: the rest of its answer follows. */
    if (rc)
        generate_stream_refuse(stream, id, &err, member);
    if (member)
        relay_sink_release(&member->base);
}
