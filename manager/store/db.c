#include "manager/store/db.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/seeded_bug.h"
#include "base/strbuf.h"
#include "manager/store/file.h"
#include "manager/store/migrate.h"

enum { CHUNK_BYTES = 1 << 16 };

const char store_db_restore_hint[] =
    "the file is unchanged. `sluice-manager check` lists the problems. `sluice-manager "
    "restore BACKUP` replaces the file by a backup. Without a backup, move sluice.db and "
    "sluice.db-wal away to start with an empty state";

int store_db_error_full(struct error *err)
{
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "state store: no space is left on its disk; nothing was changed");
    err->retry_after_ms = 1000;
    return error_reason(err, REASON_STATE_STORE_FULL);
}

int store_db_error_disk(struct error *err, const char *what)
{
    error_set(err, STATUS_UNAVAILABLE, "state store: its disk failed: %s; nothing was changed",
              what);
    err->retry_after_ms = 1000;
    return error_reason(err, REASON_STATE_STORE_IO);
}

int store_db_error(struct store_db *db, int rc, struct error *err)
{
    /* The connection keeps the error number of some failures only; other failures leave it in
     * errno. */
    int thread_errno = errno;
    int err_no = db->sqlite ? sqlite3_system_errno(db->sqlite) : 0;
    db->n_errors++;
    if (err_no == 0)
        err_no = thread_errno;
    bool full =
        (rc & 0xff) == SQLITE_FULL ||
        ((rc & 0xff) == SQLITE_IOERR && (err_no == ENOSPC || err_no == EDQUOT || err_no == EFBIG));
    const char *text = db->sqlite ? sqlite3_errmsg(db->sqlite) : sqlite3_errstr(rc);
    if (full)
        return store_db_error_full(err);
    switch (rc & 0xff) {
    case SQLITE_IOERR:
        return store_db_error_disk(err, text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_TOOBIG: /* a record length that was never written: no request has a gigabyte */
        error_set(err, STATUS_DATA_LOSS, "state store: %s; %s", text, store_db_restore_hint);
        return error_reason(err, REASON_STATE_STORE_DAMAGED);
    case SQLITE_NOMEM:
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        error_set(err, STATUS_FAILED_PRECONDITION, "state store: in use by another process");
        return error_reason(err, REASON_LOCKED);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
        return error_set(err, STATUS_PERMISSION_DENIED, "state store: %s", text);
    default:
        return error_set(err, STATUS_INTERNAL, "state store: %s (%d)", text, rc);
    }
}

int store_db_exec(struct store_db *db, const char *sql, struct error *err)
{
    int rc = sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : store_db_error(db, rc, err);
}

int store_db_prepare(struct store_db *db, const char *sql, struct sqlite3_stmt **out_stmt,
                     struct error *err)
{
    int rc = sqlite3_prepare_v3(db->sqlite, sql, -1, SQLITE_PREPARE_PERSISTENT, out_stmt, NULL);
    return rc == SQLITE_OK ? 0 : store_db_error(db, rc, err);
}

int store_db_query(struct store_db *db, const char *sql, int64_t *out_value, char *out_text,
                   size_t n_text, struct error *err)
{
    sqlite3_stmt *stmt = NULL;
    if (store_db_prepare(db, sql, &stmt, err) != 0)
        return err->status;
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW) {
        *out_value = sqlite3_column_int64(stmt, 0);
        const unsigned char *text = sqlite3_column_text(stmt, 0);
        if (out_text)
            snprintf(out_text, n_text, "%s", text ? (const char *)text : "");
    }
    sqlite3_finalize(stmt);
    if (rc == SQLITE_ROW)
        return 0;
    if (rc == SQLITE_DONE)
        return error_set(err, STATUS_INTERNAL, "state store: no answer to %s", sql);
    return store_db_error(db, rc, err);
}

/* Returns the statement at *stmt, or prepares it from the text that `sql_of` writes. */
static sqlite3_stmt *ensure_statement(struct store_db *db, enum table table,
                                      void (*sql_of)(const struct table_spec *spec,
                                                     struct strbuf *out),
                                      sqlite3_stmt **stmt, struct error *err)
{
    struct strbuf sql;
    if (*stmt)
        return *stmt;
    strbuf_init(&sql, 0);
    sql_of(table_spec(table), &sql);
    int rc = strbuf_failed(&sql) ? store_db_error(db, SQLITE_NOMEM, err)
                                 : store_db_prepare(db, strbuf_str(&sql), stmt, err);
    strbuf_fini(&sql);
    return rc == 0 ? *stmt : NULL;
}

