/* txn_private.h: how the store begins, ends and undoes a transaction. Store thread only. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "manager/store/db.h"
#include "manager/store/txn.h"

/* A write. Kept until the transaction's end, to undo it or to repeat it in the loop's catalog. */
struct store_change {
    enum table table;
    struct row *before; /* reference or NULL */
    struct row *after;  /* reference or NULL; an event has only this one */
};

struct txn {
    struct store_db *db;
    struct catalog *catalog; /* the store thread's catalog */
    struct store_change *changes;
    size_t n_changes, capacity;
    int64_t now_unix_ns;
    uint64_t max_events;
    uint64_t last_event_seq_before, first_event_seq_before;
    bool wrote;
    bool in_memory;      /* nothing reaches the database: its disk takes no writes */
    char seen_stage[16]; /* audit_saw_stage; empty: not called */
};

/* Starts a transaction. After 0 the caller must commit or roll back. */
int txn_begin(struct txn *txn, struct store_db *db, struct catalog *catalog, struct error *err);
/* Starts a transaction on the catalog alone. The caller ends it by taking its changes, or with
 * txn_undo. */
void txn_begin_in_memory(struct txn *txn, struct catalog *catalog);
/* Makes the transaction durable. On failure everything is undone, unless *out_unknown is true.
 * Then the disk did not report the outcome. The catalog still shows the changes, and the caller
 * must reload the database. */
int txn_commit(struct txn *txn, bool *out_unknown, struct error *err);
void txn_rollback(struct txn *txn);
/* Undoes the changes in the store's catalog and keeps their list. */
void txn_revert(struct txn *txn);
/* Undoes the changes and frees their list. */
void txn_undo(struct txn *txn);
/* Writes a row that the catalog already holds. */
int txn_write_row(struct txn *txn, struct row *row, struct error *err);
void txn_free_changes(struct store_change *changes, size_t n_changes);
