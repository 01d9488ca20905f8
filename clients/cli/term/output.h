/* output.h: tables, JSON and human units on stdout. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/format.h"

struct error;

enum { TABLE_MAX_COLUMNS = 13 };

/* Rows of cells, aligned when printed. Cells are copied. */
struct table {
    size_t n_columns, n_rows, capacity;
    char **cells;
};

void table_init(struct table *table, size_t n_columns, const char *const *headers);
void table_add(struct table *table, const char *const *cells);
void table_print(const struct table *table);
void table_fini(struct table *table);

/* How long ago that was: "1.2 s", "3 min"; "-" for never. Returns out. */
const char *format_age(int64_t unix_ns, char out[32]);

/* The message as JSON with the field names of the .proto (64-bit numbers as numbers, bytes as
 * base64, enums by name, absent optionals and empty repeated fields left out); one line with a
 * newline. */
void print_json(const ProtobufCMessage *message);
/* {"error":{"code":"NOT_FOUND","reason":"MODEL_NOT_FOUND","message":"..."}} and a newline on
 * stderr.
 */
void print_json_error(const struct error *err);
/* Sends what was printed on its way. Fails, naming `what`, where stdout takes no more; the reason
 * STDOUT_CLOSED: whoever read it has gone. */
int output_flush(const char *what, struct error *err);
/* Name of an enum value without its common prefix, lower case: REPLICA_STATE_READY → "ready". */
const char *enum_short(const ProtobufCEnumDescriptor *descriptor, int value, char out[32]);
