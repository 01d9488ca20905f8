/* table.h: the rows of the state database as messages, and one description per table that binds
 * them to SQL. A column is a field of the message of the same name; whatever else the message holds
 * (nested and repeated fields) is packed into the column `detail`, so that every fact has one
 * place. Rows are immutable and reference counted: any thread may hold and read one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct error;
struct sqlite3_stmt;
struct strbuf;

enum table {
    TABLE_MODEL,
    TABLE_MODEL_VERSION,
    TABLE_DEVICE,
    TABLE_DEVICE_GROUP,
    TABLE_DEPLOYMENT,
    TABLE_REPLICA,
    TABLE_TRAFFIC,
    TABLE_OPERATION,
    TABLE_DEVICE_HOLD,
    TABLE_API_KEY,
    N_CATALOG_TABLES,
    TABLE_EVENT = N_CATALOG_TABLES, /* written, never held in memory */
    N_TABLES
};

enum { TABLE_KEY_BYTES = 256, TABLE_MAX_COLUMNS = 20 };

struct table_spec {
    const char *name;
    const ProtobufCMessageDescriptor *descriptor;
    size_t n_key;                           /* the first columns are the primary key */
    const char *columns[TABLE_MAX_COLUMNS]; /* field names; strings, numbers, flags and enums */
    const char *extra; /* an integer column that is no field of the message, or NULL */
    int numbered;      /* keys are a letter and a number: r2 sorts before r10 */
};

const struct table_spec *table_spec(enum table table);
size_t table_n_columns(const struct table_spec *spec);

struct row; /* immutable once made */

/* Takes `message` in any case. NULL where memory is exhausted. */
struct row *row_create(enum table table, ProtobufCMessage *message, int64_t extra);
struct row *row_retain(struct row *row);
void row_release(struct row *row); /* NULL is accepted */

enum table row_table(const struct row *row);
const char *row_key(const struct row *row);
const ProtobufCMessage *row_message(const struct row *row);
int64_t row_extra(const struct row *row);

/* Key of a row from its parts (as many as the table's key has), joined by blanks: blanks are in no
 * name and sort before every letter, so rows come in the order of their parts. */
void table_key(char out_key[TABLE_KEY_BYTES], const char *a, const char *b, const char *c);
/* Order of two keys of a table, as strcmp(). */
int table_compare(enum table table, const char *a, const char *b);

/* SQL of a table: insert-or-update, delete by key, select all. Columns are bound and read by
 * row_bind and row_read in the order of these texts. */
void table_sql_upsert(const struct table_spec *spec, struct strbuf *out);
void table_sql_delete(const struct table_spec *spec, struct strbuf *out);
void table_sql_select(const struct table_spec *spec, struct strbuf *out);

/* Binds all columns (key_only: the key's). RESOURCE_EXHAUSTED where there is no memory. */
int row_bind(const struct row *row, struct sqlite3_stmt *stmt, int key_only, struct error *err);
/* The row a select stands on; *out_row is owned. DATA_LOSS where a column cannot be read back. */
int row_read(enum table table, struct sqlite3_stmt *stmt, struct row **out_row, struct error *err);

/* row_text.c: appends " name=value" for each column, and each field of the rest that a caller can
 * have asked for, that differs from `other`'s, or where that is NULL for each that says something;
 * keys, generations and times are left out. " ..." where nothing is left. For people. */
void row_differences(const struct row *row, const struct row *other, struct strbuf *out);
