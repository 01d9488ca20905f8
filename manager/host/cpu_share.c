#include "manager/host/cpu_share.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "base/system/placement.h"
#include "base/system/topology.h"

/* Parses the list. Workers inherit the CPUs of this process. A machine with unknown topology
 * counts as flat. */
static int read_list(const char *field, const char *list, struct topology *topology,
                     struct cpus *out, struct error *err)
{
    struct cpus allowed, missing;
    struct error why;
    int rc = cpus_allowed(&allowed, err);
    if (rc != 0)
        return rc;
    if (topology_init(topology, "/sys", &why) != 0) {
        topology_fini(topology);
        rc = topology_init_flat(topology, &allowed, err);
    }
    if (rc == 0 && (rc = topology_parse(topology, field, list, out, err)) != 0)
        snprintf(err->field, sizeof(err->field), "%s", field);
    if (rc != 0)
        return rc;
    missing = *out;
    cpus_remove(&missing, &allowed);
    if (cpus_next(&missing, 0) < CPUS_MAX)
        return error_field(err, field,
                           "CPU %u may not be used by the manager and its workers (affinity or "
                           "cpuset)",
                           cpus_next(&missing, 0));
    return 0;
}

int cpu_share_check(const char *field, const char *list, struct error *err)
{
    struct topology topology = {0};
    struct cpus cpus;
    int rc = *list ? read_list(field, list, &topology, &cpus, err) : 0;
    topology_fini(&topology);
    return rc;
}

static void log_share(const char *replica_id, const struct cpus *cpus, bool shared)
{
    struct strbuf text = {0};
    cpus_format(cpus, &text);
    if (shared)
        log_warn(LOG_EVENT("CPUs are shared"), LOG_STR("replica", replica_id),
                 LOG_STR("cpus", strbuf_str(&text)),
                 LOG_STR("why", "other replicas use all CPUs of its deployment"));
    else
        log_info(LOG_EVENT("CPUs given"), LOG_STR("replica", replica_id),
                 LOG_STR("cpus", strbuf_str(&text)));
    strbuf_fini(&text);
}

int cpu_share_take(const char *replica_id, const char *list, uint32_t n_threads,
                   uint32_t n_replicas, const uint16_t *n_users, struct cpus *out,
                   struct error *err)
{
    struct topology topology = {0};
    struct cpus cpus, share = {{0}};
    bool shared = false;
    if (!*list) {
        *out = share;
        return 0;
    }
    int rc = n_users ? read_list("config.cpus", list, &topology, &cpus, err) : error_no_memory(err);
    if (rc == 0) {
        uint32_t n_cores = topology_n_cores(&topology, &cpus);
        uint32_t each = n_replicas > 1 ? n_cores / n_replicas : n_cores;
        rc = placement_share(&topology, &cpus, n_users,
                             n_threads ? n_threads
                             : each    ? each
                                       : 1,
                             &share, &shared, err);
    }
    if (rc == 0) {
        log_share(replica_id, &share, shared);
        *out = share;
    }
    topology_fini(&topology);
    return rc;
}
