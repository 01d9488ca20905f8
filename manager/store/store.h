/* store.h: the state database. The store thread owns the only connection; other threads hand jobs
 * to it. A job is one transaction over the store's catalog; its rows and events are committed
 * together or not at all. Jobs run in the order of their submission. Results come back to the loop
 * thread in that order, through store_poll().
 *
 * Threads: store_open, store_submit, store_poll and store_close belong to the loop thread;
 * store_txn_fn runs on the store thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/reason.h"
#include "manager/store/catalog.h"
#include "manager/store/table.h"

struct error;
struct store;
struct txn;

struct store_config {
    const char *path;        /* path of sluice.db; created where absent */
    size_t max_jobs;         /* submitted and not yet polled; 0: 1,024 */
    uint64_t max_events;     /* approximate number of events to keep; 0: 100,000 */
    void (*wake)(void *arg); /* any thread: results are ready, call store_poll */
    void *wake_arg;
    bool by_hand; /* no thread is started: the caller runs the jobs with store_run_next */
    /* Optional: called by store_poll with each committed event, in order (the row is borrowed). */
    void (*on_event)(void *arg, struct row *row);
    void *event_arg;
};

/* Opens or creates the database, loads it into `catalog` (the loop's) and starts the thread. A
 * migration runs in one transaction, after a copy to the folder backup. Errors: DATA_LOSS: not a
 * database, damaged, or empty. FAILED_PRECONDITION: the schema is newer than this program.
 * RESOURCE_EXHAUSTED (STATE_STORE_FULL) or UNAVAILABLE (STATE_STORE_IO): the database cannot be
 * created, migrated or read. A database that is readable and takes no writes is opened:
 * store_stats() has the reason, and changes are refused with it. The epoch of this start
 * (catalog.manager_epoch) is then written before anything else. */
int store_open(const struct store_config *config, struct catalog *catalog, struct store **out_store,
               struct error *err);
/* Runs all submitted jobs and closes the database. Jobs that were not polled end with CANCELLED.
 * NULL is accepted. */
void store_close(struct store *store);

/* The work of a job, inside its transaction. A negative result rolls everything back. */
typedef int store_txn_fn(struct txn *txn, void *arg, struct error *err);
/* End of the job, on the loop thread, after the loop's catalog has the changes. status->status
 * 0, or why nothing was changed. */
typedef void store_done_fn(void *arg, const struct error *status);

/* RESOURCE_EXHAUSTED, reason STORE_BUSY, where the queue is full; `done` is then not called. The
 * job may end with STATE_STORE_FULL or STATE_STORE_IO: nothing was changed. STATE_STORE_UNKNOWN:
 * the disk failed during the commit and cannot be read, so the outcome is known later. If the
 * commit was done, its changes come to the loop's catalog with a later job. */
int store_submit(struct store *store, store_txn_fn *run, store_done_fn *done, void *arg,
                 struct error *err);
/* For observed facts that cannot be refused (the death of a process) and for urgent changes
 * (revoking a key). While the disk is full or fails, the rows stay in memory alone. They are
 * written, with an event each, once the disk takes writes. The job must use no counters. A
 * manager that is killed before then has the older rows. */
int store_submit_seen(struct store *store, store_txn_fn *run, store_done_fn *done, void *arg,
                      struct error *err);
/* Number of rows that are in memory alone. */
size_t store_n_unsaved(struct store *store);
/* Tries to write unsaved rows, or tries the disk after a refused change. Every other job does
 * this too. Must be called regularly. */
void store_flush(struct store *store);
/* With by_hand only: runs the oldest submitted job. False: there is no job. */
bool store_run_next(struct store *store);
/* Applies finished jobs to the loop's catalog and calls their done functions. False where memory
 * is exhausted: nothing is lost, and the next call continues. */
bool store_poll(struct store *store);

struct store_stats {
    uint32_t schema_version;
    uint64_t n_bytes; /* database and log, at the last measurement */
    uint64_t n_commits, n_failed;
    enum reason reason; /* why the last change was refused; REASON_NONE: it was not */
};
void store_stats(struct store *store, struct store_stats *out_stats);
