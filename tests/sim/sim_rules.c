/* sim_rules.c: the invariants of traffic, updates, parking and idle versions. */
#include <inttypes.h>
#include <string.h>

#include "manager/rollout/lifecycle.h"
#include "manager/rollout/traffic.h"
#include "tests/sim/sim.h"

static bool has_deployment(const pb_operation *operation, const char *version)
{
    return catalog_deployment(&sim.manager.catalog, operation->model, version,
                              operation->device_group) != NULL;
}

/* -- traffic --------------------------------------------------------------------------------------
 */

static void check_traffic(const pb_traffic *row)
{
    const struct catalog *catalog = &sim.manager.catalog;
    uint64_t sum = 0;
    for (size_t i = 0; i < row->n_weights; i++) {
        const char *version = row->weights[i]->version;
        sum += row->weights[i]->weight;
        if (!catalog_version(catalog, row->model, version))
            sim_broken("I2: the traffic of %s has a weight for version %s, which is not there",
                       row->model, version);
        for (size_t j = 0; j < i; j++)
            if (strcmp(row->weights[j]->version, version) == 0)
                sim_broken("I2: the traffic of %s has version %s twice", row->model, version);
    }
    if (row->n_weights && !sum)
        sim_broken("I2: the traffic of %s goes nowhere", row->model);
}

/* -- updates --------------------------------------------------------------------------------------
 */

static void check_open_update(const pb_operation *row)
{
    const struct catalog *catalog = &sim.manager.catalog;
    int phase = (int)row->update->phase;
    bool from = has_deployment(row, row->update->from_version);
    bool to = has_deployment(row, row->version);
    bool keeps_from = phase == UPDATE_LOAD || phase == UPDATE_SHIFT || phase == UPDATE_ROLL_BACK;
    bool keeps_to = phase == UPDATE_LOAD || phase == UPDATE_SHIFT || phase == UPDATE_DRAIN;
    if ((!from && !to) || (keeps_from && !from) || (keeps_to && !to))
        sim_broken("I2: update %s in phase %d: the old version is %s, the new one %s", row->id,
                   phase, from ? "there" : "gone", to ? "there" : "gone");
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *other = catalog_operation_at(catalog, i);
        if (other != row && pb_operation_is_open(other) && strcmp(other->model, row->model) == 0 &&
            (!*other->device_group || strcmp(other->device_group, row->device_group) == 0))
            sim_broken("I2: operation %s works on %s beside update %s", other->id, row->model,
                       row->id);
    }
}

static bool same_weights(const pb_traffic *a, const pb_traffic *b)
{
    if ((a ? a->n_weights : 0) != (b ? b->n_weights : 0))
        return false;
    for (size_t i = 0; a && i < a->n_weights; i++)
        if (traffic_weight(b, a->weights[i]->version) != a->weights[i]->weight)
            return false;
    return true;
}

/* A finished update has replaced the old version, or has changed nothing. */
static void check_ended_update(const pb_operation *row)
{
    const struct catalog *catalog = &sim.manager.catalog;
    const pb_traffic *traffic = traffic_find(catalog, row->model);
    const pb_deployment *to =
        catalog_deployment(catalog, row->model, row->version, row->device_group);
    bool from = has_deployment(row, row->update->from_version);
    if ((int)row->state == OPERATION_DONE) {
        if (from || !to)
            sim_broken("I2: update %s is done, the old version is %s and the new one %s", row->id,
                       from ? "there" : "gone", to ? "there" : "gone");
        if (traffic_weight(traffic, row->update->from_version))
            sim_broken("I2: update %s is done and the old version keeps traffic", row->id);
        return;
    }
    if (!from || (to ? to->n_replicas : 0) != row->n_replicas_before)
        sim_broken("I2: update %s was taken back, the old version is %s and the new one has %u "
                   "replicas, before %u",
                   row->id, from ? "there" : "gone", to ? to->n_replicas : 0,
                   row->n_replicas_before);
    if (!same_weights(traffic, row->update->had_traffic ? row->update->traffic_before : NULL))
        sim_broken("I2: update %s was taken back and traffic is not as before", row->id);
}

/* -- idle versions --------------------------------------------------------------------------------
 */

static int64_t idle_after_ns(const pb_event *event)
{
    const struct catalog *catalog = &sim.manager.catalog;
    const pb_deployment *deployment =
        catalog_deployment(catalog, event->model, event->version, event->device_group);
    const pb_version *version = catalog_version(catalog, event->model, event->version);
    if (deployment && deployment->config && deployment->config->has_idle_after_ms)
        return (int64_t)deployment->config->idle_after_ms * NS_PER_MS;
    return version && version->config ? (int64_t)version->config->idle_after_ms * NS_PER_MS : 0;
}

