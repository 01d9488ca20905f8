/* table.h: one description per table of the state database, which binds messages to SQL. A column
 * is a field of the message of the same name. All other fields of the message (nested and repeated
 * ones) are packed into the column `detail`, so that every fact has one place. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

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
