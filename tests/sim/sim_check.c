/* sim_check.c: the invariants, checked after every step, at a restart, and at rest. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_hold.h"
#include "manager/replicas/supervisor.h"
#include "manager/rollout/lifecycle.h"
#include "manager/slots/weights.h"
#include "manager/store/store.h"
#include "manager/store/transition.h"
#include "tests/sim/sim.h"

enum { MAX_REPLICAS = 1024, MAX_ROWS = 1024, ANY_STATE = 0 };

struct seen_row {
    enum table table;
    char key[TABLE_KEY_BYTES];
    uint64_t hash;
};

static struct {
    unsigned char state[MAX_REPLICAS]; /* replica_state by the events; ANY_STATE: not known */
    uint64_t epoch[MAX_REPLICAS];
    uint64_t last_seq;
    uint64_t generation; /* catalog's generation at the last check */
    /* The row is only in memory, because the disk failed. Events of the row come only after the
     * event that reports its recording. */
    bool unsaved[MAX_REPLICAS];
    /* The replica is starting without a new worker. The caller may have been told that the commit
     * is unknown, and may repeat the start. */
    bool begun[MAX_REPLICAS];
    enum {
        NOT_REVOKED,
        REVOKED_IN_MEMORY,
        REVOKED
    } keys[MAX_REPLICAS]; /* as answered to the client */
    struct seen_row rows[MAX_ROWS];
    size_t n_rows;
    uint64_t rows_generation, rows_last_seq;
    bool rows_unsaved, have_rows;
} seen;

void sim_check_reset(void)
{
    memset(&seen.state, 0, sizeof(seen.state));
    memset(&seen.epoch, 0, sizeof(seen.epoch));
    seen.last_seq = 0;
    memset(&seen.unsaved, 0, sizeof(seen.unsaved));
    memset(&seen.begun, 0, sizeof(seen.begun));
    memset(&seen.keys, 0, sizeof(seen.keys));
    seen.generation = 0;
    seen.have_rows = false;
}

static size_t number_of(const char *id)
{
    unsigned long n = *id ? strtoul(id + 1, NULL, 10) : 0;
    return n < MAX_REPLICAS ? (size_t)n : 0;
}

/* -- events: every change of state is one that a replica may make ---------------------------------
 */

#define BIT(state) (1U << (state))
enum {
    RUNS = BIT(REPLICA_LOADING) | BIT(REPLICA_WARMING) | BIT(REPLICA_READY) | BIT(REPLICA_PARKED) |
           BIT(REPLICA_DRAINING),
    LIVES = RUNS | BIT(REPLICA_PENDING) | BIT(REPLICA_FAILED),
};

static const struct {
    const char *type;
    unsigned from;
    enum replica_state to; /* state after the event; with `stays` not used */
    bool stays;
} steps[] = {
    {"replica.starting", BIT(REPLICA_PENDING), REPLICA_LOADING, false},
    {"replica.started", RUNS, REPLICA_LOADING, true},
    {"replica.adopted", RUNS, REPLICA_LOADING, true},
    {"replica.stalled", RUNS, REPLICA_LOADING, true},
    {"replica.moving", RUNS, REPLICA_LOADING, true},
    {"replica.loading", RUNS, REPLICA_LOADING, false},
    /* From DRAINING, like the two below: the reason to drain ended before the worker was told. For
     * example the device was released, or the answer to a wake was lost and the worker wakes
     * anyway. */
    {"replica.warming", BIT(REPLICA_LOADING) | BIT(REPLICA_WARMING) | BIT(REPLICA_DRAINING),
     REPLICA_WARMING, false},
    {"replica.ready", RUNS, REPLICA_READY, false},
    {"replica.parked", BIT(REPLICA_LOADING) | BIT(REPLICA_PARKED) | BIT(REPLICA_DRAINING),
     REPLICA_PARKED, false},
    {"replica.draining", RUNS, REPLICA_DRAINING, false},
    {"replica.died", RUNS | BIT(REPLICA_PENDING), REPLICA_PENDING, false},
    {"replica.held", LIVES, REPLICA_PENDING, false},
    {"replica.restarting", LIVES, REPLICA_PENDING, false},
    {"replica.parking", LIVES, REPLICA_PENDING, false},
    {"replica.waking", LIVES, REPLICA_PENDING,
     false}, /* a wake in place has no reason and goes to LOADING */
    {"replica.failed", RUNS | BIT(REPLICA_PENDING), REPLICA_FAILED, false},
    {"replica.stopped", LIVES, REPLICA_STOPPED, false},
};

