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

static int open_below(int root_fd, const char *relative, int flags)
{
    struct open_how how = {
        .flags = (unsigned)(flags | O_CLOEXEC),
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    int fd;
    do /* EAGAIN: something was renamed on the way, and the kernel cannot tell */
        fd = (int)syscall(SYS_openat2, root_fd, relative, &how, sizeof(how));
    while (fd < 0 && (errno == EAGAIN || errno == EINTR));
    return fd;
}

static int open_root(const char *root, int *out_fd, struct error *err)
{
    int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, errno, "the model root");
    *out_fd = fd;
    return 0;
}

static int explain(int err_no, const char *what, struct error *err)
{
    if (err_no == ENOSYS || err_no == EPERM) { /* EPERM: of an older container's filter */
        error_set(
            err, STATUS_FAILED_PRECONDITION,
            "%s: the kernel does not offer openat2 (Linux 5.6), without which nothing holds a "
            "path below the model root",
            what);
        return error_reason(err, "NO_OPENAT2");
    }
    if (err_no != EXDEV && err_no != ELOOP)
        return error_errno(err, err_no, "%s", what);
    error_set(err, STATUS_PERMISSION_DENIED, "%s %s", what,
              err_no == EXDEV ? "leads out of the model root"
                              : "is a symbolic link or goes over one, which is not followed below "
                                "the model root");
    return error_reason(err, "OUTSIDE_MODEL_ROOT");
}

int beneath_check(const char *root, struct error *err)
{
    int root_fd = -1, fd;
    if (open_root(root, &root_fd, err) != 0)
        return err->status;
    fd = open_below(root_fd, ".", O_PATH);
    int err_no = errno;
    close(root_fd);
    if (fd < 0)
        return explain(err_no, "the model root", err);
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
    close(root_fd);
    if (fd < 0)
        return explain(err_no, what, err);
    *out_fd = fd;
    return 0;
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
    if (fd < 0)
        return error_errno(err, errno, "%s", what);
    *out_fd = fd;
    return 0;
}
