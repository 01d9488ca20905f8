#include "server/gateway/front/call_sink.h"

#include <stdlib.h>

#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/relay_sink.h"

struct call_sink {
    struct relay_sink base;
    struct rpc_call *call; /* retained */
    struct relay *relay;   /* retained */
    const struct call_form *form;
    void *state; /* owned */
};

static void ready(struct relay_sink *sink)
{
    rpc_call_kick(((struct call_sink *)sink)->call);
}

static void accepted(struct relay_sink *sink)
{
    rpc_call_send_headers(((struct call_sink *)sink)->call);
}

static void cut_off(struct relay_sink *sink, const struct error *status)
{
    rpc_call_abort(((struct call_sink *)sink)->call, status);
}

static void destroy(struct relay_sink *sink)
{
    struct call_sink *self = (struct call_sink *)sink;
    rpc_call_release(self->call);
    if (self->form->destroy)
        self->form->destroy(self->state);
    relay_release(self->relay);
    free(self);
}

static const struct relay_sink_ops ops = {
    .name = "call",
    .ready = ready,
    .accepted = accepted,
    .cut_off = cut_off,
    .taken_over = cut_off,
    .destroy = destroy,
};

static bool put_generate(void *state, const struct relay *relay, const struct relay_frame *frame,
                         struct rpc_out *out)
{
    Sluice__V1__GenerateResponse response = SLUICE__V1__GENERATE_RESPONSE__INIT;
    struct relay_frame copy = *frame; /* the message's fields are not const */
    (void)state;
    (void)relay;
    response.event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT__NOT_SET;
    if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        response.event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT_PROMPT_INFO;
        response.prompt_info = &copy.prompt_info;
    } else if (frame->kind == RELAY_FRAME_TOKENS) {
        response.event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS;
        response.tokens = &copy.tokens;
    } else if (frame->kind == RELAY_FRAME_FINISHED) {
        response.event_case = SLUICE__V1__GENERATE_RESPONSE__EVENT_FINISHED;
        response.finished = &copy.finished;
    }
    if (frame->kind == RELAY_FRAME_WHOLE)
        rpc_out_put(out, &frame->whole->base);
    else if (response.event_case)
        rpc_out_put(out, &response.base);
    return true;
}

const struct call_form call_sink_generate = {.put = put_generate};

struct put {
    struct call_sink *sink;
    struct rpc_out *out;
    bool has_put; /* a message or the end */
};

static void put(void *ctx, const struct relay_frame *frame)
{
    struct put *put = ctx;
    const struct call_sink *sink = put->sink;
    struct error err;
    put->has_put = sink->form->put(sink->state, sink->relay, frame, put->out) || frame->last;
    if (!frame->last)
        return;
    if (frame->error)
        err = *frame->error;
    if (frame->error && sink->form->name_field)
        sink->form->name_field(sink->state, &err);
    rpc_out_finish(put->out, frame->error ? &err : NULL);
}

/* Called when nothing is in flight: flow control has taken the previous message. */
static void on_next(void *arg, struct rpc_out *out)
{
    struct put context = {.sink = arg, .out = out};
    while (!context.has_put &&
           relay_deliver(context.sink->relay, &context.sink->base, put, &context) != RELAY_NOTHING)
        continue;
}

static void on_cancel(void *arg, struct rpc_call *call)
{
    struct call_sink *self = arg;
    struct error why;
    error_set(&why, STATUS_CANCELLED, "the client cancelled or is gone");
    /* A lost connection looks like a cancel. The loss is handled here because on_done may come
     * much later. */
    if (self->relay->window_ms)
        dispatch_sink_gone(self->relay, &self->base, rpc_call_result(call));
    else
        dispatch_cancel(self->relay, &why);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct call_sink *self = arg;
    dispatch_sink_gone(self->relay, &self->base, rpc_call_result(call));
    relay_sink_release(&self->base);
}

static const struct rpc_call_events events = {
    .on_cancel = on_cancel,
    .on_done = on_done,
    .next = on_next,
};

int call_sink_attach(struct rpc_call *call, struct relay *relay, const struct call_form *form,
                     void *state, struct error *err)
{
    struct call_sink *self = calloc(1, sizeof(*self));
    if (!self)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    relay_sink_init(&self->base, &ops);
    self->form = form;
    self->state = state;
    self->call = call;
    rpc_call_retain(call);
    self->relay = relay;
    relay_retain(relay);
    relay_attach(relay, &self->base);
    rpc_call_set_events(call, &events, self); /* on_done drops the first reference */
    return 0;
}
