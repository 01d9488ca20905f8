#include "base/config_file.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fnmatch.h>
#include <ini.h>

#include "base/error.h"

struct reading {
    FILE *file;
    const char *path;
    unsigned line;
    config_file_fn *take;
    void *user;
    struct error *err;
    int status; /* of the first key that was refused, which stood on this line */
    unsigned refused_line;
};

/* As the library counts: a line longer than its buffer comes, and counts, in pieces. */
static char *next_line(char *text, int n_bytes, void *stream)
{
    struct reading *r = stream;
    r->line++;
    return fgets(text, n_bytes, r->file);
}

static int on_key(void *user, const char *section, const char *key, const char *value)
{
    struct reading *r = user;
    char place[PATH_MAX + 16];
    if (r->status != 0) /* the library goes on to the end of the file */
        return 0;
    snprintf(place, sizeof(place), "%s:%u", r->path, r->line);
    r->status = r->take(r->user, section, key, value, place, r->err);
    r->refused_line = r->line;
    return r->status == 0;
}

static int read_one(struct reading *r, const char *path)
{
    r->path = path;
    r->line = 0;
    r->status = 0;
    r->file = fopen(path, "re");
    if (!r->file)
        return error_set(r->err, STATUS_NOT_FOUND, "--config: cannot read %s: %s", path,
                         strerror(errno));
    errno = 0;
    int line = ini_parse_stream(next_line, r, on_key, r);
    bool unread = ferror(r->file) != 0;
    int err_no = errno;
    fclose(r->file);
    if (r->status != 0 && r->refused_line == (unsigned)line)
        return error_prefix(r->err, "%s:%d", path, line);
    if (unread)
        return error_set(r->err, STATUS_NOT_FOUND, "--config: cannot read %s: %s", path,
                         strerror(err_no));
    if (line != 0)
        return error_set(r->err, STATUS_INVALID_ARGUMENT,
                         "%s:%d: not an ini line (want key = value)", path, line);
    return 0;
}

static int is_part(const struct dirent *entry)
{
    return fnmatch("*.conf", entry->d_name, FNM_PERIOD) == 0;
}

/* Of bytes, whatever the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int config_file_read(const char *path, config_file_fn *take, void *user, struct error *err)
{
    struct reading reading = {.take = take, .user = user, .err = err};
    char folder[PATH_MAX], part[PATH_MAX + NAME_MAX + 2];
    struct dirent **parts = NULL;
    const char *slash = strrchr(path, '/');
    int rc = read_one(&reading, path);
    if (rc != 0)
        return rc;
    int n =
        snprintf(folder, sizeof(folder), "%.*sconf.d", slash ? (int)(slash + 1 - path) : 0, path);
    if (n < 0 || (size_t)n >= sizeof(folder))
        return error_set(err, STATUS_INVALID_ARGUMENT, "--config: %.40s... is too long", path);
    int n_parts = scandir(folder, &parts, is_part, by_name);
    if (n_parts < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : error_set(err, STATUS_NOT_FOUND, "--config: cannot read %s: %s", folder,
                               strerror(errno));
    for (int i = 0; i < n_parts; i++) {
        snprintf(part, sizeof(part), "%s/%s", folder, parts[i]->d_name);
        if (rc == 0)
            rc = read_one(&reading, part);
        free(parts[i]);
    }
    free(parts);
    return rc;
}
