#include "base/settings/config_file.h"

#include <ctype.h>
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
    int status; /* error of the first refused key, whose line is refused_line */
    unsigned refused_line;
    unsigned binary_line; /* the first line with a zero byte; 0: none */
    bool indented;        /* the current line begins with a space or a tab */
    char key[64];         /* key of the previous setting; may be cut */
    char section[64];
    char *text; /* the current line; owned */
    size_t n_room;
};

static const char not_a_line[] = "not an ini line (want key = value)";

static int on_key(void *user, const char *section, const char *key, const char *value)
{
    struct reading *r = user;
    char place[PATH_MAX + 16];
    if (r->status != 0) /* the library reads on to the end of the file after an error */
        return 0;
    snprintf(place, sizeof(place), "%s:%u", r->path, r->line);
    /* The library treats an indented line as more text of the value above, even if the line is a
     * setting. */
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

static char *skip_spaces(char *text)
{
    return text + strspn(text, " \t\r\n\v\f");
}

static void cut_spaces(const char *text, char *end)
{
    while (end > text && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
}

/* Handles a line longer than the library's buffer of 200 bytes. The library would read the rest as
 * a new line, so the end of a comment could become a setting. */
static void read_long_line(struct reading *r, char *line)
{
    char *key = skip_spaces(line), *mark = strpbrk(key, "=:");
    if (*key == '\0' || *key == ';' || *key == '#' || r->status != 0)
        return;
    if (*key == '[' || mark == NULL) {
        r->status = error_set(r->err, STATUS_INVALID_ARGUMENT, "%s", not_a_line);
        r->refused_line = r->line;
        return;
    }
    char *value = skip_spaces(mark + 1), *end = value;
    while (*end != '\0' && !(*end == ';' && isspace((unsigned char)end[-1])))
        end++;
    cut_spaces(value, end);
    cut_spaces(key, mark);
    (void)on_key(r, r->section, r->indented && r->key[0] ? r->key : key, value);
}

static void note_section(struct reading *r, const char *line)
{
    const char *end = *line == '[' ? strchr(line, ']') : NULL;
    if (end == NULL)
        return;
    snprintf(r->section, sizeof(r->section), "%.*s", (int)(end - line - 1), line + 1);
    r->key[0] = '\0';
}

/* Gives the next line to inih, the INI library. Called once per line, so r->line is the line number
 * that inih has too. */
static char *next_line(char *text, int n_bytes, void *stream)
{
    static const char mark[] =
        "\xef\xbb\xbf"; /* UTF-8 byte order mark at the beginning of the file */
    struct reading *r = stream;
    r->line++;
    ssize_t n = getline(&r->text, &r->n_room, r->file);
    if (n < 0)
        return NULL;
    char *line = r->text;
    if (memchr(line, '\0', (size_t)n) && !r->binary_line)
        r->binary_line = r->line;
    if (r->line == 1 && strncmp(line, mark, strlen(mark)) == 0)
        line += strlen(mark);
    r->indented = *line == ' ' || *line == '\t';
    note_section(r, line);
    if (n < n_bytes) {
        memcpy(text, r->text, (size_t)n + 1);
    } else {
        read_long_line(r, line);
        snprintf(text, (size_t)n_bytes, "\n");
    }
    return text;
}

/* Opens a regular file without blocking, because a running program also reads its settings again. A
 * FIFO would block, and a device could be endless. */
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
    r->key[0] = r->section[0] = '\0';
    r->status = 0;
    if (open_regular(r, path) != 0)
        return r->err->status;
    errno = 0;
    int line = ini_parse_stream(next_line, r, on_key, r);
    bool unread = ferror(r->file) != 0 || (line == 0 && !feof(r->file));
    int err_no = errno;
    fclose(r->file);
    if (r->status != 0 && (line == 0 || r->refused_line <= (unsigned)line))
        return error_prefix(r->err, "%s:%u", path, r->refused_line);
    if (unread)
        return error_set(r->err, STATUS_NOT_FOUND, "--config: cannot read %s: %s", path,
                         strerror(err_no));
    if (r->binary_line)
        return error_set(r->err, STATUS_INVALID_ARGUMENT,
                         "%s:%u: zero byte: this is not a text file", path, r->binary_line);
    if (line != 0)
        return error_set(r->err, STATUS_INVALID_ARGUMENT, "%s:%d: %s", path, line, not_a_line);
    return 0;
}

static int is_part(const struct dirent *entry)
{
    return fnmatch("*.conf", entry->d_name, FNM_PERIOD) == 0;
}

/* Compares bytes, independent of the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int read_all(struct reading *reading, const char *path)
{
    struct error *err = reading->err;
    char folder[PATH_MAX], part[PATH_MAX + NAME_MAX + 2];
    struct dirent **parts = NULL;
    const char *slash = strrchr(path, '/');
    int rc = read_one(reading, path);
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
            rc = read_one(reading, part);
        free(parts[i]);
    }
    free(parts);
    reading->path = NULL;
    return rc;
}

int config_file_read(const char *path, config_file_fn *take, void *user, struct error *err)
{
    struct reading reading = {.take = take, .user = user, .err = err};
    int rc = read_all(&reading, path);
    free(reading.text);
    return rc;
}
