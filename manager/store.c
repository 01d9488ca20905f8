#include "manager/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "manager/pb.h"
#include "manager/store_db.h"
#include "manager/store_internal.h"

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

static void free_job(struct store_job *job)
{
    for (size_t i = 0; i < job->n_late; i++)
        txn_free_changes(job->late[i].changes, job->late[i].n);
    txn_free_changes(job->changes, job->n_changes);
    free(job);
}

/* Takes them. */
static void tell_late(struct store_job *job, struct store_change *changes, size_t n_changes)
{
    job->late[job->n_late++] = (struct late_changes){.changes = changes, .n = n_changes};
}

static void list_init(struct job_list *list)
{
    list->head = NULL;
    list->tail = &list->head;
}

static void list_add(struct job_list *list, struct store_job *job)
{
    job->next = NULL;
    *list->tail = job;
    list->tail = &job->next;
}

static struct store_job *list_take(struct job_list *list)
{
    struct store_job *job = list->head;
    if (job) {
        list->head = job->next;
        if (!list->head)
            list->tail = &list->head;
    }
    return job;
}

/* Opens the database again after the disk gave an answer that can be read two ways, and takes over
 * what it holds now. */
static int reopen(struct store *store, struct error *err)
{
    struct store_db db;
    struct catalog catalog = {0};
    store_db_close(&store->db);
    store->broken = true;
    if (store_db_open(store->path, &db, err) != 0)
        return err->status;
    if (store_db_load(&db, &catalog, err) != 0) {
        catalog_fini(&catalog);
        store_db_close(&db);
        return err->status;
    }
    catalog_fini(&store->catalog);
    store->catalog = catalog;
    store->db = db;
    store->broken = false;
    for (size_t i = 0; i < store->n_unsaved; i++)
        if (catalog_put(&store->catalog, store->unsaved[i]) != 0)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    return 0;
}

/* -- what could not be written --------------------------------------------------------------------
 */

static size_t find_unsaved(const struct store *store, enum table table, const char *key)
{
    size_t i = 0;
    while (i < store->n_unsaved &&
           (row_table(store->unsaved[i]) != table || strcmp(row_key(store->unsaved[i]), key) != 0))
        i++;
    return i;
}

static void forget_unsaved(struct store *store, size_t i)
{
    row_release(store->unsaved[i]);
    store->unsaved[i] = store->unsaved[--store->n_unsaved];
}

static bool keep_unsaved(struct store *store, struct row *row)
{
    size_t i = find_unsaved(store, row_table(row), row_key(row));
    if (i < store->n_unsaved)
        row_release(store->unsaved[i]);
    else if (store->n_unsaved == MAX_UNSAVED)
        return false;
    else
        store->n_unsaved++;
    store->unsaved[i] = row_retain(row);
    return true;
}

/* Opens the database that could not be opened after a failure. Whether the commit that had failed
 * is in it is known now; its caller was told that it is not, so what was done is told with this
 * job. */
static int recover(struct store *store, struct store_job *job, struct error *err)
{
    uint64_t known = store->catalog.generation;
    if (reopen(store, err) != 0)
        return err->status;
    struct store_change *unknown = store->unknown;
    size_t n_unknown = store->n_unknown, n_kept = 0;
    bool done = store->catalog.generation == known + 1 && unknown;
    store->unknown = NULL;
    store->n_unknown = 0;
    if (!done) {
        txn_free_changes(unknown, n_unknown);
        return 0;
    }
    for (size_t i = 0; i < n_unknown; i++) {
        const struct row *row = unknown[i].after ? unknown[i].after : unknown[i].before;
        if (find_unsaved(store, row_table(row), row_key(row)) == store->n_unsaved) {
            unknown[n_kept++] = unknown[i];
            continue; /* what was seen since is newer */
        }
        row_release(unknown[i].before);
        row_release(unknown[i].after);
    }
    tell_late(job, unknown, n_kept);
    return 0;
}

/* The disk did not say whether the commit was done. *out_done is what the database, read anew,
 * says: it has the commit's generation if and only if it has the commit. Where it cannot be read
 * the changes are kept for recover(). */
