/* output.h: tables, JSON and human units on stdout. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/format.h"
#include "sluice/manager/v1/types.pb-c.h"

struct error;

enum { OUTPUT_TABLE_MAX_COLUMNS = 13 };

/* Rows of cells, aligned when printed. Cells are copied. */
struct output_table {
    size_t n_columns, n_rows, capacity;
    char **cells;
};

void output_table_init(struct output_table *table, size_t n_columns, const char *const *headers);
void output_table_add(struct output_table *table, const char *const *cells);
void output_table_print(const struct output_table *table);
void output_table_fini(struct output_table *table);

/* How long ago that was: "1.2 s", "3 min"; "-" for never. Returns out. */
const char *output_age(int64_t unix_ns, char out[32]);

/* The message as JSON with the field names of the .proto (64-bit numbers as numbers, bytes as
 * base64, enums by name, absent optionals and empty repeated fields left out); one line with a
 * newline. */
void output_json(const ProtobufCMessage *message);
/* {"error":{"code":"NOT_FOUND","reason":"MODEL_NOT_FOUND","field":"","message":"..."}} and a
 * newline on stderr.
 */
void output_json_error(const struct error *err);
/* Sends what was printed on its way. Fails, naming `what`, where stdout takes no more; the reason
 * STDOUT_CLOSED: whoever read it has gone. */
int output_flush(const char *what, struct error *err);
/* Name of an enum value without its common prefix, lower case: REPLICA_STATE_READY → "ready". */
const char *output_enum(const ProtobufCEnumDescriptor *descriptor, int value, char out[32]);

/* The share of a replica's KV pool that requests and their cached prefixes hold, 0 to 1. Negative
 * where the replica has not reported a pool. */
double output_kv_used(const Sluice__Manager__V1__Replica *replica);
/* "37 %", or "-". Returns out. */
const char *output_kv_text(const Sluice__Manager__V1__Replica *replica, char out[16]);
/* "ready", "failed CRASH_LOOP". Returns out. */
const char *output_replica_state(const Sluice__Manager__V1__Replica *replica, char out[80]);
