/* identity.h: the owner of a call. Request ids, Cancel, reattach, the prefix cache's key and
 * fairness are scoped by the owner's name. Any thread. */
#pragma once

struct rpc_call;

/* The name of callers without credentials; no key may have this name. */
#define GATEWAY_ANONYMOUS "anonymous"

/* Returns the tenant of the call; never empty, at most RPC_MAX_TENANT bytes, printable ASCII;
 * borrowed from the call. */
const char *gateway_caller(const struct rpc_call *call);

/* Fills the trace of the call from the metadata "traceparent". A missing, repeated or invalid
 * value starts a new trace. */
struct trace_context;
void gateway_trace(const struct rpc_call *call, struct trace_context *out_trace);
