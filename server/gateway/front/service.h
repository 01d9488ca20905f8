/* service.h: sluice.v1.Inference: the table of handlers. Context of every handler is the struct
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
    struct dispatch *dispatch; /* outlives it, as the next */
    struct access *access;
    pthread_mutex_t lock;               /* of what follows */
    struct generate_stream *streams;    /* that are open */
    struct text_forward *waiting_texts; /* that wait for a replica */
};

void service_init(struct service *service, struct dispatch *dispatch);
void service_fini(struct service *service);
/* The handlers' table. */
void service_table(struct service *service, struct rpc_service *out_table);

/* service_text.c */
rpc_handler_fn handle_tokenize, handle_detokenize, handle_apply_chat_template;
/* Tries those that wait for a replica again, or ends them; the ticker. */
void service_text_retry_waiting(struct service *service);
void service_text_end_waiting(struct service *service);
/* service_models.c */
rpc_handler_fn handle_list_models, handle_get_model;