static void check_replica_event(const pb_event *event)
{
    size_t n = number_of(event->replica_id);
    unsigned char *state = &seen.state[n];
    bool starts = strcmp(event->type, "replica.starting") == 0;
    if (strcmp(event->type, "replica.recorded") == 0) {
        *state = ANY_STATE;
        seen.unsaved[n] = false;
        return;
    }
    if (seen.unsaved[n]) /* from a commit that was done although its status was unknown */
        return;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (strcmp(event->type, steps[i].type) != 0)
            continue;
        bool again = starts && seen.begun[n] && *state == REPLICA_LOADING;
        if (*state != ANY_STATE && !(steps[i].from & BIT(*state)) && !again)
            sim_broken("I2: %s tells %s though it was %s", event->replica_id, event->type,
                       pb_replica_state_name(*state));
        bool in_place = strcmp(event->type, "replica.waking") == 0 && !*event->message;
        if (!steps[i].stays) {
            *state = (unsigned char)(in_place ? REPLICA_LOADING : steps[i].to);
            seen.begun[n] = starts;
        }
        return;
    }
    sim_broken("I2: an event \"%s\" that is not known", event->type);
}

void sim_check_event(const pb_event *event)
{
    if (sim.dead)
        return;
    sim_trace("event %" PRIu64 ": %s %s%s%s", event->seq, event->type, event->replica_id,
              *event->message ? ": " : "", event->message);
    if (seen.last_seq && event->seq != seen.last_seq + 1)
        sim_broken("I8: event %" PRIu64 " follows %" PRIu64, event->seq, seen.last_seq);
    seen.last_seq = event->seq;
    if (strncmp(event->type, "replica.", 8) == 0)
        check_replica_event(event);
    sim_rules_event(event);
}

/* The store refuses a forbidden transition. A refusal shows a fault of the code that requested the
 * transition. */
int __real_transition_check(const struct row *before, const struct row *after, struct error *err);
int __wrap_transition_check(const struct row *before, const struct row *after, struct error *err);

int __wrap_transition_check(const struct row *before, const struct row *after, struct error *err)
{
    int status = __real_transition_check(before, after, err);
    if (status != 0)
        sim_broken("I2: %s", err->message);
    return status;
}

/* -- at each step ---------------------------------------------------------------------------------
 */

static void check_replica(const pb_replica *row, bool may_be_unsaved)
{
    size_t i = number_of(row->id);
    if (row->epoch < seen.epoch[i])
        sim_broken("I2: the epoch of %s falls from %" PRIu64 " to %" PRIu64, row->id, seen.epoch[i],
                   row->epoch);
    seen.epoch[i] = row->epoch;
    if ((int)row->state < REPLICA_PENDING || (int)row->state > REPLICA_FAILED)
        sim_broken("I2: %s is in state %d", row->id, (int)row->state);
    seen.unsaved[i] |= may_be_unsaved && (int)row->state != seen.state[i];
    if (seen.state[i] == ANY_STATE || seen.unsaved[i])
        seen.state[i] = (unsigned char)row->state;
    else if (seen.state[i] == REPLICA_FAILED && (int)row->state == REPLICA_STOPPED)
        seen.state[i] = REPLICA_STOPPED; /* the failed replica was removed, which has no event */
    else if ((int)row->state != seen.state[i])
        sim_broken("I2: %s is %s, and its events say %s", row->id,
                   pb_replica_state_name((int)row->state), pb_replica_state_name(seen.state[i]));
}

static void check_operation(const pb_operation *row)
{
    bool open = pb_operation_is_open(row);
    if (open != (row->ended_unix_ns == 0))
        sim_broken("I2: operation %s is %s and ended at %" PRId64, row->id,
                   pb_operation_state_name((int)row->state), row->ended_unix_ns);
    if ((int)row->state != OPERATION_DONE || (int)row->kind != OPERATION_UNLOAD)
        return;
    /* The unload is done, so all its replicas must be STOPPED. */
    for (size_t i = 0; i < row->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(&sim.manager.catalog, row->replica_ids[i]);
        if (replica && (int)replica->state != REPLICA_STOPPED)
            sim_broken("I2: unload %s is done and %s is %s", row->id, replica->id,
                       pb_replica_state_name((int)replica->state));
    }
}

