/* server_internal.h: struct rpc_server, shared by server.c (creates and serves) and server_end.c
 * (ends). Private to proto/rpc. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <grpc/grpc.h>

#include "proto/rpc/core/core.h"
#include "proto/rpc/guard/accept.h"
#include "proto/rpc/server/lane.h"
#include "proto/rpc/server/server.h"
#include "proto/rpc/server/table.h"

enum { MAX_THREADS = 64, MAX_PORTS = 8, MAX_LISTENERS = 2 * MAX_PORTS };

/* A pending request for the next call, armed again after each use. */
struct slot {
    struct rpc_tag tag;
    struct rpc_server *server;
    struct rpc_lane *lane;
    grpc_call *core;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

struct rpc_server {
    struct rpc_server_config config;
    struct rpc_table table;

    grpc_server *core;
    struct rpc_accept *ports[MAX_LISTENERS]; /* TCP ports and unix sockets */
    char *sockets[MAX_PORTS];                /* paths of unix sockets, owned; removed with the
                                              * server */
    uint32_t n_ports;
    struct rpc_lane lanes[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    uint32_t n_threads; /* running threads */
    struct slot *slots;
    size_t n_slots;
    struct rpc_tag shutdown_tag;
    atomic_bool draining;
    atomic_ullong n_messages[2], n_message_bytes[2]; /* in, out */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started, shut_down, hurried, core_is_down;
    struct rpc_call *live;
    uint64_t n_live_user; /* live calls without health and reflection */
    struct rpc_server_stats stats;
};
