/* Tests of the state store on a failing disk (tests/support/fault/fault_disk.h). Every write, sync,
 * rename and read fails once, or a few times. The power fails at every step. Power failures also
 * come while a restored, created or migrated database replaces the old one. They also come during
 * recovery from an earlier power failure. After each failure four things hold. Every acknowledged
 * change is in the database (I1). The database is the state after a number of whole changes (I2).
 * Changes that were refused with "nothing was changed" are not there. SQLite finds no damage.
 *
 * SLUICE_CUTS: number of power failures (default 160). SLUICE_SEED: seed of the random numbers; a
 * failing case prints its own. With a planted bug (SLUICE_SEEDED_BUG) a violation is expected. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <ftw.h>
#include <sqlite3.h>

#include "base/log.h"
#include "manager/store/file.h"
#include "manager/store/schema.h"
#include "manager/store/txn.h"
#include "tests/support/fault/fault_disk.h"
#include "tests/unit/manager/store/support_store.h"

enum { N_CHANGES = 9, BIG_BYTES = 20000, MAX_TRIES = 60, MAX_STEPS = 2000 };

/* The life of a database: changes 0, 1, 2, ... in order, each repeated until it is done. */
struct life {
    struct fixture *f;
    uint64_t n_done;    /* acknowledged */
    bool maybe;         /* the last submitted change may be stored or not */
    uint64_t epoch;     /* epoch of the last store that opened */
    bool epoch_unsaved; /* the epoch may not be on disk yet */
    /* stores that opened on a disk that takes no writes */
    uint64_t n_unsaved;
    uint64_t seed, at; /* for the message */
    const char *what;
    char violation[400];
};

static void violated(struct life *life, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void violated(struct life *life, const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!life->violation[0])
        snprintf(life->violation, sizeof(life->violation),
                 "%s, step %" PRIu64 ", seed %" PRIu64 ": %s", life->what, life->at, life->seed,
                 text);
}

/* -- changes ------------------------------------------------------------------------------------
 */

static int put_device(struct txn *txn, uint64_t i, struct error *err)
{
    Sluice__V1__Device *device = MESSAGE_NEW(Sluice__V1__Device, sluice__v1__device__descriptor);
    char name[16], *text = malloc(BIG_BYTES + 1);
    snprintf(name, sizeof(name), "cuda:%d", (int)(i % 3));
    memset(text, 'a' + (int)(i % 26), BIG_BYTES);
    text[BIG_BYTES] = '\0';
    assert_true(message_set(&device->name, name) && message_set(&device->description, text));
    free(text);
    return txn_put(txn, TABLE_DEVICE, &device->base, err);
}

/* Makes change i. A model is created and the third before is deleted. Sometimes a large row is
 * replaced. Writes an event, a number, and the answer by request id. */
static int change(struct txn *txn, struct job *job, struct error *err)
{
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    Sluice__Manager__V1__DeleteModelVersionResponse response =
        SLUICE__MANAGER__V1__DELETE_MODEL_VERSION_RESPONSE__INIT;
    char name[32], gone[32];
    uint64_t i = job->value, n;
    snprintf(name, sizeof(name), "m%" PRIu64, i);
    request.model = name;
    job->name = name;
    if (txn_idempotency_find(txn, job->request_id, "Test", &request.base, response.base.descriptor,
                             &job->response, err) != 0)
        return err->status;
    if (job->response)
        return 0;
    snprintf(gone, sizeof(gone), "m%" PRIu64, i - 3);
    if (job_put_model(txn, job, err) != 0 ||
        (i >= 3 && txn_delete(txn, TABLE_MODEL, gone, err) != 0) ||
        (i % 4 == 1 && put_device(txn, i, err) != 0) || txn_next(txn, "change", &n, err) != 0)
        return err->status;
    assert_int_equal(n, i + 1);
    return txn_idempotency_record(txn, job->request_id, "Test", &request.base, &response.base, err);
}

/* Submits the next change once. */
static int ask(struct life *life)
{
    char id[32];
    struct job job = {.body = change, .request_id = id, .value = life->n_done};
    snprintf(id, sizeof(id), "q%" PRIu64, life->n_done);
    int status = job_run(life->f, &job);
    message_free(job.response);
    if (status == 0) {
        if (job.response && !life->maybe)
            violated(life, "change %" PRIu64 " was refused and is there", life->n_done);
        life->n_done++;
        life->maybe = false;
        life->epoch_unsaved = false; /* the epoch is written before any change */
    } else if (job.status.reason == REASON_STATE_STORE_UNKNOWN) {
        life->maybe = true;
    } else if (job.status.reason != REASON_STATE_STORE_FULL &&
               job.status.reason != REASON_STATE_STORE_IO) {
        violated(life, "change %" PRIu64 ": %s: %s", life->n_done, error_reason_name(&job.status),
                 job.status.message);
    }
    return status;
}

