/* identity.h: who a call belongs to. Everything that is a caller's own (request ids, Cancel,
 * reattach, the prefix cache's key, fairness) is scoped by this name. Any thread. */
#pragma once

struct rpc_call;

/* The name of callers who need not say who they are; no key may carry it. */
#define GATEWAY_ANONYMOUS "anonymous"

/* The tenant of the call; never empty, at most RPC_MAX_TENANT bytes, printable ASCII; borrowed
 * from the call. */
const char *gateway_caller(const struct rpc_call *call);

/* The trace that the call came with (metadata "traceparent"), or a new one: where there is none,
 * more than one, or one that is not valid. */
struct trace_context;
void gateway_trace(const struct rpc_call *call, struct trace_context *out_trace);
