/* Tokenize, Detokenize and ApplyChatTemplate over gRPC: calls of text_call.h. */
#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/text_call.h"
#include "server/gateway/front/service.h"

/* Answers the client's call, and drops the reference that the text call held. */
static void on_answer(void *arg, const ProtobufCMessage *response, const struct error *err)
{
    struct rpc_call *call = arg;
    if (response)
        rpc_call_reply(call, response);
    else
        rpc_call_finish(call, err);
    rpc_call_release(call);
}

/* Headers keep a proxy from giving the call up. */
static void on_wait(void *arg)
{
    rpc_call_send_headers(arg);
}

static const struct text_call_ops ops = {.answer = on_answer, .waits = on_wait};

/* Cancels the worker's call: a template may take a second of a request thread. */
static void on_cancel(void *arg, struct rpc_call *call)
{
    (void)call;
    text_call_cancel(arg);
}

static void on_done(void *arg, struct rpc_call *call)
{
    (void)call;
    text_call_release(arg);
}

static const struct rpc_call_events events = {.on_cancel = on_cancel, .on_done = on_done};

static void forward_call(struct service *service, struct rpc_call *call, const char *method,
                         const ProtobufCMessage *request, const char *model, const char *version)
{
    const struct text_call_params params = {.method = method,
                                            .request = request,
                                            .model = model,
                                            .version = version,
                                            .deadline_ns = rpc_call_deadline_ns(call),
                                            .ops = &ops,
                                            .arg = call};
    struct text_call *text;
    struct error err;
    if (text_call_create(&service->texts, &params, &text, &err) != 0) {
        rpc_call_finish(call, &err);
        return;
    }
    rpc_call_retain(call); /* on_answer releases it */
    rpc_call_set_events(call, &events, text);
    text_call_start(text);
}

void handle_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)message;
    struct service *service = context;
    struct limit_check check = {.limits = service->dispatch->relays->limits};
    struct error err;
    if (validate_tokenize(request, &check, &err) == 0) {
        forward_call(service, call, "Tokenize", message, request->model, request->version);
        return;
    }
    if (check.over != LIMIT_NONE)
        counters_refusal(service->dispatch->relays->counters, check.over);
    rpc_call_finish(call, &err);
}

void handle_detokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__DetokenizeRequest *request = (const Sluice__V1__DetokenizeRequest *)message;
    struct error err;
    if (validate_detokenize(request, &err) != 0)
        rpc_call_finish(call, &err);
    else
        forward_call(context, call, "Detokenize", message, request->model, request->version);
}

void handle_apply_chat_template(void *context, struct rpc_call *call,
                                const ProtobufCMessage *message)
{
    const Sluice__V1__ApplyChatTemplateRequest *request =
        (const Sluice__V1__ApplyChatTemplateRequest *)message;
    struct service *service = context;
    struct limit_check check = {.limits = service->dispatch->relays->limits};
    struct error err;
    if (validate_apply_chat_template(request, &check, &err) == 0) {
        forward_call(service, call, "ApplyChatTemplate", message, request->model, request->version);
        return;
    }
    if (check.over != LIMIT_NONE)
        counters_refusal(service->dispatch->relays->counters, check.over);
    rpc_call_finish(call, &err);
}
