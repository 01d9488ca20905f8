#include "manager/capacity/ledger.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/seeded_bug.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/capacity/estimate.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"

/* How long a started worker may take to allocate its memory, as the driver may be slow to start.
 * After this time only its reported plan counts. */
static const int64_t allocation_timeout_ns = 60 * NS_PER_S;

static uint64_t bytes_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t ledger_count_once(struct ledger_shares *shares, const char *owner, uint64_t n_bytes,
                           uint64_t shared_bytes, uint64_t id)
{
    enum { CAPACITY = sizeof(shares->shares) / sizeof(shares->shares[0]) };
    if (!id)
        return n_bytes;
    for (size_t i = 0; i < shares->n; i++)
        if (shares->shares[i].id == id)
            return owner && shares->shares[i].owner == owner ? n_bytes
                                                             : bytes_less(n_bytes, shared_bytes);
    if (shares->n < CAPACITY) {
        shares->shares[shares->n].id = id;
        shares->shares[shares->n++].owner = owner;
    }
    return n_bytes;
}

/* A pass over the claims of one replica. */
struct pass {
    const struct fleet *fleet;
    const struct ledger_query *query;
    ledger_visit_fn *visit;
    void *arg;
    const pb_replica *row;   /* NULL: the row is gone */
    const struct slot *slot; /* NULL: not yet created */
};

static void add(const struct pass *pass, const struct claim *claim)
{
    const char *device = pass->query->device;
    if (!device || strcmp(claim->device, device) == 0)
        pass->visit(pass->arg, claim);
}

static void set_device(struct claim *claim, const char *device)
{
    snprintf(claim->device, sizeof(claim->device), "%s", device);
}

static bool is_running(const struct slot *slot)
{
    return slot && slot_runs(slot);
}

/* True where the replica will serve and has no process, or has not finished its load. */
static bool is_to_load(const pb_replica *row)
{
    return row && !row->retiring &&
           ((int)row->state == REPLICA_PENDING || (int)row->state == REPLICA_LOADING ||
            ((int)row->state == REPLICA_FAILED && seeded_bug("I5_keeps_a_promise")));
}

/* --- host memory --- */

/* Splits a claim on host memory among the CPU nodes of the process. */
static void add_by_node(const struct pass *pass, const struct claim *whole)
{
    struct device_names devices;
    size_t n = slot_list_devices(pass->slot, &devices), n_nodes = 0, i_node = 0;
    for (size_t i = 0; i < n; i++)
        n_nodes += !device_name_is_gpu(devices.names[i]);
    if (n_nodes == 0) {
        add(pass, whole);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct claim part = *whole;
        if (device_name_is_gpu(devices.names[i]))
            continue;
        bool first = i_node++ == 0; /* has the bytes that are left over */
        set_device(&part, devices.names[i]);
        part.is_unsized &= first;
        part.planned_bytes = whole->planned_bytes / n_nodes;
        part.held_bytes = whole->held_bytes / n_nodes;
        part.shared_bytes = whole->shared_bytes / n_nodes;
        if (first) {
            part.planned_bytes += whole->planned_bytes % n_nodes;
            part.held_bytes += whole->held_bytes % n_nodes;
            part.shared_bytes += whole->shared_bytes % n_nodes;
        }
        add(pass, &part);
    }
}

static void add_running_on_host(const struct pass *pass, struct claim claim)
{
    const struct slot *slot = pass->slot;
    uint64_t copied, copy = slot_copy_bytes(slot, &copied);
    claim.phase = CLAIM_HELD;
    claim.planned_bytes = slot_planned_bytes(slot);
    if (!pass->query->but_id && slot_waits_to_wake(slot))
        claim.planned_bytes = larger(claim.planned_bytes, estimate_serving_bytes(slot));
    claim.held_bytes = bytes_less(process_resident_bytes(slot->run.process.pid), copied);
    claim.shared_bytes = slot_shared_bytes(slot, &claim.shared_id);
    claim.is_unsized &= !slot_is_sized(slot);
    add_by_node(pass, &claim);
    if (!copy)
        return;
    claim.phase = CLAIM_COPYING;
    claim.planned_bytes = copy;
    claim.held_bytes = copied;
    claim.shared_bytes = claim.shared_id = 0;
    claim.is_unsized = false;
    add_by_node(pass, &claim);
}

/* The host memory to which a replica will return. After a restart of the manager, CPU replicas
 * whose shared id is unknown take nothing. Each of them would count the shared weights again. */
static void set_returning(const struct slot *slot, bool on_gpus, struct claim *claim)
{
    claim->phase = CLAIM_RETURNING;
    if (!slot->served.shared_id && !on_gpus && slot->served.by_earlier)
        return;
    claim->planned_bytes = slot->served.host_bytes;
    claim->shared_bytes = slot->served.shared_bytes;
    claim->shared_id = slot->served.shared_id;
}

