#include "manager/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/failpoint.h"
#include "manager/lifecycle.h"
#include "manager/message.h"
#include "manager/operations.h"
#include "manager/reconcile.h"
#include "manager/store.h"
#include "manager/supervise.h"
#include "manager/traffic.h"
#include "manager/update_rules.h"

enum { ID_BYTES = 24 };
static const ev_tstamp look_s = 0.2; /* between two looks at the figures */
static const int64_t refused_hold_ns = NS_PER_S;

/* An open update: since when this manager measures its step. */
struct entry {
    struct entry *next;
    char id[ID_BYTES];
    bool busy; /* a move of it is on its way to the store */
    bool measured;
    uint32_t step;
    int64_t since_ns, hold_until_ns;
    struct update_counts new_then, old_then;
};

struct updates {
    struct manager *manager;
    struct entry *entries;
    ev_timer timer;
};

static int no_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
}

/* -- transactions ---------------------------------------------------------------------------------
 */

int update_check_none(const struct catalog *catalog, const char *model, struct error *err)
{
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *operation = catalog_operation_at(catalog, i);
        if ((int)operation->kind != OPERATION_UPDATE || !lifecycle_is_open(operation) ||
            strcmp(operation->model, model) != 0)
            continue;
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "operation %s updates %s and has not ended; CancelOperation takes it back",
                  operation->id, model);
        return error_reason(err, "OPERATION_IN_PROGRESS");
    }
    return 0;
}

int update_pin_traffic(struct txn *txn, const pb_operation *operation, uint32_t percent,
                       struct error *err)
{
    const pb_update *update = operation->update;
    const pb_traffic *base = update->traffic_before;
    const char *from = update->from_version, *to = operation->version;
    pb_traffic *traffic = MESSAGE_COPY(pb_traffic, base);
    bool complete = traffic != NULL;
    for (size_t i = 0; complete && i < base->n_weights; i++)
        complete =
            traffic_set_weight(traffic, base->weights[i]->version,
                               update_weight(base, base->weights[i]->version, from, to, percent));
    complete = complete &&
               traffic_set_weight(traffic, from, update_weight(base, from, from, to, percent)) &&
               traffic_set_weight(traffic, to, update_weight(base, to, from, to, percent));
    if (complete)
        return traffic_put(txn, traffic, operation->id, err);
    if (traffic)
        message_free(&traffic->base);
    return no_memory(err);
}

int update_begin_rollback(struct txn *txn, pb_operation *operation, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    struct lifecycle_target target = {operation->model, operation->version,
                                      operation->device_group};
    operation->update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_ROLL_BACK;
    if (update_pin_traffic(txn, operation, 0, err) != 0)
        return err->status;
    for (size_t i = 0; i < operation->n_new_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(catalog, operation->new_replica_ids[i]);
        if (replica && (int)replica->state != REPLICA_STOPPED &&
            lifecycle_retire(txn, replica->id, err) != 0)
            return err->status;
    }
    if (lifecycle_set_wanted(txn, &target, operation->n_replicas_before, err) != 0)
        return err->status;
    struct lifecycle_target from = {operation->model, operation->update->from_version,
                                    operation->device_group};
    if (seeded_bug("I2_takes_back_both_versions") && lifecycle_set_wanted(txn, &from, 0, err) != 0)
        return err->status;
    return lifecycle_bump(txn, target.model, target.version, err);
}

/* The old version is wanted no more; its replicas are the operation's, whose grace they get. */
static int retire_old(struct txn *txn, pb_operation *operation, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    struct lifecycle_target target = {operation->model, operation->update->from_version,
                                      operation->device_group};
    operation->update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_DRAIN;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        bool is_old = strcmp(replica->model, target.model) == 0 &&
                      strcmp(replica->version, target.version) == 0 &&
                      strcmp(replica->device_group, target.group) == 0;
        if (!is_old || (int)replica->state == REPLICA_STOPPED)
            continue;
        if (!lifecycle_add_replica(operation, replica->id))
            return no_memory(err);
        if (!replica->retiring && lifecycle_retire(txn, replica->id, err) != 0)
            return err->status;
    }
    if (lifecycle_set_wanted(txn, &target, 0, err) != 0)
        return err->status;
    return lifecycle_bump(txn, target.model, target.version, err);
}

