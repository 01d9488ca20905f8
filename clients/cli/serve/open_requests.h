/* open_requests.h: how many requests a drain has to wait for. */
#pragma once

#include <stdint.h>

struct rpc_client;

/* Counts the server's running and waiting requests. 0 also if the server does not answer within a
 * second. */
uint64_t open_requests_count(struct rpc_client *server);