static void add_host_claims(const struct pass *pass)
{
    const struct slot *slot = pass->slot;
    bool on_gpus = slot && slot_is_on_gpus(slot);
    struct claim claim = {
        .replica_id = slot ? slot->id : pass->row->id,
        .row = pass->row,
        .phase = CLAIM_TO_COME,
        .is_unsized = !on_gpus && is_to_load(pass->row),
    };
    if (is_running(slot)) {
        add_running_on_host(pass, claim);
        return;
    }
    if (slot && slot->served.host_bytes && slot_comes_back(slot))
        set_returning(slot, on_gpus, &claim);
    if (claim.is_unsized || claim.planned_bytes)
        add(pass, &claim);
}

/* --- memory of GPUs --- */

static const pb_memory *memory_row(const struct slot *slot, const char *device)
{
    for (size_t i = 0; slot->run.status && i < slot->run.status->n_memory; i++)
        if (strcmp(slot->run.status->memory[i]->device, device) == 0)
            return slot->run.status->memory[i];
    return NULL;
}

static bool will_return(const pb_replica *row)
{
    return !row->retiring && (int)row->state != REPLICA_FAILED &&
           (int)row->state != REPLICA_STOPPED;
}

/* True while a started worker has not yet taken its memory on the GPU. */
static bool is_taking(const struct pass *pass, uint64_t held_bytes)
{
    const struct slot *slot = pass->slot;
    bool loads = !slot->run.status || (int)slot->run.status->state == WORKER_LOADING;
    return loads && !held_bytes &&
           fleet_now_ns(slot->fleet) - slot->run.started_ns < allocation_timeout_ns;
}

/* The plan of the last process on this GPU, else an equal part of its plan on other GPUs. */
static uint64_t last_bytes(const struct slot *slot, const char *device, size_t n_devices)
{
    uint64_t n_bytes = slot_gpus_bytes(&slot->served.gpus, device);
    return n_bytes ? n_bytes : slot_gpus_bytes(&slot->served.gpus, NULL) / n_devices;
}

static void add_running_on_gpu(const struct pass *pass, struct claim claim, size_t n_devices,
                               bool is_guess)
{
    const struct slot *slot = pass->slot;
    const pb_memory *memory = memory_row(slot, claim.device);
    bool ends = (slot->run.status && (int)slot->run.status->state == WORKER_FAILED) ||
                !will_return(pass->row);
    claim.held_bytes = memory ? memory->after_bytes : 0;
    claim.planned_bytes = memory && !ends ? memory->expected_bytes : 0;
    claim.phase = !is_guess && is_taking(pass, claim.held_bytes) ? CLAIM_TAKING : CLAIM_HELD;
    if (!claim.planned_bytes && !ends) {
        claim.planned_bytes = last_bytes(slot, claim.device, n_devices);
        if (!claim.planned_bytes)
            claim.planned_bytes = estimate_gpu_budget(pass->fleet, pass->row);
        claim.is_unsized = !claim.planned_bytes;
    }
    add(pass, &claim);
}

/* The devices given to the process, else those of its status. An adopted worker without a status
 * is on its last GPUs, by the best guess. */
static void add_running_on_gpus(const struct pass *pass, struct claim claim)
{
    const struct slot_gpus *last = &pass->slot->served.gpus;
    struct device_names devices;
    size_t n = slot_list_devices(pass->slot, &devices);
    bool is_guess = !n && !pass->slot->run.status;
    for (size_t i = 0; i < (is_guess ? last->n : n); i++) {
        set_device(&claim, is_guess ? last->gpus[i].name : devices.names[i]);
        if (device_name_is_gpu(claim.device))
            add_running_on_gpu(pass, claim, is_guess ? last->n : n, is_guess);
    }
}

/* The only device of the replica's group; NULL: the group has several, or none. */
static const char *only_device(const struct pass *pass)
{
    const pb_group *group = catalog_group(pass->fleet->context->catalog, pass->row->device_group);
    return group && group->n_devices == 1 ? group->devices[0] : NULL;
}

/* A parked worker that will be woken. An earlier check may have found a GPU for the wake. Else its
 * last GPU counts, or the only one of the group. */
static void add_waking(const struct pass *pass, struct claim claim)
{
    const struct slot *slot = pass->slot;
    const char *device = *slot->wake_gpu       ? slot->wake_gpu
                         : slot->served.gpus.n ? slot->served.gpus.gpus[0].name
                                               : only_device(pass);
    if (!device || !device_name_is_gpu(device))
        return;
    set_device(&claim, device);
    claim.phase = CLAIM_WAKING;
    claim.planned_bytes = estimate_gpu_bytes(pass->fleet, pass->row->id);
    add(pass, &claim);
}

