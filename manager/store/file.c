#include "manager/store/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/seeded_bug.h"
#include "manager/store/db.h"

const char store_file_restored[] = ".restored";
const char store_file_part[] = ".part";

enum { CHUNK_BYTES = 1 << 16 };

static int join(char out[PATH_MAX], const char *path, const char *suffix, struct error *err)
{
    if ((size_t)snprintf(out, PATH_MAX, "%s%s", path, suffix) >= PATH_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "state store: the path is too long");
    return 0;
}

/* Sets the error of a file operation, like an SQLite failure. Clients may read the text, so it
 * names the file without its folder. */
static int file_error(struct error *err, int err_no, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (err_no == ENOSPC || err_no == EDQUOT || err_no == EFBIG)
        return store_db_error_full(err);
    if (err_no == EIO)
        return store_db_error_disk(err, "Input/output error");
    return error_errno(err, err_no, "state store: %s", slash ? slash + 1 : path);
}

int store_file_sync_folder(const char *path, struct error *err)
{
    char folder[PATH_MAX];
    if (join(folder, path, "", err) != 0)
        return err->status;
    char *slash = strrchr(folder, '/');
    if (!slash)
        snprintf(folder, sizeof(folder), ".");
    else
        slash[slash == folder] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return file_error(err, errno, folder);
    int rc = fsync(fd) == 0 ? 0 : file_error(err, errno, folder);
    close(fd);
    return rc;
}

int store_file_backup_path(const char *path, const char *name, char *out, size_t n_out,
                           struct error *err)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX], when[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    if ((size_t)snprintf(folder, sizeof(folder), "%.*sbackup", slash ? (int)(slash - path + 1) : 0,
                         path) >= sizeof(folder))
        return error_set(err, STATUS_INVALID_ARGUMENT, "state store: the path is too long");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return file_error(err, errno, folder);
    for (int i = 0; i < 1000; i++) {
        char number[16] = "";
        if (i)
            snprintf(number, sizeof(number), "-%d", i);
        if ((size_t)snprintf(out, n_out, "%s/%s-%s%s.db", folder, name, when, number) >= n_out)
            return error_set(err, STATUS_INVALID_ARGUMENT, "state store: the path is too long");
        if (access(out, F_OK) != 0)
            return 0;
    }
    return error_set(err, STATUS_ALREADY_EXISTS, "%s: exists already", out);
}

/* --- copies --- */

static int copy_pages(struct sqlite3 *from, struct store_db *to, struct error *err)
{
    sqlite3_backup *backup = sqlite3_backup_init(to->sqlite, "main", from, "main");
    if (!backup)
        return store_db_error(to, sqlite3_errcode(to->sqlite), err);
    int rc = sqlite3_backup_step(backup, -1);
    int end = sqlite3_backup_finish(backup);
    if (rc == SQLITE_DONE && end == SQLITE_OK)
        return 0;
    return store_db_error(to, end != SQLITE_OK ? end : rc, err);
}

