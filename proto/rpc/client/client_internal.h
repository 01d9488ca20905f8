/* client_internal.h: shared by client.c and stream.c. Private to proto/rpc. */
#pragma once

#include <grpc/grpc.h>

#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"

/* The entry of a live stream in its client's list, which destroying the client cancels. */
struct rpc_live {
    struct rpc_live *next, **at;
};

/* False if the client is being destroyed. */
bool rpc_client_enter(struct rpc_client *client, struct rpc_live *live);
void rpc_client_leave(struct rpc_client *client, struct rpc_live *live);

grpc_channel *rpc_client_channel(struct rpc_client *client);
grpc_completion_queue *rpc_client_queue(struct rpc_client *client);
/* "Bearer …" for the authorization metadata, or NULL. */
const char *rpc_client_authorization(const struct rpc_client *client);
size_t rpc_client_max_pending(const struct rpc_client *client);

/* stream.c: cancels a stream of the client's list. */
void rpc_stream_cancel_live(struct rpc_live *live);
