/* policy.h: version policies: which versions of a model stay loaded. Without a policy, operators
 * alone load and unload versions. A policy loads each version that it wants, like the latest
 * registered version that is loaded. A policy unloads other versions once a wanted version is
 * ready. Nothing happens while an operation on the model is open, or while no version of the
 * model is loaded. A failed load is not tried again. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct catalog;
struct error;
struct policy_runner;

typedef Sluice__Manager__V1__VersionPolicy pb_policy;

enum { POLICY_MAX_VERSIONS = 64, POLICY_MAX_LATEST = 1000 };

/* True where the message sets a rule. */
bool policy_is_set(const pb_policy *policy);
/* FAILED_PRECONDITION, reason VERSION_POLICY, where the policy forbids the load, or the unload
 * of this version alone. */
int policy_check_load(const struct catalog *catalog, const char *model, const char *version,
                      struct error *err);
int policy_check_unload(const struct catalog *catalog, const char *model, const char *version,
                        struct error *err);

/* Loop thread. */
int policy_runner_create(struct fleet *fleet, struct policy_runner **out_policies,
                         struct error *err);
void policy_runner_destroy(struct policy_runner *policies); /* NULL is accepted */
