#include "base/system/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/beneath.h"

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

bool folder_is_one(const char *path)
{
    struct error ignored;
    struct stat st;
    int fd;
    if (beneath_open_marked(path, O_PATH, base_name(path), &fd, &ignored) != 0)
        return false;
    bool is_one = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    close(fd);
    return is_one;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_name(struct folder *folder, size_t *capacity, const char *name)
{
    if (folder->n_names == *capacity) {
        size_t wider = *capacity ? 2 * *capacity : 32;
        char **grown = realloc(folder->names, wider * sizeof(*grown));
        if (!grown)
            return STATUS_RESOURCE_EXHAUSTED;
        folder->names = grown;
        *capacity = wider;
    }
    char *copy = strdup(name);
    if (!copy)
        return STATUS_RESOURCE_EXHAUSTED;
    folder->names[folder->n_names++] = copy;
    return 0;
}

static int read_names(DIR *dir, const char *what, struct folder *folder, struct error *err)
{
    size_t capacity = 0;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry)
            return errno ? error_errno(err, errno, "%s", what) : 0;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (folder->n_names == FOLDER_MAX_NAMES) {
            error_set(err, STATUS_INVALID_ARGUMENT,
                      "%s: more than %d files; give a folder with the files of one model", what,
                      FOLDER_MAX_NAMES);
            return error_reason(err, REASON_MODEL_FILE_INVALID);
        }
        if (add_name(folder, &capacity, entry->d_name) != 0)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", what);
    }
}

int folder_list(const char *path, struct folder *out_folder, struct error *err)
{
    const char *what = base_name(path);
    struct folder folder = {0};
    int fd;
    if (beneath_open_marked(path, O_RDONLY | O_DIRECTORY, what, &fd, err) != 0)
        return err->status;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int rc = error_errno(err, errno, "%s", what);
        close(fd);
        return rc;
    }
    int rc = read_names(dir, what, &folder, err);
    closedir(dir);
    if (rc) {
        folder_fini(&folder);
        return rc;
    }
    if (folder.n_names)
        qsort(folder.names, folder.n_names, sizeof(*folder.names), compare_names);
    *out_folder = folder;
    return 0;
}

void folder_fini(struct folder *folder)
{
    for (size_t i = 0; i < folder->n_names; i++)
        free(folder->names[i]);
    free(folder->names);
    *folder = (struct folder){0};
}

static bool is_gguf_name(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

bool folder_keeps_name(const char *name, const char *target)
{
    return is_gguf_name(name) && !is_gguf_name(target);
}

bool folder_resolve(const char *path, char out_path[PATH_MAX])
{
    char target[PATH_MAX], parent[PATH_MAX];
    if (!realpath(path, target))
        return false;
    if (!folder_keeps_name(path, target)) {
        memcpy(out_path, target, sizeof(target));
        return true;
    }
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int n = slash ? (int)(slash - path) + 1 : 2;
    if (snprintf(parent, sizeof(parent), "%.*s", n, slash ? path : "./") >= (int)sizeof(parent) ||
        !realpath(parent, target))
        return false;
    const char *gap = target[1] ? "/" : "";
    return snprintf(out_path, PATH_MAX, "%s%s%s", target, gap, name) < PATH_MAX;
}

/* The last name of path[0..*n_path) without slashes after it. Shortens *n_path to what is before.
 */
static const char *last_name(const char *path, size_t *n_path, size_t *out_n)
{
    size_t end = *n_path;
    while (end && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin && path[begin - 1] != '/')
        begin--;
    *n_path = begin;
    *out_n = end - begin;
    return path + begin;
}

const char *folder_model_name(const char *path, size_t *out_n, bool *out_is_hub)
{
    static const char parent_name[] = "snapshots", mark[] = "models--";
    size_t n_path = strlen(path), n_parent = 0, n_top = 0, n_mark = sizeof(mark) - 1;
    const char *name = last_name(path, &n_path, out_n);
    const char *parent = last_name(path, &n_path, &n_parent);
    const char *top = last_name(path, &n_path, &n_top);
    *out_is_hub = n_parent == sizeof(parent_name) - 1 &&
                  memcmp(parent, parent_name, n_parent) == 0 && n_top > n_mark &&
                  memcmp(top, mark, n_mark) == 0;
    if (!*out_is_hub)
        return name;
    *out_n = n_top - n_mark;
    return top + n_mark;
}

size_t folder_part_suffix(const char *name, size_t n, unsigned *out_part)
{
    static const char pattern[] = "-00000-of-00000.gguf";
    enum { N_PATTERN = sizeof(pattern) - 1, N_DIGITS = 5 };
    unsigned part = 0;
    if (n <= N_PATTERN)
        return 0;
    const char *place = name + n - N_PATTERN;
    for (size_t i = 0; i < N_PATTERN; i++) {
        bool digit = place[i] >= '0' && place[i] <= '9';
        if (pattern[i] == '0' ? !digit : place[i] != pattern[i])
            return 0;
        if (i >= 1 && i <= N_DIGITS)
            part = part * 10 + (unsigned)(place[i] - '0');
    }
    if (out_part)
        *out_part = part;
    return N_PATTERN;
}

bool folder_has(const struct folder *folder, const char *name)
{
    return folder->n_names && bsearch(&name, folder->names, folder->n_names, sizeof(*folder->names),
                                      compare_names) != NULL;
}

bool folder_has_model(const struct folder *folder)
{
    for (size_t i = 0; i < folder->n_names; i++)
        if (is_gguf_name(folder->names[i]))
            return true;
    return folder_has(folder, "config.json");
}
