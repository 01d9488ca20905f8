/* serve_paths.c: checks the paths of models before anything starts. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/system/folder.h"
#include "base/system/path_access.h"
#include "clients/cli/serve/serve.h"
#include "clients/cli/shell/cli.h"

/* Checks by its names that a folder is one of a model. The worker checks the contents. */
static int check_folder(const char *path, struct error *err)
{
    struct folder folder = {0};
    if (folder_list(path, &folder, err) != 0)
        return err->status;
    bool has_model = folder_has_model(&folder);
    folder_fini(&folder);
    if (has_model)
        return 0;
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%s is a folder without config.json and without a GGUF file; give a model's folder",
              path);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int serve_check_paths(const struct cli *cli, struct error *err)
{
    const char *path;
    for (size_t i = 0; !cli->settings.model_root[0] && (path = cli_word(cli, i)) != NULL; i++) {
        struct path_access access;
        struct stat at;
        if (path_access_find(AT_FDCWD, path, &access))
            return path_access_error(AT_FDCWD, path, path, "", err);
        if (stat(path, &at) != 0)
            return error_errno(err, errno, "%s", path);
        if (!S_ISREG(at.st_mode) && !S_ISDIR(at.st_mode)) {
            error_set(err, STATUS_INVALID_ARGUMENT,
                      "%s is a pipe, socket or device; give a GGUF file or a model's folder", path);
            return error_reason(err, REASON_MODEL_FILE_INVALID);
        }
        if (S_ISDIR(at.st_mode) && check_folder(path, err) != 0)
            return err->status;
    }
    return 0;
}
