/* plan.h: what new replicas of a version would take, worked out by `sluice-worker plan` in a
 * process of its own. Loop thread only. */
#pragma once

#include "manager/manager.h"
#include "manager/pb.h"

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

/* Called once, with the plan (borrowed); NULL: there is none, and the call has been failed. */
typedef void plan_answer_fn(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg);

/* On 0 the call is answered later. */
int plan_run(struct manager *manager, struct rpc_call *call, const struct plan_wish *wish,
             plan_answer_fn *answer, void *arg, struct error *err);