/* --- invariants --- */

/* Checks that the loop's catalog is the state after n changes. */
static void check_catalog(struct life *life)
{
    const struct catalog *catalog = &life->f->catalog;
    uint64_t n = catalog->last_event_seq;
    if (n < life->n_done)
        violated(life, "%" PRIu64 " changes were acknowledged, %" PRIu64 " are there", life->n_done,
                 n);
    if (n > life->n_done + life->maybe)
        violated(life, "%" PRIu64 " changes are there, %" PRIu64 " were acknowledged%s", n,
                 life->n_done, life->maybe ? " and one left open" : ", and the next refused");
    /* An epoch that is saved late is a commit of its own. */
    if (catalog->generation < n || catalog->generation > n + life->n_unsaved)
        violated(life, "generation %" PRIu64 " with %" PRIu64 " events", catalog->generation, n);
    if (catalog_count(catalog, TABLE_MODEL) != (n < 3 ? n : 3))
        violated(life, "%zu models after %" PRIu64 " changes", catalog_count(catalog, TABLE_MODEL),
                 n);
    for (uint64_t i = n < 3 ? 0 : n - 3; i < n; i++) {
        char name[32];
        snprintf(name, sizeof(name), "m%" PRIu64, i);
        const pb_model *model = catalog_model(catalog, name);
        if (!model || model->generation != i)
            violated(life, "model %s is not as change %" PRIu64 " left it", name, i);
    }
    for (uint64_t i = n; i-- > 0 && n - i <= 9;) {
        char name[16];
        snprintf(name, sizeof(name), "cuda:%d", (int)(i % 3));
        const pb_device *device = i % 4 == 1 ? catalog_device(catalog, name) : NULL;
        bool replaced = i + 12 < n;
        if (i % 4 == 1 && !replaced &&
            (!device || strlen(device->description) != BIG_BYTES ||
             device->description[0] != 'a' + (int)(i % 26)))
            violated(life, "device %s is not as change %" PRIu64 " left it", name, i);
    }
    life->n_done = n;
    life->maybe = false;
}

static sqlite3 *open_raw(const char *path)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, "PRAGMA locking_mode = EXCLUSIVE", NULL, NULL, NULL);
    return db;
}

static int64_t number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *stmt;
    int64_t value = -1;
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW)
        value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return value;
}

