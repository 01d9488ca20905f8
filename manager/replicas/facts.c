#include "manager/replicas/facts.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "manager/base/context.h"
#include "manager/devices/device_hold.h"
#include "manager/replicas/park_copy.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

void facts_fini(struct facts *facts)
{
    free(facts->n_wanted);
    free(facts->replicas);
    free(facts->operations);
    free(facts->operation_ids);
    free(facts->members);
    free(facts->actions);
}

static size_t find_index(const struct catalog *catalog, enum table table, const char *key)
{
    size_t i = catalog_find(catalog, table, key);
    struct row *row = catalog_at(catalog, table, i);
    return row && strcmp(row_key(row), key) == 0 ? i : SIZE_MAX;
}

static bool is_blocked(const struct catalog *catalog, const pb_replica *row)
{
    struct error err;
    if (catalog_count(catalog, TABLE_DEVICE_HOLD) == 0)
        return false;
    const pb_group *group = catalog_group(catalog, row->device_group);
    const pb_deployment *deployment =
        catalog_deployment(catalog, row->model, row->version, row->device_group);
    return group && device_hold_check(catalog, group, catalog_n_ranks(deployment), &err) != 0;
}

/* True for a parked worker, or a replica that will become one with weights in memory. A parked
 * worker opens no device, so a held device does not block it. */
static bool needs_no_device(const struct slot *slot)
{
    return slot_is_to_park(slot) &&
           (slot_is_parked_worker(slot) || weights_are_whole(slot->fleet->weights, slot->id));
}

static void fill_replica(struct fleet *fleet, const pb_replica *row, int64_t now_ns,
                         struct reconcile_replica *out)
{
    const struct catalog *catalog = fleet->context->catalog;
    struct slot *slot = slot_ensure(fleet, row->id);
    char key[TABLE_KEY_BYTES];
    table_key(key, row->model, row->version, row->device_group);
    *out = (struct reconcile_replica){
        .deployment = find_index(catalog, TABLE_DEPLOYMENT, key),
        .state = (enum replica_state)row->state,
        .retiring = row->retiring,
        .restart = row->epoch && row->restart_epoch == row->epoch,
        .stalled = row->stalled,
        .busy = true,
    };
    if (out->deployment != SIZE_MAX)
        out->parked = catalog_deployment_at(catalog, out->deployment)->parked;
    if (!slot)
        return;
    out->process = slot_phase_process(slot->phase);
    out->worker = slot->run.status ? (enum worker_state)slot->run.status->state : WORKER_UNKNOWN;
    out->busy = slot->busy || slot->hold_until_ns > now_ns;
    out->is_parked_worker = slot_is_parked_worker(slot);
    out->fenced = slot->run.peer == PEER_FOREIGN;
    out->refused = slot->run.peer == PEER_REFUSED;
    out->permanent = slot->run.outlook == OUTLOOK_PERMANENT;
    out->held_back = slot->run.outlook == OUTLOOK_HELD_BACK;
    out->drain_sent = slot->run.drain_deadline_ns != 0;
    out->can_wake = slot->run.link && slot->phase != SLOT_STUCK;
    out->wake_sent = slot->phase == SLOT_WAKING;
    out->must_copy = park_copy_is_needed(slot);
    out->copy_sent = slot->run.copy.asked;
    out->copy_at_ns = park_copy_at_ns(slot);
    out->lacks_room = park_copy_lacks_gpu(slot);
    /* another replica of the deployment may have a copy */
    out->copy_failed = out->must_copy && park_copy_has_failed(slot);
    out->kill_sent = slot->run.killed_for != REASON_NONE;
    out->started_ns = slot->run.started_ns;
    out->next_start_ns = slot->next_start_ns;
    out->ready_ns = slot->run.ready_ns;
    out->drain_deadline_ns = slot->run.drain_deadline_ns;
    out->deaths = slot->deaths;
    out->failed_ns = slot->run.health.failed_ns;
    out->leaving_ns = slot->run.health.leaving_ns;
    out->grace_ns = (int64_t)fleet->context->settings->drain_grace_ms * NS_PER_MS;
    out->progress_ns = slot_progress_ns(slot);
    out->ghost = slot_has_ghost(slot);
    out->fault_ns = slot->run.health.fault_ns;
    out->blocked = is_blocked(catalog, row) && !needs_no_device(slot);
    out->blocked_recorded = reason_is(row->reason, REASON_DEVICE_QUARANTINED);
    out->evacuate = slot_is_quarantined(slot);
}

static bool allocate(struct facts *facts, size_t n_deployments, size_t n_replicas,
                     size_t n_operations, size_t n_members)
{
    facts->n_wanted = calloc(n_deployments + 1, sizeof(*facts->n_wanted));
    facts->replicas = calloc(n_replicas + 1, sizeof(*facts->replicas));
    facts->operations = calloc(n_operations + 1, sizeof(*facts->operations));
    facts->operation_ids = calloc(n_operations + 1, sizeof(*facts->operation_ids));
    facts->members = calloc(n_members + 1, sizeof(*facts->members));
    facts->actions = calloc(n_replicas + n_operations + 1, sizeof(*facts->actions));
    return facts->n_wanted && facts->replicas && facts->operations && facts->operation_ids &&
           facts->members && facts->actions;
}

bool facts_take(struct fleet *fleet, const struct operation_ops *operations, int64_t now_ns,
                struct facts *facts)
{
    const struct catalog *catalog = fleet->context->catalog;
    size_t n_deployments = catalog_count(catalog, TABLE_DEPLOYMENT);
    size_t n_replicas = catalog_count(catalog, TABLE_REPLICA);
    size_t n_operations = 0, n_members = 0, n = 0;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        if (pb_operation_is_open(catalog_operation_at(catalog, i))) {
            n_operations++;
            n_members += catalog_operation_at(catalog, i)->n_replica_ids;
        }
    *facts = (struct facts){.clock_ns = clock_now_ns()};
    if (!allocate(facts, n_deployments, n_replicas, n_operations, n_members))
        return false;
    for (size_t i = 0; i < n_deployments; i++)
        facts->n_wanted[i] = catalog_deployment_at(catalog, i)->n_replicas;
    for (size_t i = 0; i < n_replicas; i++)
        fill_replica(fleet, catalog_replica_at(catalog, i), now_ns, &facts->replicas[i]);
    n_members = 0;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *row = catalog_operation_at(catalog, i);
        if (!pb_operation_is_open(row))
            continue;
        facts->operation_ids[n] = row->id;
        facts->operations[n++] = (struct reconcile_operation){
            .kind = (enum operation_kind)row->kind,
            .replicas = &facts->members[n_members],
            .n_replicas = row->n_replica_ids,
            .busy = operations->is_busy(operations->arg, row->id, facts->clock_ns),
            .cancelling = row->cancelling,
        };
        for (size_t j = 0; j < row->n_replica_ids; j++)
            facts->members[n_members++] = find_index(catalog, TABLE_REPLICA, row->replica_ids[j]);
    }
    facts->input = (struct reconcile_input){
        .n_wanted = facts->n_wanted,
        .n_deployments = n_deployments,
        .replicas = facts->replicas,
        .n_replicas = n_replicas,
        .operations = facts->operations,
        .n_operations = n_operations,
    };
    return true;
}
