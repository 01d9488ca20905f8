/* caller.h: who called, for handlers and for what is written of what they did. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/access/role.h"

struct rpc_call;

struct caller {
    const char *name; /* "uid:1001", "tls:NAME" or the tenant of a key; borrowed from the call */
    enum role role;
    bool has_uid; /* came over the unix socket */
    uint32_t uid;
};

void caller_of(const struct rpc_call *call, struct caller *out_caller);
