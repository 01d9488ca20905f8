/* Tests of the state store's file: full disks, damaged, newer or locked files, the schema, and the
 * state after a kill. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "manager/store/db.h"
#include "manager/store/lock.h"
#include "manager/store/schema.h"
#include "manager/store/txn.h"
#include "tests/support/names.h"
#include "tests/unit/manager/store/support_store.h"

/* -- full disk ----------------------------------------------------------------------------------
 */

static int put_big(struct txn *txn, struct job *job, struct error *err)
{
    pb_version *version = MESSAGE_NEW(pb_version, sluice__manager__v1__model_version__descriptor);
    if (txn_put(txn, TABLE_MODEL, &job_new_model("m", 1)->base, err) != 0)
        return err->status;
    char *text = malloc(256 << 10);
    memset(text, 'x', (256 << 10) - 1);
    text[(256 << 10) - 1] = '\0';
    assert_true(message_set(&version->model, "m"));
    assert_true(message_set(&version->version, job->name));
    version->sequence = job->value;
    version->config = MESSAGE_NEW(pb_config, sluice__manager__v1__model_config__descriptor);
    assert_true(message_set(&version->config->chat_template, text));
    free(text);
    return txn_put(txn, TABLE_MODEL_VERSION, &version->base, err);
}

static void test_disk_full_when_changing_then_refused_and_recovers_by_itself(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, small;
    struct job job = {.body = put_big};
    struct job check = {.body = job_put_model, .name = "after"};
    struct store_stats stats;
    int status = 0, n = 0;
    char name[16];
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1 << 20; /* neither database nor log may grow over it */
    setrlimit(RLIMIT_FSIZE, &small);
    for (n = 0; n < 20 && status == 0; n++) {
        snprintf(name, sizeof(name), "v%d", n);
        job.name = name;
        job.value = (uint64_t)n;
        status = job_run(f, &job);
    }
    assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(job.status.reason, REASON_STATE_STORE_FULL);
    assert_null(catalog_version(&f->catalog, "m", name));
    store_stats(f->store, &stats);
    assert_int_equal(stats.reason, REASON_STATE_STORE_FULL);
    assert_int_equal(catalog_count(&f->catalog, TABLE_MODEL_VERSION), n - 1); /* reads still work */
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(job_run(f, &job), 0);
    assert_int_equal(job_run(f, &check), 0);
    store_stats(f->store, &stats);
    assert_int_equal(stats.reason, REASON_NONE);
    fixture_reopen(f);
    assert_int_equal(catalog_count(&f->catalog, TABLE_MODEL_VERSION), n);
    assert_non_null(catalog_model(&f->catalog, "after"));
}

/* A name in a request may be any text, such as the words of the store's own errors. */
static int refuse_in_words_of_the_store(struct txn *txn, struct job *job, struct error *err)
{
    (void)txn;
    return error_set(err, STATUS_NOT_FOUND, "state store: no model %s", job->name);
}

/* Symptom: an error's text decided. A refusal in the store's words counted as a failure of the
 * store. */
static void test_failures_when_counted_then_by_their_cause(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, none;
    struct job refused = {.body = refuse_in_words_of_the_store, .name = "m"};
    struct job full = {.body = job_put_model, .name = "m"};
    struct store_stats stats;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(job_run(f, &refused), STATUS_NOT_FOUND);
    store_stats(f->store, &stats);
    assert_int_equal(stats.n_failed, 0);
    assert_int_equal(stats.reason, REASON_NONE);
    getrlimit(RLIMIT_FSIZE, &old);
    none = old;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &none);
    int status = job_run(f, &full);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
    store_stats(f->store, &stats);
    assert_int_equal(stats.n_failed, 1);
    assert_int_equal(stats.reason, REASON_STATE_STORE_FULL);
}

/* Observed state is in the catalog at once. The database and its event follow once there is room. A
 * requested change is refused meanwhile. */
static void test_disk_full_when_something_was_seen_then_kept_and_written_late(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, none;
    struct job asked = {.body = job_put_model, .name = "asked"};
    struct job seen = {.body = job_put_model, .name = "seen"}, again = seen;
    struct store_stats stats;
    struct error err;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    none = old;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &none);
    assert_int_equal(job_run(f, &asked), STATUS_RESOURCE_EXHAUSTED);
    uint64_t generation = f->catalog.generation, last_seq = f->catalog.last_event_seq;
    for (int i = 0; i < 2; i++) { /* twice, and the unsaved row is kept once */
        seen = again;
        assert_int_equal(store_submit_seen(f->store, job_body, job_done, &seen, &err), 0);
        assert_int_equal(job_wait(f, &seen), 0);
    }
    assert_non_null(catalog_model(&f->catalog, "seen"));
    assert_true(f->catalog.generation == generation && f->catalog.last_event_seq == last_seq);
    assert_int_equal(store_n_unsaved(f->store), 1);
    setrlimit(RLIMIT_FSIZE, &old);
    asked.done = false;
    assert_int_equal(job_run(f, &asked), 0); /* the next commit also saves the unsaved row */
    assert_int_equal(store_n_unsaved(f->store), 0);
    store_stats(f->store, &stats);
    assert_int_equal(stats.reason, REASON_NONE);
    fixture_reopen(f);
    assert_non_null(catalog_model(&f->catalog, "seen"));
    assert_non_null(catalog_model(&f->catalog, "asked"));
}