sqlite3_stmt *store_db_upsert(struct store_db *db, enum table table, struct error *err)
{
    return ensure_statement(db, table, table_sql_upsert, &db->upsert[table], err);
}

sqlite3_stmt *store_db_remove(struct store_db *db, enum table table, struct error *err)
{
    return ensure_statement(db, table, table_sql_delete, &db->remove[table], err);
}

sqlite3_stmt *store_db_statement(struct store_db *db, enum store_statement which, struct error *err)
{
    static const char *const sql[N_STATEMENTS] = {
        [STATEMENT_BEGIN] = "BEGIN IMMEDIATE",
        [STATEMENT_COMMIT] = "COMMIT",
        [STATEMENT_ROLLBACK] = "ROLLBACK",
        [STATEMENT_COUNTER] = "SELECT value FROM meta WHERE name = ?1",
        [STATEMENT_SET_COUNTER] = "INSERT INTO meta (name, value) VALUES (?1, ?2)"
                                  " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [STATEMENT_FIND_ANSWER] = "SELECT method, request_sha256, response FROM idempotency"
                                  " WHERE request_id = ?1",
        [STATEMENT_RECORD_ANSWER] = "INSERT INTO idempotency (request_id, method, request_sha256,"
                                    " response, created_unix_ns) VALUES (?1, ?2, ?3, ?4, ?5)",
        [STATEMENT_FORGET_ANSWERS] = "DELETE FROM idempotency WHERE serial <="
                                     " (SELECT max(serial) FROM idempotency) - ?1",
        [STATEMENT_FORGET_EVENTS] = "DELETE FROM event WHERE seq <= ?1",
    };
    if (!db->fixed[which])
        (void)store_db_prepare(db, sql[which], &db->fixed[which], err);
    return db->fixed[which];
}

int store_db_run(sqlite3_stmt *stmt)
{
    errno = 0; /* store_db_error() reads errno */
    int rc = sqlite3_step(stmt);
    int err_no = errno;
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    errno = err_no;
    return rc;
}

int store_db_counter(struct store_db *db, const char *name, uint64_t *out_value, struct error *err)
{
    sqlite3_stmt *stmt = store_db_statement(db, STATEMENT_COUNTER, err);
    if (!stmt)
        return err->status;
    sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    int sqlite_rc = sqlite3_step(stmt);
    if (sqlite_rc == SQLITE_ROW || sqlite_rc == SQLITE_DONE)
        *out_value = sqlite_rc == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(stmt, 0) : 0;
    int rc = sqlite_rc == SQLITE_ROW || sqlite_rc == SQLITE_DONE
                 ? 0
                 : store_db_error(db, sqlite_rc, err);
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return rc;
}

int store_db_set_counter(struct store_db *db, const char *name, uint64_t value, struct error *err)
{
    sqlite3_stmt *stmt = store_db_statement(db, STATEMENT_SET_COUNTER, err);
    if (!stmt)
        return err->status;
    sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 2, (sqlite3_int64)value);
    int rc = store_db_run(stmt);
    return rc == SQLITE_DONE ? 0 : store_db_error(db, rc, err);
}

/* The database file or its log; NULL where it is not open. */
static sqlite3_file *open_file_of(struct store_db *db, int which)
{
    sqlite3_file *file = NULL;
    if (db->sqlite)
        sqlite3_file_control(db->sqlite, "main", which, &file);
    return file && file->pMethods ? file : NULL;
}

static uint64_t size_of(sqlite3_file *file)
{
    sqlite3_int64 n = 0;
    return file && file->pMethods->xFileSize(file, &n) == SQLITE_OK ? (uint64_t)n : 0;
}

uint64_t store_db_bytes(struct store_db *db)
{
    return size_of(open_file_of(db, SQLITE_FCNTL_FILE_POINTER)) +
           size_of(open_file_of(db, SQLITE_FCNTL_JOURNAL_POINTER));
}

/* Reads a file of the connection to its end. The integrity check reports an unreadable page like
 * a wrong page; this read shows the difference. */
