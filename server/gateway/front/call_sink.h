/* call_sink.h: a Generate or Complete call as the sink of one relay. */
#pragma once

struct error;
struct relay;
struct rpc_call;

/* Connects a call and a relay: the relay's frames go to the call, and the call's end is reported
 * to the relay. From the call's handler only. RESOURCE_EXHAUSTED. */
int call_sink_attach(struct rpc_call *call, struct relay *relay, struct error *err);
