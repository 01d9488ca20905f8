/* service.h: sluice.v1.Inference: the table of handlers. Context of every handler is the struct
 * gateway. Handlers run on the RPC server's threads and never block. */
#pragma once

#include "proto/rpc/server/server.h"

struct gateway;

void inference_service(struct gateway *gateway, struct rpc_service *out_service);

/* service_text.c */
rpc_handler_fn handle_tokenize, handle_detokenize, handle_apply_chat_template;
/* Tries those that wait for a replica again, or ends them; called by the gateway's ticker. */
void text_retry_waiting(struct gateway *gateway);
void text_end_waiting(struct gateway *gateway);
/* service_models.c */
rpc_handler_fn handle_list_models, handle_get_model;
