#include "manager/store/migrate.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/base/failpoint.h"
#include "manager/store/db.h"
#include "manager/store/file.h"
#include "manager/store/schema.h"

int store_migrate_check(struct store_db *db, unsigned *out_version, struct error *err)
{
    int64_t version = 0, application = 0, n_things = 0;
    if (store_db_query(db, "PRAGMA user_version", &version, NULL, 0, err) != 0 ||
        store_db_query(db, "PRAGMA application_id", &application, NULL, 0, err) != 0 ||
        store_db_query(db, "SELECT count(*) FROM sqlite_schema", &n_things, NULL, 0, err) != 0)
        return err->status;
    size_t n = schema_n_migrations();
    /* Only an empty database without an application id may become ours. */
    bool ours = version > 0 ? application == SCHEMA_APPLICATION_ID
                            : version == 0 && application == 0 && n_things == 0;
    if (!ours) {
        error_set(err, STATUS_DATA_LOSS, "state store: the file is another program's database; %s",
                  store_db_restore_hint);
        return error_reason(err, REASON_STATE_STORE_DAMAGED);
    }
    if ((size_t)version > n) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "state store: schema %" PRId64 " is newer than this program, which knows schemas "
                  "up to %zu; start the newer program or restore an older backup",
                  version, n);
        return error_reason(err, REASON_STATE_STORE_NEWER);
    }
    *out_version = (unsigned)version;
    return 0;
}

static int back_up(struct store_db *db, const char *path, unsigned version, struct error *err)
{
    char name[32], to[PATH_MAX];
    snprintf(name, sizeof(name), "schema%u", version);
    if (store_file_backup_path(path, name, to, sizeof(to), err) != 0 ||
        store_file_copy(db->sqlite, to, err) != 0)
        return error_prefix(err, "backup before the change of the schema");
    log_info(LOG_EVENT("schema migration"), LOG_U64("from", version),
             LOG_U64("to", schema_n_migrations()), LOG_STR("copy", to));
    return 0;
}

static int apply_migrations(struct store_db *db, unsigned from, struct error *err)
{
    size_t n = schema_n_migrations();
    char pragma[128];
    for (size_t i = from; i < n; i++) {
        if (store_db_exec(db, schema_migration(i), err) != 0)
            return err->status;
        failpoint("migrate.between");
    }
    snprintf(pragma, sizeof(pragma), "PRAGMA application_id = %d; PRAGMA user_version = %zu",
             SCHEMA_APPLICATION_ID, n);
    return store_db_exec(db, pragma, err);
}

int store_migrate(struct store_db *db, const char *path, struct error *err)
{
    unsigned version = 0;
    size_t n = schema_n_migrations();
    bool torn = seeded_bug("I2_migrates_in_pieces");
    if (store_migrate_check(db, &version, err) != 0)
        return err->status;
    db->schema_version = (uint32_t)n;
    if (version == n)
        return 0;
    if (version > 0 && back_up(db, path, version, err) != 0)
        return err->status;
    failpoint("migrate.before");
    if (!torn && store_db_exec(db, "BEGIN IMMEDIATE", err) != 0)
        return err->status;
    if (apply_migrations(db, version, err) == 0) {
        failpoint("migrate.before_commit");
        if (torn || store_db_exec(db, "COMMIT", err) == 0) {
            failpoint("migrate.after_commit");
            return 0;
        }
    }
    sqlite3_exec(db->sqlite, "ROLLBACK", NULL, NULL, NULL);
    return error_prefix(err, "change of the schema from %u to %zu", version, n);
}
