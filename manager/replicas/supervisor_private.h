/* supervisor_private.h: struct supervisor, for the files that carry out its actions. Loop thread
 * only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <ev.h>

#include "manager/base/change_hub.h"
#include "manager/base/context.h"
#include "manager/host/oom_watch.h"
#include "manager/replicas/reconcile.h"
#include "manager/replicas/supervisor.h"
#include "manager/slots/slot.h"

struct error;
struct record;

struct supervisor {
    struct fleet *fleet;
    struct context *context; /* the fleet's context; borrowed */
    struct operation_ops operations;
    struct change_subscriber on_change;
    struct reconcile_config config;
    ev_timer soon, wake, settle, tick;
    struct oom_watch oom;
    bool stopping; /* supervisor_stop_workers was called: no process is started */
    bool finished;
    ev_timer stop_timer;
    void (*stopped)(void *arg);
    void *stopped_arg;
};

/* Called on the loop thread when a record is committed or refused. */
void supervisor_record_done(struct supervisor *supervisor, const char *replica_id,
                            const struct record *record, const struct error *status);
