#include "manager/store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "manager/store/job.h"
#include "manager/store/txn.h"

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

static void run_job(struct store *store, struct store_job *job)
{
    store_job_run(store, job);
    pthread_mutex_lock(&store->mutex);
    list_add(&store->finished, job);
    store->wake(store->wake_arg);
    pthread_mutex_unlock(&store->mutex);
}

/* NULL: the queue is empty; with `wait`: the store is stopping. */
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
        run_job(arg, job);
    return NULL;
}

bool store_run_next(struct store *store)
{
    struct store_job *job = next_job(store, false);
    if (job)
        run_job(store, job);
    return job != NULL;
}

static int copy_catalog(const struct catalog *from, struct catalog *to, struct error *err)
{
    for (enum table t = 0; t < N_CATALOG_TABLES; t++)
        for (size_t i = 0; i < catalog_count(from, t); i++)
            if (catalog_put(to, catalog_at(from, t, i)) != 0)
                return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    to->generation = from->generation;
    to->first_event_seq = from->first_event_seq;
    to->last_event_seq = from->last_event_seq;
    to->manager_epoch = from->manager_epoch;
    to->first_revision = from->first_revision;
    return 0;
}

enum { TICKS_PER_S = 128 }; /* no start is shorter than a tick, so starts differ in their ticks */

/* Raises the epoch of this start: on the disk, or in memory until the disk takes writes. */
static int raise_epoch(struct store *store, struct error *err)
{
    struct catalog *catalog = &store->catalog;
    uint64_t ticks = (uint64_t)clock_wall_ns() / (NS_PER_S / TICKS_PER_S);
    catalog->manager_epoch++;
    catalog->first_revision = catalog->manager_epoch << 32 | (ticks & (UINT32_MAX >> 1));
    if (store_db_set_counter(&store->db, "manager_epoch", catalog->manager_epoch, err) == 0)
        return 0;
    if (!store_job_is_disk(err))
        return err->status;
    log_error(LOG_EVENT("state cannot be written"), LOG_STR("reason", error_reason_name(err)),
              LOG_STR("message", err->message),
              LOG_STR("meanwhile", "changes are refused; reads and inference continue"));
    store_job_note_trust(store, err);
    store->epoch_unsaved = true;
    store->stats.reason = err->reason;
    error_clear(err);
    return 0;
}

static int open_database(struct store *store, struct error *err)
{
    if (store_db_open(store->path, &store->db, err) != 0 ||
        store_db_load(&store->db, &store->catalog, err) != 0)
        return err->status;
    return raise_epoch(store, err);
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
    int rc = open_database(store, err);
    if (rc == 0)
        rc = copy_catalog(&store->catalog, catalog, err);
    store->stats.schema_version = store->db.schema_version;
    store->by_hand = config->by_hand;
    if (rc == 0 && !store->by_hand && pthread_create(&store->thread, NULL, store_main, store) != 0)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: cannot start a thread");
    if (rc == 0) {
        *out_store = store;
        return 0;
    }
    store_db_close(&store->db);
    catalog_fini(&store->catalog);
    catalog_fini(catalog);
    free(store->path);
    free(store);
    return rc;
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
        store_job_free(job);
    }
    if (store->n_unsaved)
        log_warn(LOG_EVENT("unsaved rows lost"), LOG_U64("rows", store->n_unsaved),
                 LOG_STR("reason", reason_name(store->unsaved_reason)));
    store_job_forget_unsaved(store);
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
                  "%zu changes are waiting for the state store: that is its limit; try again",
                  store->max_jobs);
        err->retry_after_ms = 100;
        return error_reason(err, REASON_STORE_BUSY);
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
    size_t n = store->n_unsaved_reported;
    pthread_mutex_unlock(&store->mutex);
    return n;
}

/* Every job first writes unsaved rows, so this job has nothing else to do. After a failure it
 * tries the disk with a write. */
static int run_flush(struct txn *txn, void *arg, struct error *err)
{
    struct store *store = arg;
    uint64_t n;
    pthread_mutex_lock(&store->mutex);
    bool troubled = store->stats.reason != REASON_NONE;
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
    bool wanted = store->stats.reason != REASON_NONE || store->n_unsaved_reported;
    pthread_mutex_unlock(&store->mutex);
    if (wanted && !store->flushing && submit(store, run_flush, end_flush, store, false, &err) == 0)
        store->flushing = true;
}

static bool apply_change(struct store *store, const struct store_change *change)
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

/* Repeats committed changes in the loop's catalog. False where memory is exhausted: progress is
 * kept, and the next call must continue before any later job. */
static bool apply_changes(struct store *store, struct store_job *job)
{
    struct catalog *catalog = store->loop_catalog;
    for (size_t k = 0; k < job->n_late; k++)
        for (struct late_changes *late = &job->late[k]; late->i < late->n; late->i++)
            if (!apply_change(store, &late->changes[late->i]))
                return false;
    for (; job->n_applied < job->n_changes; job->n_applied++)
        if (!apply_change(store, &job->changes[job->n_applied]))
            return false;
    catalog->generation = job->generation;
    catalog->first_event_seq = job->first_event_seq;
    catalog->last_event_seq = job->last_event_seq;
    return true;
}

/* Puts the jobs back in front of jobs that finished meanwhile. */
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
        if (!apply_changes(store, job)) {
            finished.head = job;
            put_back(store, &finished);
            return false;
        }
        store->n_outstanding--;
        job->done(job->arg, &job->err);
        store_job_free(job);
    }
    return true;
}

void store_stats(struct store *store, struct store_stats *out_stats)
{
    pthread_mutex_lock(&store->mutex);
    *out_stats = store->stats;
    pthread_mutex_unlock(&store->mutex);
}
