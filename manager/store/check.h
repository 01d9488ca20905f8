/* check.h: checks of a state database without the store: SQLite's checks, the schema, readable
 * rows, and the rules between rows. Changes nothing. Single-threaded; the caller holds the lock
 * of the state directory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/store/db.h"

struct error;

enum { CHECK_MAX_PROBLEMS = 100, CHECK_TEXT_BYTES = 240 };

struct store_problem {
    const char *kind; /* "damage", "reference", "schema", "row", "state", "counter", "event" */
    char text[CHECK_TEXT_BYTES];
};

struct store_report {
    unsigned schema, schema_known; /* schema of the file; the newest one that this program knows */
    uint64_t n_bytes, n_models, n_versions, n_replicas, n_operations, n_events;
    uint64_t generation, manager_epoch, last_event_seq;
    size_t n_problems; /* number of all problems; the first CHECK_MAX_PROBLEMS are kept */
    struct store_problem problems[CHECK_MAX_PROBLEMS];
};

/* Opens a file for the check, including its log; nothing is written. The caller must close `db`
 * also on failure. DATA_LOSS where the file is empty or no database, NOT_FOUND where there is no
 * file. */
int store_check_open(const char *path, struct store_db *db, struct error *err);
/* Checks the database. Problems go to *out_report; an error means that the check itself could
 * not be done. */
int store_check(struct store_db *db, const char *path, struct store_report *out_report,
                struct error *err);
