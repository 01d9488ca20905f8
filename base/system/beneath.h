/* beneath.h: opens a file that must lie below a folder. The kernel itself checks this (openat2,
 * Linux 5.6). So "..", a symbolic link or /proc cannot lead elsewhere, and neither can a concurrent
 * change of the tree. A relative link that stays below the folder is followed: the Hugging Face Hub
 * keeps models so. An absolute link is refused, wherever it leads. Any thread. */
#pragma once

#include <stddef.h>

struct error;

/* Checks that openat2 works on `root`. FAILED_PRECONDITION, reason NO_OPENAT2, if the kernel or a
 * system call filter has no openat2: there is no weaker fallback. NOT_FOUND and other errors if
 * there is no such folder. */
int beneath_check(const char *root, struct error *err);

/* Opens `relative` (no leading '/') below `root` with `flags` of open() and O_CLOEXEC. *out_fd is
 * owned. Errors name the file as `what` and contain no other path. PERMISSION_DENIED, reason
 * OUTSIDE_MODEL_ROOT, if the path or a link leaves the root. In all three
 * functions the reason NO_FILE_ACCESS means that the process's account may not read the file
 * (path_access.h). */
int beneath_open(const char *root, const char *relative, int flags, const char *what, int *out_fd,
                 struct error *err);

/* Separates the two paths in "ROOT/./RELATIVE", as in rsync. */
#define BENEATH_MARK "/./"

/* Opens a path that contains the mark like beneath_open(), and any other path by open(). `what` and
 * errors as above. */
int beneath_open_marked(const char *path, int flags, const char *what, int *out_fd,
                        struct error *err);