static int read_through(struct store_db *db, int which, struct error *err)
{
    sqlite3_file *file = open_file_of(db, which);
    sqlite3_int64 n_bytes = 0;
    char *chunk = malloc(CHUNK_BYTES);
    int rc = chunk ? SQLITE_OK : SQLITE_NOMEM;
    if (rc == SQLITE_OK && file)
        rc = file->pMethods->xFileSize(file, &n_bytes);
    for (sqlite3_int64 at = 0; rc == SQLITE_OK && at < n_bytes; at += CHUNK_BYTES)
        rc = file->pMethods->xRead(
            file, chunk, (int)(n_bytes - at < CHUNK_BYTES ? n_bytes - at : CHUNK_BYTES), at);
    free(chunk);
    if (rc == SQLITE_NOMEM)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    return rc == SQLITE_OK ? 0 : store_db_error_disk(err, sqlite3_errstr(rc));
}

static int check_integrity(struct store_db *db, struct error *err)
{
    int64_t unused;
    char text[128] = "";
    for (int i = 0; i < 2; i++) {
        if (store_db_query(db, "PRAGMA quick_check(1)", &unused, text, sizeof(text), err) != 0)
            return err->status;
        if (strcmp(text, "ok") == 0)
            return 0;
        if (read_through(db, SQLITE_FCNTL_FILE_POINTER, err) != 0 ||
            read_through(db, SQLITE_FCNTL_JOURNAL_POINTER, err) != 0)
            return err->status;
    }
    for (char *c = text; *c; c++)
        if (*c == '\n')
            *c = ' ';
    error_set(err, STATUS_DATA_LOSS, "state store: damaged: %s; %s", text, store_db_restore_hint);
    return error_reason(err, REASON_STATE_STORE_DAMAGED);
}

static int configure(struct store_db *db, struct error *err)
{
    char mode[16] = "";
    int64_t unused;
    unsigned version;
    sqlite3_extended_result_codes(db->sqlite, 1);
    sqlite3_busy_timeout(db->sqlite, 0);
    /* Checked before the mode is set, which changes the file: the file may belong to another
     * program. */
    if (store_db_exec(db, "PRAGMA locking_mode = EXCLUSIVE", err) != 0 ||
        store_migrate_check(db, &version, err) != 0 ||
        store_db_query(db, "PRAGMA journal_mode = WAL", &unused, mode, sizeof(mode), err) != 0)
        return err->status;
    if (strcmp(mode, "wal") != 0)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "state store: journal mode is %s where wal is needed", mode);
    return store_db_exec(db,
                         "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                         "PRAGMA temp_store = MEMORY; PRAGMA journal_size_limit = 4194304;"
                         "PRAGMA trusted_schema = OFF",
                         err);
}

/* Opens an existing database exclusively, without checks of schema or damage. The caller must
 * close `db` also on failure. */
static int open_unchecked(const char *path, struct store_db *db, struct error *err)
{
    if (store_file_rewrite_log(path, err) != 0)
        return err->status;
    int rc = sqlite3_open_v2(path, &db->sqlite, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    return rc == SQLITE_OK ? configure(db, err) : store_db_error(db, rc, err);
}

static int open_file(const char *path, struct store_db *db, struct error *err)
{
    if (open_unchecked(path, db, err) != 0 || check_integrity(db, err) != 0)
        return err->status;
    return store_migrate(db, path, err);
}

/* Writes the whole log into the database and onto the disk. Closing does so too, without a
 * result. */
static int empty_log(struct store_db *db, struct error *err)
{
    int64_t busy = 0;
    if (store_db_query(db, "PRAGMA wal_checkpoint(TRUNCATE)", &busy, NULL, 0, err) != 0)
        return err->status;
    return busy ? store_db_error(db, SQLITE_BUSY, err) : 0;
}

static int fill_new(const char *path, struct store_db *db, struct error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_CREATE;
    int rc = sqlite3_open_v2(path, &db->sqlite, flags, NULL);
    if (rc != SQLITE_OK)
        return store_db_error(db, rc, err);
    if (configure(db, err) != 0 || store_migrate(db, path, err) != 0)
        return err->status;
    return empty_log(db, err);
}

/* Refuses a log without its database: a new database would replay the log of the old one. */
static int check_no_log(const char *path, struct error *err)
{
    char log[4200];
    struct stat st;
    snprintf(log, sizeof(log), "%s-wal", path);
    if (stat(log, &st) != 0 || st.st_size == 0)
        return 0;
    error_set(
        err, STATUS_DATA_LOSS,
        "state store: sluice.db is missing but its log sluice.db-wal exists. Put the database "
        "back, or move the log away to start with an empty state");
    return error_reason(err, REASON_STATE_STORE_DAMAGED);
}

/* Removes the files of an unfinished new database. */
static int remove_new(const char *temporary, struct error *err)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    char beside[4104];
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        snprintf(beside, sizeof(beside), "%s%s", temporary, suffixes[i]);
        if (unlink(beside) != 0 && errno != ENOENT)
            return error_errno(err, errno, "%s", beside);
    }
    return 0;
}

