#include "manager/offline.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/error.h"
#include "base/log.h"
#include "base/settings/manual.h"
#include "base/settings/options.h"
#include "base/strbuf.h"
#include "manager/offline_advice.h"
#include "manager/settings/paths.h"
#include "manager/settings/settings.h"
#include "manager/store/check.h"
#include "manager/store/db.h"
#include "manager/store/file.h"
#include "manager/store/lock.h"

enum { EXIT_USAGE = 2, EXIT_NOT_GOOD = 65, EXIT_LOCKED = 75 };

struct offline {
    const char *command;
    const char *file; /* NULL: no file was given */
    bool json;
    struct paths paths;
    struct store_report report;
};

struct command {
    const char *name, *arguments;
    int (*run)(struct offline *o, struct error *err); /* exit status, or enum status (< 0) */
    const char *summary, *description;
    struct manual_example examples[3];
    size_t n_examples;
};

/* --- output --- */

static void print_object(json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT);
    puts(text ? text : "{}");
    free(text);
    json_decref(object);
}

static json_t *report_object(const struct store_report *r)
{
    json_t *problems = json_array();
    for (size_t i = 0; i < r->n_problems && i < CHECK_MAX_PROBLEMS; i++)
        json_array_append_new(problems, json_pack("{s:s,s:s}", "kind", r->problems[i].kind, "text",
                                                  r->problems[i].text));
    return json_pack("{s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "ok",
                     r->n_problems == 0, "schema", (json_int_t)r->schema, "schema_known",
                     (json_int_t)r->schema_known, "bytes", (json_int_t)r->n_bytes, "models",
                     (json_int_t)r->n_models, "versions", (json_int_t)r->n_versions, "replicas",
                     (json_int_t)r->n_replicas, "operations", (json_int_t)r->n_operations, "events",
                     (json_int_t)r->n_events, "last_event_seq", (json_int_t)r->last_event_seq,
                     "generation", (json_int_t)r->generation, "manager_epoch",
                     (json_int_t)r->manager_epoch, "n_problems", (json_int_t)r->n_problems,
                     "problems", problems);
}

static void print_problems(const struct store_report *r, FILE *out)
{
    for (size_t i = 0; i < r->n_problems && i < CHECK_MAX_PROBLEMS; i++)
        fprintf(out, "%s: %s\n", r->problems[i].kind, r->problems[i].text);
    if (r->n_problems > CHECK_MAX_PROBLEMS)
        fprintf(out, "and %zu more\n", r->n_problems - CHECK_MAX_PROBLEMS);
}

static void print_done(struct offline *o, const char *key, const char *path, const char *aside)
{
    if (o->json) {
        json_t *object = report_object(&o->report);
        json_object_set_new(object, key, json_string(path));
        if (aside && aside[0])
            json_object_set_new(object, "kept", json_string(aside));
        print_object(object);
        return;
    }
    printf("%s %s: %" PRIu64 " models, %" PRIu64 " versions, %" PRIu64
           " replicas, events to %" PRIu64 "\n",
           key, path, o->report.n_models, o->report.n_versions, o->report.n_replicas,
           o->report.last_event_seq);
    if (aside && aside[0])
        printf("the earlier database is kept as %s\n", aside);
}

/* Removes the hint for a failed start: the hint names the command that runs now. */
static void drop_hint(struct error *err)
{
    char *hint = strstr(err->message, store_db_restore_hint);
    if (hint && hint > err->message + 2)
        hint[-2] = '\0'; /* also cuts the "; " before the hint */
}

/* Prints advice. A bad backup says nothing about the database, so the advice is another backup
 * and never an empty state. */
static void advise(const struct offline *o, bool damaged)
{
    /* do not advise to restore the target of `backup` */
    const char *backup = strcmp(o->command, "backup") != 0 ? o->file : NULL;
    if (!backup || strcmp(o->command, "check") != 0)
        offline_advise(&o->paths, backup, damaged && !backup, stderr);
}

