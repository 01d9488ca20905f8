/* plan.h: the memory that new replicas of a version would take. A process of `sluice-worker
 * plan` computes it. Loop thread only. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct error;
struct rpc_call;

/* Called once, with the facts and the plan (borrowed). NULL: the call has failed. */
typedef void plan_inspected_fn(struct rpc_call *call, const Sluice__V1__Inspection *inspection,
                               void *arg);

enum { PLAN_MAX_ARGUMENTS = 8 };

/* All members are borrowed for the call. */
struct plan_wish {
    const char *model, *version, *group;
    uint32_t tp, pp;
    const pb_config *config; /* merged over the version's configuration; may be NULL */
    uint32_t n_replicas;     /* new replicas beyond the live ones; 0: nothing to add */
    const char *note;        /* text to add to the plan, or NULL */
    /* Not NULL: the process inspects the files too, and this is called in place of the answer. The
     * plan is that of a version that is not loaded. */
    plan_inspected_fn *inspected;
    /* With `inspected`: further flags of the process, NULL-terminated, at most
     * PLAN_MAX_ARGUMENTS; NULL: none. */
    const char *const *arguments;
};

/* True where a plan of several replicas checks all of them: each replica takes all devices of
 * its group. False where each replica chooses a device when it starts. `config` as in plan_wish. */
bool plan_is_of_all(const struct fleet *fleet, const struct plan_wish *wish);

/* RESOURCE_EXHAUSTED, reason DEVICE_MEMORY, with the bytes missing for all planned replicas.
 * `then` ends the text: what to do. */
void plan_does_not_fit(const Sluice__V1__Plan *plan, const char *then, struct error *err);

/* Called once, with the plan (borrowed). NULL: there is no plan, and the call has failed. */
typedef void plan_answer_fn(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg);

/* Starts a plan. After 0 the call is answered later. `answer` is NULL with wish->inspected. */
int plan_run(struct fleet *fleet, struct rpc_call *call, const struct plan_wish *wish,
             plan_answer_fn *answer, void *arg, struct error *err);
