/* build.h: messages for answers, built in an arena from a catalog (the loop's or, in a
 * transaction, the store's). Results are NULL where memory is exhausted. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/store/catalog.h"

struct arena;

/* The version with its state, deployments and replica counts. */
pb_version *build_version(struct arena *arena, const struct catalog *catalog,
                          const pb_version *row);
/* The model with all its versions in the order of registration. */
pb_model *build_model(struct arena *arena, const struct catalog *catalog, const pb_model *row);
pb_group *build_group(struct arena *arena, const struct catalog *catalog, const pb_group *row);

/* Gives `info` the default sampling of requests. A deployment of the version that ignores the
 * model's files leaves none; without deployments the version's settings decide. Otherwise `info`
 * keeps its own values or takes those of the registration. */
void build_default_sampling(struct arena *arena, const struct catalog *catalog,
                            const pb_version *row, pb_info *info);

/* A plan of the memory to be freed. */
Sluice__V1__Plan *build_plan(struct arena *arena, const char *model, const char *version);
/* Adds the memory of one more replica to the plan. `status` NULL: its memory is unknown. Weights
 * that stay count 0. */
void build_plan_replica(struct arena *arena, Sluice__V1__Plan *plan, const pb_status *status,
                        bool weights_stay);