static int resolve(struct store *store, struct txn *txn, bool *out_done, struct error *err)
{
    struct error reopen_err;
    uint64_t wanted = store->catalog.generation + 1;
    if (reopen(store, &reopen_err) == 0) {
        *out_done = store->catalog.generation == wanted;
        if (!*out_done)
            txn_free_changes(txn->changes, txn->n_changes);
        return 0;
    }
    txn_revert(txn);
    store->unknown = txn->changes;
    store->n_unknown = txn->n_changes;
    error_set(err, STATUS_UNAVAILABLE,
              "state store: its disk failed while the change was written, and whether it was made "
              "is not known until it answers; ask again with the same request id");
    err->retry_after_ms = 1000;
    return error_reason(err, "STATE_STORE_UNKNOWN");
}

static int write_late_event(struct txn *txn, const struct row *row, struct error *err)
{
    struct txn_event event = {.message = "the disk was full: what went before was not recorded"};
    if (row_table(row) == TABLE_REPLICA) {
        const pb_replica *replica = (const pb_replica *)row_message(row);
        event.type = "replica.recorded";
        event.model = replica->model;
        event.version = replica->version;
        event.device_group = replica->device_group;
        event.replica_id = replica->id;
    } else if (row_table(row) == TABLE_DEVICE_HOLD) {
        event.type = "device.recorded";
        event.device = ((const pb_hold *)row_message(row))->device;
    }
    return event.type ? txn_event(txn, &event, err) : 0;
}

static int run_late(struct store *store, struct txn *txn, struct error *err)
{
    for (size_t i = 0; i < store->n_unsaved; i++) {
        struct row *row = store->unsaved[i];
        if (txn_write_row(txn, row, err) != 0)
            return err->status;
        if (write_late_event(txn, row, err) != 0)
            return err->status;
    }
    return 0;
}

/* Writes what is in memory alone, in a transaction of its own; its events go with `job`. */
static int save_late(struct store *store, struct store_job *job, struct error *err)
{
    struct txn txn;
    bool unknown = false, done = false;
    if (store->n_unsaved == 0)
        return 0;
    if (txn_begin(&txn, &store->db, &store->catalog, err) != 0)
        return err->status;
    txn.max_events = store->max_events;
    if (run_late(store, &txn, err) != 0) {
        txn_rollback(&txn);
        return err->status;
    }
    if (txn_commit(&txn, &unknown, err) != 0 &&
        (!unknown || resolve(store, &txn, &done, err) != 0 || !done))
        return err->status;
    error_clear(err);
    while (store->n_unsaved)
        forget_unsaved(store, store->n_unsaved - 1);
    tell_late(job, txn.changes, txn.n_changes);
    return 0;
}

/* The disk takes nothing, and what was seen is true all the same. */
static void run_in_memory(struct store *store, struct store_job *job)
{
    struct txn txn;
    struct error err;
    txn_begin_in_memory(&txn, &store->catalog);
    if (job->run(&txn, job->arg, &err) != 0) {
        txn_undo(&txn);
        return;
    }
    for (size_t i = 0; i < txn.n_changes; i++)
        if (!keep_unsaved(store, txn.changes[i].after)) {
            txn_undo(&txn);
            return;
        }
    error_clear(&job->err);
    job->changes = txn.changes;
    job->n_changes = txn.n_changes;
}

/* `late`: why what is in memory alone could not be written, or 0. Then nothing is written: it may
 * follow from that (an operation is done, for its replicas have stopped), and who comes after a
 * crash would find the one without the other. */