static int print_error(const struct offline *o, struct error *err)
{
    drop_hint(err);
    if (o->json)
        print_object(json_pack("{s:b,s:s,s:s,s:s}", "ok", 0, "code", status_name(err->status),
                               "reason", error_reason_name(err), "message", err->message));
    fprintf(stderr, "sluice-manager %s: %s\n", o->command, err->message);
    bool damaged = err->status == STATUS_DATA_LOSS;
    if (err->reason == REASON_LOCKED) {
        fputs("a manager uses it: stop that manager first, with `sluice stop`, or `systemctl stop "
              "sluice-manager`\n",
              stderr);
        return EXIT_LOCKED;
    }
    if (!damaged && err->reason != REASON_STATE_STORE_NEWER)
        return EXIT_FAILURE;
    advise(o, damaged);
    return EXIT_NOT_GOOD;
}

/* --- commands --- */

/* Opens and checks a database. *db is open where the result is 0. */
static int open_and_check(const char *path, struct store_db *db, struct store_report *out,
                          struct error *err)
{
    memset(db, 0, sizeof(*db));
    if (store_check_open(path, db, err) != 0 || store_check(db, path, out, err) != 0) {
        store_db_close(db);
        return err->status;
    }
    return 0;
}

/* Checks that the state directory has its database as a regular file. If the file is missing
 * beside its log or backups, the database was lost, not never created. */
static int check_place(const struct offline *o, struct error *err)
{
    const char *path = o->paths.database;
    char beside[PATH_MAX + 16];
    struct stat st;
    if (stat(path, &st) == 0) {
        if (S_ISREG(st.st_mode))
            return 0;
        error_set(err, STATUS_DATA_LOSS, "%s: not a regular file", path);
        return error_reason(err, REASON_STATE_STORE_DAMAGED);
    }
    if (errno != ENOENT)
        return error_errno(err, errno, "%s", path);
    snprintf(beside, sizeof(beside), "%s-wal", path);
    bool log = stat(beside, &st) == 0 && st.st_size > 0;
    snprintf(beside, sizeof(beside), "%s/backup", o->paths.state_dir);
    if (!log && stat(beside, &st) != 0)
        return error_set(err, STATUS_NOT_FOUND,
                         "%s: no such file; the first start of a manager creates it", path);
    error_set(err, STATUS_DATA_LOSS, "%s is gone%s", path,
              log ? ", but its log sluice.db-wal exists: put the database back" : "");
    return error_reason(err, REASON_STATE_STORE_DAMAGED);
}

static int run_check(struct offline *o, struct error *err)
{
    const char *path = o->file ? o->file : o->paths.database;
    struct store_db db;
    struct store_report *r = &o->report;
    if ((!o->file && check_place(o, err) != 0) || open_and_check(path, &db, r, err) != 0)
        return err->status;
    store_db_close(&db);
    if (o->json) {
        print_object(report_object(r));
    } else {
        print_problems(r, stdout);
        printf("%s: %s: schema %u%s, %" PRIu64 " models, %" PRIu64 " versions, %" PRIu64
               " replicas, %" PRIu64 " operations, %" PRIu64 " events\n",
               path, r->n_problems ? "not good" : "good", r->schema,
               r->schema && r->schema < r->schema_known ? " (the next start migrates it)" : "",
               r->n_models, r->n_versions, r->n_replicas, r->n_operations, r->n_events);
    }
    if (!r->n_problems)
        return EXIT_SUCCESS;
    advise(o, true);
    return EXIT_NOT_GOOD;
}

/* Refuses a database with problems, as source of a backup or of a restore. */
static int refuse_bad(const char *path, const struct store_report *r, const char *what,
                      struct error *err)
{
    error_set(err, STATUS_DATA_LOSS, "%s is not good (%s: %.160s%s); %s", path, r->problems[0].kind,
              r->problems[0].text, r->n_problems > 1 ? " and more: see check" : "", what);
    return error_reason(err, REASON_STATE_STORE_DAMAGED);
}

/* Checks the target of a copy: its folder must exist. Its name must not be that of an SQLite
 * file beside the database. */
