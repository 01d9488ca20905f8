#include "manager/offline_advice.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "base/strbuf.h"
#include "base/system/shell_word.h"
#include "manager/settings/paths.h"
#include "manager/store/check.h"
#include "manager/store/db.h"

enum { MAX_FILES = 64, MAX_PRINTED = 5 };

struct copy {
    char path[PATH_MAX];
    struct timespec changed;
    uint64_t n_bytes;
};

static const char suffix[] = ".db", set_aside[] = "replaced-";

static bool is_copy(const char *name)
{
    size_t n = strlen(name), n_suffix = sizeof(suffix) - 1;
    return n > n_suffix && strcmp(name + n - n_suffix, suffix) == 0 &&
           strncmp(name, set_aside, sizeof(set_aside) - 1) != 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct timespec *left = &((const struct copy *)a)->changed;
    const struct timespec *right = &((const struct copy *)b)->changed;
    if (left->tv_sec != right->tv_sec)
        return left->tv_sec > right->tv_sec ? -1 : 1;
    return left->tv_nsec > right->tv_nsec ? -1 : left->tv_nsec < right->tv_nsec;
}

struct copies {
    size_t n_files, n;             /* number of backups; the newest of them: */
    struct copy newest[MAX_FILES]; /* sorted, newest first, once all are listed */
};

/* Keeps the backup among the newest; replaces the oldest where the list is full. */
static void add_copy(struct copies *copies, const struct copy *copy)
{
    size_t at = copies->n, oldest = 0;
    copies->n_files++;
    if (at < MAX_FILES) {
        copies->newest[copies->n++] = *copy;
        return;
    }
    for (size_t i = 1; i < MAX_FILES; i++)
        if (newest_first(&copies->newest[i], &copies->newest[oldest]) > 0)
            oldest = i;
    if (newest_first(copy, &copies->newest[oldest]) < 0)
        copies->newest[oldest] = *copy;
}

static void list_copies(const char *folder, const char *but, struct copies *copies)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    struct stat st, other;
    struct copy copy;
    bool has_other = but && stat(but, &other) == 0;
    while (dir && (entry = readdir(dir))) {
        if (!is_copy(entry->d_name) ||
            (size_t)snprintf(copy.path, sizeof(copy.path), "%s/%s", folder, entry->d_name) >=
                sizeof(copy.path) ||
            stat(copy.path, &st) != 0 || !S_ISREG(st.st_mode) ||
            (has_other && st.st_dev == other.st_dev && st.st_ino == other.st_ino))
            continue;
        copy.changed = st.st_mtim;
        copy.n_bytes = (uint64_t)st.st_size;
        add_copy(copies, &copy);
    }
    if (dir)
        closedir(dir);
    qsort(copies->newest, copies->n, sizeof(copies->newest[0]), newest_first);
}

static bool is_good(const char *path)
{
    struct store_db db = {0};
    struct store_report *report = calloc(1, sizeof(*report));
    struct error err;
    bool good = report && store_check_open(path, &db, &err) == 0 &&
                store_check(&db, path, report, &err) == 0 && report->n_problems == 0;
    store_db_close(&db);
    free(report);
    return good;
}

static void print_word(FILE *out, const char *word)
{
    struct strbuf text = {0};
    shell_word_add(&text, word);
    fputs(strbuf_str(&text), out);
    strbuf_fini(&text);
}

static void print_restore(FILE *out, const struct paths *paths, const char *file)
{
    fputs("  sluice-manager restore ", out);
    print_word(out, file);
    fputs(" --state-dir ", out);
    print_word(out, paths->state_dir);
    fputc('\n', out);
}

static void print_empty_start(FILE *out, const struct paths *paths)
{
    char aside[PATH_MAX + 48], log[PATH_MAX + 16], when[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    snprintf(aside, sizeof(aside), "%s/damaged-%s", paths->state_dir, when);
    snprintf(log, sizeof(log), "%s-wal", paths->database);
    const char *const there = access(paths->database, F_OK) == 0 ? paths->database : NULL;
    const char *const words[] = {
        "mkdir", aside, "&& mv", there, access(log, F_OK) == 0 ? log : NULL, aside};
    if (!words[3] && !words[4]) {
        fputs("a start of the manager begins with an empty state (register models again)\n", out);
        return;
    }
    fputs("to start with an empty state (register models again), move the files away:\n", out);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!words[i])
            continue;
        fputs(i ? " " : "  ", out);
        if (i == 2 || i == 0)
            fputs(words[i], out);
        else
            print_word(out, words[i]);
    }
    fputc('\n', out);
}

/* Prints the first few backups with their state, and further ones until a good one is found.
 * Returns the newest good one, or NULL. */
static const char *print_copies(FILE *out, const char *folder, const struct copies *copies)
{
    const char *best = NULL;
    size_t n_printed = 0;
    char size[32];
    if (copies->n)
        fprintf(out, "backups in %s, newest first:\n", folder);
    for (size_t i = 0; i < copies->n && (i < MAX_PRINTED || !best); i++) {
        const struct copy *copy = &copies->newest[i];
        bool good = is_good(copy->path);
        if (good && !best)
            best = copy->path;
        if (i >= MAX_PRINTED && !good)
            continue;
        fprintf(out, "  %s (%s, %s)\n", copy->path, format_bytes(copy->n_bytes, size),
                good ? "good" : "not good");
        n_printed++;
    }
    if (copies->n_files > n_printed)
        fprintf(out, "  and %zu more\n", copies->n_files - n_printed);
    return best;
}

void offline_advise(const struct paths *paths, const char *but, bool nothing_else, FILE *out)
{
    char folder[PATH_MAX + 16];
    struct copies *copies = calloc(1, sizeof(*copies));
    if (!copies)
        return;
    snprintf(folder, sizeof(folder), "%s/backup", paths->state_dir);
    list_copies(folder, but, copies);
    const char *best = print_copies(out, folder, copies);
    if (best) {
        fputs("restore the newest good backup with:\n", out);
        print_restore(out, paths, best);
    } else {
        if (copies->n_files > copies->n)
            fprintf(out, "none of the newest %zu backups is good", copies->n);
        else if (copies->n)
            fputs("none of these backups is good", out);
        else
            fprintf(out, "there is no backup in %s", folder);
        fputs("; restore a backup from elsewhere with:\n", out);
        fputs("  sluice-manager restore FILE --state-dir ", out);
        print_word(out, paths->state_dir);
        fputc('\n', out);
        if (nothing_else)
            print_empty_start(out, paths);
    }
    free(copies);
}
