/* link_internal.h: struct link, shared by link.c (its life, frames from the worker) and
 * link_up.c (frames to the worker). Private to them. */
#pragma once

#include <pthread.h>

#include "base/hash_map.h"
#include "server/gateway/base/meter.h"
#include "server/gateway/base/stall.h"
#include "server/gateway/replicas/link.h"

/* A worker with a larger backlog counts as lost. */
enum { MAX_LINK_BACKLOG_BYTES = 64 << 20 };

enum link_state { LINK_DOWN, LINK_CONNECTING, LINK_READY, LINK_DRAINING };

struct link {
    _Atomic uint32_t n_refs;
    const struct link_shared *shared;
    struct rpc_client *client;
    char replica_id[64], model[65], version[65], socket_path[128];
    uint64_t epoch;
    int64_t made_ns;

    pthread_mutex_t lock;
    enum link_state state;
    Sluice__Manager__V1__ReplicaState route_state;
    bool retired;
    struct rpc_stream *stream; /* owned unless LINK_DOWN */
    struct hash_map live;      /* u64 id → relay; each retained */
    uint64_t next_id;
    int64_t retry_at_ns;
    uint32_t retry_ms;
    bool has_facts;
    struct link_facts facts;
    struct stall_watch stall;
    struct version_meter *meter; /* retained; constant */
    struct link_load load;
    struct load_totals totals;
    uint32_t max_concurrent;          /* from the replica; 0: not known */
    int64_t last_end_ns, interval_ns; /* end of the last request, and smoothed time between ends,
                                         while the link has requests */
};

/* Takes the relay with that id off the map; the caller owns the map's reference. If the relay
 * had a place there, a waiting request can have the place now. */
struct relay *link_take_live(struct link *link, uint64_t id, bool had_place);
