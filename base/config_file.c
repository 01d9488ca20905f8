#include "base/config_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    unsigned binary_line; /* the first that has a zero byte; 0: none has */
    bool indented;        /* the line that was read last */
    char key[64];         /* the one before; cut */
};

/* As the library counts: a line longer than its buffer comes, and counts, in pieces. */
static char *next_line(char *text, int n_bytes, void *stream)
{
    struct reading *r = stream;
    r->line++;
    if (!fgets(text, n_bytes, r->file))
        return NULL;
    size_t n = strlen(text);
    r->indented = text[0] == ' ' || text[0] == '\t';
    bool whole = n && (text[n - 1] == '\n' || n + 1 == (size_t)n_bytes || feof(r->file));
    if (!whole && !r->binary_line)
        r->binary_line = r->line;
    return text;
}

static int on_key(void *user, const char *section, const char *key, const char *value)
{
    struct reading *r = user;
    char place[PATH_MAX + 16];
    if (r->status != 0) /* the library goes on to the end of the file */
        return 0;
    snprintf(place, sizeof(place), "%s:%u", r->path, r->line);
    /* The library has an indented line go on with the value before it, whatever it says. */
    if (r->indented && strncmp(key, r->key, sizeof(r->key) - 1) == 0)
        r->status = error_set(r->err, STATUS_INVALID_ARGUMENT,
                              "a space begins this line, which makes it a part of \"%.60s\" above "
                              "it: begin each setting at the start of its line",
                              key);
    else
        r->status = r->take(r->user, section, key, value, place, r->err);
    snprintf(r->key, sizeof(r->key), "%s", key);
    r->refused_line = r->line;
    return r->status == 0;
}

/* Without waiting: a program that reads its settings again serves meanwhile, and a FIFO has nothing
 * to say, a device no end. */
static int open_regular(struct reading *r, const char *path)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool known = fd >= 0 && fstat(fd, &info) == 0;
    if (known && S_ISREG(info.st_mode) && info.st_size <= CONFIG_FILE_MAX_BYTES &&
        (r->file = fdopen(fd, "r")) != NULL)
        return 0;
    int err_no = errno;
    if (fd >= 0)
        close(fd);
    if (known && !S_ISREG(info.st_mode))
        return error_set(r->err, STATUS_INVALID_ARGUMENT, "--config: %s is not a regular file",
                         path);
    if (known && info.st_size > CONFIG_FILE_MAX_BYTES)
        return error_set(r->err, STATUS_INVALID_ARGUMENT,
                         "--config: %s has %lld bytes; %d is the limit", path,
                         (long long)info.st_size, CONFIG_FILE_MAX_BYTES);
    return error_set(r->err, STATUS_NOT_FOUND, "--config: cannot read %s: %s", path,
                     strerror(err_no));
}

static int read_one(struct reading *r, const char *path)
{
    r->path = path;
    r->line = 0;
    r->binary_line = 0;
    r->key[0] = '\0';
    r->status = 0;
    if (open_regular(r, path) != 0)
        return r->err->status;
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
    if (r->binary_line)
        return error_set(r->err, STATUS_INVALID_ARGUMENT, "%s:%u: a zero byte: not a text", path,
                         r->binary_line);
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
