/* db.h: the SQLite connection: opening, checking, migrating, error texts. Store thread only
 * (store_open calls these functions before the thread starts). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "manager/store/catalog.h"
#include "manager/store/row.h"

struct error;
struct sqlite3;
struct sqlite3_stmt;

/* Statements that do not belong to a table. */
enum store_statement {
    STATEMENT_BEGIN,
    STATEMENT_COMMIT,
    STATEMENT_ROLLBACK,
    STATEMENT_COUNTER,        /* ?1 name */
    STATEMENT_SET_COUNTER,    /* ?1 name, ?2 value */
    STATEMENT_FIND_ANSWER,    /* ?1 request id; result: method, digest of the request, response */
    STATEMENT_RECORD_ANSWER,  /* ?1 to ?4 the same values, ?5 time */
    STATEMENT_FORGET_ANSWERS, /* ?1 number of answers to keep */
    STATEMENT_FORGET_EVENTS,  /* ?1 last sequence number to delete */
    N_STATEMENTS
};

struct store_db {
    struct sqlite3 *sqlite;
    /* Prepared at first use, as preparing all took most of a start. Kept for reuse, as preparing
     * per change took a third of the store's time. */
    struct sqlite3_stmt *upsert[N_TABLES];
    struct sqlite3_stmt *remove[N_CATALOG_TABLES];
    struct sqlite3_stmt *fixed[N_STATEMENTS];
    uint32_t schema_version;
    uint64_t n_errors; /* errors that store_db_error() has reported */
};

/* Finishes an interrupted restore, opens or creates the file at `path`, and migrates the
 * database. A new database appears under its name only when it is complete. */
int store_db_open(const char *path, struct store_db *out_db, struct error *err);
void store_db_close(struct store_db *db);

/* Fills an empty catalog. */
int store_db_load(struct store_db *db, struct catalog *catalog, struct error *err);

/* Reads the first column of the first row as a number, and as text into out_text unless NULL. */
int store_db_query(struct store_db *db, const char *sql, int64_t *out_value, char *out_text,
                   size_t n_text, struct error *err);
/* Runs SQL without a result. */
int store_db_exec(struct store_db *db, const char *sql, struct error *err);
int store_db_prepare(struct store_db *db, const char *sql, struct sqlite3_stmt **out_stmt,
                     struct error *err);
/* Prepared statements, borrowed until close; NULL with err set. */
struct sqlite3_stmt *store_db_upsert(struct store_db *db, enum table table, struct error *err);
struct sqlite3_stmt *store_db_remove(struct store_db *db, enum table table, struct error *err);
struct sqlite3_stmt *store_db_statement(struct store_db *db, enum store_statement which,
                                        struct error *err);
/* Runs a prepared statement without result rows. The statement is then reset for its next use.
 * Returns SQLite's result code. */
int store_db_run(struct sqlite3_stmt *stmt);
/* Bytes of the open database and its log; 0 where they are not open. */
uint64_t store_db_bytes(struct store_db *db);
/* Value of a counter in table meta; 0 where the counter is missing. */
int store_db_counter(struct store_db *db, const char *name, uint64_t *out_value, struct error *err);
int store_db_set_counter(struct store_db *db, const char *name, uint64_t value, struct error *err);

/* Turns the connection's last failure into an error. RESOURCE_EXHAUSTED STATE_STORE_FULL: the
 * disk is full. UNAVAILABLE STATE_STORE_IO: the disk failed. DATA_LOSS STATE_STORE_DAMAGED: the
 * file is damaged. Else INTERNAL. */
int store_db_error(struct store_db *db, int rc, struct error *err);
/* The first two errors, for files beside the database. */
int store_db_error_full(struct error *err);
int store_db_error_disk(struct error *err, const char *what);
/* Hint in errors about a damaged file. */
extern const char store_db_restore_hint[];