/* Creates the database under another name, so that a crash leaves no database or a complete one. */
static int create_file(const char *path, struct error *err)
{
    char temporary[4096];
    struct store_db db = {0};
    struct error ignored;
    if ((size_t)snprintf(temporary, sizeof(temporary), "%s.new", path) >= sizeof(temporary))
        return error_set(err, STATUS_INVALID_ARGUMENT, "state store: the path is too long");
    if (check_no_log(path, err) != 0)
        return err->status;
    if (remove_new(temporary, err) != 0)
        return err->status;
    int rc = fill_new(temporary, &db, err);
    store_db_close(&db);
    if (rc != 0) {
        remove_new(temporary, &ignored); /* on a full disk the rest would hold the last free
                                          * space */
        return rc;
    }
    if (rename(temporary, path) != 0)
        return error_errno(err, errno, "%s", path);
    return store_file_sync_folder(path, err);
}

/* Makes sure that there is a database file to open. */
static int ensure_file(const char *path, struct error *err)
{
    char aside[4096];
    struct stat st;
    if (store_file_finish_restore(path, aside, sizeof(aside), err) != 0)
        return err->status;
    if (stat(path, &st) != 0)
        return errno == ENOENT ? create_file(path, err) : error_errno(err, errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, STATUS_FAILED_PRECONDITION, "%s: not a regular file", path);
    if (st.st_size > 0)
        return 0;
    error_set(err, STATUS_DATA_LOSS, "state store: the file is empty; %s", store_db_restore_hint);
    return error_reason(err, REASON_STATE_STORE_DAMAGED);
}

int store_db_open(const char *path, struct store_db *out_db, struct error *err)
{
    struct store_db db = {0};
    mode_t old_mask = umask(0077);
    int rc = ensure_file(path, err);
    if (rc == 0)
        rc = open_file(path, &db, err);
    umask(old_mask);
    if (rc == 0)
        *out_db = db;
    else
        store_db_close(&db);
    return rc;
}

void store_db_close(struct store_db *db)
{
    for (int t = 0; t < N_TABLES; t++)
        sqlite3_finalize(db->upsert[t]);
    for (int t = 0; t < N_CATALOG_TABLES; t++)
        sqlite3_finalize(db->remove[t]);
    for (int i = 0; i < N_STATEMENTS; i++)
        sqlite3_finalize(db->fixed[i]);
    sqlite3_close(db->sqlite);
    memset(db, 0, sizeof(*db));
}

static int load_table(struct store_db *db, enum table table, struct catalog *catalog,
                      struct error *err)
{
    struct strbuf sql;
    sqlite3_stmt *stmt = NULL;
    strbuf_init(&sql, 0);
    table_sql_select(table_spec(table), &sql);
    int rc = store_db_prepare(db, strbuf_str(&sql), &stmt, err);
    strbuf_fini(&sql);
    if (rc != 0)
        return rc;
    int sqlite_rc;
    while ((sqlite_rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        struct row *row = NULL;
        if ((rc = row_read(table, stmt, &row, err)) != 0)
            break;
        if (table == TABLE_REPLICA && seeded_bug("I2_forgets_replica")) {
            row_release(row);
            continue;
        }
        if (catalog_put(catalog, row) != 0)
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
        row_release(row);
        if (rc != 0)
            break;
    }
    if (rc == 0 && sqlite_rc != SQLITE_DONE)
        rc = store_db_error(db, sqlite_rc, err);
    sqlite3_finalize(stmt);
    return rc;
}

int store_db_load(struct store_db *db, struct catalog *catalog, struct error *err)
{
    for (enum table t = 0; t < N_CATALOG_TABLES; t++)
        if (load_table(db, t, catalog, err) != 0)
            return err->status;
    int64_t seq = 0, first = 0;
    if (store_db_counter(db, "generation", &catalog->generation, err) != 0 ||
        store_db_counter(db, "manager_epoch", &catalog->manager_epoch, err) != 0 ||
        store_db_query(db, "SELECT coalesce(max(seq), 0) FROM event", &seq, NULL, 0, err) != 0 ||
        store_db_query(db, "SELECT coalesce(min(seq), 0) FROM event", &first, NULL, 0, err) != 0)
        return err->status;
    catalog->last_event_seq = (uint64_t)seq;
    catalog->first_event_seq = (uint64_t)first;
    return 0;
}
