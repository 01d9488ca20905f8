/* job.h: a job of the store, from the queue to its end, and what the store thread keeps for
 * it: the database, the catalog, what could not be written. Store thread, but where said. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "manager/store/db.h"
#include "manager/store/store.h"
#include "manager/store/txn_private.h"

/* Committed outside of the job that tells of it. */
struct late_changes {
    struct store_change *changes;
    size_t n, i;
};

enum { MAX_LATE = 3 }; /* a commit found to be done, what was unsaved, and such a commit again */

struct store_job {
    struct store_job *next;
    store_txn_fn *run;
    store_done_fn *done;
    void *arg;
    bool seen;  /* store_submit_seen */
    bool wrote; /* and it is on the disk */
    struct error err;
    struct store_change *changes; /* committed, for the loop's catalog */
    size_t n_changes, n_applied;
    struct late_changes late[MAX_LATE]; /* committed before it, and not told yet */
    size_t n_late;
    uint64_t generation, first_event_seq, last_event_seq;
};

enum { MAX_UNSAVED = 1024 };

struct job_list {
    struct store_job *head, **tail;
};

struct store {
    char *path;
    void (*wake)(void *arg);
    void *wake_arg;
    size_t max_jobs;
    uint64_t max_events;
    void (*on_event)(void *arg, struct row *row);
    void *event_arg;
    struct catalog *loop_catalog; /* loop thread only */
    size_t n_outstanding;         /* loop thread only: submitted, not yet polled */
    bool flushing;                /* loop thread only */

    struct store_db db;               /* store thread only */
    struct catalog catalog;           /* store thread only */
    bool broken;                      /* store thread only: reopen before the next job */
    bool epoch_unsaved;               /* store thread only: the number of this start is in memory */
    struct row *unsaved[MAX_UNSAVED]; /* store thread only: rows that are in no database */
    size_t n_unsaved;
    char unsaved_reason[40]; /* store thread only: why */
    struct store_change
        *unknown; /* store thread only: of the commit that broke it, if it was one */
    size_t n_unknown;

    pthread_t thread; /* none with by_hand */
    bool by_hand;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wanted;
    struct job_list queued, finished;
    bool stopping;
    size_t n_unsaved_told;
    struct store_stats stats;
};

/* Runs it, and leaves its end and its changes in it for the loop. */
void store_job_run(struct store *store, struct store_job *job);
/* With its changes. Any thread. */
void store_job_free(struct store_job *job);
/* Whether the disk is why something failed: it may be over as it came. Any thread. */
bool store_job_is_disk(const struct error *err);
/* After a failure other than want of room the connection is not to be trusted. */
void store_job_note_trust(struct store *store, const struct error *err);
/* Forgets the rows that are in memory alone. */
void store_job_forget_unsaved(struct store *store);
