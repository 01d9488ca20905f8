#include "server/gateway/identity.h"

#include "proto/rpc/rpc_call.h"

const char *gateway_caller(const struct rpc_call *call)
{
    const char *tenant = rpc_call_tenant(call);
    return tenant[0] ? tenant : GATEWAY_ANONYMOUS;
}
