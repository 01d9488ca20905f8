#include "manager/model_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "manager/message.h"

int model_path_find(const struct manager *manager, const char *field, const char *given,
                    struct model_path *out_path, struct error *err)
{
    const char *root = manager->settings.model_root;
    char joined[PATH_MAX];
    struct stat st;
    size_t n_root = strlen(root);
    if (given[0] != '/' && !*root) {
        error_field(err, field, "is relative, and the manager has no model root");
        return error_reason(err, "NO_MODEL_ROOT");
    }
    int n = given[0] == '/' ? snprintf(joined, sizeof(joined), "%s", given)
                            : snprintf(joined, sizeof(joined), "%s/%s", root, given);
    if ((size_t)n >= sizeof(joined))
        return error_field(err, field, "is too long");
    if (!realpath(joined, out_path->absolute)) {
        int err_no = errno;
        error_field(err, field, "%.200s: %s", given, strerror(err_no));
        err->status = status_from_errno(err_no);
        return err->status;
    }
    out_path->recorded = out_path->absolute;
    if (*root) {
        if (strncmp(out_path->absolute, root, n_root) != 0 || out_path->absolute[n_root] != '/') {
            error_field(err, field, "%.200s is not below the model root", given);
            err->status = STATUS_PERMISSION_DENIED;
            return error_reason(err, "OUTSIDE_MODEL_ROOT");
        }
        out_path->recorded += n_root + 1;
    }
    if (stat(out_path->absolute, &st) == 0 && S_ISREG(st.st_mode))
        return 0;
    error_field(err, field, "%.200s is not a regular file", given);
    return error_reason(err, "MODEL_FILE_INVALID");
}

void model_path_absolute(const struct manager *manager, const char *recorded, char *out,
                         size_t n_bytes)
{
    const char *root = manager->settings.model_root;
    if (!recorded[0] || recorded[0] == '/' || !*root)
        snprintf(out, n_bytes, "%s", recorded);
    else
        snprintf(out, n_bytes, "%s/%s", root, recorded);
}

int model_path_of_config(const struct manager *manager, const pb_config *config,
                         pb_config **out_config, struct error *err)
{
    struct model_path path;
    pb_config *copy = NULL;
    if (!config) {
        *out_config = NULL;
        return 0;
    }
    if (*config->draft_model &&
        model_path_find(manager, "config.draft_model", config->draft_model, &path, err) != 0)
        return err->status;
    copy = MESSAGE_COPY(pb_config, config);
    if (!copy || (*config->draft_model && !message_set(&copy->draft_model, path.recorded))) {
        if (copy)
            message_free(&copy->base);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    *out_config = copy;
    return 0;
}
