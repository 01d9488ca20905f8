/* deployments.h: lines that `load` and `unload` print about a model's other versions and groups.
 * The functions read a model as it was before the command. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "sluice/manager/v1/manager.pb-c.h"

struct cli;

/* Asks the manager for a model. Returns NULL if the model cannot be read: the lines are left out
 * then. The caller owns the message (rpc_message_free of its base). */
Sluice__Manager__V1__GetModelResponse *deployments_read(struct cli *cli, const char *model);

/* Returns the version that gets requests without a version: the ready one with the highest
 * sequence. NULL if no version is ready or weights spread the traffic. Borrowed from `model`. */
const char *deployments_default(const Sluice__Manager__V1__Model *model);

/* Prints a line if the load of `version` (empty: the version registered last) moves the requests
 * without a version. `now`: the load has ended. */
void deployments_print_default(FILE *out, const Sluice__Manager__V1__Model *model,
                               const char *version, bool now);

/* Prints the other groups that `version` is loaded on, if there are any. An empty version is the
 * version registered last, an empty group is "cpu". */
void deployments_print_others(FILE *out, const Sluice__Manager__V1__Model *model,
                              const char *version, const char *group);

/* Prints a line, after `lead`, for each deployment of `version` on `group`. Empty: all of them. */
void deployments_print(FILE *out, const Sluice__Manager__V1__Model *model, const char *version,
                       const char *group, const char *lead);
