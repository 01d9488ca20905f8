/* plan.h: what new replicas of a version would take, worked out by `sluice-worker plan` in a
 * process of its own. Loop thread only. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct error;
struct rpc_call;

/* All borrowed for the call. */
struct plan_wish {
    const char *model, *version, *group;
    uint32_t tp, pp;
    const pb_config *config; /* on top of the version's own; may be NULL */
    uint32_t n_replicas;     /* new ones, beyond those that live; 0: nothing is to be done */
    const char *note;        /* goes into the plan; or NULL */
};

/* Whether a plan of several replicas tells whether all of them fit: each takes all devices of its
 * group, and not one that is chosen when it starts. `config` as in plan_wish. */
bool plan_is_of_all(const struct fleet *fleet, const struct plan_wish *wish);

/* RESOURCE_EXHAUSTED, reason DEVICE_MEMORY: what is missing for all that was planned; `then` is
 * the end of its sentence. */
void plan_does_not_fit(const Sluice__V1__Plan *plan, const char *then, struct error *err);

/* Called once, with the plan (borrowed); NULL: there is none, and the call has been failed. */
typedef void plan_answer_fn(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg);

/* On 0 the call is answered later. */
int plan_run(struct fleet *fleet, struct rpc_call *call, const struct plan_wish *wish,
             plan_answer_fn *answer, void *arg, struct error *err);