void sim_check_revoked(const char *id, bool in_memory_only)
{
    seen.keys[number_of(id)] = in_memory_only ? REVOKED_IN_MEMORY : REVOKED;
}

/* An answered revocation holds: for ever where it is on disk, else for the life of the manager. */
static void check_keys(const struct catalog *catalog)
{
    const pb_key *key;
    for (size_t i = 0; (key = catalog_key_at(catalog, i)); i++)
        if (number_of(key->id) && seen.keys[number_of(key->id)] && !key->revoked_unix_ns)
            sim_broken("I1: key %s was revoked and is good", key->id);
}

void sim_check_step(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    if (!sim.up || sim.dead)
        return;
    bool some_unsaved = store_n_unsaved(sim.manager.context.store) > 0;
    if (catalog->generation == seen.generation && !some_unsaved)
        return;
    seen.generation = catalog->generation;
    sim.stats.n_commits++;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++)
        check_replica(catalog_replica_at(catalog, i), some_unsaved);
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        check_operation(catalog_operation_at(catalog, i));
    check_keys(catalog);
    sim_rules_step();
}

void sim_check_spawn(const char *replica_id, uint64_t epoch)
{
    const struct sim_process *other = sim_process_live(replica_id);
    const pb_replica *row = catalog_replica(&sim.manager.catalog, replica_id);
    if (other)
        sim_broken("I6: epoch %" PRIu64 " of %s starts while pid %d of epoch %" PRIu64 " lives",
                   epoch, replica_id, (int)other->pid, other->epoch);
    if (!row || row->epoch != epoch)
        sim_broken("I6: epoch %" PRIu64 " of %s starts, recorded is %" PRIu64, epoch, replica_id,
                   row ? row->epoch : 0);
    if (row && row->retiring)
        sim_broken("I2: %s starts, and nobody wants it", replica_id);
    seen.begun[number_of(replica_id)] = false;
}

/* A worker that is to park serves until its weights are kept: GPU weights exist nowhere else. */
void sim_check_shutdown(const struct sim_process *process)
{
    const struct catalog *catalog = &sim.manager.catalog;
    const pb_replica *row = catalog_replica(catalog, process->replica_id);
    const pb_deployment *deployment =
        row ? catalog_deployment(catalog, row->model, row->version, row->device_group) : NULL;
    if (!process->gpu || process->state != WORKER_READY || process->asked || sim.stopping ||
        !deployment || !deployment->parked || row->retiring || row->epoch != process->epoch ||
        row->restart_epoch == row->epoch || catalog_count(catalog, TABLE_DEVICE_HOLD))
        return;
    if (!weights_are_held(sim.manager.fleet.weights, row->model, row->version, row->device_group, 1,
                          1, ""))
        sim_broken("I2: pid %d of %s ends to be parked, and its weights with it", (int)process->pid,
                   row->id);
}

/* A SIGKILL must never hit a healthy worker that is desired. Jumps of a clock, a pause of the
 * manager or a restart may not cost a worker's life. */
void sim_check_kill(const struct sim_process *process)
{
    const struct catalog *catalog = &sim.manager.catalog;
    const pb_replica *row = catalog_replica(catalog, process->replica_id);
    struct error err;
    if (process->unwell || process->asked || process->state == WORKER_FAILED || sim.stopping ||
        !row || row->retiring || row->epoch != process->epoch ||
        (row->restart_epoch && row->restart_epoch == row->epoch) ||
        ((int)row->state != REPLICA_LOADING && (int)row->state != REPLICA_WARMING &&
         (int)row->state != REPLICA_READY && (int)row->state != REPLICA_PARKED))
        return;
    const pb_group *group = catalog_group(catalog, row->device_group);
    if (!catalog_deployment(catalog, row->model, row->version, row->device_group) || !group ||
        device_hold_check(catalog, group, 1, &err) != 0 ||
        catalog_count(catalog, TABLE_DEVICE_HOLD))
        return;
    sim_broken("I2: the healthy worker of %s (pid %d, epoch %" PRIu64 ") is killed", row->id,
               (int)process->pid, process->epoch);
}

/* -- routes ---------------------------------------------------------------------------------------
 */

static const struct sim_process *of_epoch(const char *id, uint64_t epoch)
{
    for (size_t i = 0; i < sim.n_processes; i++)
        if (sim.processes[i].epoch == epoch && strcmp(sim.processes[i].replica_id, id) == 0)
            return &sim.processes[i];
    return NULL;
}

