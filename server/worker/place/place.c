#include "server/worker/place/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "base/system/device_name.h"
#include "base/system/memory_policy.h"
#include "engine/engine_config.h"
#include "server/worker/base/settings.h"

/* --- CPUs --- */

static void name_every_node(struct place *place)
{
    size_t n = 0;
    for (uint32_t i = 0; i < place->topology.n_nodes && n < sizeof(place->devices); i++)
        n += (size_t)snprintf(place->devices + n, sizeof(place->devices) - n, "%scpu:%u",
                              i ? "," : "", place->topology.nodes[i]);
}

/* `list` is the whole value, `name` the part that is no device. */
static int no_device(const char *list, const char *name, size_t n_bytes, struct error *err)
{
    char meant[64] = "";
    bool known = device_name_meant(list, meant, sizeof(meant));
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--devices: \"%.*s\" is not a device like cpu:0 or cuda:0%s%s",
                     (int)(n_bytes < 40 ? n_bytes : 40), name, known ? "; write " : "", meant);
}

/* Adds a device of the list, for example "cpu:1". */
static int add_device(struct place *place, const char *list, const char *name, size_t n_bytes,
                      struct cpus *set, struct error *err)
{
    struct cpus cpus;
    char *end = NULL;
    unsigned long node = 0;
    if (n_bytes > 4 && strncmp(name, "cpu:", 4) == 0 && name[4] >= '0' && name[4] <= '9')
        node = strtoul(name + 4, &end, 10);
    if (!end || end != name + n_bytes)
        return no_device(list, name, n_bytes, err);
    if (node >= TOPOLOGY_MAX_NODES || !topology_node_cpus(&place->topology, (uint32_t)node, &cpus))
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "--devices: cpu:%lu does not exist: this machine's last node with CPUs is %u", node,
            place->topology.nodes[place->topology.n_nodes - 1]);
    cpus_or(set, &cpus);
    return 0;
}

/* Collects the CPUs of the nodes that --devices names. */
static int take_devices(struct place *place, const char *list, struct cpus *set, struct error *err)
{
    *set = (struct cpus){{0}};
    if (!list || strcmp(list, "cpu") == 0) {
        name_every_node(place);
        *set = place->topology.online;
        return 0;
    }
    snprintf(place->devices, sizeof(place->devices), "%s", list);
    if (device_name_is_gpu(list)) { /* CPU threads of a GPU worker */
        *set = place->topology.online;
        return 0;
    }
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        int rc = n ? add_device(place, list, at, n, set, err) : 0;
        if (rc)
            return rc;
        at += n + (at[n] == ',');
    }
    if (cpus_next(set, 0) == CPUS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--devices: names no device");
    return 0;
}

