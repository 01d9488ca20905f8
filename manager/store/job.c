#include "manager/store/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/store/txn.h"

void store_job_free(struct store_job *job)
{
    for (size_t i = 0; i < job->n_late; i++)
        txn_free_changes(job->late[i].changes, job->late[i].n);
    txn_free_changes(job->changes, job->n_changes);
    free(job);
}

/* Adds changes to deliver with the job. Takes `changes`. */
static void add_late_changes(struct store_job *job, struct store_change *changes, size_t n_changes)
{
    job->late[job->n_late++] = (struct late_changes){.changes = changes, .n = n_changes};
}

/* Reopens the database after an ambiguous answer of the disk, and reloads the catalog from it. */
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
    catalog.manager_epoch = store->catalog.manager_epoch; /* may be in memory alone */
    catalog.first_revision = store->catalog.first_revision;
    catalog_fini(&store->catalog);
    store->catalog = catalog;
    store->db = db;
    store->broken = false;
    for (size_t i = 0; i < store->n_unsaved; i++)
        if (catalog_put(&store->catalog, store->unsaved[i]) != 0)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    return 0;
}

/* --- unsaved rows --- */

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

void store_job_forget_unsaved(struct store *store)
{
    while (store->n_unsaved)
        forget_unsaved(store, store->n_unsaved - 1);
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

/* Reopens a database that could not be opened after a failure. Now the outcome of the failed
 * commit is known. Its caller got an error; if the commit was done, its changes are delivered
 * with this job. */
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
            continue; /* the unsaved row is newer */
        }
        row_release(unknown[i].before);
        row_release(unknown[i].after);
    }
    add_late_changes(job, unknown, n_kept);
    return 0;
}

/* Finds the outcome of a commit that the disk did not report. *out_done: the reloaded database
 * has the commit's generation, and thus the commit. If the database cannot be read, the changes
 * are kept for recover(). */
static int resolve_unknown(struct store *store, struct txn *txn, bool *out_done, struct error *err)
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
              "state store: the disk failed during the change. The outcome "
              "is known once the disk answers; repeat the request with the same request id");
    err->retry_after_ms = 1000;
    return error_reason(err, REASON_STATE_STORE_UNKNOWN);
}

/* The row has the name of the admin; the admin's role is not known any more. */
static int write_late_revocation(struct txn *txn, const pb_key *key, struct error *err)
{
    char message[256], after[160];
    snprintf(message, sizeof(message),
             "by %.130s; in memory alone until now, as the disk took no writes", key->revoked_by);
    snprintf(after, sizeof(after), "api_key %s: name=\"%s\"", key->id, key->name);
    const struct txn_attribute attributes[] = {
        {"caller", key->revoked_by},
        {"rpc", "RevokeApiKey"},
        {"request_id", key->revoke_request_id},
        {"after", after},
    };
    struct txn_event event = {.type = "audit.RevokeApiKey",
                              .message = message,
                              .attributes = attributes,
                              .n_attributes = sizeof(attributes) / sizeof(attributes[0])};
    return txn_event(txn, &event, err);
}

static int write_late_event(struct txn *txn, const struct row *row, struct error *err)
{
    if (row_table(row) == TABLE_API_KEY)
        return write_late_revocation(txn, (const pb_key *)row_message(row), err);
    struct txn_event event = {.message =
                                  "the disk took no writes: earlier changes were not recorded"};
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
    if (store->epoch_unsaved) {
        if (store_db_set_counter(&store->db, "manager_epoch", store->catalog.manager_epoch, err) !=
            0)
            return err->status;
        txn->wrote = true;
    }
    for (size_t i = 0; i < store->n_unsaved; i++) {
        struct row *row = store->unsaved[i];
        if (txn_write_row(txn, row, err) != 0)
            return err->status;
        if (write_late_event(txn, row, err) != 0)
            return err->status;
    }
    return 0;
}

/* Writes the unsaved rows in a transaction of their own; their events go with `job`. The epoch
 * of this start is written first, so that everything written under an epoch is newer than it. */
