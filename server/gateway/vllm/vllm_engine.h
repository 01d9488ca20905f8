/* vllm_engine.h: vllm.grpc.engine.VllmEngine, the interface of routers to vLLM: a translator onto
 * the relays, like the handlers of front/. Handlers run on the RPC server's threads and never
 * block.
 *
 * Files: vllm_engine.c (service and facts), vllm_request.c and vllm_answer.c (a Generate and its
 * responses). */
#pragma once

#include <stdint.h>

#include "proto/rpc/server/server.h"

struct dispatch;
struct service;

/* The context of every handler. */
struct vllm_engine {
    struct service *service;      /* the front's; outlives this */
    struct dispatch *dispatch;    /* the service's */
    int64_t started_ns;           /* constant: clock_now_ns() */
    _Atomic int64_t last_unix_ns; /* arrival of the last Generate; 0: none yet */
};

void vllm_engine_init(struct vllm_engine *engine, struct service *service);
/* Fills the table of the handlers. */
void vllm_engine_table(struct vllm_engine *engine, struct rpc_service *out_table);
