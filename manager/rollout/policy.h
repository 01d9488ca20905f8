/* policy.h: version policies: which versions of a model are kept loaded. A model without one is the
 * operators' own. With one, what it wants and is not loaded is loaded as the loaded version
 * registered last is; what it does not want is unloaded once one that it wants is ready. Nothing is
 * done while an operation on the model is open, none for a model of which nothing is loaded, and a
 * load that failed is not tried again. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct catalog;
struct error;
struct policy_runner;

typedef Sluice__Manager__V1__VersionPolicy pb_policy;

enum { POLICY_MAX_VERSIONS = 64, POLICY_MAX_LATEST = 1000 };

/* Whether the message says anything: one without is no policy. */
bool policy_is_set(const pb_policy *policy);
/* Whether the model's policy wants the version; true where there is none. Any catalog. */
bool policy_wants(const struct catalog *catalog, const char *model, const char *version);
/* FAILED_PRECONDITION, reason VERSION_POLICY: it may not be loaded, or not be unloaded alone. */
int policy_check_load(const struct catalog *catalog, const char *model, const char *version,
                      struct error *err);
int policy_check_unload(const struct catalog *catalog, const char *model, const char *version,
                        struct error *err);

/* Loop thread. */
int policy_runner_create(struct fleet *fleet, struct policy_runner **out_policies,
                         struct error *err);
void policy_runner_destroy(struct policy_runner *policies); /* NULL is accepted */
