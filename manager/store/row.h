/* row.h: the rows of the state database as messages. Rows are immutable and reference counted,
 * so any thread may hold and read them. */
#pragma once

#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "manager/store/table.h"

struct error;
struct sqlite3_stmt;

struct row; /* immutable once created */

/* Takes `message` in any case. NULL where memory is exhausted. */
struct row *row_create(enum table table, ProtobufCMessage *message, int64_t extra);
struct row *row_retain(struct row *row);
void row_release(struct row *row); /* NULL is accepted */

enum table row_table(const struct row *row);
const char *row_key(const struct row *row);
const ProtobufCMessage *row_message(const struct row *row);
int64_t row_extra(const struct row *row);

/* Binds all columns (key_only: only the key's). RESOURCE_EXHAUSTED where memory is exhausted. */
int row_bind(const struct row *row, struct sqlite3_stmt *stmt, int key_only, struct error *err);
/* Reads the current row of a select; *out_row is owned. DATA_LOSS where a column cannot be
 * decoded. */
int row_read(enum table table, struct sqlite3_stmt *stmt, struct row **out_row, struct error *err);
