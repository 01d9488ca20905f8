/* ModelInfer and ModelStreamInfer. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/identity.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/generation.h"
#include "server/gateway/front/call_sink.h"
#include "server/gateway/front/generate_stream.h"
#include "server/gateway/front/service.h"
#include "server/gateway/kserve/kserve.h"
#include "server/gateway/kserve/kserve_output.h"
#include "server/gateway/kserve/kserve_request.h"
#include "server/gateway/relay/relay.h"

static int64_t deadline_of(const struct kserve_request *request, int64_t deadline_ns)
{
    int64_t own_ns = clock_now_ns();
    if (!request->timeout_us || (int64_t)request->timeout_us > (INT64_MAX - own_ns) / 1000)
        return deadline_ns;
    own_ns += (int64_t)request->timeout_us * 1000;
    return own_ns < deadline_ns ? own_ns : deadline_ns;
}

/* --- ModelInfer --- */

static bool put(void *state, const struct relay *relay, const struct relay_frame *frame,
                struct rpc_out *out)
{
    return kserve_output_put(state, relay, frame, out);
}

static void name_field(const void *state, struct error *err)
{
    const struct kserve_answer *answer = state;
    kserve_request_name_field(answer->given, err);
}

static const struct call_form call_form = {.put = put, .name_field = name_field, .destroy = free};

static int start(struct service *service, struct rpc_call *call,
                 const struct kserve_request *request, struct kserve_answer *answer,
                 struct error *err)
{
    struct trace_context trace;
    const struct relay_params params = {.request = &request->generate,
                                        .caller = gateway_caller(call),
                                        .trace = &trace,
                                        .deadline_ns =
                                            deadline_of(request, rpc_call_deadline_ns(call)),
                                        .whole = true};
    struct relay *relay;
    gateway_trace(call, &trace);
    int rc = generation_open(service->dispatch, &params, &relay, err);
    if (rc)
        return rc;
    rc = call_sink_attach(call, relay, &call_form, answer, err);
    if (rc)
        dispatch_close(relay, rc);
    else
        generation_start(service->dispatch, relay);
    relay_release(relay);
    return rc;
}

void kserve_model_infer(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Inference__ModelInferRequest *infer = (const Inference__ModelInferRequest *)message;
    const struct kserve *kserve = context;
    struct kserve_request request;
    struct kserve_answer *answer = NULL;
    struct error err;
    int rc = kserve_request_read(&request, infer, false, &err);
    if (!rc && !(answer = kserve_output_create(&request, infer, false)))
        rc = error_no_memory(&err);
    if (!rc)
        rc = start(kserve->service, call, &request, answer, &err);
    if (rc) {
        kserve_request_name_field(request.given, &err);
        rpc_call_finish(call, &err);
        free(answer);
    }
    kserve_request_fini(&request);
}

/* --- ModelStreamInfer --- */

static void on_message(struct generate_stream *stream, const ProtobufCMessage *message)
{
    const Inference__ModelInferRequest *infer = (const Inference__ModelInferRequest *)message;
    struct kserve_request request;
    struct kserve_answer *answer = NULL;
    struct error err;
    int rc = kserve_request_read(&request, infer, true, &err);
    if (!rc && !(answer = kserve_output_create(&request, infer, true)))
        rc = error_no_memory(&err);
    if (!rc) {
        const struct relay_params params = {.request = &request.generate,
                                            .deadline_ns = deadline_of(&request, INT64_MAX),
                                            .whole = !request.streams,
                                            .streams = true};
        rc = generate_stream_start(stream, &params, answer, &err);
    }
    if (rc) {
        kserve_request_name_field(request.given, &err);
        generate_stream_refuse(stream, infer->id, &err, NULL);
        free(answer);
    }
    kserve_request_fini(&request);
}

static void put_refusal(const struct stream_refusal *refusal, struct rpc_out *out)
{
    kserve_output_put_error(refusal->request_id, &refusal->error, out);
}

static const struct stream_form stream_form = {
    .on_message = on_message, .put = put, .put_refusal = put_refusal, .destroy = free};

void kserve_model_stream_infer(void *context, struct rpc_call *call,
                               const ProtobufCMessage *message)
{
    const struct kserve *kserve = context;
    (void)message;
    generate_stream_open(kserve->service, call, &stream_form);
}
