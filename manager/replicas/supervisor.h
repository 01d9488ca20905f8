/* supervisor.h: the worker processes. Carries out the actions of reconcile(), records the
 * observed state, and adopts the workers of an earlier manager. Workers outlive the manager;
 * only supervisor_stop_workers() ends them with the manager. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "manager/replicas/operation_ops.h"
#include "manager/slots/fleet.h"

struct supervisor;

/* Adopts the workers that the records name, kills all other workers, and starts supervising. */
int supervisor_create(struct fleet *fleet, const struct operation_ops *operations,
                      struct supervisor **out_supervisor, struct error *err);
/* Detaches from every worker; the workers run on. NULL is accepted. */
void supervisor_destroy(struct supervisor *supervisor);

/* Schedules a pass over all replicas soon. To be called after any change. */
void supervisor_kick(struct supervisor *supervisor);

/* Ends all workers (SIGTERM, after the kill grace SIGKILL) and calls `done` when none is left.
 * The desired state is unchanged: the next manager starts the replicas again. */
void supervisor_stop_workers(struct supervisor *supervisor, void (*done)(void *arg), void *arg);

/* Must be called when the driver reports a fault of the device. The affected worker usually ends
 * by itself. If none ends within the grace, the workers on the device are killed, as a context
 * may hang. */
void supervisor_device_failed(struct supervisor *supervisor, const char *device, uint64_t xid);
