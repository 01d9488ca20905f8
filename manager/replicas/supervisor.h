/* supervisor.h: the worker processes. Carries out what reconcile.h decides, records what it sees,
 * and takes over the workers that an earlier manager left running. Workers outlive the manager:
 * nothing here ends one because the manager ends, save supervisor_stop_workers. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "manager/replicas/operation_ops.h"
#include "manager/slots/fleet.h"

struct supervisor;

/* Looks at every process and record, adopts, kills what nobody owns, and starts supervising. */
int supervisor_create(struct fleet *fleet, const struct operation_ops *operations,
                      struct supervisor **out_supervisor, struct error *err);
/* Lets go of every worker; they run on. NULL is accepted. */
void supervisor_destroy(struct supervisor *supervisor);

/* Something may have to be done: looks at everything once, soon. */
void supervisor_kick(struct supervisor *supervisor);

/* Ends all workers (SIGTERM, after the kill grace SIGKILL) and calls `done` when none is left. They
 * stay wanted: the next manager starts them again. */
void supervisor_stop_workers(struct supervisor *supervisor, void (*done)(void *arg), void *arg);

/* The driver says that what ran on the device went wrong. The worker that it hit ends by itself in
 * a moment; where none does, those on the device are ended: theirs may be a context that hangs. */
void supervisor_device_failed(struct supervisor *supervisor, const char *device, uint64_t xid);
