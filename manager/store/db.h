/* db.h: the one SQLite connection: opening, checking, migrating, error texts. Store thread
 * only (store_open runs it before the thread starts). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "manager/store/catalog.h"
#include "manager/store/row.h"

struct error;
struct sqlite3;
struct sqlite3_stmt;

/* What every change asks for, whatever its table. */
enum store_statement {
    STATEMENT_BEGIN,
    STATEMENT_COMMIT,
    STATEMENT_ROLLBACK,
    STATEMENT_COUNTER,        /* ?1 name */
    STATEMENT_SET_COUNTER,    /* ?1 name, ?2 value */
    STATEMENT_FIND_ANSWER,    /* ?1 request id; method, digest of the request, response */
    STATEMENT_RECORD_ANSWER,  /* ?1 to ?4 as there, ?5 when */
    STATEMENT_FORGET_ANSWERS, /* ?1 how many are kept */
    STATEMENT_FORGET_EVENTS,  /* ?1 the last to go */
    N_STATEMENTS
};

struct store_db {
    struct sqlite3 *sqlite;
    /* Made when they are first wanted: most of a start was spent on those that never were; and
     * kept: a third of the store's work was making them again for each change. */
    struct sqlite3_stmt *upsert[N_TABLES];
    struct sqlite3_stmt *remove[N_CATALOG_TABLES];
    struct sqlite3_stmt *fixed[N_STATEMENTS];
    uint32_t schema_version;
};

/* Finishes a restore that was cut, opens or creates the file at `path`, migrates it. A new database
 * appears under its name only when it is whole. */
int store_db_open(const char *path, struct store_db *out_db, struct error *err);
/* Opens the database that is there, for itself alone, and looks neither at its schema nor whether
 * it is damaged. Must be closed also on failure. */
int store_db_open_raw(const char *path, struct store_db *db, struct error *err);
void store_db_close(struct store_db *db);

/* Fills an empty catalog. */
int store_db_load(struct store_db *db, struct catalog *catalog, struct error *err);

/* First column of the first row as a number, and the text of it, if wanted, into out_text. */
int store_db_query(struct store_db *db, const char *sql, int64_t *out_value, char *out_text,
                   size_t n_text, struct error *err);
/* One statement without result. */
int store_db_exec(struct store_db *db, const char *sql, struct error *err);
int store_db_prepare(struct store_db *db, const char *sql, struct sqlite3_stmt **out_stmt,
                     struct error *err);
/* Borrowed until close; NULL with err set. */
struct sqlite3_stmt *store_db_upsert(struct store_db *db, enum table table, struct error *err);
struct sqlite3_stmt *store_db_remove(struct store_db *db, enum table table, struct error *err);
struct sqlite3_stmt *store_db_statement(struct store_db *db, enum store_statement which,
                                        struct error *err);
/* One of these that answers nothing, its values bound; it is ready for the next use after. SQLite's
 * result. */
int store_db_run(struct sqlite3_stmt *stmt);
/* Of the database and its log, as they are open; 0 where they are not. */
uint64_t store_db_bytes(struct store_db *db);
/* Value of a counter in table meta, 0 where it has none. */
int store_db_counter(struct store_db *db, const char *name, uint64_t *out_value, struct error *err);
int store_db_set_counter(struct store_db *db, const char *name, uint64_t value, struct error *err);

/* What the connection's last failure means: RESOURCE_EXHAUSTED STATE_STORE_FULL on a full disk,
 * UNAVAILABLE STATE_STORE_IO where it fails otherwise, DATA_LOSS STATE_STORE_DAMAGED for a damaged
 * file, else INTERNAL. */
int store_db_error(struct store_db *db, int rc, struct error *err);
/* The first two of these, for files beside the database. */
int store_db_error_full(struct error *err);
int store_db_error_disk(struct error *err, const char *what);
/* What to do about a damaged file. */
extern const char store_db_restore_hint[];