static int begin_step(struct txn *txn, pb_operation *operation, uint32_t step, struct error *err)
{
    pb_update *update = operation->update;
    if ((int)update->phase == UPDATE_LOAD) {
        update->epochs = 0;
        for (size_t i = 0; i < operation->n_replica_ids; i++) {
            const pb_replica *row = catalog_replica(txn_catalog(txn), operation->replica_ids[i]);
            update->epochs += row ? row->epoch : 0;
        }
    }
    update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_SHIFT;
    update->step = step;
    return update_pin_traffic(txn, operation, update->steps[step], err);
}

/* The rule that stays: as before, with the new version in the old one's place where that is gone.
 * No weights at all where there were none and the default rule says the same. */
static int settle_traffic(struct txn *txn, const pb_operation *operation, bool went_back,
                          struct error *err)
{
    const pb_update *update = operation->update;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_traffic *base = update->traffic_before;
    const pb_version *chosen = traffic_default(catalog, operation->model);
    bool by_default = !update->had_traffic &&
                      (went_back || (chosen && strcmp(chosen->version, operation->version) == 0));
    pb_traffic *traffic = MESSAGE_NEW(pb_traffic, sluice__manager__v1__traffic__descriptor);
    bool complete = traffic && message_set(&traffic->model, operation->model);
    if (complete)
        traffic->sticky = update->had_traffic ? base->sticky : 0;
    for (size_t i = 0; complete && !by_default && i < base->n_weights; i++)
        if (went_back || seeded_bug("I2_keeps_the_old_traffic") ||
            strcmp(base->weights[i]->version, update->from_version) != 0)
            complete =
                traffic_set_weight(traffic, base->weights[i]->version, base->weights[i]->weight);
    if (complete && !by_default && !went_back)
        complete = traffic_set_weight(traffic, operation->version,
                                      traffic_weight(base, operation->version) +
                                          traffic_weight(base, update->from_version));
    if (complete)
        return traffic_put(txn, traffic, operation->id, err);
    if (traffic)
        message_free(&traffic->base);
    return no_memory(err);
}

/* -- moves ----------------------------------------------------------------------------------------
 */

struct moving {
    struct updates *updates;
    char id[ID_BYTES];
    enum update_phase phase; /* as it was looked at: a move is of no other */
    uint32_t step;
    struct update_decision decision;
    char failed_stage[16];
    pb_error *error; /* GO_BACK: the first failed replica's own, or NULL; owned */
    struct update_counts new_counts, old_counts;
};

static void free_moving(struct moving *moving)
{
    if (moving->error)
        message_free(&moving->error->base);
    free(moving);
}

static bool note_failure(pb_update *update, const struct moving *moving)
{
    struct error why;
    error_set(&why, STATUS_ABORTED, "%s; the update was taken back", moving->decision.message);
    error_reason(&why, moving->decision.reason);
    pb_error *error = moving->error ? MESSAGE_COPY(pb_error, moving->error)
                                    : (pb_error *)message_from_error(&why);
    bool complete = error && message_set_copy(&update->error, error) &&
                    message_set(&update->failed_stage, moving->failed_stage);
    if (error)
        message_free(&error->base);
    return complete;
}

static bool fill_figures(pb_figures **field, const struct update_counts *counts)
{
    pb_figures figures = SLUICE__MANAGER__V1__UPDATE_FIGURES__INIT;
    figures.n_ok = counts->n_ok;
    figures.n_failed = counts->n_failed;
    figures.ttft_ms = update_ttft_ms(counts);
    return message_set_copy(field, &figures);
}

static int change(struct txn *txn, pb_operation *operation, const struct moving *moving,
                  struct error *err)
{
    pb_update *update = operation->update;
    bool went_back = (int)update->phase == UPDATE_ROLL_BACK;
    switch (moving->decision.move) {
    case UPDATE_BEGIN_SHIFT:
        return begin_step(txn, operation, 0, err);
    case UPDATE_NEXT_STEP:
        return begin_step(txn, operation, update->step + 1, err);
    case UPDATE_RETIRE_OLD:
        return retire_old(txn, operation, err);
    case UPDATE_GO_BACK:
        return note_failure(update, moving) ? update_begin_rollback(txn, operation, err)
                                            : no_memory(err);
    case UPDATE_SETTLE:
        update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_END;
        return settle_traffic(txn, operation, went_back, err);
    case UPDATE_STAY:
        break;
    }
    return 0;
}

