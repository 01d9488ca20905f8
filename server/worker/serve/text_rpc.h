/* text_rpc.h: Tokenize, Detokenize and ApplyChatTemplate; each runs on a request thread. The
 * context is the worker. */
#pragma once

#include <protobuf-c/protobuf-c.h>

struct rpc_call;

void handle_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *request);
void handle_detokenize(void *context, struct rpc_call *call, const ProtobufCMessage *request);
void handle_apply_chat_template(void *context, struct rpc_call *call,
                                const ProtobufCMessage *request);
