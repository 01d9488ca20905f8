/* store.h: the state database. One connection, opened and used by one thread (the store thread);
 * everybody else hands it jobs. A job is one transaction: it reads the store's catalog, writes rows
 * and events, and is committed as a whole or not at all. Jobs run in the order they were submitted;
 * their results come back to the loop thread in that order, through store_poll().
 *
 * Threads: store_open, store_submit, store_poll and store_close belong to the loop thread;
 * store_txn_fn runs on the store thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "manager/store/catalog.h"
#include "manager/store/table.h"

struct error;
struct store;
struct txn;

struct store_config {
    const char *path;        /* of sluice.db; created where it is absent */
    size_t max_jobs;         /* submitted and not yet polled; 0: 1,024 */
    uint64_t max_events;     /* kept, about; 0: 100,000 */
    void (*wake)(void *arg); /* any thread: results are there, call store_poll */
    void *wake_arg;
    bool by_hand; /* no thread is started: the caller runs the jobs with store_run_next */
    /* Optional: each committed event, in order, from store_poll (the row is borrowed). */
    void (*on_event)(void *arg, struct row *row);
    void *event_arg;
};

/* Opens or creates the database, migrates it in one transaction (a copy of it before is kept in
 * the folder backup beside it), loads it into `catalog` (the loop's) and starts the thread. Errors:
 * DATA_LOSS: not a database, damaged, or empty; FAILED_PRECONDITION: its schema is newer than this
 * program; RESOURCE_EXHAUSTED, reason STATE_STORE_FULL, and UNAVAILABLE, reason STATE_STORE_IO,
 * where it cannot be made, migrated or read. One that can be read and takes no writes is opened all
 * the same: store_stats() has the reason, changes are refused with it, and the number of this start
 * (catalog.manager_epoch) is written before anything else is. */
int store_open(const struct store_config *config, struct catalog *catalog, struct store **out_store,
               struct error *err);
/* Runs what was submitted, delivers no more results (jobs' done functions are called with
 * CANCELLED where they had not been polled), closes the database. NULL is accepted. */
void store_close(struct store *store);

/* Does the work of a job inside its transaction. A negative return rolls everything back. */
typedef int store_txn_fn(struct txn *txn, void *arg, struct error *err);
/* The job's end, on the loop thread, after the loop's catalog has the changes: status->status 0 or
 * why nothing was changed. */
typedef void store_done_fn(void *arg, const struct error *status);

/* RESOURCE_EXHAUSTED, reason STORE_BUSY, where the queue is full; `done` is then not called.
 * The job's end may say STATE_STORE_FULL or STATE_STORE_IO: nothing was changed; or
 * STATE_STORE_UNKNOWN: the disk failed during the commit and cannot be read, so that whether it was
 * done shows later. What turns out to have been done comes to the loop's catalog with a later job.
 */
int store_submit(struct store *store, store_txn_fn *run, store_done_fn *done, void *arg,
                 struct error *err);
/* The same for what has been seen and cannot be refused (a process has died, is started), and for
 * what must not wait (a key is revoked): where the disk is full or fails its rows are kept in
 * memory alone and written, with an event each, once it takes them. Such a job must use no
 * counters. A manager that is killed before then has the older rows. */
int store_submit_seen(struct store *store, store_txn_fn *run, store_done_fn *done, void *arg,
                      struct error *err);
/* Rows that are in memory alone. */
size_t store_n_unsaved(struct store *store);
/* Where there are any, or the last change was refused for the disk: tries whether it is well again
 * (so does every other job). To be called now and then. */
void store_flush(struct store *store);
/* With by_hand only: does the oldest job that was submitted. False: there is none. */
bool store_run_next(struct store *store);
/* Applies finished jobs to the loop's catalog and calls their done functions. False where memory is
 * exhausted: nothing is lost, and the rest is done by the next call. */
bool store_poll(struct store *store);

struct store_stats {
    uint32_t schema_version;
    uint64_t n_bytes; /* of database and log, as last seen */
    uint64_t n_commits, n_failed;
    char reason[40]; /* why the last change was refused ("STATE_STORE_FULL"), or empty */
};
void store_stats(struct store *store, struct store_stats *out_stats);
