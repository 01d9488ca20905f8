/* check.h: looking through a state database without the store: SQLite's own checks, whether
 * it is ours and of which schema, whether every row can be read, and what must hold between rows.
 * Changes nothing. One thread; the lock of the state directory is the caller's. */
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
    unsigned schema, schema_known; /* of the file; the newest that this program knows */
    uint64_t n_bytes, n_models, n_versions, n_replicas, n_operations, n_events;
    uint64_t generation, manager_epoch, last_event_seq;
    size_t n_problems; /* all; the first CHECK_MAX_PROBLEMS are kept */
    struct store_problem problems[CHECK_MAX_PROBLEMS];
};

/* Opens a file for that: what is in its log counts, and nothing is written. Must be closed also on
 * failure. DATA_LOSS where it is empty or no database, NOT_FOUND where there is none. */
int store_check_open(const char *path, struct store_db *db, struct error *err);
/* Looks through it. Problems are no failure: a failure is that it could not be looked at. */
int store_check(struct store_db *db, const char *path, struct store_report *out_report,
                struct error *err);
