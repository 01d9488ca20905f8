/* schema.h: the embedded FileDescriptorSet, indexed, for reflection and for the check of handler
 * tables. Read-only after creation; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct rpc_schema;

enum rpc_shape {
    RPC_SHAPE_UNARY,
    RPC_SHAPE_SERVER_STREAM,
    RPC_SHAPE_CLIENT_STREAM,
    RPC_SHAPE_BIDI,
};

/* Indexes files, services, methods, messages, fields and enums of the set that is linked into
 * this program. */
int rpc_schema_create(struct rpc_schema **out_schema, struct error *err);
void rpc_schema_destroy(struct rpc_schema *schema); /* NULL is accepted */

struct rpc_schema_file {
    const char *name;
    const uint8_t *bytes; /* FileDescriptorProto */
    size_t n_bytes;
    const size_t *imports; /* indices of the imported files */
    size_t n_imports;
};

const struct rpc_schema_file *rpc_schema_file(const struct rpc_schema *schema, size_t i_file);
/* Return the index of a file by name, or of the file that declares a fully qualified symbol;
 * SIZE_MAX: none. */
size_t rpc_schema_find_file(const struct rpc_schema *schema, const char *name);
size_t rpc_schema_find_symbol(const struct rpc_schema *schema, const char *symbol);

bool rpc_schema_is_message(const struct rpc_schema *schema, const char *symbol);

/* Returns the enum rpc_shape of a method; -1 if the service has no such method. */
int rpc_schema_method_shape(const struct rpc_schema *schema, const char *service,
                            const char *method);
