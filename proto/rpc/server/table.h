/* table.h: finds the handler of a path: the server's services, and health and reflection, which
 * every server has. Built before the first call, read-only afterwards. Private to proto/rpc. */
#pragma once

#include "base/hash_map.h"
#include "proto/rpc/server/server.h"

enum { RPC_TABLE_N_BUILT_IN = 3 };

struct error;
struct rpc_route;

struct rpc_table {
    struct rpc_schema *schema;
    struct rpc_health *health;
    struct rpc_reflection *reflection;
    struct rpc_service built_in[RPC_TABLE_N_BUILT_IN];
    struct rpc_route *routes;
    size_t n_routes;
    struct hash_map by_path;
};

/* Fills a zeroed table; `services` are borrowed until its end. FAILED_PRECONDITION if handlers
 * and .proto files differ. rpc_table_destroy() also frees a partly built table. */
int rpc_table_build(struct rpc_table *table, const struct rpc_service *services, size_t n_services,
                    struct error *err);
void rpc_table_destroy(struct rpc_table *table);
/* Returns NULL if no handler has the path. `path` as in HTTP/2: /package.Service/Method. */
const struct rpc_route *rpc_table_find(const struct rpc_table *table, const char *path);
