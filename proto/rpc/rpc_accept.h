/* rpc_accept.h: how many connections a port may have. gRPC 1.51 knows no such limit, and when
 * accept fails because the process has no descriptor left, it never listens again. It calls accept4
 * through the dynamic linker, so the accept4 of this file does the accepting for the whole program:
 * beyond the limit, or without a descriptor, the new connection is closed at once and gRPC goes on
 * listening. Sockets of others (HTTP) pass through. Private to proto/rpc. Any thread; lock inside.
 */
#pragma once

#include <stdint.h>

struct rpc_accept;

/* Watches a TCP port. `on_refused` is called for each connection that is refused, with a lock held:
 * it may only count. NULL where memory is exhausted. */
struct rpc_accept *rpc_accept_watch(uint16_t port, uint32_t max_connections,
                                    void (*on_refused)(void *arg), void *arg);
/* After the port has been closed. NULL is accepted. */
void rpc_accept_forget(struct rpc_accept *accept);

/* Connections that are open now. */
uint32_t rpc_accept_n_open(struct rpc_accept *accept);