/* The manager may learn of its workers' requests after a decision. The decision then takes some
 * steps to the store. */
static const int64_t moment_ns = 20 * NS_PER_MS;

static void check_idle(const pb_event *event)
{
    int64_t after_ns = idle_after_ns(event);
    for (size_t i = 0; i < sim.n_processes; i++) {
        const struct sim_process *process = &sim.processes[i];
        const pb_replica *row =
            process->alive ? catalog_replica(&sim.manager.catalog, process->replica_id) : NULL;
        if (!row || strcmp(row->model, event->model) != 0 ||
            strcmp(row->version, event->version) != 0 ||
            strcmp(row->device_group, event->device_group) != 0 || !process->told_ns ||
            row->epoch != process->epoch || sim.now_ns - process->told_ns < moment_ns)
            continue;
        if (sim.now_ns - process->told_ns < after_ns)
            sim_broken("I2: %s/%s is taken for idle, and %s had requests %" PRId64 " ms ago",
                       event->model, event->version, row->id,
                       (int64_t)((sim.now_ns - process->told_ns) / NS_PER_MS));
    }
}

/* -- when ----------------------------------------------------------------------------------------
 */

/* The catalog has the rows of the event's transaction, or gets them next. */
void sim_rules_event(const pb_event *event)
{
    const pb_operation *row = catalog_operation(&sim.manager.catalog, event->operation_id);
    if (strcmp(event->type, "version.idle") == 0)
        check_idle(event);
    if (row && row->update && !pb_operation_is_open(row) &&
        (strcmp(event->type, "operation.done") == 0 ||
         strcmp(event->type, "operation.failed") == 0 ||
         strcmp(event->type, "operation.cancelled") == 0))
        check_ended_update(row);
}

void sim_rules_step(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    for (size_t i = 0; i < catalog_count(catalog, TABLE_TRAFFIC); i++)
        check_traffic((const pb_traffic *)row_message(catalog_at(catalog, TABLE_TRAFFIC, i)));
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *row = catalog_operation_at(catalog, i);
        if (row->update && pb_operation_is_open(row))
            check_open_update(row);
    }
}

/* Returns the latest process of an epoch. A manager whose disk failed may have given the same epoch
 * to several processes. */
static const struct sim_process *of_epoch(const char *id, uint64_t epoch)
{
    for (size_t i = sim.n_processes; i > 0; i--)
        if (sim.processes[i - 1].epoch == epoch && strcmp(sim.processes[i - 1].replica_id, id) == 0)
            return &sim.processes[i - 1];
    return NULL;
}

/* A name has one default version, and the weights are those of the rule. A replica that only keeps
 * weights has no address. */
void sim_rules_routes(const pb_route_table *table)
{
    size_t n_defaults = 0;
    for (size_t i = 0; i < table->n_routes; i++) {
        const pb_route *route = table->routes[i];
        bool last =
            i + 1 == table->n_routes || strcmp(table->routes[i + 1]->model, route->model) != 0;
        const pb_traffic *rule = traffic_find(&sim.manager.catalog, route->model);
        /* After a failed allocation the manager may still send its older table. */
        if (!sim.memory_failed && route->traffic_weight != traffic_weight(rule, route->version))
            sim_broken("I7: %s/%s is routed with weight %u, its rule says %u", route->model,
                       route->version, route->traffic_weight, traffic_weight(rule, route->version));
        n_defaults += route->is_default;
        if (last && n_defaults != 1)
            sim_broken("I7: %s is routed with %zu defaults", route->model, n_defaults);
        if (last)
            n_defaults = 0;
        for (size_t j = 0; j < route->n_replicas; j++) {
            const pb_route_replica *replica = route->replicas[j];
            const struct sim_process *process = of_epoch(replica->id, replica->epoch);
            bool addressed = *replica->socket_path != '\0';
            bool ready = (int)replica->state == REPLICA_READY;
            if (((int)replica->state == REPLICA_PARKED && addressed) ||
                (ready && process && process->keeps))
                sim_broken("I7: %s/%s is routed to %s, which is parked", route->model,
                           route->version, replica->id);
        }
    }
}

void sim_rules_rest(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const pb_deployment *deployment =
            catalog_deployment(catalog, row->model, row->version, row->device_group);
        const struct sim_process *process = sim_process_live(row->id);
        int wanted = deployment && deployment->parked ? REPLICA_PARKED : REPLICA_READY;
        if (process && (int)row->state != wanted)
            sim_broken("I2: %s is %s, to be %s", row->id, pb_replica_state_name((int)row->state),
                       pb_replica_state_name(wanted));
        if (process && process->keeps != (wanted == REPLICA_PARKED))
            sim_broken("I2: %s is %s, and its process %s", row->id,
                       pb_replica_state_name((int)row->state), process->keeps ? "keeps" : "serves");
    }
}
