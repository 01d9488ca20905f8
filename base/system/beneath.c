#include "base/system/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/path_access.h"

static int open_below(int root_fd, const char *relative, int flags)
{
    struct open_how how = {
        .flags = (unsigned)(flags | O_CLOEXEC),
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    int fd;
    do /* EAGAIN: a rename happened during the walk, so the kernel could not check the path */
        fd = (int)syscall(SYS_openat2, root_fd, relative, &how, sizeof(how));
    while (fd < 0 && (errno == EAGAIN || errno == EINTR));
    return fd;
}

static const char root_name[] = "the model root";

static int open_root(const char *root, int *out_fd, struct error *err)
{
    int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, errno, "%s", root_name);
    *out_fd = fd;
    return 0;
}

static int explain(int err_no, const char *what, struct error *err)
{
    if (err_no == ENOSYS ||
        err_no == EPERM) { /* EPERM: the system call filter of an older container */
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "%s: openat2 is missing (Linux 5.6 has it); without it nothing keeps a "
                  "path below the model root",
                  what);
        return error_reason(err, REASON_NO_OPENAT2);
    }
    if (err_no != EXDEV && err_no != ELOOP)
        return error_errno(err, err_no, "%s", what);
    error_set(err, STATUS_PERMISSION_DENIED, "%s %s", what,
              err_no == EXDEV ? "leads out of the model root"
                              : "goes over symbolic links without an end");
    return error_reason(err, REASON_OUTSIDE_MODEL_ROOT);
}

int beneath_check(const char *root, struct error *err)
{
    int root_fd = -1, fd = -1, err_no = EACCES;
    char inside[PATH_MAX];
    if (open_root(root, &root_fd, err) != 0 && err->status != STATUS_PERMISSION_DENIED)
        return err->status;
    if (root_fd >= 0) {
        fd = open_below(root_fd, ".", O_PATH);
        err_no = errno;
        close(root_fd);
    }
    snprintf(inside, sizeof(inside), "%s/.", root);
    if (fd < 0 && err_no == EACCES)
        return path_access_error(AT_FDCWD, inside, root_name, "", err);
    if (fd < 0)
        return explain(err_no, root_name, err);
    close(fd);
    return 0;
}

int beneath_open(const char *root, const char *relative, int flags, const char *what, int *out_fd,
                 struct error *err)
{
    int root_fd = -1;
    if (open_root(root, &root_fd, err) != 0)
        return err->status;
    int fd = open_below(root_fd, relative, flags);
    int err_no = errno;
    if (fd >= 0)
        *out_fd = fd;
    else if (err_no == EACCES)
        path_access_error(root_fd, relative, what, "   # in the model root", err);
    else
        explain(err_no, what, err);
    close(root_fd);
    return fd >= 0 ? 0 : err->status;
}

int beneath_open_marked(const char *path, int flags, const char *what, int *out_fd,
                        struct error *err)
{
    char root[PATH_MAX];
    const char *mark = strstr(path, BENEATH_MARK);
    if (mark && mark > path) {
        if ((size_t)snprintf(root, sizeof(root), "%.*s", (int)(mark - path), path) >= sizeof(root))
            return error_errno(err, ENAMETOOLONG, "%s", what);
        return beneath_open(root, mark + strlen(BENEATH_MARK), flags, what, out_fd, err);
    }
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 && errno == EACCES)
        return path_access_error(AT_FDCWD, path, what, "", err);
    if (fd < 0)
        return error_errno(err, errno, "%s", what);
    *out_fd = fd;
    return 0;
}