static void run_once(struct store *store, struct store_job *job, const struct error *late)
{
    struct txn txn;
    bool unknown = false, done = false;
    if (txn_begin(&txn, &store->db, &store->catalog, &job->err) != 0)
        return;
    txn.max_events = store->max_events;
    if (job->run(&txn, job->arg, &job->err) != 0) {
        txn_rollback(&txn);
        return;
    }
    if (late->status != 0 && txn.wrote) {
        txn_rollback(&txn);
        job->err = *late;
        return;
    }
    if (txn_commit(&txn, &unknown, &job->err) != 0) {
        if (!unknown || resolve(store, &txn, &done, &job->err) != 0 || !done)
            return;
        error_clear(&job->err);
    }
    job->wrote = txn.wrote;
    job->changes = txn.changes;
    job->n_changes = txn.n_changes;
    for (size_t i = 0; i < txn.n_changes; i++) {
        const struct row *row = txn.changes[i].after ? txn.changes[i].after : txn.changes[i].before;
        size_t at = find_unsaved(store, row_table(row), row_key(row));
        if (at < store->n_unsaved)
            forget_unsaved(store, at);
    }
}

/* Whether the disk is why something failed: it may be over as it came. */
static bool is_disk(const struct error *err)
{
    static const char *const reasons[] = {"STATE_STORE_FULL", "STATE_STORE_IO",
                                          "STATE_STORE_UNKNOWN"};
    for (size_t i = 0; err->status != 0 && i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (strcmp(err->reason, reasons[i]) == 0)
            return true;
    return false;
}

/* After a failure other than want of room the connection is not to be trusted. */
static void note_trust(struct store *store, const struct error *err)
{
    if (is_disk(err) && strcmp(err->reason, "STATE_STORE_FULL") != 0)
        store->broken = true;
}

/* False: the database cannot be opened, as the job's end will say. */
static bool is_open(struct store *store, struct store_job *job)
{
    return !store->broken || recover(store, job, &job->err) == 0;
}

static void run_job(struct store *store, struct store_job *job)
{
    struct error late;
    error_clear(&job->err);
    error_clear(&late);
    if (is_open(store, job)) {
        (void)save_late(store, job, &late);
        note_trust(store, &late);
        if (is_open(store, job))
            run_once(store, job, &late);
    }
    note_trust(store, &job->err);
    if (!job->seen || !is_disk(&job->err))
        return;
    snprintf(store->unsaved_reason, sizeof(store->unsaved_reason), "%s", job->err.reason);
    run_in_memory(store, job);
}

static uint64_t file_bytes(const char *path, const char *suffix)
{
    char name[4200];
    struct stat st;
    snprintf(name, sizeof(name), "%s%s", path, suffix);
    return stat(name, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void note_result(struct store *store, const struct store_job *job)
{
    uint64_t n_bytes = file_bytes(store->path, "") + file_bytes(store->path, "-wal");
    bool store_failed = strncmp(job->err.message, "state store:", 12) == 0;
    pthread_mutex_lock(&store->mutex);
    store->n_unsaved_told = store->n_unsaved;
    store->stats.n_bytes = n_bytes;
    if (store->n_unsaved)
        snprintf(store->stats.reason, sizeof(store->stats.reason), "%s", store->unsaved_reason);
    if (job->err.status == 0) {
        store->stats.n_commits++;
        if (job->wrote && store->n_unsaved == 0)
            store->stats.reason[0] = '\0';
    } else if (store_failed) {
        store->stats.n_failed++;
        snprintf(store->stats.reason, sizeof(store->stats.reason), "%s",
                 job->err.reason[0] ? job->err.reason : "STATE_STORE_FAILED");
    }
    pthread_mutex_unlock(&store->mutex);
}

static void do_job(struct store *store, struct store_job *job)
{
    run_job(store, job);
    job->generation = store->catalog.generation;
    job->first_event_seq = store->catalog.first_event_seq;
    job->last_event_seq = store->catalog.last_event_seq;
    note_result(store, job);
    pthread_mutex_lock(&store->mutex);
    list_add(&store->finished, job);
    store->wake(store->wake_arg);
    pthread_mutex_unlock(&store->mutex);
}

/* NULL: there is none, and with `wait` there will be none. */
static struct store_job *next_job(struct store *store, bool wait)
{
    pthread_mutex_lock(&store->mutex);
    struct store_job *job = list_take(&store->queued);
    while (!job && wait && !store->stopping) {
        pthread_cond_wait(&store->wanted, &store->mutex);
        job = list_take(&store->queued);
    }
    pthread_mutex_unlock(&store->mutex);
    return job;
}

static void *store_main(void *arg)
{
    struct store_job *job;
    while ((job = next_job(arg, true)))
        do_job(arg, job);
    return NULL;
}

bool store_run_next(struct store *store)
{
    struct store_job *job = next_job(store, false);
    if (job)
        do_job(store, job);
    return job != NULL;
}

static int share_catalog(const struct catalog *from, struct catalog *to, struct error *err)
{
    for (enum table t = 0; t < N_CATALOG_TABLES; t++)
        for (size_t i = 0; i < catalog_count(from, t); i++)
            if (catalog_put(to, catalog_at(from, t, i)) != 0)
                return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    to->generation = from->generation;
    to->first_event_seq = from->first_event_seq;
    to->last_event_seq = from->last_event_seq;
    to->manager_epoch = from->manager_epoch;
    return 0;
}

int store_open(const struct store_config *config, struct catalog *catalog, struct store **out_store,
               struct error *err)
{
    struct store *store = calloc(1, sizeof(*store));
    if (!store || !(store->path = strdup(config->path))) {
        free(store);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    }
    store->wake = config->wake;
    store->wake_arg = config->wake_arg;
    store->max_jobs = config->max_jobs ? config->max_jobs : 1024;
    store->max_events = config->max_events ? config->max_events : 100000;
    store->on_event = config->on_event;
    store->event_arg = config->event_arg;
    store->loop_catalog = catalog;
    list_init(&store->queued);
    list_init(&store->finished);
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->wanted, NULL);
    int status = store_db_open(store->path, &store->db, err);
    if (status == 0)
        status = store_db_load(&store->db, &store->catalog, err);
    if (status == 0)
        status =
            store_db_set_counter(&store->db, "manager_epoch", ++store->catalog.manager_epoch, err);
    if (status == 0)
        status = share_catalog(&store->catalog, catalog, err);
    store->stats.schema_version = store->db.schema_version;
    store->by_hand = config->by_hand;
    if (status == 0 && !store->by_hand &&
        pthread_create(&store->thread, NULL, store_main, store) != 0)
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: no thread to be had");
    if (status == 0) {
        *out_store = store;
        return 0;
    }
    store_db_close(&store->db);
    catalog_fini(&store->catalog);
    catalog_fini(catalog);
    free(store->path);
    free(store);
    return status;
}

void store_close(struct store *store)
{
    if (!store)
        return;
    pthread_mutex_lock(&store->mutex);
    store->stopping = true;
    pthread_cond_signal(&store->wanted);
    pthread_mutex_unlock(&store->mutex);
    if (!store->by_hand)
        pthread_join(store->thread, NULL);
    while (store->by_hand && store_run_next(store)) {
    }
    struct store_job *job;
    while ((job = list_take(&store->finished))) {
        struct error err;
        error_set(&err, STATUS_CANCELLED, "the manager is stopping");
        job->done(job->arg, &err);
        free_job(job);
    }
    while (store->n_unsaved)
        forget_unsaved(store, store->n_unsaved - 1);
    txn_free_changes(store->unknown, store->n_unknown);
    store_db_close(&store->db);
    catalog_fini(&store->catalog);
    pthread_cond_destroy(&store->wanted);
    pthread_mutex_destroy(&store->mutex);
    free(store->path);
    free(store);
}

static int submit(struct store *store, store_txn_fn *run, store_done_fn *done, void *arg, bool seen,
                  struct error *err)
{
    if (store->n_outstanding >= store->max_jobs) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%zu changes wait for the state store, which is "
                  "its limit",
                  store->max_jobs);
        err->retry_after_ms = 100;
        return error_reason(err, "STORE_BUSY");
    }
    struct store_job *job = calloc(1, sizeof(*job));
    if (!job)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    job->run = run;
    job->seen = seen;
    job->done = done;
    job->arg = arg;
    store->n_outstanding++;
    pthread_mutex_lock(&store->mutex);
    list_add(&store->queued, job);
    pthread_cond_signal(&store->wanted);
    pthread_mutex_unlock(&store->mutex);
    return 0;
}