/* -- files that are not what they should be -----------------------------------------------------
 */

static void execute(const char *path, const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void make_newer(const char *path)
{
    execute(path, "PRAGMA user_version = 9999");
}

static void make_foreign(const char *path)
{
    execute(path, "PRAGMA application_id = 42");
}

static void make_foreign_without_a_number(const char *path)
{
    unlink(path);
    execute(path, "CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)");
}

static void make_empty(const char *path)
{
    assert_int_equal(truncate(path, 0), 0);
}

static void make_short(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
}

static void make_text(const char *path)
{
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 1000; i++)
        fputs("this is not a database\n", file);
    fclose(file);
}

static void make_flipped(const char *path)
{
    int fd = open(path, O_RDWR);
    char junk[512];
    memset(junk, 0xa5, sizeof(junk));
    for (off_t at = 4096; at < 40960; at += 4096)
        assert_int_equal(pwrite(fd, junk, sizeof(junk), at), sizeof(junk));
    close(fd);
}

struct damage {
    const char *name;
    void (*make)(const char *path);
    int status;
    const char *text;
};

static const struct damage damages[] = {
    {"newer", make_newer, STATUS_FAILED_PRECONDITION, "9999"},
    {"another program's", make_foreign, STATUS_DATA_LOSS, ""},
    {"another's, unnumbered", make_foreign_without_a_number, STATUS_DATA_LOSS, ""},
    {"empty", make_empty, STATUS_DATA_LOSS, "empty"},
    {"cut", make_short, STATUS_DATA_LOSS, "backup"},
    {"text", make_text, STATUS_DATA_LOSS, "not a database"},
    {"flipped", make_flipped, STATUS_DATA_LOSS, "backup"},
};

static size_t read_file(const char *path, char *out, size_t n_out)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = fread(out, 1, n_out, file);
    assert_true(n < n_out);
    fclose(file);
    return n;
}

static void test_open_when_the_file_is_damaged_then_refused_with_a_way_out(void **state)
{
    static char before[1 << 20], after[1 << 20];
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        struct job job = {.body = job_put_model, .name = "m"};
        struct error err;
        unlink(f->path);
        assert_int_equal(fixture_open(f, &err), 0);
        assert_int_equal(job_run(f, &job), 0);
        fixture_close(f);
        damages[i].make(f->path);
        size_t n_before = read_file(f->path, before, sizeof(before));
        int status = fixture_open(f, &err);
        if (status != damages[i].status || !names_all(err.message, damages[i].text))
            fail_msg("%s: %s: %s", damages[i].name, status_name(status), err.message);
        /* The damaged file is kept for an inspection. */
        assert_int_equal(read_file(f->path, after, sizeof(after)), n_before);
        if (memcmp(before, after, n_before) != 0)
            fail_msg("%s: the file was changed", damages[i].name);
    }
}

