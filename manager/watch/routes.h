/* routes.h: the route table, and the servers that watch it. Loop thread only, except
 * routes_watch. */
#pragma once

#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct arena;
struct error;
struct routes;
struct rpc_call;

int routes_create(struct fleet *fleet, struct routes **out_routes, struct error *err);
void routes_destroy(struct routes *routes); /* all watches must have ended; NULL is accepted */
void routes_end_watches(struct routes *routes, const struct error *status);

uint64_t routes_generation(const struct routes *routes);

/* Fills in the connected servers of a GetStatus answer, which must be sent at once. */
void routes_fill_status(const struct routes *routes, struct arena *arena,
                        Sluice__Manager__V1__GetStatusResponse *response);

/* Handler of WatchRoutes, on the server thread. `context` is the struct routes. */
void routes_watch(void *context, struct rpc_call *call, const ProtobufCMessage *request);
