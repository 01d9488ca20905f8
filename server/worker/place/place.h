/* place.h: where a worker's threads run and where its memory is allocated. The choice is made once,
 * from --devices, --cpus, --threads, --tp, --pp and the machine's topology. The main thread applies
 * it before other threads exist, which inherit it. For a parked worker that gets CPUs with a Wake,
 * the call's thread moves the existing threads (unpark.c). Read only afterwards.
 *
 * With --cpus: the process runs on these CPUs only, and each compute thread stays on one of them.
 *
 * Without --cpus: the kernel places the compute threads, because it sees other load. Threads are
 * confined to CPUs that share a cache only if every allowed core has a thread and there are several
 * caches.
 *
 * Several nodes: if all threads are on one node, memory comes from that node; else the nodes
 * take turns. If each rank is on one node, a rank's weights, KV and workspace come from
 * its node. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/system/placement.h"
#include "base/system/topology.h"

struct engine_config;
struct executor_config;
struct settings;

enum { PLACE_DEVICES_BYTES = 512, PLACE_MAX_RANKS = 32 };

struct place {
    struct topology topology;
    struct cpus cpus; /* allowed CPUs */
    bool own;         /* the CPUs belong to this process only */
    bool confined;    /* threads are confined to CPUs */
    bool rank_bound;  /* every rank is confined to one node */
    struct placement placement;
    uint32_t n_ranks;
    uint16_t rank_nodes[PLACE_MAX_RANKS];
    struct cpus *thread_cpus;          /* owned; [placement.n_threads] */
    char devices[PLACE_DEVICES_BYTES]; /* device names; "cpu" becomes a name for each node */
    struct error failure; /* error of place_init() or place_enter(), reported by the mode; status 0:
                           * none */
    char note[256];       /* why the topology could not be read; or empty */
};

/* Chooses the placement, from the topology in `sys_root` ("/sys"). INVALID_ARGUMENT names the
 * flag. Nothing is applied yet. A machine without a readable topology counts as one node of the
 * allowed CPUs. Call place_fini() in any case. */
int place_init(struct place *place, const struct settings *settings, const char *sys_root,
               struct error *err);
/* Chooses again for another number of threads (0: the default). */
int place_threads(struct place *place, uint32_t n_threads, struct error *err);
/* Confines the calling thread and sets its memory policy; threads that it starts inherit both. */
int place_enter(const struct place *place, struct error *err);
/* Copies the placement to the executor's configuration. Borrowed from the place. */
void place_apply(const struct place *place, struct executor_config *cfg);
/* Calls settings_engine_config(), then place_apply() if there is a settings->place. */
int place_engine_config(const struct settings *settings, struct engine_config *out_config,
                        struct error *err);
/* Logs threads, CPUs and nodes. */
void place_log(const struct place *place);
/* Returns the status of the place's failure and fills *err; 0 if there is no failure or no
 * place. */
int place_failure(const struct place *place, struct error *err);
void place_fini(struct place *place);
