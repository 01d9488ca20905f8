/* model_path.h: where a model file lies, and what it is recorded as. Loop thread only. */
#pragma once

#include <limits.h>
#include <stddef.h>

#include "manager/manager.h"
#include "manager/pb.h"

struct error;

struct model_path {
    char absolute[PATH_MAX];
    const char *recorded; /* into absolute: relative to the model root where it lies below it */
};

/* Finds the file, below the model root where there is one. Texts name the request's field and what
 * the caller gave, never where it leads. */
int model_path_find(const struct manager *manager, const char *field, const char *given,
                    struct model_path *out_path, struct error *err);

/* Absolute path of what was recorded; empty where that is. */
void model_path_absolute(const struct manager *manager, const char *recorded, char *out,
                         size_t n_bytes);

/* A copy of a request's config (NULL: of none, NULL) with its draft model as it is recorded. Errors
 * name config.draft_model. *out_config is owned. */
int model_path_of_config(const struct manager *manager, const pb_config *config,
                         pb_config **out_config, struct error *err);