static int tell(struct txn *txn, const pb_operation *operation, struct error *err)
{
    const pb_update *update = operation->update;
    char text[256] = "";
    const char *type = "update.drain";
    switch ((int)update->phase) {
    case UPDATE_SHIFT:
        type = "update.shift";
        snprintf(text, sizeof(text), "%u %% of version %s's traffic goes to version %s",
                 update->steps[update->step], update->from_version, operation->version);
        break;
    case UPDATE_DRAIN:
        snprintf(text, sizeof(text), "version %s drains", update->from_version);
        break;
    case UPDATE_ROLL_BACK:
        type = "update.rollback";
        snprintf(text, sizeof(text), "%.250s", update->error ? update->error->message : "");
        break;
    default:
        return 0;
    }
    struct txn_event event = {
        .type = type,
        .model = operation->model,
        .version = operation->version,
        .device_group = operation->device_group,
        .operation_id = operation->id,
        .message = text,
    };
    return txn_event(txn, &event, err);
}

static int run_moving(struct txn *txn, void *arg, struct error *err)
{
    struct moving *moving = arg;
    struct row *row = catalog_get(txn_catalog(txn), TABLE_OPERATION, moving->id);
    const pb_operation *old = row ? (const pb_operation *)row_message(row) : NULL;
    if (!old || !lifecycle_is_open(old) || !old->update ||
        (int)old->update->phase != (int)moving->phase || old->update->step != moving->step)
        return 0; /* cancelled meanwhile */
    uint32_t grace_ms = (uint32_t)row_extra(row);
    pb_operation *operation = MESSAGE_COPY(pb_operation, old);
    if (!operation)
        return no_memory(err);
    failpoint("update.before_write");
    operation->updated_unix_ns = txn_now_unix_ns(txn);
    bool shifting = moving->phase == UPDATE_SHIFT;
    if ((shifting && (!fill_figures(&operation->update->new_figures, &moving->new_counts) ||
                      !fill_figures(&operation->update->old_figures, &moving->old_counts))) ||
        change(txn, operation, moving, err) != 0 || tell(txn, operation, err) != 0) {
        if (!err->status)
            no_memory(err);
        message_free(&operation->base);
        return err->status;
    }
    int status = txn_put_extra(txn, TABLE_OPERATION, &operation->base, grace_ms, err);
    failpoint("update.before_commit");
    return status;
}

static struct entry *find_entry(struct updates *updates, const char *id)
{
    for (struct entry *entry = updates->entries; entry; entry = entry->next)
        if (strcmp(entry->id, id) == 0)
            return entry;
    return NULL;
}

static void end_moving(void *arg, const struct error *status)
{
    struct moving *moving = arg;
    struct updates *updates = moving->updates;
    struct entry *entry = find_entry(updates, moving->id);
    failpoint("update.after_commit");
    if (entry)
        entry->busy = false;
    if (entry && status->status != 0)
        entry->hold_until_ns = clock_now_ns() + refused_hold_ns;
    free_moving(moving);
    if (status->status != STATUS_CANCELLED)
        manager_changed(updates->manager);
}

static void submit_move(struct updates *updates, struct entry *entry, const pb_operation *row,
                        const struct update_look *look, const struct update_decision *decision)
{
    struct error err;
    struct moving *moving = calloc(1, sizeof(*moving));
    entry->hold_until_ns = clock_now_ns() + refused_hold_ns; /* should it not be taken */
    if (!moving)
        return;
    *moving = (struct moving){.updates = updates,
                              .phase = look->phase,
                              .step = row->update->step,
                              .decision = *decision,
                              .new_counts = look->new_counts,
                              .old_counts = look->old_counts};
    memcpy(moving->id, entry->id, sizeof(moving->id));
    snprintf(moving->failed_stage, sizeof(moving->failed_stage), "shift");
    for (size_t i = 0; look->phase == UPDATE_LOAD && i < row->n_replica_ids; i++) {
        const pb_replica *replica =
            catalog_replica(&updates->manager->catalog, row->replica_ids[i]);
        if (!replica || (int)replica->state != REPLICA_FAILED)
            continue;
        snprintf(moving->failed_stage, sizeof(moving->failed_stage), "%s",
                 *replica->failed_stage ? replica->failed_stage : "start");
        moving->error = MESSAGE_COPY(pb_error, replica->last_error);
        break;
    }
    if (store_submit(updates->manager->store, run_moving, end_moving, moving, &err) != 0) {
        free_moving(moving);
        return;
    }
    log_info(LOG_EVENT("update moves"), LOG_STR("operation", entry->id),
             LOG_STR("why", decision->reason ? decision->reason : ""),
             LOG_U64("step", row->update->step));
    entry->busy = true;
    entry->hold_until_ns = 0;
}

