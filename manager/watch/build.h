/* build.h: messages for answers, built from a catalog (the loop's or, in a transaction, the
 * store's). Every result is owned (message_free) and NULL where memory is exhausted. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/store/catalog.h"

/* The version with its state, deployments and replica counts. */
pb_version *build_version(const struct catalog *catalog, const pb_version *row);
/* The model with all its versions in the order of registration. */
pb_model *build_model(const struct catalog *catalog, const pb_model *row);
pb_group *build_group(const struct catalog *catalog, const pb_group *row);

/* Gives `info` the default sampling of requests. A deployment of the version that ignores the
 * model's files leaves none; without deployments the version's settings decide. Otherwise `info`
 * keeps its own values or takes those of the registration. False where memory is exhausted. */
bool build_default_sampling(const struct catalog *catalog, const pb_version *row, pb_info *info);

/* Adds a replica's memory on a device to a plan of the memory to be freed. False where memory is
 * exhausted. */
bool build_plan_memory(Sluice__V1__Plan *plan, const pb_memory *memory);
