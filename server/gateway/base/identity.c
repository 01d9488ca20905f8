#include "server/gateway/base/identity.h"

#include "base/trace.h"
#include "proto/rpc/server/call.h"

const char *gateway_caller(const struct rpc_call *call)
{
    const char *tenant = rpc_call_tenant(call);
    return tenant[0] ? tenant : GATEWAY_ANONYMOUS;
}

void gateway_trace(const struct rpc_call *call, struct trace_context *out_trace)
{
    static const char key[] = "traceparent";
    size_t n = 0;
    const char *text = rpc_call_metadata(call, key, &n);
    trace_accept(rpc_call_n_metadata(call, key) == 1 ? text : NULL, n, out_trace);
}
