/* reflection.h: grpc.reflection.v1 and v1alpha (the same bytes under two names), from the
 * embedded descriptor set. Lists the services of this server. Used by server.c only. */
#pragma once

#include "proto/rpc/server/server.h"

struct rpc_reflection;
struct rpc_schema;

/* `schema` and the names are borrowed until destroy. */
int rpc_reflection_create(const struct rpc_schema *schema, const char *const *service_names,
                          size_t n_services, struct rpc_reflection **out_reflection,
                          struct error *err);
void rpc_reflection_destroy(struct rpc_reflection *reflection); /* NULL is accepted */

/* Fills the two services; their context is the reflection. */
void rpc_reflection_services(struct rpc_reflection *reflection, struct rpc_service out_services[2]);
