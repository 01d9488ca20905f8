/* kserve.h: inference.GRPCInferenceService, the protocol "KServe Predict v2" with Triton's
 * extensions: a translator onto the relays, like the handlers of front/. Handlers run on the RPC
 * server's threads and never block.
 *
 * Elements of tensors: kserve_tensor.c. Names of inputs: kserve_fields.c, kserve_sampling.c. A
 * request and its responses: kserve_request.c, kserve_output.c. ModelInfer and ModelStreamInfer:
 * kserve_infer.c. The served models: kserve_models.c. Commands to the manager: kserve_repository.c.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "proto/rpc/server/server.h"

struct dispatch;
struct kserve_command;
struct service;

/* The paths of the RPCs that need an operator begin with this text (access_config.control_prefix).
 */
#define KSERVE_CONTROL_PREFIX "/inference.GRPCInferenceService/Repository"

/* The context of every handler. */
struct kserve {
    struct service *service;     /* the front's; outlives this */
    struct dispatch *dispatch;   /* the service's */
    pthread_mutex_t lock;        /* taken alone */
    struct kserve_command *done; /* under the lock: commands that the manager has done, and that
                                  * wait until this server's routes show them */
};

void kserve_init(struct kserve *kserve, struct service *service);
void kserve_fini(struct kserve *kserve);
/* Fills the table of the handlers. */
void kserve_table(struct kserve *kserve, struct rpc_service *out_table);
/* Ticker thread: answers the commands that the routes show. */
void kserve_tick(struct kserve *kserve, int64_t now_ns);
/* Ends all waiting commands, because the server gets no more routes. */
void kserve_end(struct kserve *kserve);

/* --- between the files --- */

/* kserve_infer.c */
rpc_handler_fn kserve_model_infer, kserve_model_stream_infer;
/* kserve_models.c */
rpc_handler_fn kserve_server_live, kserve_server_ready, kserve_model_ready;
rpc_handler_fn kserve_server_metadata, kserve_model_metadata, kserve_model_config;
rpc_handler_fn kserve_model_statistics;
/* kserve_repository.c */
rpc_handler_fn kserve_repository_index, kserve_repository_load, kserve_repository_unload;