/* -- looking --------------------------------------------------------------------------------------
 */

static void add_histograms(struct update_counts *out,
                           const Sluice__Worker__V1__WorkerCounters *from)
{
    for (size_t i = 0; i < from->n_histograms; i++) {
        const Sluice__Worker__V1__Histogram *h = from->histograms[i];
        uint64_t n = 0;
        for (size_t j = 0; j < h->n_counts; j++)
            n += h->counts[j];
        if (h->kind == SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_QUEUE_SECONDS) {
            out->n_queued += n;
            out->queue_s += h->sum;
        } else if (h->kind == SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_PREFILL_SECONDS) {
            out->n_prefilled += n;
            out->prefill_s += h->sum;
        }
    }
}

/* Totals of the version's ready workers on the operation's group. False: one has yet to say. */
static bool count(struct manager *manager, const pb_operation *row, const char *version,
                  struct update_counts *out)
{
    const struct catalog *catalog = &manager->catalog;
    *out = (struct update_counts){0};
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        struct replica_view view = {0};
        if ((int)replica->state != REPLICA_READY || strcmp(replica->model, row->model) != 0 ||
            strcmp(replica->version, version) != 0 ||
            strcmp(replica->device_group, row->device_group) != 0)
            continue;
        supervisor_view(manager->supervisor, replica->id, &view);
        if (!view.status || !view.status->counters)
            return false;
        out->n_ok += view.status->counters->n_ok_requests;
        out->n_failed += view.status->counters->n_failed_requests;
        add_histograms(out, view.status->counters);
    }
    return true;
}

/* One of an old version that restarts takes its totals with it: its figures begin anew. */
static bool went_down(const struct update_counts *now, const struct update_counts *then)
{
    return now->n_ok < then->n_ok || now->n_failed < then->n_failed ||
           now->n_prefilled < then->n_prefilled || now->n_queued < then->n_queued;
}

static void measure(struct updates *updates, struct entry *entry, const pb_operation *row,
                    struct update_look *look)
{
    struct update_counts new_now, old_now;
    int64_t now_ns = clock_now_ns();
    if (!count(updates->manager, row, row->version, &new_now) ||
        !count(updates->manager, row, row->update->from_version, &old_now))
        return;
    if (!entry->measured || entry->step != row->update->step) {
        entry->measured = true;
        entry->step = row->update->step;
        entry->since_ns = now_ns;
        entry->new_then = new_now;
        entry->old_then = old_now;
    }
    if (went_down(&old_now, &entry->old_then))
        entry->old_then = old_now;
    look->measured = true;
    look->held_ns = now_ns - entry->since_ns;
    look->new_counts = update_counts_since(&new_now, &entry->new_then);
    look->old_counts = update_counts_since(&old_now, &entry->old_then);
}

static void count_replicas(const struct catalog *catalog, const pb_operation *row,
                           struct update_look *look)
{
    uint64_t epochs = 0;
    for (size_t i = 0; i < row->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(catalog, row->replica_ids[i]);
        bool is_new = !replica || strcmp(replica->version, row->version) == 0;
        bool stopped = !replica || (int)replica->state == REPLICA_STOPPED;
        if (replica && replica->retiring && !stopped)
            look->n_leaving++;
        if (!is_new)
            continue;
        look->n_new++;
        epochs += replica ? replica->epoch : 0;
        if (stopped || (int)replica->state == REPLICA_FAILED ||
            ((int)replica->state == REPLICA_PENDING &&
             strcmp(replica->reason, RECONCILE_QUARANTINED) == 0))
            look->n_failed++;
        else if ((int)replica->state == REPLICA_READY && !replica->stalled)
            look->n_ready++;
    }
    look->restarted = epochs != row->update->epochs;
}

