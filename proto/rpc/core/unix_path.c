#include "proto/rpc/core/unix_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static const char scheme[] = "unix:";

/* Characters of a path that need no encoding (RFC 3986, unreserved, and '/'). */
static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";

/* Makes "unix:", the prefix unchanged, and the encoded path. */
static char *make_address(const char *prefix, const char *path)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t n_fixed = sizeof(scheme) - 1 + strlen(prefix), n_bytes = n_fixed + 3 * strlen(path) + 1;
    char *out = malloc(n_bytes);
    if (out == NULL)
        return NULL;
    snprintf(out, n_bytes, "%s%s", scheme, prefix);
    char *at = out + n_fixed;
    for (; *path != '\0'; path++) {
        unsigned char byte = (unsigned char)*path;
        if (strchr(plain, *path) != NULL) {
            *at++ = *path;
            continue;
        }
        *at++ = '%';
        *at++ = digits[byte >> 4];
        *at++ = digits[byte & 15];
    }
    *at = '\0';
    return out;
}

char *rpc_unix_path_address(const char *path)
{
    return make_address("", path);
}

int rpc_unix_path_check(const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/');
    if (strchr(slash != NULL ? slash : path, ',') == NULL)
        return 0;
    return error_set(
        err, STATUS_INVALID_ARGUMENT,
        "socket %s: gRPC does not accept a comma in the name of a socket; choose another name",
        path);
}

/* Opens the folder up to the last component with a comma; *out_rest: the rest of the path. */
static int open_folder(const char *path, const char **out_rest, int *out_fd, struct error *err)
{
    const char *end = strchr(strrchr(path, ','), '/'); /* the check found a slash after the comma */
    char *folder = strndup(path, (size_t)(end - path));
    if (folder == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a client");
    *out_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int err_no = errno;
    if (*out_fd < 0)
        error_set(err, STATUS_UNAVAILABLE, "socket %s: folder %s: %s", path, folder,
                  strerror(err_no));
    free(folder);
    *out_rest = end;
    return *out_fd >= 0 ? 0 : err->status;
}

int rpc_unix_path_target(const char *path, char **out_target, int *out_fd, struct error *err)
{
    char prefix[40] = "";
    const char *rest = path;
    int fd = -1;
    int rc = rpc_unix_path_check(path, err);
    if (rc == 0 && strchr(path, ',') != NULL)
        rc = open_folder(path, &rest, &fd, err);
    if (rc != 0)
        return rc;
    if (fd >= 0)
        snprintf(prefix, sizeof(prefix), "/proc/self/fd/%d", fd);
    char *target = make_address(prefix, rest);
    if (target == NULL) {
        if (fd >= 0)
            close(fd);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a client");
    }
    *out_target = target;
    *out_fd = fd;
    return 0;
}