int store_submit(struct store *store, store_txn_fn *run, store_done_fn *done, void *arg,
                 struct error *err)
{
    return submit(store, run, done, arg, false, err);
}

int store_submit_seen(struct store *store, store_txn_fn *run, store_done_fn *done, void *arg,
                      struct error *err)
{
    return submit(store, run, done, arg, true, err);
}

size_t store_n_unsaved(struct store *store)
{
    pthread_mutex_lock(&store->mutex);
    size_t n = store->n_unsaved_told;
    pthread_mutex_unlock(&store->mutex);
    return n;
}

/* Nothing to do but what every job does first; a disk that failed is tried by a write. */
static int run_flush(struct txn *txn, void *arg, struct error *err)
{
    struct store *store = arg;
    uint64_t n;
    pthread_mutex_lock(&store->mutex);
    bool troubled = store->stats.reason[0] != '\0';
    pthread_mutex_unlock(&store->mutex);
    return troubled ? txn_next(txn, "flush", &n, err) : 0;
}

static void end_flush(void *arg, const struct error *status)
{
    struct store *store = arg;
    (void)status;
    store->flushing = false;
}

void store_flush(struct store *store)
{
    struct error err;
    pthread_mutex_lock(&store->mutex);
    bool wanted = store->stats.reason[0] != '\0' || store->n_unsaved_told;
    pthread_mutex_unlock(&store->mutex);
    if (wanted && !store->flushing && submit(store, run_flush, end_flush, store, false, &err) == 0)
        store->flushing = true;
}

