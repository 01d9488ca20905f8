/* call_sink.h: a call with one request as the sink of one relay: Generate, Complete, and the calls
 * of other protocols (kserve/, vllm/). */
#pragma once

#include <stdbool.h>

struct error;
struct relay;
struct relay_frame;
struct rpc_call;
struct rpc_out;

/* The messages of an RPC. */
struct call_form {
    /* Puts the message for a frame into `out`, and not the end. False if the frame needs none.
     * Under the relay's lock. */
    bool (*put)(void *state, const struct relay *relay, const struct relay_frame *frame,
                struct rpc_out *out);
    /* Optional: names the RPC's own fields in the error that ends the request. */
    void (*name_field)(const void *state, struct error *err);
    void (*destroy)(void *state); /* optional: frees the state */
};

/* Generate and Complete; their state is NULL. */
extern const struct call_form call_sink_generate;

/* Connects a call and a relay: the relay's frames go to the call, and the call's end is reported
 * to the relay. Takes the state, on success only. From the call's handler only.
 * RESOURCE_EXHAUSTED. */
int call_sink_attach(struct rpc_call *call, struct relay *relay, const struct call_form *form,
                     void *state, struct error *err);
