/* text_rpc.h: Tokenize, Detokenize and ApplyChatTemplate; each runs on a request thread. The
 * context is the worker. */
#pragma once

#include <protobuf-c/protobuf-c.h>

struct rpc_call;

void text_rpc_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *request);
void text_rpc_detokenize(void *context, struct rpc_call *call, const ProtobufCMessage *request);
void text_rpc_apply_chat_template(void *context, struct rpc_call *call,
                                  const ProtobufCMessage *request);
