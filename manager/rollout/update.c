#include "manager/rollout/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/replicas/reconcile.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/update_measure.h"
#include "manager/rollout/update_rules.h"
#include "manager/rollout/update_txn.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"

static const ev_tstamp check_interval_s = 0.2; /* interval between two checks */
static const int64_t refused_hold_ns = NS_PER_S;

/* An open update, and the start of its current step in this manager. */
struct entry {
    struct entry *next;
    char id[UPDATE_ID_BYTES];
    bool busy; /* a move is on its way to the store */
    bool measured;
    uint32_t step;
    int64_t since_ns, hold_until_ns;
    struct update_counts new_then, old_then;
};

struct updates {
    struct fleet *fleet;
    struct operation_ops operations;
    struct change_subscriber on_change;
    struct entry *entries;
    ev_timer timer;
};

static void free_moving(struct moving *moving)
{
    if (moving->error)
        message_free(&moving->error->base);
    free(moving);
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
        change_hub_notify(&updates->fleet->context->changes, NULL);
}

static void submit_move(struct updates *updates, struct entry *entry, const pb_operation *row,
                        const struct update_facts *facts, const struct update_decision *decision)
{
    struct error err;
    struct moving *moving = calloc(1, sizeof(*moving));
    entry->hold_until_ns = clock_now_ns() + refused_hold_ns; /* in case the move is refused */
    if (!moving)
        return;
    *moving = (struct moving){.updates = updates,
                              .phase = facts->phase,
                              .step = row->update->step,
                              .decision = *decision,
                              .new_counts = facts->new_counts,
                              .old_counts = facts->old_counts};
    memcpy(moving->id, entry->id, sizeof(moving->id));
    snprintf(moving->failed_stage, sizeof(moving->failed_stage), "shift");
    for (size_t i = 0; facts->phase == UPDATE_LOAD && i < row->n_replica_ids; i++) {
        const pb_replica *replica =
            catalog_replica(updates->fleet->context->catalog, row->replica_ids[i]);
        if (!replica || (int)replica->state != REPLICA_FAILED)
            continue;
        snprintf(moving->failed_stage, sizeof(moving->failed_stage), "%s",
                 *replica->failed_stage ? replica->failed_stage : "start");
        moving->error = MESSAGE_COPY(pb_error, replica->last_error);
        break;
    }
    if (store_submit(updates->fleet->context->store, update_txn_run, end_moving, moving, &err) !=
        0) {
        free_moving(moving);
        return;
    }
    log_info(LOG_EVENT("update advanced"), LOG_STR("operation", entry->id),
             LOG_STR("why", reason_name(decision->reason)), LOG_U64("step", row->update->step));
    entry->busy = true;
    entry->hold_until_ns = 0;
}

/* --- decisions --- */

static void measure(struct updates *updates, struct entry *entry, const pb_operation *row,
                    struct update_facts *facts)
{
    struct update_counts new_now, old_now;
    int64_t now_ns = clock_now_ns();
    if (!update_measure(updates->fleet, row, row->version, &new_now) ||
        !update_measure(updates->fleet, row, row->update->from_version, &old_now))
        return;
    if (!entry->measured || entry->step != row->update->step) {
        entry->measured = true;
        entry->step = row->update->step;
        entry->since_ns = now_ns;
        entry->new_then = new_now;
        entry->old_then = old_now;
    }
    if (update_went_down(&old_now, &entry->old_then))
        entry->old_then = old_now;
    facts->measured = true;
    facts->held_ns = now_ns - entry->since_ns;
    facts->new_counts = update_counts_since(&new_now, &entry->new_then);
    facts->old_counts = update_counts_since(&old_now, &entry->old_then);
}

static void count_replicas(const struct catalog *catalog, const pb_operation *row,
                           struct update_facts *facts)
{
    uint64_t epochs = 0;
    for (size_t i = 0; i < row->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(catalog, row->replica_ids[i]);
        bool is_new = !replica || strcmp(replica->version, row->version) == 0;
        bool stopped = !replica || (int)replica->state == REPLICA_STOPPED;
        if (replica && replica->retiring && !stopped)
            facts->n_leaving++;
        if (!is_new)
            continue;
        facts->n_new++;
        epochs += replica ? replica->epoch : 0;
        if (stopped || (int)replica->state == REPLICA_FAILED ||
            ((int)replica->state == REPLICA_PENDING &&
             reason_is(replica->reason, REASON_DEVICE_QUARANTINED)))
            facts->n_failed++;
        else if ((int)replica->state == REPLICA_READY && !replica->stalled)
            facts->n_ready++;
    }
    facts->restarted = epochs != row->update->epochs;
}

