#include "manager/replicas/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/seeded_bug.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/replicas/supervisor_private.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/store/txn.h"

enum { MAX_STOPPED = 100 };

struct pending_record {
    struct supervisor *supervisor;
    struct record record;
    char id[SLOT_ID_BYTES];
    uint32_t pid;
    uint64_t start_ticks;
    int64_t wait_ns; /* RETRY: wait until the next start */
    char numerics_id[256];
    const char *stage;         /* RETRY, FAIL: how far the process was; static */
    pb_error *last_error;      /* owned */
    struct slot_served served; /* STATE, DRAIN: planned memory */
};

static const char *const event_types[] = {
    [RECORD_STARTING] = "replica.starting", [RECORD_PID] = "replica.started",
    [RECORD_STATE] = "replica.state",       [RECORD_RETRY] = "replica.died",
    [RECORD_FAIL] = "replica.failed",       [RECORD_DRAIN] = "replica.draining",
    [RECORD_STOP] = "replica.stopped",      [RECORD_ADOPT] = "replica.adopted",
    [RECORD_STALL] = "replica.stalled",     [RECORD_WAKE] = "replica.waking",
};

/* Ends that are no death: a command asked for them, or the replica waits for a device. */
static const struct {
    enum reason reason;
    const char *event;
    bool asked_for;
} non_deaths[] = {
    {REASON_RESTART, "replica.restarting", true},
    {REASON_PARK, "replica.parking", true},
    {REASON_WAKE, "replica.waking", true},
    {REASON_DEVICE_QUARANTINED, "replica.held", false},
};

/* The event for an end that is no death; NULL: the record is a death, or no end. */
static const char *non_death_event(const struct record *record)
{
    for (size_t i = 0; i < sizeof(non_deaths) / sizeof(non_deaths[0]); i++)
        if (record->kind == RECORD_RETRY && record->reason == non_deaths[i].reason)
            return non_deaths[i].event;
    return NULL;
}

bool record_is_asked_for(enum reason reason)
{
    for (size_t i = 0; i < sizeof(non_deaths) / sizeof(non_deaths[0]); i++)
        if (reason == non_deaths[i].reason)
            return non_deaths[i].asked_for;
    return false;
}

/* True where a command asked for the end before this start. A RestartReplica that waits for a
 * device has REASON_DEVICE_QUARANTINED by then; restart_epoch still shows the command. */
static bool was_asked_for(const pb_replica *row)
{
    return record_is_asked_for(reason_parse(row->reason)) || row->restart_epoch == row->epoch;
}

static bool is_death(const struct record *record)
{
    return record->kind == RECORD_FAIL ||
           (record->kind == RECORD_RETRY && !non_death_event(record));
}

static const char *event_type(const struct record *record)
{
    if (record->kind == RECORD_STALL && !record->stalled)
        return "replica.moving";
    if (non_death_event(record))
        return non_death_event(record);
    if (record->kind != RECORD_STATE)
        return event_types[record->kind];
    switch (record->state) {
    case REPLICA_LOADING:
        return "replica.loading";
    case REPLICA_WARMING:
        return "replica.warming";
    case REPLICA_READY:
        return "replica.ready";
    case REPLICA_DRAINING:
        return "replica.draining";
    case REPLICA_PARKED:
        return "replica.parked";
    default:
        return event_types[RECORD_STATE];
    }
}

/* Records the planned memory of the serving process. A manager that starts while the replica is
 * parked reads this value. */
static bool set_served(pb_replica *row, const struct pending_record *pending)
{
    const struct slot_gpus *gpus = &pending->served.gpus;
    if (!pending->served.host_bytes && !gpus->n)
        return true;
    if (!row->served)
        row->served = MESSAGE_NEW(pb_footprint, sluice__manager__v1__replica_footprint__descriptor);
    if (!row->served)
        return false;
    row->served->host_bytes = pending->served.host_bytes;
    row->served->gpu_bytes = gpus->n ? gpus->gpus[0].n_bytes : 0;
    return message_set(&row->served->gpu, gpus->n ? gpus->gpus[0].name : "");
}

static bool set_state(pb_replica *row, enum replica_state state, enum reason reason)
{
    row->state = (Sluice__Manager__V1__ReplicaState)state;
    return message_set(&row->reason, reason_name(reason));
}

static void clear_process(pb_replica *row)
{
    row->pid = 0;
    row->start_ticks = 0;
    row->ready_unix_ns = 0;
    row->adopted = 0;
    row->stalled = 0;
    message_clear(&row->numerics_id);
}

