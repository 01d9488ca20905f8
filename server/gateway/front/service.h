/* service.h: the handlers of sluice.v1.Inference. The context of every handler is the struct
 * service. Handlers run on the RPC server's threads and never block. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "proto/rpc/server/server.h"
#include "server/gateway/dispatch/text_call.h"

struct access;
struct dispatch;
struct generate_stream;

struct service {
    struct dispatch *dispatch; /* dispatch and access outlive the service */
    struct access *access;
    pthread_mutex_t lock;            /* protects the streams */
    struct generate_stream *streams; /* open streams */
    struct text_calls texts;         /* has its own lock */
};

void service_init(struct service *service, struct dispatch *dispatch);
void service_fini(struct service *service);
/* Fills the table of the handlers. */
void service_table(struct service *service, struct rpc_service *out_table);

/* service_text.c */
rpc_handler_fn handle_tokenize, handle_detokenize, handle_apply_chat_template;
/* service_models.c */
rpc_handler_fn handle_list_models, handle_get_model;
