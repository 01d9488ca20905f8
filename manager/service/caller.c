#include "manager/service/caller.h"

#include "proto/rpc/server/call.h"

void caller_of(const struct rpc_call *call, struct caller *out_caller)
{
    struct caller caller = {.name = rpc_call_tenant(call), .role = rpc_call_role(call)};
    caller.has_uid = rpc_call_peer_uid(call, &caller.uid);
    *out_caller = caller;
}
