/* beneath.h: opens a file that must lie below a folder, by the kernel's own check (openat2, Linux
 * 5.6): what is opened cannot be led elsewhere by "..", a symbolic link or /proc, nor by somebody
 * who changes the tree while one looks. Any thread. */
#pragma once

#include <stddef.h>

struct error;

/* FAILED_PRECONDITION, reason NO_OPENAT2, where this kernel (or a filter over this process) has no
 * openat2: nothing is opened by lesser means. NOT_FOUND and so on where there is no such folder. */
int beneath_check(const char *root, struct error *err);

/* Where the account of this process is kept out, errors of all three have the reason NO_FILE_ACCESS
 * (path_access.h).
 *
 * Opens `relative` (no leading '/') below `root` with `flags` of open() and O_CLOEXEC. *out_fd is
 * owned. `what` stands in errors, which name no other path: PERMISSION_DENIED, reason
 * OUTSIDE_MODEL_ROOT, where the way leads out of the root or goes over a symbolic link. */
int beneath_open(const char *root, const char *relative, int flags, const char *what, int *out_fd,
                 struct error *err);

/* The folders of both together: "ROOT/./RELATIVE", as rsync writes it. */
#define BENEATH_MARK "/./"

/* Opens a path with that mark as above, and any other by open(). `what` and errors as above. */
int beneath_open_marked(const char *path, int flags, const char *what, int *out_fd,
                        struct error *err);