/* SQLite reports damage in several ways, also as a length over its limit. */
static void test_what_sqlite_says_is_told_as_what_it_means(void **state)
{
    static const struct {
        int rc, status;
        const char *text;
    } cases[] = {
        {SQLITE_CORRUPT, STATUS_DATA_LOSS, "restore"},
        {SQLITE_NOTADB, STATUS_DATA_LOSS, "restore"},
        {SQLITE_TOOBIG, STATUS_DATA_LOSS, "restore"},
        {SQLITE_FULL, STATUS_RESOURCE_EXHAUSTED, ""},
        {SQLITE_IOERR_READ, STATUS_UNAVAILABLE, "disk"},
        {SQLITE_NOMEM, STATUS_RESOURCE_EXHAUSTED, "memory"},
        {SQLITE_BUSY, STATUS_FAILED_PRECONDITION, ""},
        {SQLITE_CANTOPEN, STATUS_PERMISSION_DENIED, "open"},
        {SQLITE_MISUSE, STATUS_INTERNAL, "(21)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store_db db = {0};
        struct error err;
        errno = 0;
        int status = store_db_error(&db, cases[i].rc, &err);
        if (status != cases[i].status || !names_all(err.message, cases[i].text))
            fail_msg("%d: %s: %s", cases[i].rc, status_name(status), err.message);
    }
}

static void test_open_when_a_creation_was_cut_short_then_starts_anew(void **state)
{
    struct fixture *f = *state;
    char path[128];
    struct error err;
    snprintf(path, sizeof(path), "%s.new", f->path);
    make_text(path);
    assert_int_equal(fixture_open(f, &err), 0);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_schema_when_created_then_strict_and_with_every_column(void **state)
{
    struct fixture *f = *state;
    sqlite3 *db;
    sqlite3_stmt *stmt;
    char sql[256];
    store_close(f->store);
    f->store = NULL;
    assert_int_equal(sqlite3_open(f->path, &db), SQLITE_OK);
    sqlite3_prepare_v2(db,
                       "SELECT count(*) FROM pragma_table_list WHERE schema = 'main' AND "
                       "name NOT LIKE 'sqlite_%' AND strict = 0",
                       -1, &stmt, NULL);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(stmt, 0), 0);
    sqlite3_finalize(stmt);
    for (enum table t = 0; t < N_TABLES; t++) {
        const struct table_spec *spec = table_spec(t);
        snprintf(sql, sizeof(sql), "SELECT count(*) FROM pragma_table_info('%s')", spec->name);
        assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
        size_t n = table_n_columns(spec) + (spec->extra ? 2 : 1);
        if ((size_t)sqlite3_column_int(stmt, 0) != n)
            fail_msg("table %s has %d columns, not %zu", spec->name, sqlite3_column_int(stmt, 0),
                     n);
        sqlite3_finalize(stmt);
    }
    sqlite3_close(db);
}

/* -- the lock -----------------------------------------------------------------------------------
 */

static void test_lock_when_held_then_names_the_holder_and_ends_with_it(void **state)
{
    struct fixture *f = *state;
    struct error err;
    int ready[2], fd = -1;
    char path[128], none[128], holder[32];
    snprintf(path, sizeof(path), "%s/sluice.lock", f->folder);
    snprintf(none, sizeof(none), "%s/none.db", f->folder);
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char c = 'x';
        int lock_fd;
        if (store_lock(path, none, &lock_fd, &err) == 0 && write(ready[1], &c, 1) == 1)
            pause();
        _exit(1);
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(store_lock(path, none, &fd, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_LOCKED);
    snprintf(holder, sizeof(holder), "locked by pid %d", (int)pid);
    assert_non_null(strstr(err.message, holder));
    assert_int_equal(fd, -1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(store_lock(path, none, &fd, &err), 0); /* the kernel has released the lock */
    close(fd);
    close(ready[0]);
    close(ready[1]);
}

/* -- kill ---------------------------------------------------------------------------------------
 */

static void write_until_killed(struct fixture *f, int out_fd)
{
    struct error err;
    if (fixture_open(f, &err) != 0)
        _exit(1);
    for (uint64_t i = f->catalog.generation;; i++) {
        char name[32];
        struct job job = {.body = job_put_model, .name = name, .value = i};
        snprintf(name, sizeof(name), "m%" PRIu64, i);
        if (store_submit(f->store, job_body, job_done, &job, &err) != 0)
            _exit(1);
        while (!job.done) {
            uint64_t n;
            if (read(f->wake_fd, &n, sizeof(n)) != sizeof(n))
                _exit(1);
            store_poll(f->store);
        }
        if (write(out_fd, &i, sizeof(i)) != sizeof(i))
            _exit(1);
    }
}

static void test_kill_when_in_the_middle_then_every_acknowledged_change_is_there(void **state)
{
    struct fixture *f = *state;
    uint64_t n_acknowledged = 0;
    for (int round = 0; round < 8; round++) {
        int fds[2];
        uint64_t i;
        struct error err;
        assert_int_equal(pipe(fds), 0);
        pid_t pid = fork();
        if (pid == 0)
            write_until_killed(f, fds[1]);
        close(fds[1]);
        for (int n = 0; n < 5 + round * 3; n++)
            assert_int_equal(read(fds[0], &i, sizeof(i)), sizeof(i));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        while (read(fds[0], &i, sizeof(i)) == sizeof(i))
            ; /* the pipe still holds changes that were acknowledged before the kill */
        close(fds[0]);
        n_acknowledged = i + 1;
        assert_int_equal(fixture_open(f, &err), 0);
        size_t n_models = catalog_count(&f->catalog, TABLE_MODEL);
        assert_in_range(n_models, n_acknowledged, n_acknowledged + 1);
        assert_int_equal(f->catalog.last_event_seq, n_models); /* rows and events together */
        assert_int_equal(f->catalog.generation, n_models);
        fixture_close(f);
    }
    assert_true(n_acknowledged >= 8 * 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_disk_full_when_changing_then_refused_and_recovers_by_itself, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(test_failures_when_counted_then_by_their_cause,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_disk_full_when_something_was_seen_then_kept_and_written_late, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_the_file_is_damaged_then_refused_with_a_way_out, fixture_setup_folder,
            fixture_teardown),
        cmocka_unit_test(test_what_sqlite_says_is_told_as_what_it_means),
        cmocka_unit_test_setup_teardown(test_open_when_a_creation_was_cut_short_then_starts_anew,
                                        fixture_setup_folder, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_schema_when_created_then_strict_and_with_every_column,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_lock_when_held_then_names_the_holder_and_ends_with_it,
                                        fixture_setup_folder, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_kill_when_in_the_middle_then_every_acknowledged_change_is_there,
            fixture_setup_folder, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
