/* job.h: a job of the store, and the store thread's state: the database, the catalog, unsaved
 * rows. Store thread, except where noted. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/reason.h"
#include "manager/store/db.h"
#include "manager/store/store.h"
#include "manager/store/txn_private.h"

/* Changes that an earlier transaction committed and this job delivers to the loop. */
struct late_changes {
    struct store_change *changes;
    size_t n, i;
};

enum { MAX_LATE = 3 }; /* a commit found to be done, the unsaved rows, and another such commit */

struct store_job {
    struct store_job *next;
    store_txn_fn *run;
    store_done_fn *done;
    void *arg;
    bool seen;  /* submitted with store_submit_seen */
    bool wrote; /* the job has written to the disk */
    struct error err;
    bool store_failed;            /* with err: the store caused it, and no check of the job */
    struct store_change *changes; /* committed changes, for the loop's catalog */
    size_t n_changes, n_applied;
    struct late_changes late[MAX_LATE]; /* committed before this job and not yet delivered */
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
    bool broken;                      /* store thread only: reopen the database before the next
                                       * job */
    bool epoch_unsaved;               /* store thread only: the epoch of this start is only in
                                       * memory */
    struct row *unsaved[MAX_UNSAVED]; /* store thread only: rows that the database does not have */
    size_t n_unsaved;
    enum reason unsaved_reason; /* store thread only: why they are unsaved */
    struct store_change
        *unknown; /* store thread only: changes of the commit with unknown outcome, or NULL */
    size_t n_unknown;

    pthread_t thread; /* not started with by_hand */
    bool by_hand;
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t wanted;
    struct job_list queued, finished;
    bool stopping;
    size_t n_unsaved_reported;
    struct store_stats stats;
};

/* Runs the job. The result and the changes stay in the job, for the loop. */
void store_job_run(struct store *store, struct store_job *job);
/* Frees the job with its changes. Any thread. */
void store_job_free(struct store_job *job);
/* True where the disk caused the error, which may then pass by itself. Any thread. */
bool store_job_is_disk(const struct error *err);
/* Marks the connection for reopening after any failure except a full disk. */
void store_job_note_trust(struct store *store, const struct error *err);
/* Forgets the unsaved rows. */
void store_job_forget_unsaved(struct store *store);