static int take_cpus(struct place *place, const struct settings *s, const struct cpus *allowed,
                     struct error *err)
{
    struct cpus asked, missing;
    int rc = take_devices(place, s->devices, &place->cpus, err);
    if (rc)
        return rc;
    struct cpus nodes = place->cpus;
    cpus_and(&place->cpus, allowed);
    if (cpus_next(&place->cpus, 0) == CPUS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--devices: %.60s: this process may use none of its CPUs", place->devices);
    place->own = s->config.cpus && *s->config.cpus;
    if (!place->own)
        return 0;
    rc = topology_parse(&place->topology, "--cpus", s->config.cpus, &asked, err);
    if (rc)
        return rc;
    missing = asked;
    cpus_remove(&missing, &nodes);
    if (cpus_next(&missing, 0) < CPUS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--cpus: \"%.60s\": CPU %u does not belong to the devices %.60s",
                         s->config.cpus, cpus_next(&missing, 0), place->devices);
    missing = asked;
    cpus_remove(&missing, &place->cpus);
    if (cpus_next(&missing, 0) < CPUS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--cpus: \"%.60s\": this process may not use CPU %u (affinity or "
                         "cpuset)",
                         s->config.cpus, cpus_next(&missing, 0));
    place->cpus = asked;
    return 0;
}

/* --- threads --- */

/* Returns true if all threads of each rank are on one node. Threads go to ranks as in
 * executor.c. */
static bool find_rank_nodes(struct place *place)
{
    const struct placement *p = &place->placement;
    uint32_t at = 0;
    for (uint32_t r = 0; r < place->n_ranks; r++) {
        uint32_t n = p->n_threads / place->n_ranks + (r < p->n_threads % place->n_ranks);
        uint32_t first = at < p->n_threads ? at : p->n_threads - 1;
        place->rank_nodes[r] = p->node_of[first];
        for (uint32_t i = first; i < first + n; i++)
            if (p->node_of[i] != p->node_of[first])
                return false;
        at += n;
    }
    return true;
}

static bool is_one_domain(const struct place *place)
{
    const struct topology_cpu *first = NULL;
    for (uint32_t i = 0; i < place->topology.n_cpus; i++) {
        const struct topology_cpu *cpu = &place->topology.cpus[i];
        if (!cpus_has(&place->cpus, cpu->id))
            continue;
        if (first && cpu->domain != first->domain)
            return false;
        first = cpu;
    }
    return true;
}

int place_threads(struct place *place, uint32_t n_threads, struct error *err)
{
    struct placement *p = &place->placement;
    if (!n_threads)
        n_threads = placement_default_threads(&place->topology, &place->cpus,
                                              placement_quota_milli("/proc", "/sys"));
    int rc = placement_choose(&place->topology, &place->cpus, n_threads, p, err);
    if (rc)
        return rc;
    uint32_t n_cores = topology_n_cores(&place->topology, &place->cpus);
    bool alone = place->own && !p->crowded;
    place->confined = !p->crowded && (alone || (n_threads >= n_cores && !is_one_domain(place)));
    place->rank_bound =
        place->n_ranks > 1 && p->n_nodes > 1 && place->confined && find_rank_nodes(place);
    free(place->thread_cpus);
    place->thread_cpus = calloc(n_threads, sizeof(*place->thread_cpus));
    if (!place->thread_cpus)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u threads", n_threads);
    for (uint32_t i = 0; i < n_threads; i++)
        placement_mask(&place->topology, p, i, alone, &place->cpus, &place->thread_cpus[i]);
    return 0;
}

int place_init(struct place *place, const struct settings *settings, const char *sys_root,
               struct error *err)
{
    struct cpus allowed;
    struct error why;
    uint32_t tp = settings->tp ? (uint32_t)settings->tp : 1;
    *place = (struct place){.n_ranks = tp * (settings->pp ? (uint32_t)settings->pp : 1)};
    if (place->n_ranks > PLACE_MAX_RANKS)
        place->n_ranks = PLACE_MAX_RANKS;
    int rc = cpus_allowed(&allowed, err);
    if (!rc && topology_init(&place->topology, sys_root, &why) != 0) {
        snprintf(place->note, sizeof(place->note), "%.250s", why.message);
        topology_fini(&place->topology);
        rc = topology_init_flat(&place->topology, &allowed, err);
    }
    if (!rc)
        rc = take_cpus(place, settings, &allowed, err);
    return rc ? rc : place_threads(place, settings->config.n_threads, err);
}

int place_enter(const struct place *place, struct error *err)
{
    const struct placement *p = &place->placement;
    struct cpus now;
    struct error why;
    int rc = cpus_allowed(&now, err);
    cpus_remove(&now, &place->cpus);
    /* Devices that name only some nodes also confine the process to these. */
    if (!rc && cpus_next(&now, 0) < CPUS_MAX)
        rc = cpus_confine(&place->cpus, err);
    if (rc || place->topology.n_nodes == 1 || place->rank_bound)
        return rc;
    /* Unconfined threads on several nodes allocate pages where they run. A container may forbid
     * the call; then all threads allocate pages where they run. */
    if (place->confined)
        memory_policy_set(p->nodes, p->n_nodes, &why);
    else if (topology_n_nodes(&place->topology, &place->cpus) == 1)
        memory_policy_set(&topology_cpu(&place->topology, cpus_next(&place->cpus, 0))->node, 1,
                          &why);
    return 0;
}

void place_apply(const struct place *place, struct executor_config *cfg)
{
    cfg->n_threads = place->placement.n_threads;
    cfg->thread_cpus = place->confined ? place->thread_cpus : NULL;
    cfg->rank_nodes = place->rank_bound ? place->rank_nodes : NULL;
}

int place_engine_config(const struct settings *settings, struct engine_config *out_config,
                        struct error *err)
{
    int rc = settings_engine_config(settings, out_config, err);
    if (!rc && settings->place)
        place_apply(settings->place, &out_config->executor);
    return rc;
}

void place_log(const struct place *place)
{
    struct strbuf cpus, threads;
    strbuf_init(&cpus, 0);
    strbuf_init(&threads, 0);
    cpus_format(&place->cpus, &cpus);
    for (uint32_t i = 0; place->confined && i < place->placement.n_threads; i++) {
        strbuf_add_str(&threads, i ? " " : "");
        cpus_format(&place->thread_cpus[i], &threads);
    }
    if (*place->note)
        log_warn(LOG_EVENT("topology unknown"), LOG_STR("why", place->note));
    log_info(LOG_EVENT("placement"), LOG_U64("threads", place->placement.n_threads),
             LOG_STR("cpus", strbuf_str(&cpus)),
             LOG_STR("thread_cpus", place->confined ? strbuf_str(&threads) : "any"),
             LOG_U64("nodes", place->placement.n_nodes));
    strbuf_fini(&cpus);
    strbuf_fini(&threads);
}

int place_failure(const struct place *place, struct error *err)
{
    if (!place || !place->failure.status)
        return 0;
    *err = place->failure;
    return err->status;
}

void place_fini(struct place *place)
{
    free(place->thread_cpus);
    topology_fini(&place->topology);
    *place = (struct place){0};
}