/* A replica that never started: counts for plans, where its group has no other device. */
static void add_new(const struct pass *pass, struct claim claim)
{
    const char *device = pass->query->but_id ? NULL : only_device(pass);
    if (!device || !device_name_is_gpu(device))
        return;
    set_device(&claim, device);
    claim.planned_bytes = estimate_gpu_budget(pass->fleet, pass->row);
    claim.is_unsized = !claim.planned_bytes;
    add(pass, &claim);
}

/* A replica without a process: on the GPUs of its last one. */
static void add_absent(const struct pass *pass, struct claim claim)
{
    const struct slot_gpus *last = pass->slot ? &pass->slot->served.gpus : NULL;
    if (!will_return(pass->row))
        return;
    if (!last || !last->n) {
        add_new(pass, claim);
        return;
    }
    claim.phase = CLAIM_RETURNING;
    for (size_t i = 0; i < last->n; i++) {
        set_device(&claim, last->gpus[i].name);
        claim.planned_bytes = last->gpus[i].n_bytes;
        add(pass, &claim);
    }
}

/* Parked workers, and replicas whose next process will be one, hold no GPU memory. A replica that
 * lost its weights waits for room (park_copy_waits_for_gpu). */
static void add_gpu_claims(const struct pass *pass)
{
    const struct slot *slot = pass->slot;
    if (!pass->row)
        return;
    struct claim claim = {.replica_id = pass->row->id, .row = pass->row};
    if (slot && slot_waits_to_wake(slot))
        add_waking(pass, claim);
    if (slot && (slot_runs(slot) ? slot_is_parked_worker(slot) : slot_is_to_park(slot)))
        return;
    if (is_running(slot))
        add_running_on_gpus(pass, claim);
    else
        add_absent(pass, claim);
}

/* --- all claims --- */

/* Park copies that no parked worker has mapped yet. */
static void add_kept(const struct pass *pass)
{
    struct claim claim = {.phase = CLAIM_KEPT};
    for (size_t i = 0;
         weights_park_copy_at(pass->fleet->weights, i, &claim.planned_bytes, &claim.shared_id);
         i++) {
        claim.held_bytes = claim.shared_bytes = claim.planned_bytes;
        add(pass, &claim);
    }
}

static bool is_asked_for(const struct ledger_query *query, const char *id, const pb_replica *row)
{
    return (!query->but_id || strcmp(id, query->but_id) != 0) &&
           (!query->of || (row && pb_replica_is_of(row, query->of)));
}

void ledger_each(const struct fleet *fleet, const struct ledger_query *query,
                 ledger_visit_fn *visit, void *arg)
{
    const struct catalog *catalog = fleet->context->catalog;
    struct pass pass = {.fleet = fleet, .query = query, .visit = visit, .arg = arg};
    bool on_gpu = query->device && device_name_is_gpu(query->device);
    size_t cursor = 0;
    for (size_t i = 0; (pass.row = catalog_replica_at(catalog, i)); i++) {
        if (!is_asked_for(query, pass.row->id, pass.row))
            continue;
        pass.slot = slot_find(fleet, pass.row->id);
        if (on_gpu)
            add_gpu_claims(&pass);
        else
            add_host_claims(&pass);
    }
    while (!on_gpu && (pass.slot = fleet_next(fleet, &cursor)))
        if (is_running(pass.slot) && !catalog_replica(catalog, pass.slot->id) &&
            is_asked_for(query, pass.slot->id, NULL))
            add_host_claims(&pass);
    if (!query->of && !on_gpu)
        add_kept(&pass);
}

struct fold {
    struct ledger_sum sum;
    struct ledger_shares shares;
};

static void count(void *arg, const struct claim *claim)
{
    struct fold *fold = arg;
    struct ledger_sum *sum = &fold->sum;
    sum->taken_bytes += ledger_count_once(&fold->shares, claim->replica_id,
                                          larger(claim->planned_bytes, claim->held_bytes),
                                          claim->shared_bytes, claim->shared_id);
    sum->held_bytes += claim->held_bytes;
    /* Free host memory is divided among the replicas to come; none of it is promised to them. */
    if (!claim->is_unsized &&
        (claim->phase != CLAIM_RETURNING || device_name_is_gpu(claim->device)))
        sum->promised_bytes += bytes_less(claim->planned_bytes, claim->held_bytes);
    sum->n_unsized += claim->is_unsized;
    sum->n_taking += claim->phase == CLAIM_TAKING;
    sum->n_processes += claim->phase >= CLAIM_RETURNING && claim->phase <= CLAIM_HELD;
}

struct ledger_sum ledger_sum(const struct fleet *fleet, const struct ledger_query *query)
{
    struct fold fold = {.sum = {0}};
    ledger_each(fleet, query, count, &fold);
    return fold.sum;
}
