/* path_access.h: explains why this process may not read a file. The explanation names the component
 * of the path that bars the account, and the command that grants access. A model file often belongs
 * to another account than the service's. Any thread. */
#pragma once

#include <stdbool.h>

struct error;

struct path_access {
    /* "the account sluice (uid 998) may not enter the folder /home/ann (mode 0700, owner ann)" */
    char text[400];
    char command[400]; /* "chmod o+x /home/ann" */
    bool mends;        /* false: another cause than the mode, or unknown; `command` shows more */
};

/* Finds the first component of `path` that bars this process from reading the file or listing the
 * folder. The walk starts at the folder `from_fd`; AT_FDCWD: at "/" or the working directory.
 * Components are named as `path` spells them; the target of a symbolic link is never named. False
 * if nothing bars the process. */
bool path_access_find(int from_fd, const char *path, struct path_access *out);

/* Sets PERMISSION_DENIED, reason NO_FILE_ACCESS: "WHAT: TEXT; let it in: COMMAND". `where` says
 * where to run the command ("" for an absolute path). If no component bars the process any more,
 * the text is the system's "Permission denied". */
int path_access_error(int from_fd, const char *path, const char *what, const char *where,
                      struct error *err);