static void look_at(struct updates *updates, struct entry *entry, const pb_operation *row)
{
    struct manager *manager = updates->manager;
    const pb_update *update = row->update;
    struct update_decision decision;
    struct update_look look = {
        .phase = (enum update_phase)update->phase,
        .gates = update->gates,
        .step = update->step,
        .n_steps = (uint32_t)update->n_steps,
        .step_ns = (int64_t)update->step_ms * NS_PER_MS,
    };
    if (entry->busy || entry->hold_until_ns > clock_now_ns() ||
        !supervisor_settled(manager->supervisor))
        return;
    if (look.phase == UPDATE_END) {
        if (!operations_busy(manager->operations, row->id, clock_now_ns()))
            operations_finish(manager->operations, row->id,
                              update->error     ? OPERATION_FAILED
                              : row->cancelling ? OPERATION_CANCELLED
                                                : OPERATION_DONE,
                              NULL);
        return;
    }
    count_replicas(&manager->catalog, row, &look);
    if (look.phase == UPDATE_SHIFT)
        measure(updates, entry, row, &look);
    update_decide(&look, &decision);
    if (decision.move != UPDATE_STAY)
        submit_move(updates, entry, row, &look, &decision);
}

static struct entry *ensure_entry(struct updates *updates, const char *id)
{
    struct entry *entry = find_entry(updates, id);
    if (entry || strlen(id) >= ID_BYTES || !(entry = calloc(1, sizeof(*entry))))
        return entry;
    memcpy(entry->id, id, strlen(id) + 1);
    entry->next = updates->entries;
    updates->entries = entry;
    return entry;
}

static const pb_operation *find_open(const struct catalog *catalog, const char *id)
{
    const pb_operation *row = catalog_operation(catalog, id);
    return row && lifecycle_is_open(row) ? row : NULL;
}

static void drop_ended(struct updates *updates)
{
    for (struct entry **at = &updates->entries; *at;) {
        struct entry *entry = *at;
        if (entry->busy || find_open(&updates->manager->catalog, entry->id)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        free(entry);
    }
}

void updates_changed(struct updates *updates)
{
    if (!updates)
        return;
    const struct catalog *catalog = &updates->manager->catalog;
    bool some = false;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *row = catalog_operation_at(catalog, i);
        if ((int)row->kind != OPERATION_UPDATE || !lifecycle_is_open(row) || !row->update)
            continue;
        struct entry *entry = ensure_entry(updates, row->id);
        some = true;
        if (entry)
            look_at(updates, entry, row);
    }
    drop_ended(updates);
    ev_timer_stop(updates->manager->loop, &updates->timer);
    if (!some)
        return;
    ev_timer_set(&updates->timer, look_s, 0.);
    ev_timer_start(updates->manager->loop, &updates->timer);
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct updates *updates = timer->data;
    (void)loop;
    (void)events;
    operations_changed(updates->manager->operations); /* the figures are new */
    updates_changed(updates);
}

bool updates_lay_over(struct updates *updates, pb_operation *operation)
{
    pb_update *update = operation->update;
    const struct entry *entry = find_entry(updates, operation->id);
    struct update_counts new_now, old_now;
    switch ((int)update->phase) {
    case UPDATE_SHIFT:
        break;
    case UPDATE_ROLL_BACK:
        return message_set(&operation->stage, "rollback");
    case UPDATE_DRAIN:
        return message_set(&operation->stage, "drain");
    default:
        return true;
    }
    if (entry && entry->measured && entry->step == update->step &&
        count(updates->manager, operation, operation->version, &new_now) &&
        count(updates->manager, operation, update->from_version, &old_now) &&
        !went_down(&new_now, &entry->new_then) && !went_down(&old_now, &entry->old_then)) {
        struct update_counts of_new = update_counts_since(&new_now, &entry->new_then);
        struct update_counts of_old = update_counts_since(&old_now, &entry->old_then);
        if (!fill_figures(&update->new_figures, &of_new) ||
            !fill_figures(&update->old_figures, &of_old))
            return false;
    }
    return message_set(&operation->stage, "shift");
}

int updates_create(struct manager *manager, struct updates **out_updates, struct error *err)
{
    struct updates *updates = calloc(1, sizeof(*updates));
    if (!updates)
        return no_memory(err);
    updates->manager = manager;
    ev_timer_init(&updates->timer, on_timer, look_s, 0.);
    updates->timer.data = updates;
    *out_updates = updates;
    return 0;
}

void updates_destroy(struct updates *updates)
{
    if (!updates)
        return;
    ev_timer_stop(updates->manager->loop, &updates->timer);
    while (updates->entries) {
        struct entry *next = updates->entries->next;
        free(updates->entries);
        updates->entries = next;
    }
    free(updates);
}