static void check_update(struct updates *updates, struct entry *entry, const pb_operation *row)
{
    struct fleet *fleet = updates->fleet;
    const pb_update *update = row->update;
    struct update_decision decision;
    struct update_facts facts = {
        .phase = (enum update_phase)update->phase,
        .gates = update->gates,
        .step = update->step,
        .n_steps = (uint32_t)update->n_steps,
        .step_ns = (int64_t)update->step_ms * NS_PER_MS,
    };
    if (entry->busy || entry->hold_until_ns > clock_now_ns() || !fleet_is_settled(fleet))
        return;
    if (facts.phase == UPDATE_END) {
        if (!updates->operations.is_busy(updates->operations.arg, row->id, clock_now_ns()))
            updates->operations.finish(updates->operations.arg, row->id,
                                       update->error     ? OPERATION_FAILED
                                       : row->cancelling ? OPERATION_CANCELLED
                                                         : OPERATION_DONE,
                                       REASON_NONE);
        return;
    }
    count_replicas(fleet->context->catalog, row, &facts);
    if (facts.phase == UPDATE_SHIFT)
        measure(updates, entry, row, &facts);
    update_decide(&facts, &decision);
    if (decision.move != UPDATE_STAY)
        submit_move(updates, entry, row, &facts, &decision);
}

static struct entry *ensure_entry(struct updates *updates, const char *id)
{
    struct entry *entry = find_entry(updates, id);
    if (entry || strlen(id) >= UPDATE_ID_BYTES || !(entry = calloc(1, sizeof(*entry))))
        return entry;
    memcpy(entry->id, id, strlen(id) + 1);
    entry->next = updates->entries;
    updates->entries = entry;
    return entry;
}

static const pb_operation *find_open(const struct catalog *catalog, const char *id)
{
    const pb_operation *row = catalog_operation(catalog, id);
    return row && pb_operation_is_open(row) ? row : NULL;
}

static void drop_ended(struct updates *updates)
{
    for (struct entry **at = &updates->entries; *at;) {
        struct entry *entry = *at;
        if (entry->busy || find_open(updates->fleet->context->catalog, entry->id)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        free(entry);
    }
}

static void check_all(struct updates *updates)
{
    const struct catalog *catalog = updates->fleet->context->catalog;
    bool some = false;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *row = catalog_operation_at(catalog, i);
        if ((int)row->kind != OPERATION_UPDATE || !pb_operation_is_open(row) || !row->update)
            continue;
        struct entry *entry = ensure_entry(updates, row->id);
        some = true;
        if (entry)
            check_update(updates, entry, row);
    }
    drop_ended(updates);
    ev_timer_stop(updates->fleet->context->loop, &updates->timer);
    if (!some)
        return;
    ev_timer_set(&updates->timer, check_interval_s, 0.);
    ev_timer_start(updates->fleet->context->loop, &updates->timer);
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct updates *updates = timer->data;
    (void)loop;
    (void)events;
    change_hub_notify(&updates->fleet->context->progress, NULL);
    check_all(updates);
}

void updates_overlay(struct updates *updates, struct arena *arena, pb_operation *operation)
{
    pb_update *update = operation->update;
    const struct entry *entry = find_entry(updates, operation->id);
    struct update_counts new_now, old_now;
    switch ((int)update->phase) {
    case UPDATE_SHIFT:
        operation->stage = message_text_in(arena, "shift");
        break;
    case UPDATE_ROLL_BACK:
        operation->stage = message_text_in(arena, "rollback");
        return;
    case UPDATE_DRAIN:
        operation->stage = message_text_in(arena, "drain");
        return;
    default:
        return;
    }
    if (entry && entry->measured && entry->step == update->step &&
        update_measure(updates->fleet, operation, operation->version, &new_now) &&
        update_measure(updates->fleet, operation, update->from_version, &old_now) &&
        !update_went_down(&new_now, &entry->new_then) &&
        !update_went_down(&old_now, &entry->old_then)) {
        struct update_counts of_new = update_counts_since(&new_now, &entry->new_then);
        struct update_counts of_old = update_counts_since(&old_now, &entry->old_then);
        const pb_figures new_figures = update_txn_figures(&of_new, update->gates);
        const pb_figures old_figures = update_txn_figures(&of_old, update->gates);
        update->new_figures = message_copy_in(arena, &new_figures);
        update->old_figures = message_copy_in(arena, &old_figures);
    }
}

static void on_change(void *arg, const char *replica_id)
{
    (void)replica_id;
    check_all(arg);
}

int updates_create(struct fleet *fleet, const struct operation_ops *operations,
                   struct updates **out_updates, struct error *err)
{
    struct updates *updates = calloc(1, sizeof(*updates));
    if (!updates)
        return error_no_memory(err);
    updates->fleet = fleet;
    updates->operations = *operations;
    change_hub_subscribe(&fleet->context->changes, &updates->on_change, on_change, updates);
    ev_timer_init(&updates->timer, on_timer, check_interval_s, 0.);
    updates->timer.data = updates;
    *out_updates = updates;
    return 0;
}

void updates_destroy(struct updates *updates)
{
    if (!updates)
        return;
    ev_timer_stop(updates->fleet->context->loop, &updates->timer);
    while (updates->entries) {
        struct entry *next = updates->entries->next;
        free(updates->entries);
        updates->entries = next;
    }
    free(updates);
}
