/* place.h: where a worker's threads run and where its memory lies, decided once from what it was
 * told (--devices, --cpus, --threads, --tp) and from the machine's topology. By the main thread
 * before there are others, which inherit what is set here; of a keeper that is given CPUs as it is
 * woken by the call's thread, which moves those that there are (unpark.c). Read only afterwards.
 *
 *   told --cpus      the process runs on these CPUs alone and each compute thread stays on one, for
 *                    they are its own;
 *   told nothing     compute threads are kept to CPUs that share a cache only where there is one
 *                    thread for each core that may be used, on more than one cache; else the kernel
 *                    places them, for it sees what else runs;
 *   several nodes    memory is taken from the node that all threads are on; from the nodes in turn
 *                    where they are on several; and where the ranks of --tp are on one node each, a
 *                    rank's weights, KV and workspace from its own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/system/placement.h"
#include "base/system/topology.h"

struct engine_config;
struct executor_config;
struct settings;

enum { PLACE_DEVICES_BYTES = 512, PLACE_MAX_RANKS = 8 };

struct place {
    struct topology topology;
    struct cpus cpus; /* that may be used */
    bool own;         /* they are this process's alone */
    bool confined;    /* its threads are kept to some */
    bool rank_bound;  /* every rank is on one node */
    struct placement placement;
    uint32_t n_ranks;
    uint16_t rank_nodes[PLACE_MAX_RANKS];
    struct cpus *thread_cpus;          /* owned; [placement.n_threads] */
    char devices[PLACE_DEVICES_BYTES]; /* "cpu" written out: a name per node */
    struct error
        failure;    /* of place_init() or place_enter(), for whoever reports it; status 0: none */
    char note[256]; /* what was asked for and cannot be had; or empty */
};

/* Decides, for `sys_root` "/sys". INVALID_ARGUMENT names the flag. Nothing is changed yet. Where
 * the machine does not tell its topology, it is one node of the CPUs that may be used. place_fini()
 * in any case. */
int place_init(struct place *place, const struct settings *settings, const char *sys_root,
               struct error *err);
/* The same for another number of threads (0: the default). */
int place_threads(struct place *place, uint32_t n_threads, struct error *err);
/* Confines the calling thread and sets where memory comes from: for itself and all that it starts.
 */
int place_enter(const struct place *place, struct error *err);
/* What the executor is to be told. Borrowed from the place. */
void place_apply(const struct place *place, struct executor_config *cfg);
/* settings_engine_config() with what place_apply() adds for settings->place, where there is one. */
int place_engine_config(const struct settings *settings, struct engine_config *out_config,
                        struct error *err);
/* One line in the log: threads, CPUs, nodes. */
void place_log(const struct place *place);
/* Its failure, for whoever is to report it: 0 where there is none (or no place). */
int place_failure(const struct place *place, struct error *err);
void place_fini(struct place *place);
