/* table.h: the description of each table of the state database, which binds messages to SQL. A
 * column holds the message field of the same name. The column `detail` holds all other fields
 * (nested and repeated ones), packed. So every fact has one place. Any thread. */
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
    size_t n_key;                           /* the first n_key columns are the primary key */
    const char *columns[TABLE_MAX_COLUMNS]; /* field names; strings, numbers, flags and enums */
    const char *extra;                      /* an integer column without a message field, or NULL */
    int numbered; /* keys are a letter and a number: r2 sorts before r10 */
};

const struct table_spec *table_spec(enum table table);
size_t table_n_columns(const struct table_spec *spec);

/* Builds the key of a row from its parts (as many as the table's key has), joined by blanks.
 * Names have no blanks, and a blank sorts before every letter, so rows are in the order of their
 * parts. */
void table_key(char out_key[TABLE_KEY_BYTES], const char *a, const char *b, const char *c);
/* Compares two keys of a table; result as of strcmp(). */
int table_compare(enum table table, const char *a, const char *b);

/* SQL of a table: insert or update, delete by key, select all. The functions row_bind and
 * row_read use the columns in the order of these texts. */
void table_sql_upsert(const struct table_spec *spec, struct strbuf *out);
void table_sql_delete(const struct table_spec *spec, struct strbuf *out);
void table_sql_select(const struct table_spec *spec, struct strbuf *out);
