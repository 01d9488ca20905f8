/* service.h: the handlers of sluice.v1.Inference. The context of every handler is the struct
 * service. Handlers run on the RPC server's threads and never block. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "proto/rpc/server/server.h"

struct access;
struct dispatch;
struct generate_stream;
struct text_forward;

struct service {
    struct dispatch *dispatch; /* dispatch and access outlive the service */
    struct access *access;
    pthread_mutex_t lock;               /* protects the fields below */
    struct generate_stream *streams;    /* open streams */
    struct text_forward *waiting_texts; /* calls that wait for a replica */
};

void service_init(struct service *service, struct dispatch *dispatch);
void service_fini(struct service *service);
/* Fills the table of the handlers. */
void service_table(struct service *service, struct rpc_service *out_table);

/* service_text.c */
rpc_handler_fn handle_tokenize, handle_detokenize, handle_apply_chat_template;
/* Ticker thread: tries the waiting calls again, or ends them. */
void service_text_retry_waiting(struct service *service);
void service_text_end_waiting(struct service *service);
/* service_models.c */
rpc_handler_fn handle_list_models, handle_get_model;