void sim_check_routes(const pb_route_table *table)
{
    const struct catalog *catalog = &sim.manager.catalog;
    sim_rules_routes(table);
    for (size_t i = 0; i < table->n_routes; i++) {
        const pb_route *route = table->routes[i];
        for (size_t j = 0; j < route->n_replicas; j++) {
            const pb_route_replica *replica = route->replicas[j];
            const pb_replica *row = catalog_replica(catalog, replica->id);
            /* After a failed allocation the manager may still send its older table. */
            if ((!row || (int)row->state == REPLICA_STOPPED) && !sim.memory_failed)
                sim_broken("I7: %s/%s is routed to %s, which is unloaded", route->model,
                           route->version, replica->id);
            if ((int)replica->state == REPLICA_READY && row && !sim.cut &&
                !of_epoch(replica->id, replica->epoch))
                sim_broken("I7: %s/%s is routed to %s, of whose epoch %" PRIu64
                           " there never was a process",
                           route->model, route->version, replica->id, replica->epoch);
        }
    }
}

/* -- over a restart -------------------------------------------------------------------------------
 */

static uint64_t hash_row(struct row *row)
{
    static uint8_t bytes[65536];
    size_t n = protobuf_c_message_get_packed_size(row_message(row));
    uint64_t hash = 1469598103934665603ULL ^ (uint64_t)row_extra(row);
    if (n > sizeof(bytes))
        return n;
    protobuf_c_message_pack(row_message(row), bytes);
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 1099511628211ULL;
    return hash;
}

void sim_check_before_crash(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    seen.n_rows = 0;
    for (enum table t = 0; t < N_CATALOG_TABLES; t++)
        for (size_t i = 0; i < catalog_count(catalog, t) && seen.n_rows < MAX_ROWS; i++) {
            struct row *row = catalog_at(catalog, t, i);
            struct seen_row *to = &seen.rows[seen.n_rows++];
            to->table = t;
            snprintf(to->key, sizeof(to->key), "%s", row_key(row));
            to->hash = hash_row(row);
        }
    seen.rows_generation = catalog->generation;
    seen.rows_last_seq = catalog->last_event_seq;
    seen.rows_unsaved =
        !sim.manager.context.store || store_n_unsaved(sim.manager.context.store) > 0;
    seen.have_rows = true;
}

/* Observed state is valid also where it cannot be written; a revocation counts as observed. */
static bool may_be_in_memory(enum table table)
{
    return table == TABLE_REPLICA || table == TABLE_DEVICE_HOLD || table == TABLE_API_KEY;
}

static void compare_rows(const struct catalog *catalog)
{
    size_t n = 0;
    for (enum table t = 0; t < N_CATALOG_TABLES; t++)
        n += catalog_count(catalog, t);
    if (n != seen.n_rows && !seen.rows_unsaved)
        sim_broken("I1: %zu rows before the manager's end, %zu after", seen.n_rows, n);
    for (size_t i = 0; i < seen.n_rows; i++) {
        const struct seen_row *was = &seen.rows[i];
        struct row *row = catalog_get(catalog, was->table, was->key);
        if (seen.rows_unsaved && may_be_in_memory(was->table))
            continue;
        if (!row || hash_row(row) != was->hash)
            sim_broken("I1: row \"%s\" of table %s is %s after the manager's end", was->key,
                       table_spec(was->table)->name, row ? "another" : "gone");
    }
}

void sim_check_after_start(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    if (seen.have_rows && !sim.damaged) {
        if (catalog->generation < seen.rows_generation)
            sim_broken("I1: generation %" PRIu64 " was told, %" PRIu64 " is there",
                       seen.rows_generation, catalog->generation);
        if (catalog->last_event_seq < seen.rows_last_seq)
            sim_broken("I1: event %" PRIu64 " was told, %" PRIu64 " is the last",
                       seen.rows_last_seq, catalog->last_event_seq);
        if (catalog->generation == seen.rows_generation)
            compare_rows(catalog);
    }
    seen.have_rows = false;
    for (size_t i = 0; i < MAX_REPLICAS; i++)
        if (seen.keys[i] == REVOKED_IN_MEMORY || sim.damaged)
            seen.keys[i] = NOT_REVOKED;
    check_keys(catalog);
    seen.last_seq = catalog->last_event_seq;
    seen.generation = 0;
    memset(&seen.unsaved, 0, sizeof(seen.unsaved));
    memset(&seen.state, 0, sizeof(seen.state));
    memset(&seen.epoch, 0, sizeof(seen.epoch));
    if (!sim.damaged) /* a damaged store loses answered changes */
        sim_client_check();
}

