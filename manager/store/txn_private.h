/* txn_private.h: how the store begins, ends and undoes a transaction. Store thread only. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "manager/store/db.h"
#include "manager/store/txn.h"

/* One write, kept until the transaction's end to undo it, then to repeat it in the loop's catalog.
 */
struct store_change {
    enum table table;
    struct row *before; /* reference or NULL */
    struct row *after;  /* reference or NULL; all there is of an event */
};

struct txn {
    struct store_db *db;
    struct catalog *catalog; /* the store thread's */
    struct store_change *changes;
    size_t n_changes, capacity;
    int64_t now_unix_ns;
    uint64_t max_events;
    uint64_t last_event_seq_before, first_event_seq_before;
    bool wrote;
    bool in_memory;      /* nothing reaches the database: its disk is full */
    char seen_stage[16]; /* audit_saw_stage; empty: nothing was said */
};

/* Starts a transaction; on 0 it must be ended by commit or rollback. */
int txn_begin(struct txn *txn, struct store_db *db, struct catalog *catalog, struct error *err);
/* A transaction on the catalog alone; ended by taking its changes, or txn_undo. */
void txn_begin_in_memory(struct txn *txn, struct catalog *catalog);
/* Makes it durable. On failure everything is undone, unless *out_unknown: then the disk did not say
 * whether it was, the catalog still shows the change, and the caller reads the database again. */
int txn_commit(struct txn *txn, bool *out_unknown, struct error *err);
void txn_rollback(struct txn *txn);
/* Undoes the changes in the store's catalog and keeps their list. */
void txn_revert(struct txn *txn);
/* Undoes them and forgets them. */
void txn_undo(struct txn *txn);
/* Writes a row that is in the catalog already. */
int txn_write_row(struct txn *txn, struct row *row, struct error *err);
void txn_free_changes(struct store_change *changes, size_t n_changes);