/* Checks the file while no store is open. */
static void check_file(struct life *life)
{
    sqlite3 *db = open_raw(life->f->path);
    int64_t n = (int64_t)life->n_done;
    if (number(db, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'") !=
        0)
        violated(life, "integrity_check is not ok: %s", sqlite3_errmsg(db));
    if (number(db, "SELECT count(*) FROM pragma_foreign_key_check") != 0)
        violated(life, "foreign keys are broken");
    if (number(db, "SELECT count(*) FROM event") != n ||
        number(db, "SELECT coalesce(max(seq), 0) FROM event") != n)
        violated(life, "events are not 1 to %" PRId64, n);
    if (number(db, "SELECT count(*) FROM idempotency") != n)
        violated(life, "%" PRId64 " answers are kept, not %" PRId64,
                 number(db, "SELECT count(*) FROM idempotency"), n);
    if (n && number(db, "SELECT value FROM meta WHERE name = 'change'") != n)
        violated(life, "the counter is not %" PRId64, n);
    sqlite3_close(db);
}

/* -- a life -------------------------------------------------------------------------------------
 */

static int open_store(struct life *life)
{
    struct error err;
    struct store_stats stats;
    int status = fixture_open(life->f, &err);
    if (status != 0) {
        if (err.reason == REASON_STATE_STORE_DAMAGED)
            violated(life, "cannot be opened: %s", err.message);
        return status;
    }
    if (life->f->catalog.manager_epoch < life->epoch + !life->epoch_unsaved)
        violated(life, "epoch %" PRIu64 " came again", life->f->catalog.manager_epoch);
    life->epoch = life->f->catalog.manager_epoch;
    store_stats(life->f->store, &stats);
    life->epoch_unsaved = stats.reason != REASON_NONE;
    life->n_unsaved += life->epoch_unsaved;
    check_catalog(life);
    return 0;
}

/* Opens the store, makes changes and closes it, twice. Gives up at the first failure unless
 * `stubborn`. */
static bool live(struct life *life, uint64_t n_changes, bool stubborn)
{
    for (int round = 0; round < 2; round++) {
        int n_tries = 0;
        while (open_store(life) != 0)
            if (!stubborn || life->violation[0] || ++n_tries == MAX_TRIES)
                return false;
        uint64_t until = life->n_done + n_changes;
        for (n_tries = 0; life->n_done < until && !life->violation[0];)
            if (ask(life) != 0 && (!stubborn || ++n_tries == MAX_TRIES))
                return false;
        fixture_close(life->f);
    }
    return true;
}

/* Checks without faults that the store has the right content and accepts changes. */
static void verify(struct life *life)
{
    fixture_close(life->f);
    fault_disk_plan(FAULT_NONE, 0, 0);
    if (life->violation[0])
        return;
    if (open_store(life) != 0) {
        violated(life, "cannot be opened again");
        return;
    }
    for (int i = 0; i < 2; i++)
        if (ask(life) != 0)
            violated(life, "takes no changes");
    fixture_close(life->f);
    check_file(life);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    return ftw->level > 0 ? remove(path) : 0;
}

static void begin(struct life *life, struct fixture *f, const char *what, uint64_t seed,
                  uint64_t at)
{
    *life = (struct life){.f = f, .what = what, .seed = seed, .at = at};
    nftw(f->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    fault_disk_begin(f->folder, seed);
}

/* Sometimes cuts the power again while the store recovers from a cut. */
static void recover_with_cuts(struct life *life)
{
    fixture_close(life->f);
    fault_disk_cut();
    for (int i = 0; i < 3 && fault_disk_random(3) == 0; i++) {
        fault_disk_plan(FAULT_CUT, 1 + fault_disk_random(8), 1);
        if (open_store(life) == 0)
            ask(life);
        life->maybe = life->maybe || fault_disk_struck();
        fixture_close(life->f);
        fault_disk_cut();
    }
    verify(life);
}

static uint64_t seed_of_run(void)
{
    const char *text = getenv("SLUICE_SEED");
    return text ? strtoull(text, NULL, 10) : 20261124;
}

static uint64_t n_cuts_wanted(void)
{
    const char *text = getenv("SLUICE_CUTS");
    return text ? strtoull(text, NULL, 10) : 160;
}

/* Without SLUICE_CUTS, tests every third step only; another seed tests another third. */
static uint64_t stride(void)
{
    return getenv("SLUICE_CUTS") ? 1 : 3;
}

/* -- tests --------------------------------------------------------------------------------------
 */

static const char *planted;
static uint64_t n_violations;

/* Returns true when the violation of a planted bug was seen. */
static bool enough(void)
{
    return planted && n_violations;
}

static void settle_case(struct life *life)
{
    n_violations += life->violation[0] != '\0';
    fault_disk_end();
    if (life->violation[0] && !planted)
        fail_msg("%s", life->violation);
}

/* Returns whether the cut came before the end. */
static bool cut_once(struct fixture *f, uint64_t seed, uint64_t at)
{
    struct life life;
    begin(&life, f, "cut", seed, at);
    fault_disk_plan(FAULT_CUT, at, 1);
    live(&life, N_CHANGES, false);
    bool struck = fault_disk_struck();
    life.maybe = life.maybe || struck; /* the caller got no answer */
    recover_with_cuts(&life);
    settle_case(&life);
    return struck && !enough();
}

static void test_cut_when_at_each_step_then_acknowledged_changes_are_there(void **state)
{
    uint64_t seed = seed_of_run(), n_wanted = n_cuts_wanted(), n_cuts = 0;
    while (n_cuts < n_wanted && !enough()) {
        uint64_t n_before = n_cuts;
        for (uint64_t at = 1; at < MAX_STEPS && n_cuts < n_wanted && cut_once(*state, seed++, at);
             at += stride())
            n_cuts++;
        assert_true(n_cuts > n_before);
    }
    printf("%" PRIu64 " power cuts, seeds %" PRIu64 " to %" PRIu64 ", %" PRIu64 " violations\n",
           n_cuts, seed_of_run(), seed - 1, n_violations);
}

struct failing {
    const char *name;
    enum fault fault;
    int n_rounds; /* a run has few syncs, and the effect of a failed one is random */
};

static const struct failing failings[] = {
    {"EIO", FAULT_EIO, 1},
    {"no room", FAULT_FULL, 1},
    {"no room for a sync", FAULT_SYNC_FULL, 10},
    {"torn", FAULT_TORN, 1},
    {"read", FAULT_READ, 1},
};

/* Lets one to many operations fail from step `at` on. Then, in turn, the process continues,
 * restarts, or loses power. */
static bool fail_once(struct fixture *f, const struct failing *failing, uint64_t seed, uint64_t at)
{
    static const uint64_t times[] = {1, 1, 2, 3, 5, 20};
    struct life life;
    begin(&life, f, failing->name, seed, at);
    uint64_t n_times = times[fault_disk_random(sizeof(times) / sizeof(times[0]))];
    uint64_t then = fault_disk_random(3);
    fault_disk_plan(failing->fault, at, n_times);
    bool whole = live(&life, 4, then == 0);
    bool struck = fault_disk_struck();
    if (then == 0 && !whole)
        violated(&life, "does not recover by itself");
    if (then == 2)
        recover_with_cuts(&life);
    else
        verify(&life);
    settle_case(&life);
    return struck && !enough();
}

static void test_failure_when_at_each_step_then_refused_or_done_and_recovers(void **state)
{
    uint64_t seed = seed_of_run() + 1000000;
    for (size_t i = 0; i < sizeof(failings) / sizeof(failings[0]); i++) {
        uint64_t n = 0;
        for (int round = 0; round < failings[i].n_rounds; round++)
            for (uint64_t at = 1 + seed % stride();
                 at < MAX_STEPS && fail_once(*state, &failings[i], seed++, at); at += stride())
                n++;
        printf("%s: %" PRIu64 " places\n", failings[i].name, n);
        assert_true(n > 5 || enough());
    }
}

/* -- migrations ---------------------------------------------------------------------------------
 */

static void make_older(const char *path, size_t version)
{
    char sql[200];
    sqlite3 *db = open_raw(path);
    sqlite3_exec(db, "PRAGMA journal_mode = WAL; BEGIN", NULL, NULL, NULL);
    for (size_t i = 0; i < version; i++)
        assert_int_equal(sqlite3_exec(db, schema_migration(i), NULL, NULL, NULL), SQLITE_OK);
    snprintf(sql, sizeof(sql),
             "PRAGMA application_id = %d; PRAGMA user_version = %zu;"
             "INSERT INTO model VALUES ('old', 7, 8, x''); COMMIT",
             SCHEMA_APPLICATION_ID, version);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static char found_copy[256];
static int n_copies;

static int find_copy(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    const char *end = strrchr(path, '.');
    if (type == FTW_F && strstr(path, "/backup/schema") && end && strcmp(end, ".db") == 0) {
        snprintf(found_copy, sizeof(found_copy), "%s", path);
        n_copies++;
    }
    return 0;
}

/* The schema is the old or the new one, never a mixture. With a new schema, a whole copy of the old
 * database exists. */
static void check_schema(struct life *life, size_t from)
{
    int64_t n = (int64_t)schema_n_migrations();
    n_copies = 0;
    nftw(life->f->folder, find_copy, 16, FTW_PHYS);
    sqlite3 *db = open_raw(life->f->path);
    int64_t version = number(db, "PRAGMA user_version");
    int64_t n_tables = number(
        db, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'");
    sqlite3 *plain = NULL;
    assert_int_equal(sqlite3_open(":memory:", &plain), SQLITE_OK);
    for (int64_t i = 0; i < version; i++)
        sqlite3_exec(plain, schema_migration((size_t)i), NULL, NULL, NULL);
    int64_t n_wanted = number(
        plain,
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'");
    sqlite3_close(plain);
    if ((version != n && version != (int64_t)from) || n_tables != n_wanted)
        violated(life, "schema %" PRId64 " with %" PRId64 " tables", version, n_tables);
    if (number(db, "SELECT generation FROM model WHERE name = 'old'") != 7)
        violated(life, "a row of schema %zu is lost", from);
    if (number(db, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'") !=
        0)
        violated(life, "integrity_check is not ok");
    sqlite3_close(db);
    if (version == n && !n_copies) {
        violated(life, "schema %" PRId64 " without a copy of the old", version);
    } else if (n_copies) {
        db = open_raw(found_copy);
        if (number(db, "PRAGMA user_version") != (int64_t)from ||
            number(db, "SELECT generation FROM model") != 7)
            violated(life, "the copy is not of schema %zu", from);
        sqlite3_close(db);
    }
}

static bool migrate_once(struct fixture *f, size_t from, enum fault fault, uint64_t seed,
                         uint64_t at)
{
    struct life life;
    struct error err;
    begin(&life, f, fault == FAULT_CUT ? "cut in a migration" : "failure in a migration", seed, at);
    make_older(f->path, from);
    fault_disk_begin(f->folder, seed); /* on the disk */
    fault_disk_plan(fault, at, 1);
    int status = fixture_open(f, &err);
    bool struck = fault_disk_struck();
    fixture_close(f);
    if (fault == FAULT_CUT)
        fault_disk_cut();
    fault_disk_plan(FAULT_NONE, 0, 0);
    if (status != 0 && !struck)
        violated(&life, "not opened: %s", err.message);
    check_schema(&life, from);
    if (!life.violation[0] && fixture_open(f, &err) != 0)
        violated(&life, "not opened again: %s", err.message);
    else if (!catalog_model(&f->catalog, "old"))
        violated(&life, "the old row is lost");
    fixture_close(f);
    check_schema(&life, from);
    settle_case(&life);
    return struck && !enough();
}

static void test_migration_when_cut_or_failing_at_each_step_then_old_or_new(void **state)
{
    static const enum fault faults[] = {FAULT_CUT,  FAULT_CUT,  FAULT_EIO,
                                        FAULT_FULL, FAULT_TORN, FAULT_SYNC_FULL};
    uint64_t seed = seed_of_run() + 2000000, n = 0;
    assert_true(schema_n_migrations() > 1);
    size_t from = schema_n_migrations() - 1;
    for (uint64_t round = 0; round < 1 + n_cuts_wanted() / 1000; round++)
        for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
            for (uint64_t at = 1; migrate_once(*state, i ? from : 1, faults[i], seed++, at);
                 at += i ? stride() : 1)
                n++;
    printf("%" PRIu64 " migrations with a cut or a failure\n", n);
    assert_true(n > 50 || enough());
}

/* -- restores -----------------------------------------------------------------------------------
 */

/* A database of 2 changes was backed up; 3 more were made; the backup is taken as the database. */
static bool restore_once(struct fixture *f, uint64_t seed, uint64_t at)
{
    struct life life;
    struct error err;
    char copy[128], aside[256];
    begin(&life, f, "cut in a restore", seed, at);
    snprintf(copy, sizeof(copy), "%s%s", f->path, store_file_restored);
    assert_int_equal(open_store(&life), 0);
    ask(&life);
    ask(&life);
    fixture_close(f);
    sqlite3 *db = open_raw(f->path);
    assert_int_equal(store_file_copy(db, copy, &err), 0);
    sqlite3_close(db);
    char later[160];
    snprintf(later, sizeof(later), "%s.later", copy);
    assert_int_equal(rename(copy, later), 0);
    assert_int_equal(store_file_sync_folder(later, &err), 0);
    assert_int_equal(open_store(&life), 0);
    for (int i = 0; i < 3; i++)
        ask(&life);
    if (fault_disk_random(2)) { /* with a log, as a killed manager leaves it */
        fault_disk_plan(FAULT_CUT, 1, UINT64_MAX);
        fixture_close(f);
        fault_disk_cut();
    } else {
        fixture_close(f);
    }
    assert_int_equal(rename(later, copy), 0);
    assert_int_equal(store_file_sync_folder(copy, &err), 0);
    fault_disk_plan(FAULT_CUT, at, 1);
    store_file_finish_restore(f->path, aside, sizeof(aside), &err);
    bool struck = fault_disk_struck();
    if (struck)
        fault_disk_cut();
    fault_disk_plan(FAULT_NONE, 0, 0);
    life.n_done = 2;
    life.maybe = false;
    life.epoch = 0;
    verify(&life);
    settle_case(&life);
    return struck && !enough();
}

static void test_restore_when_cut_at_each_step_then_the_backup_is_the_database(void **state)
{
    uint64_t seed = seed_of_run() + 3000000, n = 0;
    for (int round = 0; round < 4; round++)
        for (uint64_t at = 1; restore_once(*state, seed++, at); at++)
            n++;
    printf("%" PRIu64 " restores with a cut\n", n);
    assert_true(n > 10 || enough());
}

/* Observed state is valid though the disk fails, and is written without a request when the disk
 * recovers. */
static void test_failure_when_something_was_seen_then_kept_and_written_by_itself(void **state)
{
    struct fixture *f = *state;
    struct life life;
    struct error err;
    struct store_stats stats;
    struct job seen = {.body = job_put_model, .name = "seen"};
    begin(&life, f, "seen", seed_of_run(), 1);
    assert_int_equal(fixture_open(f, &err), 0);
    fault_disk_plan(FAULT_EIO, 1, UINT64_MAX);
    assert_int_equal(store_submit_seen(f->store, job_body, job_done, &seen, &err), 0);
    assert_int_equal(job_wait(f, &seen), 0);
    assert_non_null(catalog_model(&f->catalog, "seen"));
    store_stats(f->store, &stats);
    assert_true(reason_facts(stats.reason)->area == REASON_OF_STORE);
    assert_int_equal(store_n_unsaved(f->store), 1);
    fault_disk_plan(FAULT_NONE, 0, 0);
    for (int i = 0; stats.reason && i < 2000; i++) { /* as the supervisor does, twice a second */
        store_flush(f->store);
        store_poll(f->store);
        usleep(5000);
        store_stats(f->store, &stats);
    }
    assert_int_equal(stats.reason, REASON_NONE);
    assert_int_equal(store_n_unsaved(f->store), 0);
    fixture_reopen(f);
    assert_non_null(catalog_model(&f->catalog, "seen"));
    fixture_close(f);
    fault_disk_end();
}

/* A later write may follow from observed state, so it is never on disk without that state. Symptom:
 * an unload was recorded as done, and its stopped replica as draining. */
static void
test_failure_when_something_seen_is_unsaved_then_nothing_is_written_without_it(void **state)
{
    struct fixture *f = *state;
    struct life life;
    struct error err;
    bool struck = true;
    for (uint64_t at = 1; struck; at++) {
        struct job seen = {.body = job_put_model, .name = "seen"};
        struct job follows = {.body = job_put_model, .name = "follows"};
        begin(&life, f, "seen, then a change", seed_of_run(), at);
        assert_int_equal(fixture_open(f, &err), 0);
        fault_disk_plan(FAULT_EIO, 1, UINT64_MAX);
        assert_int_equal(store_submit_seen(f->store, job_body, job_done, &seen, &err), 0);
        assert_int_equal(job_wait(f, &seen), 0);
        fault_disk_plan(FAULT_EIO, at, 1);
        int status = job_run(f, &follows);
        struck = fault_disk_struck();
        assert_true(struck || status == 0);
        fault_disk_plan(FAULT_NONE, 0, 0);
        fixture_reopen(f);
        if (catalog_model(&f->catalog, "follows"))
            assert_non_null(catalog_model(&f->catalog, "seen"));
        fixture_close(f);
        fault_disk_end();
    }
}

static int setup(void **state)
{
    planted = getenv("SLUICE_SEEDED_BUG");
    if (fixture_setup_folder(state) != 0)
        return -1;
    struct fixture *f = *state;
    char folder[] = "/dev/shm/sluice-store-XXXXXX"; /* the model needs no real disk */
    if (!mkdtemp(folder))
        return 0;
    rmdir(f->folder);
    snprintf(f->folder, sizeof(f->folder), "%s", folder);
    snprintf(f->path, sizeof(f->path), "%s/sluice.db", f->folder);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    nftw(f->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return fixture_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_migration_when_cut_or_failing_at_each_step_then_old_or_new, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_restore_when_cut_at_each_step_then_the_backup_is_the_database, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_cut_when_at_each_step_then_acknowledged_changes_are_there, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_failure_when_at_each_step_then_refused_or_done_and_recovers, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_failure_when_something_was_seen_then_kept_and_written_by_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_failure_when_something_seen_is_unsaved_then_nothing_is_written_without_it, setup,
            teardown),
    };
    log_init("test", LOG_LEVEL_ERROR, LOG_FORMAT_KV);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (!getenv("SLUICE_SEEDED_BUG"))
        return rc;
    printf("planted bug: %" PRIu64 " violations\n", n_violations);
    return n_violations ? 0 : 1;
}