/* Changes the row to the state after the record. False where memory is exhausted. */
static bool change_row(pb_replica *row, const struct pending_record *pending, int64_t now_unix_ns)
{
    const struct record *record = &pending->record;
    char socket_name[64];
    bool complete = true;
    row->generation++;
    switch (record->kind) {
    case RECORD_STARTING:
        clear_process(row);
        if (row->epoch && !was_asked_for(row))
            row->n_restarts++;
        row->epoch++;
        row->next_start_unix_ns = 0;
        row->started_unix_ns = now_unix_ns;
        snprintf(socket_name, sizeof(socket_name), "replica-%s/worker.sock", pending->id);
        complete =
            set_state(row, REPLICA_LOADING, REASON_NONE) && message_set(&row->socket, socket_name);
        break;
    case RECORD_PID:
    case RECORD_ADOPT:
        row->pid = pending->pid;
        row->start_ticks = pending->start_ticks;
        row->adopted = record->kind == RECORD_ADOPT;
        break;
    case RECORD_STATE:
        if (pending->pid) { /* also where the record of the pid was refused */
            row->pid = pending->pid;
            row->start_ticks = pending->start_ticks;
        }
        complete = set_state(row, record->state, record->reason) &&
                   message_set(&row->numerics_id, pending->numerics_id) &&
                   (record->state == REPLICA_LOADING || set_served(row, pending));
        if (record->state == REPLICA_READY) {
            row->ready_unix_ns = now_unix_ns;
            complete = complete && message_set_copy(&row->last_error, pending->last_error);
        }
        break;
    case RECORD_RETRY:
        clear_process(row);
        row->next_start_unix_ns = now_unix_ns + pending->wait_ns;
        complete = set_state(row, REPLICA_PENDING, record->reason) &&
                   message_set_copy(&row->last_error, pending->last_error) &&
                   (!is_death(record) || message_set(&row->failed_stage, pending->stage));
        break;
    case RECORD_FAIL:
        clear_process(row);
        complete = set_state(row, REPLICA_FAILED, record->reason) &&
                   message_set_copy(&row->last_error, pending->last_error) &&
                   message_set(&row->failed_stage, pending->stage);
        break;
    case RECORD_DRAIN:
        complete =
            set_state(row, seeded_bug("I2_skips_a_state") ? REPLICA_STOPPED : REPLICA_DRAINING,
                      record->reason) &&
            set_served(row, pending);
        break;
    case RECORD_WAKE:
        row->ready_unix_ns = 0;
        complete = set_state(row, REPLICA_LOADING, REASON_NONE);
        break;
    case RECORD_STALL:
        row->stalled = record->stalled;
        break;
    case RECORD_STOP:
        clear_process(row);
        complete = set_state(row, REPLICA_STOPPED, REASON_NONE);
        break;
    }
    return complete;
}

/* Stopped replicas stay listed for ListReplicas; the oldest rows are deleted. */
static int prune_stopped(struct txn *txn, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    size_t n_stopped = 0, oldest = SIZE_MAX;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++)
        if ((int)catalog_replica_at(catalog, i)->state == REPLICA_STOPPED) {
            oldest = n_stopped++ ? oldest : i;
        }
    if (n_stopped <= MAX_STOPPED)
        return 0;
    return txn_delete(txn, TABLE_REPLICA, row_key(catalog_at(catalog, TABLE_REPLICA, oldest)), err);
}

static int run_record(struct txn *txn, void *arg, struct error *err)
{
    struct pending_record *pending = arg;
    const pb_replica *old = catalog_replica(txn_catalog(txn), pending->id);
    if (!old)
        return error_set(err, STATUS_NOT_FOUND, "no replica %s", pending->id);
    pb_replica *row = MESSAGE_COPY(pb_replica, old);
    if (!row || !change_row(row, pending, txn_now_unix_ns(txn))) {
        if (row)
            message_free(&row->base);
        return error_no_memory(err);
    }
    char message[ERROR_MESSAGE_BYTES], reason[ERROR_REASON_BYTES];
    bool has_cause = row->last_error &&
                     (pending->record.kind == RECORD_RETRY || pending->record.kind == RECORD_FAIL);
    snprintf(message, sizeof(message), "%s", has_cause ? row->last_error->message : row->reason);
    snprintf(reason, sizeof(reason), "%s", has_cause ? row->last_error->reason : row->reason);
    char model[80], version[48], group[80];
    snprintf(model, sizeof(model), "%s", row->model);
    snprintf(version, sizeof(version), "%s", row->version);
    snprintf(group, sizeof(group), "%s", row->device_group);
    if (txn_put(txn, TABLE_REPLICA, &row->base, err) != 0)
        return err->status;
    struct txn_event event = {
        .type = event_type(&pending->record),
        .model = model,
        .version = version,
        .replica_id = pending->id,
        .device_group = group,
        .message = message,
        .reason = reason,
        .stage = is_death(&pending->record) ? pending->stage : NULL,
    };
    if (txn_event(txn, &event, err) != 0)
        return err->status;
    failpoint("record.before_commit");
    return pending->record.kind == RECORD_STOP ? prune_stopped(txn, err) : 0;
}

static void record_end(void *arg, const struct error *status)
{
    struct pending_record *pending = arg;
    supervisor_record_done(pending->supervisor, pending->id, &pending->record, status);
    if (pending->last_error)
        message_free(&pending->last_error->base);
    free(pending);
}

int record_submit(struct slot *slot, const struct record *record, struct error *err)
{
    struct pending_record *pending = calloc(1, sizeof(*pending));
    if (!pending)
        return error_no_memory(err);
    pending->supervisor = slot->fleet->supervisor;
    pending->record = *record;
    memcpy(pending->id, slot->id, sizeof(pending->id));
    pending->stage = slot_stage(slot);
    pending->wait_ns = record->at_ns - fleet_now_ns(slot->fleet);
    if (slot->run.process.pidfd >= 0) {
        pending->pid = (uint32_t)slot->run.process.pid;
        pending->start_ticks = slot->run.process.start_ticks;
    }
    if (slot->run.status)
        snprintf(pending->numerics_id, sizeof(pending->numerics_id), "%s",
                 slot->run.status->numerics_id);
    pending->served = slot->served;
    if (slot->last_error.status &&
        !(pending->last_error = (pb_error *)message_from_error(&slot->last_error))) {
        free(pending);
        return error_no_memory(err);
    }
    int rc = store_submit_seen(slot->fleet->context->store, run_record, record_end, pending, err);
    if (rc == 0) {
        slot->busy = true;
        return 0;
    }
    if (pending->last_error)
        message_free(&pending->last_error->base);
    free(pending);
    return rc;
}
