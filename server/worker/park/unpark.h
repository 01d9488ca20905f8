/* unpark.h: the manager tells a parked worker to serve, and it does so in place: no process is
 * started, and what a start reads first is there already (model_reader.h). Flags come with the
 * call, as a start would have them; CPUs of its own may be among them, which a keeper has none of.
 * What only a start can set (its number, sockets, threads, how its server is made) must be as it
 * is: else the call is refused, and a fresh process is right. */
#pragma once

#include <stdbool.h>

#include "proto/rpc/server/server.h"

struct unpark_orders;
struct worker;

/* The Wake call. Any thread. */
void unpark_handle_wake(void *context, struct rpc_call *call, const ProtobufCMessage *message);

/* Whether a Wake was accepted that unpark_take() has not taken. Any thread. */
bool unpark_is_asked(struct worker *worker);

/* Makes the flags that came with it the worker's settings. Main thread, where one is asked. */
void unpark_take(struct worker *worker);

/* NULL is accepted. */
void unpark_orders_destroy(struct unpark_orders *orders);
