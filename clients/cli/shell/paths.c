#include "clients/cli/shell/paths.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"

int paths_default_state(char *out, size_t n_out)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = xdg && xdg[0] ? snprintf(out, n_out, "%s/sluice", xdg)
                          : snprintf(out, n_out, "%s/.local/state/sluice", home ? home : "");
    return n > 0 && (size_t)n < n_out && ((xdg && xdg[0]) || (home && home[0])) ? 0 : -1;
}

void paths_join(const char *dir, const char *name, char *out, size_t n_out)
{
    while (name[0] == '.' && name[1] == '/')
        name += 1 + strspn(name + 1, "/");
    bool same = !name[0] || strcmp(name, ".") == 0;
    int n = snprintf(out, n_out, "%s%s%s", dir, same ? "" : "/", same ? "" : name);
    while (n > 1 && (size_t)n < n_out && out[n - 1] == '/')
        out[--n] = '\0';
}

int paths_make_dir(const char *path, struct error *err)
{
    char part[1100];
    snprintf(part, sizeof(part), "%s", path);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        mkdir(part, 0700);
        *p = '/';
    }
    if (mkdir(part, 0700) != 0 && errno != EEXIST)
        return error_errno(err, errno, "cannot make %s", path);
    return 0;
}