/* -- at rest --------------------------------------------------------------------------------------
 */

static bool is_up(const pb_replica *row)
{
    return (int)row->state == REPLICA_READY || (int)row->state == REPLICA_PARKED;
}

static bool is_settled(const pb_replica *row)
{
    return is_up(row) || (int)row->state == REPLICA_FAILED || (int)row->state == REPLICA_STOPPED;
}

bool sim_check_is_at_rest(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    if (!sim.up || sim.dead || sim_client_waits() || store_n_unsaved(sim.manager.context.store))
        return false;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        if (pb_operation_is_open(catalog_operation_at(catalog, i)))
            return false;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const pb_deployment *deployment =
            catalog_deployment(catalog, row->model, row->version, row->device_group);
        bool to_park = (int)row->state == REPLICA_READY && deployment && deployment->parked;
        if (!is_settled(row) || row->stalled || to_park ||
            (is_up(row) && !sim_process_live(row->id)))
            return false;
    }
    for (size_t i = 0; i < sim.n_processes; i++) {
        const struct sim_process *process = &sim.processes[i];
        const pb_replica *row =
            process->alive ? catalog_replica(catalog, process->replica_id) : NULL;
        if (process->alive && (!row || !is_up(row) || process->killed))
            return false;
    }
    return true;
}

static void check_process(const struct sim_process *process)
{
    const pb_replica *row = catalog_replica(&sim.manager.catalog, process->replica_id);
    if (!row || !is_up(row) || row->epoch != process->epoch || (pid_t)row->pid != process->pid ||
        row->start_ticks != process->start_ticks)
        sim_broken("I6: pid %d of %s, epoch %" PRIu64 ", has no owner (%s, pid %u, epoch %" PRIu64
                   ")",
                   (int)process->pid, process->replica_id, process->epoch,
                   row ? pb_replica_state_name((int)row->state) : "no row", row ? row->pid : 0,
                   row ? row->epoch : 0);
}

static void check_deployment(const pb_deployment *deployment)
{
    uint32_t n = 0;
    for (size_t i = 0; catalog_replica_at(&sim.manager.catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(&sim.manager.catalog, i);
        n += !row->retiring && (int)row->state != REPLICA_STOPPED &&
             strcmp(row->model, deployment->model) == 0 &&
             strcmp(row->version, deployment->version) == 0 &&
             strcmp(row->device_group, deployment->device_group) == 0;
    }
    if (n != deployment->n_replicas)
        sim_broken("I2: %s/%s on %s is to have %u replicas and has %u", deployment->model,
                   deployment->version, deployment->device_group, deployment->n_replicas, n);
}

void sim_check_rest(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        if (pb_operation_is_open(catalog_operation_at(catalog, i)))
            sim_broken("I2: operation %s does not end", catalog_operation_at(catalog, i)->id);
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        if (!is_settled(row) || row->stalled)
            sim_broken("I2: %s stays %s%s (%s)", row->id, pb_replica_state_name((int)row->state),
                       row->stalled ? ", stalled" : "", row->reason);
        if (is_up(row) && !sim_process_live(row->id))
            sim_broken("I2: %s is %s and has no process", row->id,
                       pb_replica_state_name((int)row->state));
    }
    for (size_t i = 0; i < sim.n_processes; i++)
        if (sim.processes[i].alive)
            check_process(&sim.processes[i]);
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++)
        check_deployment(catalog_deployment_at(catalog, i));
    for (size_t i = 0; i < sim.n_folders; i++)
        if (!catalog_replica(catalog, sim.folders[i].id))
            sim_broken("I5: the folder of %s is left", sim.folders[i].id);
    struct ledger_sum claims = ledger_sum(&sim.manager.fleet, &(struct ledger_query){0});
    if (claims.promised_bytes || claims.n_unsized)
        sim_broken("I5: %" PRIu64 " bytes and %u starts are promised to nobody",
                   claims.promised_bytes, claims.n_unsized);
    sim_rules_rest();
    sim_client_check();
}