static int save_late(struct store *store, struct store_job *job, struct error *err)
{
    struct txn txn;
    bool unknown = false, done = false;
    if (store->n_unsaved == 0 && !store->epoch_unsaved)
        return 0;
    if (txn_begin(&txn, &store->db, &store->catalog, err) != 0)
        return err->status;
    txn.max_events = store->max_events;
    if (run_late(store, &txn, err) != 0) {
        txn_rollback(&txn);
        return err->status;
    }
    if (txn_commit(&txn, &unknown, err) != 0 &&
        (!unknown || resolve_unknown(store, &txn, &done, err) != 0 || !done))
        return err->status;
    error_clear(err);
    store->epoch_unsaved = false;
    store_job_forget_unsaved(store);
    add_late_changes(job, txn.changes, txn.n_changes);
    return 0;
}

/* Runs the job in memory, as the disk takes no writes and the observed facts hold anyway. */
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

/* `late`: error of writing the unsaved rows, or status 0. With an error nothing is written. The
 * job may depend on unsaved rows, as an operation is done once its replicas have stopped. After
 * a crash the database would have the job without those rows. */
static void run_once(struct store *store, struct store_job *job, const struct error *late)
{
    struct txn txn;
    bool unknown = false, done = false;
    job->store_failed = true; /* until the job's own part runs */
    if (txn_begin(&txn, &store->db, &store->catalog, &job->err) != 0)
        return;
    txn.max_events = store->max_events;
    uint64_t n_errors = store->db.n_errors;
    if (job->run(&txn, job->arg, &job->err) != 0) {
        job->store_failed = store->db.n_errors != n_errors;
        txn_rollback(&txn);
        return;
    }
    if (late->status != 0 && txn.wrote) {
        txn_rollback(&txn);
        job->err = *late;
        return;
    }
    if (txn_commit(&txn, &unknown, &job->err) != 0) {
        if (!unknown || resolve_unknown(store, &txn, &done, &job->err) != 0 || !done)
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

bool store_job_is_disk(const struct error *err)
{
    return err->status != 0 &&
           (err->reason == REASON_STATE_STORE_FULL || err->reason == REASON_STATE_STORE_IO ||
            err->reason == REASON_STATE_STORE_UNKNOWN);
}

void store_job_note_trust(struct store *store, const struct error *err)
{
    if (store_job_is_disk(err) && err->reason != REASON_STATE_STORE_FULL)
        store->broken = true;
}

/* Reopens the database where needed. False: the database cannot be opened; job->err has the
 * error. */
static bool is_open(struct store *store, struct store_job *job)
{
    job->store_failed = store->broken && recover(store, job, &job->err) != 0;
    return !job->store_failed;
}

static void run_job(struct store *store, struct store_job *job)
{
    struct error late;
    error_clear(&job->err);
    error_clear(&late);
    if (is_open(store, job)) {
        (void)save_late(store, job, &late);
        store_job_note_trust(store, &late);
        if (is_open(store, job))
            run_once(store, job, &late);
    }
    store_job_note_trust(store, &job->err);
    if (!job->seen || !store_job_is_disk(&job->err))
        return;
    store->unsaved_reason = job->err.reason;
    run_in_memory(store, job);
}

static void record_result(struct store *store, const struct store_job *job)
{
    uint64_t n_bytes = store_db_bytes(&store->db);
    pthread_mutex_lock(&store->mutex);
    store->n_unsaved_reported = store->n_unsaved;
    if (n_bytes) /* else the files are not open */
        store->stats.n_bytes = n_bytes;
    if (store->n_unsaved)
        store->stats.reason = store->unsaved_reason;
    if (job->err.status == 0) {
        store->stats.n_commits++;
        if (job->wrote && store->n_unsaved == 0)
            store->stats.reason = REASON_NONE;
    } else if (job->store_failed) {
        store->stats.n_failed++;
        store->stats.reason = job->err.reason ? job->err.reason : REASON_STATE_STORE_FAILED;
    }
    pthread_mutex_unlock(&store->mutex);
}

void store_job_run(struct store *store, struct store_job *job)
{
    run_job(store, job);
    job->generation = store->catalog.generation;
    job->first_event_seq = store->catalog.first_event_seq;
    job->last_event_seq = store->catalog.last_event_seq;
    record_result(store, job);
}
