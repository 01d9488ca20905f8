#include "manager/store/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <sqlite3.h>

#include "base/error.h"
#include "manager/store/migrate.h"
#include "manager/store/schema.h"

static void add_problem(struct store_report *report, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_problem(struct store_report *report, const char *kind, const char *format, ...)
{
    va_list args;
    if (report->n_problems++ >= CHECK_MAX_PROBLEMS)
        return;
    struct store_problem *p = &report->problems[report->n_problems - 1];
    p->kind = kind;
    va_start(args, format);
    vsnprintf(p->text, sizeof(p->text), format, args);
    va_end(args);
    for (char *c = p->text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

int store_check_open(const char *path, struct store_db *db, struct error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return error_errno(err, errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: not a regular file", path);
    if (st.st_size == 0) {
        error_set(err, STATUS_DATA_LOSS, "%s: the file is empty", path);
        return error_reason(err, REASON_STATE_STORE_DAMAGED);
    }
    int rc = sqlite3_open_v2(path, &db->sqlite, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc != SQLITE_OK)
        return store_db_error(db, rc, err);
    sqlite3_extended_result_codes(db->sqlite, 1);
    sqlite3_db_config(db->sqlite, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    return store_db_exec(db,
                         "PRAGMA locking_mode = EXCLUSIVE; PRAGMA query_only = ON;"
                         "PRAGMA trusted_schema = OFF; SELECT count(*) FROM sqlite_schema",
                         err);
}

/* --- SQLite's checks --- */

/* Adds a problem for each row of `sql`: `before` and the row's text. A row "ok" is no problem. */
static int add_problem_rows(struct store_db *db, const char *sql, const char *kind,
                            const char *before, struct store_report *report, struct error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc;
    if (store_db_prepare(db, sql, &stmt, err) != 0)
        return err->status;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(stmt, 0);
        if (!text || strcmp(text, "ok") != 0)
            add_problem(report, kind, "%s%s", before, text ? text : "?");
    }
    sqlite3_finalize(stmt);
    return rc == SQLITE_DONE ? 0 : store_db_error(db, rc, err);
}

/* --- the schema --- */

static int table_sql(sqlite3 *sqlite, const char *name, char **out)
{
    sqlite3_stmt *stmt = NULL;
    *out = NULL;
    int rc = sqlite3_prepare_v2(sqlite, "SELECT sql FROM sqlite_schema WHERE name = ?1", -1, &stmt,
                                NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
        if (sqlite3_step(stmt) == SQLITE_ROW)
            *out = strdup((const char *)sqlite3_column_text(stmt, 0));
    }
    sqlite3_finalize(stmt);
    return rc;
}

/* Checks that `in` has every table of `from`, and with `same` that the SQL texts are equal. */
static void compare_tables(sqlite3 *from, sqlite3 *in, bool same, const char *what,
                           struct store_report *report)
{
    static const char sql[] =
        "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
    sqlite3_stmt *stmt = NULL;
    sqlite3_prepare_v2(from, sql, -1, &stmt, NULL);
    while (stmt && sqlite3_step(stmt) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(stmt, 0);
        char *other = NULL;
        table_sql(in, name, &other);
        if (!other)
            add_problem(report, "schema", "%s %s", name, what);
        else if (same && strcmp(other, (const char *)sqlite3_column_text(stmt, 1)) != 0)
            add_problem(report, "schema", "%s differs from schema %u", name, report->schema);
        free(other);
    }
    sqlite3_finalize(stmt);
}

static int check_schema(struct store_db *db, struct store_report *report, struct error *err)
{
    sqlite3 *plain = NULL;
    int rc = sqlite3_open_v2(":memory:", &plain, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    for (unsigned i = 0; rc == SQLITE_OK && i < report->schema; i++)
        rc = sqlite3_exec(plain, schema_migration(i), NULL, NULL, NULL);
    if (rc == SQLITE_OK) {
        compare_tables(plain, db->sqlite, true, "is missing", report);
        compare_tables(db->sqlite, plain, false, "is not a table of Sluice", report);
    }
    sqlite3_close(plain);
    return rc == SQLITE_OK
               ? 0
               : error_set(err, STATUS_INTERNAL, "cannot create the schema for a comparison: %s",
                           sqlite3_errstr(rc));
}

/* --- rules between rows --- */

static uint64_t id_number(const char *id)
{
    return id[0] ? strtoull(id + 1, NULL, 10) : 0;
}

static bool is_open(const pb_operation *operation)
{
    return (int)operation->state == OPERATION_PENDING || (int)operation->state == OPERATION_RUNNING;
}

static void check_replicas(const struct catalog *catalog, uint64_t last,
                           struct store_report *report)
{
    const pb_replica *r;
    for (size_t i = 0; (r = catalog_replica_at(catalog, i)); i++) {
        bool ended = (int)r->state == REPLICA_STOPPED || (int)r->state == REPLICA_FAILED;
        if (!catalog_version(catalog, r->model, r->version))
            add_problem(report, "reference", "replica %s: there is no version %s of %s", r->id,
                        r->version, r->model);
        if (!ended && !catalog_group(catalog, r->device_group))
            add_problem(report, "reference", "replica %s: there is no device group %s", r->id,
                        r->device_group);
        if ((int)r->state < REPLICA_PENDING || (int)r->state > REPLICA_FAILED)
            add_problem(report, "state", "replica %s: unknown state %d", r->id, (int)r->state);
        if ((int)r->state == REPLICA_READY && r->epoch == 0)
            add_problem(report, "state", "replica %s: READY but never started", r->id);
        if (id_number(r->id) > last)
            add_problem(report, "counter", "replica %s: the last number given is %" PRIu64, r->id,
                        last);
        const pb_replica *other;
        for (size_t k = i + 1; r->pid && !ended && (other = catalog_replica_at(catalog, k)); k++)
            if (other->pid == r->pid && other->start_ticks == r->start_ticks &&
                (int)other->state != REPLICA_STOPPED && (int)other->state != REPLICA_FAILED)
                add_problem(report, "state", "replicas %s and %s have the same process, %u", r->id,
                            other->id, r->pid);
    }
}

static void check_operations(const struct catalog *catalog, uint64_t last,
                             struct store_report *report)
{
    const pb_operation *o;
    for (size_t i = 0; (o = catalog_operation_at(catalog, i)); i++) {
        if ((int)o->state < OPERATION_PENDING || (int)o->state > OPERATION_CANCELLED)
            add_problem(report, "state", "operation %s: unknown state %d", o->id, (int)o->state);
        if (is_open(o) != (o->ended_unix_ns == 0))
            add_problem(report, "state", "operation %s: %s with%s a time of its end", o->id,
                        pb_operation_state_name((int)o->state), o->ended_unix_ns ? "" : "out");
        if (id_number(o->id) > last)
            add_problem(report, "counter", "operation %s: the last number given is %" PRIu64, o->id,
                        last);
        for (size_t k = 0; is_open(o) && k < o->n_replica_ids; k++)
            if (!catalog_replica(catalog, o->replica_ids[k]))
                add_problem(report, "reference", "operation %s: there is no replica %s", o->id,
                            o->replica_ids[k]);
    }
}

static void check_deployments(const struct catalog *catalog, struct store_report *report)
{
    const pb_deployment *d;
    for (size_t i = 0; (d = catalog_deployment_at(catalog, i)); i++) {
        if (!catalog_version(catalog, d->model, d->version))
            add_problem(report, "reference", "deployment of %s: there is no version %s", d->model,
                        d->version);
        if (!catalog_group(catalog, d->device_group))
            add_problem(report, "reference", "deployment of %s %s: there is no device group %s",
                        d->model, d->version, d->device_group);
    }
}

static int check_events(struct store_db *db, const struct catalog *catalog,
                        struct store_report *report, struct error *err)
{
    int64_t n = 0;
    if (store_db_query(db, "SELECT count(*) FROM event", &n, NULL, 0, err) != 0)
        return err->status;
    report->n_events = (uint64_t)n;
    if (n && catalog->last_event_seq - catalog->first_event_seq + 1 != (uint64_t)n)
        add_problem(report, "event", "%" PRId64 " events are numbered %" PRIu64 " to %" PRIu64, n,
                    catalog->first_event_seq, catalog->last_event_seq);
    return 0;
}

static int check_rows(struct store_db *db, struct store_report *report, struct error *err)
{
    struct catalog catalog = {0};
    uint64_t replica = 0, operation = 0;
    int rc = store_db_load(db, &catalog, err);
    if (rc == STATUS_DATA_LOSS) {
        add_problem(report, "row", "%s", err->message);
        rc = 0;
        goto out;
    }
    if (rc == 0 && (store_db_counter(db, "replica", &replica, err) != 0 ||
                    store_db_counter(db, "operation", &operation, err) != 0))
        rc = err->status;
    if (rc != 0)
        goto out;
    report->n_models = catalog_count(&catalog, TABLE_MODEL);
    report->n_versions = catalog_count(&catalog, TABLE_MODEL_VERSION);
    report->n_replicas = catalog_count(&catalog, TABLE_REPLICA);
    report->n_operations = catalog_count(&catalog, TABLE_OPERATION);
    report->generation = catalog.generation;
    report->manager_epoch = catalog.manager_epoch;
    report->last_event_seq = catalog.last_event_seq;
    check_replicas(&catalog, replica, report);
    check_operations(&catalog, operation, report);
    check_deployments(&catalog, report);
    rc = check_events(db, &catalog, report, err);
out:
    catalog_fini(&catalog);
    return rc;
}

int store_check(struct store_db *db, const char *path, struct store_report *out_report,
                struct error *err)
{
    struct store_report *report = out_report;
    struct stat st;
    memset(report, 0, sizeof(*report));
    report->schema_known = (unsigned)schema_n_migrations();
    if (stat(path, &st) == 0)
        report->n_bytes = (uint64_t)st.st_size;
    if (add_problem_rows(db, "PRAGMA integrity_check(100)", "damage", "", report, err) != 0)
        return err->status;
    if (report->n_problems) /* further checks of a damaged file mean nothing */
        return 0;
    if (store_migrate_check(db, &report->schema, err) != 0) {
        if (err->status != STATUS_DATA_LOSS)
            return err->status;
        add_problem(report, "schema", "the database of another program");
        return 0;
    }
    if (report->schema == 0) {
        add_problem(report, "schema", "the database has no tables of Sluice");
        return 0;
    }
    if (add_problem_rows(db,
                         "SELECT format('row %d of %s refers to a missing row of %s', rowid,"
                         " \"table\", parent) FROM pragma_foreign_key_check",
                         "reference", "", report, err) != 0 ||
        check_schema(db, report, err) != 0)
        return err->status;
    /* Rows of an older schema can be read only after the migration. */
    return report->schema == report->schema_known && !report->n_problems
               ? check_rows(db, report, err)
               : 0;
}