static int check_target(const struct offline *o, struct error *err)
{
    char folder[PATH_MAX];
    struct stat st, state;
    const char *slash = strrchr(o->file, '/'), *name = slash ? slash + 1 : o->file;
    const char *own = strrchr(o->paths.database, '/') + 1;
    int n = slash == o->file ? 1 : slash ? (int)(slash - o->file) : 1;
    if (snprintf(folder, sizeof(folder), "%.*s", n, slash ? o->file : ".") >= (int)sizeof(folder))
        return error_set(err, STATUS_INVALID_ARGUMENT, "backup FILE: the path is too long");
    if (stat(folder, &st) != 0)
        return error_errno(err, errno, "%s", folder);
    if (strncmp(name, own, strlen(own)) != 0 || stat(o->paths.state_dir, &state) != 0 ||
        st.st_dev != state.st_dev || st.st_ino != state.st_ino)
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s: names beside the database that begin with %s are the database's own; "
                     "give the copy another name",
                     o->file, own);
}

static int run_backup(struct offline *o, struct error *err)
{
    char to[PATH_MAX];
    struct store_db db;
    if (check_place(o, err) != 0 || (o->file && check_target(o, err) != 0))
        return err->status;
    if (o->file)
        snprintf(to, sizeof(to), "%s", o->file);
    else if (store_file_backup_path(o->paths.database, "sluice", to, sizeof(to), err) != 0)
        return err->status;
    if (open_and_check(o->paths.database, &db, &o->report, err) != 0)
        return err->status;
    int rc = o->report.n_problems
                 ? refuse_bad(o->paths.database, &o->report, "nothing was written", err)
                 : store_file_copy(db.sqlite, to, err);
    store_db_close(&db);
    if (rc == 0)
        print_done(o, "backup", to, NULL);
    return rc;
}

static bool same_file(const char *a, const char *b)
{
    struct stat st_a, st_b;
    return stat(a, &st_a) == 0 && stat(b, &st_b) == 0 && st_a.st_dev == st_b.st_dev &&
           st_a.st_ino == st_b.st_ino;
}

static int run_restore(struct offline *o, struct error *err)
{
    char restored[PATH_MAX + 16], aside[PATH_MAX];
    struct store_db db;
    const char *path = o->paths.database;
    if (!o->file)
        return error_set(err, STATUS_INVALID_ARGUMENT, "give the backup to restore: restore FILE");
    if (same_file(o->file, path))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s is the database itself", o->file);
    /* Finishes an interrupted restore first, as a start of the manager would. */
    if (store_file_finish_restore(path, aside, sizeof(aside), err) != 0 ||
        open_and_check(o->file, &db, &o->report, err) != 0)
        return err->status;
    snprintf(restored, sizeof(restored), "%s%s", path, store_file_restored);
    int rc = o->report.n_problems ? refuse_bad(o->file, &o->report, "nothing was changed", err)
                                  : store_file_copy(db.sqlite, restored, err);
    store_db_close(&db);
    if (rc == 0)
        rc = store_file_finish_restore(path, aside, sizeof(aside), err);
    if (rc == 0)
        print_done(o, "restored", o->file, aside);
    return rc;
}

static const struct command commands[] = {
    {"check",
     "[FILE] [options]",
     run_check,
     "checks the state database, or a backup",
     "Checks the file with SQLite, the schema, every row, and the rules between rows. Changes "
     "nothing. "
     "Prints a line for each problem.",
     {{"sluice-manager check --state-dir /var/lib/sluice", NULL},
      {"sluice-manager check /backup/sluice.db --json | jq .problems", "check a backup"}},
     2},
    {"backup",
     "[FILE] [options]",
     run_backup,
     "copies the state database to a file",
     "Without FILE, copies to STATE_DIR/backup/sluice-TIME.db. The copy is one file without a log, "
     "and is checked. An existing file is never replaced. A database that is not good is not "
     "copied.",
     {{"sluice-manager backup --state-dir /var/lib/sluice", NULL},
      {"sluice-manager backup /backup/sluice.db", NULL}},
     2},
    {"restore",
     "FILE [options]",
     run_restore,
     "replaces the state database by a backup",
     "Checks the backup first and refuses a backup that is not good or of a newer program. Keeps "
     "the earlier database as STATE_DIR/backup/replaced-TIME.db. After an interruption at any "
     "moment, the next start has the old database or the restored one.",
     {{"sluice-manager restore /var/lib/sluice/backup/sluice-20261124T100000Z.db", NULL}},
     1},
};

enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const struct command *find_command(const char *word)
{
    for (size_t i = 0; word && i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, word) == 0)
            return &commands[i];
    return NULL;
}

bool offline_is_command(const char *word)
{
    return find_command(word) != NULL;
}

static const struct manual_exit exits[] = {
    {0, "done, or good"},
    {1, "failed"},
    {2, "wrong usage"},
    {EXIT_NOT_GOOD, "the database or the backup is not good"},
    {EXIT_LOCKED, "a manager uses the state directory; the message names its pid"},
};

static void print_manual(const struct command *command, bool roff)
{
    char program[64], page[64];
    struct strbuf text;
    struct manual manual = {
        .program = program,
        .page = page,
        .section = 8,
        .synopsis = command->arguments,
        .summary = command->summary,
        .description = command->description,
        .exits = exits,
        .n_exits = sizeof(exits) / sizeof(exits[0]),
        .examples = command->examples,
        .n_examples = command->n_examples,
        .see_also = "sluice-manager(8)",
    };
    snprintf(program, sizeof(program), "sluice-manager %s", command->name);
    snprintf(page, sizeof(page), "sluice-manager-%s", command->name);
    manual.specs = settings_offline_specs(&manual.n_specs);
    strbuf_init(&text, 0);
    if (roff)
        manual_roff(&manual, SLUICE_DATE, &text);
    else
        manual_help(&manual, &text);
    fputs(strbuf_str(&text), stdout);
    strbuf_fini(&text);
}

static int run_locked(struct offline *o, const struct command *command,
                      const struct settings *settings, struct error *err)
{
    int lock_fd = -1;
    if (command->run == run_check && o->file) { /* a file outside of the state directory */
        int good = run_check(o, err);
        int code = good < 0 ? print_error(o, err) : good;
        return good == STATUS_INVALID_ARGUMENT ? EXIT_USAGE : code;
    }
    if (paths_prepare_state(settings, &o->paths, err) != 0) {
        print_error(o, err);
        return err->status == STATUS_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_FAILURE;
    }
    if (store_lock(o->paths.lock, o->paths.database, &lock_fd, err) != 0)
        return print_error(o, err);
    mode_t old_mask = umask(0077);
    int rc = command->run(o, err);
    umask(old_mask);
    close(lock_fd);
    if (rc == STATUS_INVALID_ARGUMENT) {
        print_error(o, err);
        if (command->run == run_restore)
            offline_advise(&o->paths, o->file, false, stderr);
        return EXIT_USAGE;
    }
    return rc < 0 ? print_error(o, err) : rc;
}

int offline_main(int argc, char *const argv[])
{
    const struct command *command = find_command(argv[0]);
    struct settings settings = {0};
    struct options *options = NULL;
    struct error err;
    struct offline *o = calloc(1, sizeof(*o));
    int rc = EXIT_FAILURE;
    if (!o)
        return rc;
    o->command = argv[0];
    log_init("sluice-manager", LOG_LEVEL_WARN, LOG_FORMAT_KV);
    if (settings_parse_offline(argc, argv, &settings, &options, &err) != 0) {
        fprintf(stderr, "sluice-manager %s: %s\n", argv[0], err.message);
        rc = EXIT_USAGE;
    } else if (settings.help || settings.man) {
        print_manual(command, settings.man);
        rc = EXIT_SUCCESS;
    } else {
        o->json = settings.json;
        if (options_n_positionals(options) > 0)
            o->file = options_positional(options, 0);
        rc = run_locked(o, command, &settings, &err);
    }
    options_destroy(options);
    free(o);
    return rc;
}
