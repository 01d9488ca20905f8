/* health_internal.h: creates and serves the health object of a server. Private to proto/rpc. */
#pragma once

#include "proto/rpc/server/health.h"
#include "proto/rpc/server/server.h"

int rpc_health_create(struct rpc_health **out_health, struct error *err);
/* Every call of the service must have ended. NULL is accepted. */
void rpc_health_destroy(struct rpc_health *health);
void rpc_health_service(struct rpc_health *health, struct rpc_service *out_service);