static bool apply_one(struct store *store, const struct store_change *change)
{
    if (change->table == TABLE_EVENT) {
        if (store->on_event)
            store->on_event(store->event_arg, change->after);
        return true;
    }
    if (change->after)
        return catalog_put(store->loop_catalog, change->after) == 0;
    catalog_remove(store->loop_catalog, change->table, row_key(change->before));
    return true;
}

/* Repeats committed changes in the loop's catalog. False where memory is exhausted: what was
 * repeated so far is remembered, and the rest is to be done before anything later. */
static bool apply(struct store *store, struct store_job *job)
{
    struct catalog *catalog = store->loop_catalog;
    for (size_t k = 0; k < job->n_late; k++)
        for (struct late_changes *late = &job->late[k]; late->i < late->n; late->i++)
            if (!apply_one(store, &late->changes[late->i]))
                return false;
    for (; job->n_applied < job->n_changes; job->n_applied++)
        if (!apply_one(store, &job->changes[job->n_applied]))
            return false;
    catalog->generation = job->generation;
    catalog->first_event_seq = job->first_event_seq;
    catalog->last_event_seq = job->last_event_seq;
    return true;
}

/* Puts jobs back in front of those that finished meanwhile. */
static void put_back(struct store *store, struct job_list *jobs)
{
    pthread_mutex_lock(&store->mutex);
    *jobs->tail = store->finished.head;
    if (store->finished.head)
        jobs->tail = store->finished.tail;
    store->finished = *jobs;
    pthread_mutex_unlock(&store->mutex);
}

bool store_poll(struct store *store)
{
    struct job_list finished;
    pthread_mutex_lock(&store->mutex);
    finished = store->finished;
    if (!finished.head)
        list_init(&finished);
    list_init(&store->finished);
    pthread_mutex_unlock(&store->mutex);
    for (struct store_job *job = finished.head, *next; job; job = next) {
        next = job->next;
        if (!apply(store, job)) {
            finished.head = job;
            put_back(store, &finished);
            return false;
        }
        store->n_outstanding--;
        job->done(job->arg, &job->err);
        free_job(job);
    }
    return true;
}

void store_stats(struct store *store, struct store_stats *out_stats)
{
    pthread_mutex_lock(&store->mutex);
    *out_stats = store->stats;
    pthread_mutex_unlock(&store->mutex);
}
