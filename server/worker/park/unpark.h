/* unpark.h: the Wake call: a parked worker becomes a serving worker without a new process. The
 * model's header and vocabulary are already read (model_reader.h). The call carries the
 * launch record of a start, CPUs included. Fields that only a start can apply (sockets, split,
 * threads) must equal those of the process's own record. Otherwise the call is refused, reason
 * NEEDS_A_START. Another epoch is refused, reason STALE_EPOCH. */
#pragma once

#include <stdbool.h>

#include "proto/rpc/server/server.h"

struct error;
struct settings;
struct unpark_orders;
struct worker;

/* rpc_handler_fn of Wake; context is the worker. */
void unpark_handle_wake(void *context, struct rpc_call *call, const ProtobufCMessage *message);

/* True if a Wake was accepted and unpark_take() has not applied it yet. Any thread. */
bool unpark_is_asked(struct worker *worker);

/* Compares the settings of this process with those of a Wake's record. FAILED_PRECONDITION with
 * reason STALE_EPOCH, or NEEDS_A_START and the field in err->field. */
int unpark_check(const struct settings *now, const struct settings *then, struct error *err);

/* Makes the record of the accepted Wake the worker's settings. Main thread only. */
void unpark_take(struct worker *worker);

/* NULL is accepted. */
void unpark_orders_destroy(struct unpark_orders *orders);
