/* model_path.h: the path of a model file or folder, and the form in which the path is recorded.
 * Loop thread only. */
#pragma once

#include <limits.h>
#include <stddef.h>

#include "manager/base/pb.h"

struct arena;
struct error;

struct model_path {
    char absolute[PATH_MAX]; /* with a model root: ROOT/./REST (beneath.h), as workers open it */
    const char *recorded;    /* part of absolute: relative to the model root, where there is one */
};

/* Finds the file or folder, below the model root where there is one. The kernel checks the path and
 * follows only links that stay below the root. A path outside gives PERMISSION_DENIED, reason
 * OUTSIDE_MODEL_ROOT, whether the file exists or not. Texts name the request's field and the given
 * path, never a link's target. */
int model_path_find(const char *model_root, const char *field, const char *given,
                    struct model_path *out_path, struct error *err);

/* The path for a worker to open; empty where `recorded` is empty. A path recorded without a
 * model root, or with another root, stays absolute. */
void model_path_absolute(const char *model_root, const char *recorded, char *out, size_t n_bytes);

/* Copies a request's config and rewrites its draft model's path to the recorded form. NULL gives
 * NULL. Errors name config.draft_model. *out_config is in the arena. */
int model_path_of_config(const char *model_root, const pb_config *config, struct arena *arena,
                         pb_config **out_config, struct error *err);
