/* model_path.h: where a model file lies, and what it is recorded as. Loop thread only. */
#pragma once

#include <limits.h>
#include <stddef.h>

#include "manager/base/pb.h"

struct error;

struct model_path {
    char absolute[PATH_MAX]; /* with a model root ROOT/./REST (beneath.h): workers open it so */
    const char *recorded;    /* into absolute: relative to the model root where there is one */
};

/* Finds the file, below the model root where there is one: by the kernel's check, over no symbolic
 * link, and there is nothing to be learnt of what lies outside (PERMISSION_DENIED, reason
 * OUTSIDE_MODEL_ROOT, whether it is there or not). Texts name the request's field and what the
 * caller gave, never where it leads. */
int model_path_find(const char *model_root, const char *field, const char *given,
                    struct model_path *out_path, struct error *err);

/* What a worker is to open for what was recorded; empty where that is. What was recorded without a
 * model root, or with another, is the file it was. */
void model_path_absolute(const char *model_root, const char *recorded, char *out, size_t n_bytes);

/* A copy of a request's config (NULL: of none, NULL) with its draft model as it is recorded. Errors
 * name config.draft_model. *out_config is owned. */
int model_path_of_config(const char *model_root, const pb_config *config, pb_config **out_config,
                         struct error *err);
