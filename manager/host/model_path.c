#include "manager/host/model_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/beneath.h"
#include "base/system/folder.h"
#include "base/system/path_access.h"
#include "manager/base/message.h"

/* A model is a file or a folder. */
static int check_kind(const char *field, const char *given, const struct stat *st,
                      struct error *err)
{
    if (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode))
        return 0;
    error_field(err, field, "%.200s is a pipe, socket or device; give a GGUF file or a folder",
                given);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

static int fail_outside(const char *field, const char *given, struct error *err)
{
    error_field(err, field, "%.200s is not below the model root", given);
    err->status = STATUS_PERMISSION_DENIED;
    return error_reason(err, REASON_OUTSIDE_MODEL_ROOT);
}

/* Returns the part of the path below the root, by the text alone; NULL if the path is elsewhere.
 * The kernel checks the real location. */
static const char *written_below(const char *model_root, const char *given)
{
    size_t n_root = strlen(model_root);
    if (given[0] != '/')
        return given;
    if (n_root == 1) /* "/" has its slash already */
        n_root = 0;
    if (strncmp(given, model_root, n_root) != 0 || given[n_root] != '/')
        return NULL;
    given += n_root;
    return given + strspn(given, "/");
}

/* Writes the path of a link that keeps its name: its folder is resolved, the link is not. */
static int find_link(const char *model_root, const char *relative, const char *what,
                     struct model_path *out_path, struct error *err)
{
    char parent[PATH_MAX], link[64];
    const char *slash = strrchr(relative, '/'), *name = slash ? slash + 1 : relative;
    int fd;
    snprintf(parent, sizeof(parent), "%.*s", slash ? (int)(slash - relative) : 1,
             slash ? relative : ".");
    if (beneath_open(model_root, parent, O_PATH, what, &fd, err) != 0)
        return err->status;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, parent, sizeof(parent) - 1);
    close(fd);
    if (n <= 0)
        return error_errno(err, errno, "%s", what);
    parent[n] = '\0';
    int n_path = snprintf(out_path->absolute, sizeof(out_path->absolute), "%s/%s", parent, name);
    return n_path < (int)sizeof(out_path->absolute) ? 0
                                                    : error_errno(err, ENAMETOOLONG, "%s", what);
}

/* Opens the file as a path only (O_PATH), so that no device or FIFO reacts. The recorded path is
 * the file's own, without "." and "..". */
static int find_below(const char *model_root, const char *field, const char *given,
                      struct model_path *out_path, struct error *err)
{
    const char *relative = written_below(model_root, given);
    char link[64], what[300];
    struct stat st;
    int fd;
    if (!relative || !*relative)
        return fail_outside(field, given, err);
    snprintf(what, sizeof(what), "%s: %.200s", field, given);
    if (beneath_open(model_root, relative, O_PATH, what, &fd, err) != 0) {
        snprintf(err->field, sizeof(err->field), "%s", field);
        return err->status;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out_path->absolute, sizeof(out_path->absolute) - 1);
    int rc = fstat(fd, &st);
    close(fd);
    if (n <= 0 || rc != 0)
        return error_errno(err, errno, "%s", what);
    out_path->absolute[n] = '\0';
    if (check_kind(field, given, &st, err) != 0)
        return err->status;
    if (S_ISREG(st.st_mode) && folder_keeps_name(relative, out_path->absolute) &&
        find_link(model_root, relative, what, out_path, err) != 0)
        return err->status;
    if (strcmp(out_path->absolute, model_root) == 0) {
        error_field(err, field, "%.200s is the model root itself; give a model below it", given);
        return error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    /* NULL: the file was moved just now */
    relative = written_below(model_root, out_path->absolute);
    if (!relative || out_path->absolute[0] != '/')
        return fail_outside(field, given, err);
    char kept[PATH_MAX];
    snprintf(kept, sizeof(kept), "%s", relative);
    if ((size_t)snprintf(out_path->absolute, sizeof(out_path->absolute), "%s" BENEATH_MARK "%s",
                         model_root, kept) >= sizeof(out_path->absolute))
        return error_field(err, field, "is too long");
    out_path->recorded = out_path->absolute + strlen(model_root) + strlen(BENEATH_MARK);
    return 0;
}

/* Without a root, the real path after all links is recorded (folder_resolve()). */
static int find_anywhere(const char *field, const char *given, struct model_path *out_path,
                         struct error *err)
{
    struct stat st;
    if (given[0] != '/') {
        error_field(err, field,
                    "is relative, but the manager has no model root; give an absolute path");
        return error_reason(err, REASON_NO_MODEL_ROOT);
    }
    if (!folder_resolve(given, out_path->absolute)) {
        int err_no = errno;
        error_field(err, field, "%.200s: %s", given, strerror(err_no));
        err->status = status_from_errno(err_no);
        if (err_no != EACCES)
            return err->status;
        path_access_error(AT_FDCWD, given, field, "", err);
        snprintf(err->field, sizeof(err->field), "%s", field);
        return err->status;
    }
    out_path->recorded = out_path->absolute;
    if (stat(out_path->absolute, &st) != 0)
        return error_errno(err, errno, "%s: %.200s", field, given);
    return check_kind(field, given, &st, err);
}

int model_path_find(const char *model_root, const char *field, const char *given,
                    struct model_path *out_path, struct error *err)
{
    if (!*given)
        return error_field(err, field, "is required");
    return *model_root ? find_below(model_root, field, given, out_path, err)
                       : find_anywhere(field, given, out_path, err);
}

void model_path_absolute(const char *model_root, const char *recorded, char *out, size_t n_bytes)
{
    const char *relative = *model_root && recorded[0] ? written_below(model_root, recorded) : NULL;
    if (relative)
        snprintf(out, n_bytes, "%s" BENEATH_MARK "%s", model_root, relative);
    else
        snprintf(out, n_bytes, "%s", recorded);
}

/* A draft is not inspected when it is registered, so its folder is checked by its names. */
static int check_draft_folder(const struct model_path *path, const char *given, struct error *err)
{
    struct folder folder = {0};
    if (!folder_is_one(path->absolute))
        return 0;
    if (folder_list(path->absolute, &folder, err) != 0) {
        snprintf(err->field, sizeof(err->field), "config.draft_model");
        return err->status;
    }
    bool has_model = folder_has_model(&folder);
    folder_fini(&folder);
    if (has_model)
        return 0;
    error_field(err, "config.draft_model",
                "%.200s is a folder without config.json and without a GGUF file; give the folder "
                "of a model",
                given);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int model_path_of_config(const char *model_root, const pb_config *config, struct arena *arena,
                         pb_config **out_config, struct error *err)
{
    struct model_path path;
    path.recorded = "";
    if (config && *config->draft_model &&
        (model_path_find(model_root, "config.draft_model", config->draft_model, &path, err) != 0 ||
         check_draft_folder(&path, config->draft_model, err) != 0))
        return err->status;
    pb_config *copy = message_copy_in(arena, config);
    if (config && !copy)
        return error_no_memory(err);
    if (copy)
        copy->draft_model = message_text_in(arena, path.recorded);
    *out_config = copy;
    return 0;
}