static int write_copy(struct sqlite3 *from, const char *part, struct error *err)
{
    struct store_db db = {0};
    char text[128] = "";
    int64_t unused;
    int sqlite_rc = sqlite3_open_v2(
        part, &db.sqlite, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    int rc = 0;
    if (sqlite_rc != SQLITE_OK)
        rc = store_db_error(&db, sqlite_rc, err);
    if (rc == 0)
        sqlite3_extended_result_codes(db.sqlite, 1);
    /* The copy inherits the journal mode of the source; mode DELETE needs no log beside the
     * file. */
    if (rc == 0 && (store_db_exec(&db, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL",
                                  err) != 0 ||
                    copy_pages(from, &db, err) != 0 ||
                    store_db_query(&db, "PRAGMA journal_mode = DELETE", &unused, text, sizeof(text),
                                   err) != 0))
        rc = err->status;
    if (rc == 0 && strcmp(text, "delete") != 0)
        rc = error_set(err, STATUS_INTERNAL, "state store: the copy stayed in mode %s", text);
    if (rc == 0 &&
        store_db_query(&db, "PRAGMA integrity_check(1)", &unused, text, sizeof(text), err) != 0)
        rc = err->status;
    if (rc == 0 && strcmp(text, "ok") != 0) {
        error_set(err, STATUS_DATA_LOSS, "state store: the copy is damaged: %s", text);
        rc = error_reason(err, REASON_STATE_STORE_DAMAGED);
    }
    store_db_close(&db);
    return rc;
}

static int sync_file(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return file_error(err, errno, path);
    int rc = fsync(fd) == 0 ? 0 : file_error(err, errno, path);
    close(fd);
    return rc;
}

int store_file_copy(struct sqlite3 *from, const char *to, struct error *err)
{
    char part[PATH_MAX], journal[PATH_MAX];
    if (join(part, to, store_file_part, err) != 0 || join(journal, part, "-journal", err) != 0)
        return err->status;
    if (access(to, F_OK) == 0)
        return error_set(err, STATUS_ALREADY_EXISTS, "%s: exists already", to);
    unlink(part);
    unlink(journal);
    int rc = write_copy(from, part, err);
    if (rc == 0)
        rc = sync_file(part, err);
    if (rc == 0 && rename(part, to) != 0)
        rc = file_error(err, errno, to);
    if (rc == 0)
        return store_file_sync_folder(to, err);
    unlink(part);
    unlink(journal);
    return rc;
}

/* --- the log --- */

static int copy_bytes(int from, int to, const char *path, struct error *err)
{
    char *chunk = malloc(CHUNK_BYTES);
    ssize_t n = 0;
    int rc = chunk ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    while (rc == 0 && (n = read(from, chunk, CHUNK_BYTES)) > 0)
        for (ssize_t at = 0, put; at < n && rc == 0; at += put)
            if ((put = write(to, chunk + at, (size_t)(n - at))) <= 0) {
                rc = file_error(err, put < 0 ? errno : EIO, path);
                put = 0;
            }
    if (rc == 0 && n < 0)
        rc = file_error(err, errno, path);
    free(chunk);
    return rc;
}

/* Writes the same bytes over themselves, where there is no room for another file. Durable bytes
 * stay intact if this is interrupted. */
static int write_over(const char *log, struct error *err)
{
    char *chunk = malloc(CHUNK_BYTES);
    int fd = open(log, O_RDWR | O_CLOEXEC | O_NOFOLLOW), status = 0;
    if (!chunk)
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "state store: out of memory");
    else if (fd < 0)
        status = file_error(err, errno, log);
    ssize_t n = 0, put;
    for (off_t at = 0; status == 0 && (n = pread(fd, chunk, CHUNK_BYTES, at)) > 0; at += n)
        if ((put = pwrite(fd, chunk, (size_t)n, at)) != n)
            status = file_error(err, put < 0 ? errno : EIO, log);
    if (status == 0 && n < 0)
        status = file_error(err, errno, log);
    if (status == 0 && fsync(fd) != 0)
        status = file_error(err, errno, log);
    free(chunk);
    if (fd >= 0)
        close(fd);
    return status;
}

int store_file_rewrite_log(const char *path, struct error *err)
{
    char log[PATH_MAX], fresh[PATH_MAX];
    struct stat st;
    if (join(log, path, "-wal", err) != 0 || join(fresh, log, ".new", err) != 0)
        return err->status;
    if (seeded_bug("I1_trusts_a_failed_sync") || stat(log, &st) != 0 || st.st_size == 0)
        return 0;
    if (unlink(fresh) != 0 && errno != ENOENT) /* left by an interrupted try */
        return file_error(err, errno, fresh);
    int from = open(log, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (from < 0)
        return file_error(err, errno, log);
    int to = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc = to >= 0 ? copy_bytes(from, to, fresh, err) : file_error(err, errno, fresh);
    if (rc == 0 && fsync(to) != 0)
        rc = file_error(err, errno, fresh);
    close(from);
    if (to >= 0)
        close(to);
    if (rc == 0 && rename(fresh, log) != 0)
        rc = file_error(err, errno, log);
    if (rc != 0) {
        unlink(fresh);
        return err->reason == REASON_STATE_STORE_FULL ? write_over(log, err) : rc;
    }
    return store_file_sync_folder(log, err);
}

/* --- restoring --- */

int store_file_finish_restore(const char *path, char *out_aside, size_t n_out, struct error *err)
{
    static const char *const beside[] = {"-wal", "-journal", "-shm"};
    char restored[PATH_MAX], from[PATH_MAX], to[PATH_MAX], aside[PATH_MAX];
    out_aside[0] = '\0';
    if (join(restored, path, store_file_restored, err) != 0)
        return err->status;
    if (access(restored, F_OK) != 0)
        return errno == ENOENT ? 0 : file_error(err, errno, restored);
    if (store_file_backup_path(path, "replaced", aside, sizeof(aside), err) != 0)
        return err->status;
    /* Logs first: a database must never stand beside the log of another. */
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
        if (join(from, path, beside[i], err) != 0 || join(to, aside, beside[i], err) != 0)
            return err->status;
        if (rename(from, to) != 0 && errno != ENOENT)
            return file_error(err, errno, from);
    }
    if (store_file_sync_folder(path, err) != 0 || store_file_sync_folder(aside, err) != 0)
        return err->status;
    bool kept = rename(path, aside) == 0;
    if (!kept && errno != ENOENT)
        return file_error(err, errno, path);
    if (store_file_sync_folder(aside, err) != 0)
        return err->status;
    if (rename(restored, path) != 0)
        return file_error(err, errno, path);
    if (store_file_sync_folder(path, err) != 0)
        return err->status;
    if (kept)
        snprintf(out_aside, n_out, "%s", aside);
    return 0;
}
