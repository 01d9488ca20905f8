#include "proto/rpc/server/table.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "proto/rpc/message/schema.h"
#include "proto/rpc/server/call_internal.h"
#include "proto/rpc/server/health_internal.h"
#include "proto/rpc/server/reflection.h"

static int check_row(const struct rpc_table *table, const struct rpc_service *service,
                     const struct rpc_method *method, struct error *err)
{
    const char *name = service->descriptor->name;
    int shape = rpc_schema_method_shape(table->schema, name, method->name);
    if (shape < 0 || rpc_core_method(service->descriptor, method->name) == NULL)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "%s.%s: no such method in the .proto files", name, method->name);
    if (shape != (int)method->shape)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "%s.%s: the handler table has shape %d, the .proto file %d", name,
                         method->name, (int)method->shape, shape);
    if (method->handle == NULL)
        return error_set(err, STATUS_FAILED_PRECONDITION, "%s.%s has no handler", name,
                         method->name);
    return 0;
}

static int add_route(struct rpc_table *table, const struct rpc_service *service,
                     const struct rpc_method *method, bool built_in, struct error *err)
{
    char path[RPC_CALL_MAX_METHOD];
    int rc = check_row(table, service, method, err);
    if (rc != 0)
        return rc;
    snprintf(path, sizeof(path), "/%s/%s", service->descriptor->name, method->name);
    if (hash_map_get_str(&table->by_path, path) != NULL)
        return error_set(err, STATUS_FAILED_PRECONDITION, "%s has two handlers", path);
    struct rpc_route *route = &table->routes[table->n_routes++];
    *route = (struct rpc_route){method, rpc_core_method(service->descriptor, method->name),
                                service->context, built_in};
    if (!hash_map_put_str(&table->by_path, path, route))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the method table");
    return 0;
}

static int add_service(struct rpc_table *table, const struct rpc_service *service, bool built_in,
                       struct error *err)
{
    char path[RPC_CALL_MAX_METHOD];
    const ProtobufCServiceDescriptor *descriptor = service->descriptor;
    for (size_t i = 0; i < service->n_methods; i++) {
        int rc = add_route(table, service, &service->methods[i], built_in, err);
        if (rc != 0)
            return rc;
    }
    for (unsigned i = 0; i < descriptor->n_methods; i++) {
        snprintf(path, sizeof(path), "/%s/%s", descriptor->name, descriptor->methods[i].name);
        if (hash_map_get_str(&table->by_path, path) == NULL)
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "%s.%s has no row in the handler table", descriptor->name,
                             descriptor->methods[i].name);
    }
    return 0;
}

static int add_built_in(struct rpc_table *table, const struct rpc_service *services,
                        size_t n_services, struct error *err)
{
    const char *names[64];
    size_t n_names = 0;
    int rc = rpc_health_create(&table->health, err);
    if (rc != 0)
        return rc;
    rpc_health_service(table->health, &table->built_in[0]);
    names[n_names++] = table->built_in[0].descriptor->name;
    names[n_names++] = "grpc.reflection.v1.ServerReflection";
    names[n_names++] = "grpc.reflection.v1alpha.ServerReflection";
    for (size_t i = 0; i < n_services && n_names < 64; i++)
        names[n_names++] = services[i].descriptor->name;
    rc = rpc_reflection_create(table->schema, names, n_names, &table->reflection, err);
    if (rc != 0)
        return rc;
    rpc_reflection_services(table->reflection, &table->built_in[1]);
    for (size_t i = 0; i < RPC_TABLE_N_BUILT_IN && rc == 0; i++)
        rc = add_service(table, &table->built_in[i], true, err);
    return rc;
}

int rpc_table_build(struct rpc_table *table, const struct rpc_service *services, size_t n_services,
                    struct error *err)
{
    size_t n_rows = 16;
    int rc = rpc_schema_create(&table->schema, err);
    for (size_t i = 0; i < n_services; i++)
        n_rows += services[i].n_methods;
    table->routes = calloc(n_rows, sizeof(*table->routes));
    if (rc == 0 && table->routes == NULL)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the method table");
    if (rc == 0)
        rc = add_built_in(table, services, n_services, err);
    for (size_t i = 0; i < n_services && rc == 0; i++)
        rc = add_service(table, &services[i], false, err);
    return rc;
}

const struct rpc_route *rpc_table_find(const struct rpc_table *table, const char *path)
{
    return hash_map_get_str(&table->by_path, path);
}

void rpc_table_destroy(struct rpc_table *table)
{
    rpc_health_destroy(table->health);
    rpc_reflection_destroy(table->reflection);
    rpc_schema_destroy(table->schema);
    hash_map_fini(&table->by_path);
    free(table->routes);
}
