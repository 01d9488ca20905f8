/* The state store: transactions whole or not at all, answers by request id, counters, events, disks
 * that are full, files that are damaged or newer, and what a kill leaves. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/error.h"
#include "manager/message.h"
#include "manager/schema.h"
#include "manager/store.h"
#include "manager/store_lock.h"

struct fixture {
    char folder[64];
    char path[96];
    struct store *store;
    struct catalog catalog;
    int wake_fd;
};

static void wake(void *arg)
{
    struct fixture *f = arg;
    uint64_t one = 1;
    ssize_t n = write(f->wake_fd, &one, sizeof(one));
    (void)n;
}

static int open_store(struct fixture *f, struct error *err)
{
    struct store_config config = {.path = f->path, .wake = wake, .wake_arg = f};
    return store_open(&config, &f->catalog, &f->store, err);
}

static void reopen(struct fixture *f)
{
    struct error err;
    store_close(f->store);
    f->store = NULL;
    catalog_fini(&f->catalog);
    assert_int_equal(open_store(f, &err), 0);
}

static int setup_folder(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    snprintf(f->folder, sizeof(f->folder), "/tmp/sluice-store-XXXXXX");
    if (!f || !mkdtemp(f->folder))
        return -1;
    snprintf(f->path, sizeof(f->path), "%s/sluice.db", f->folder);
    f->wake_fd = eventfd(0, EFD_CLOEXEC);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    struct error err;
    return setup_folder(state) == 0 ? open_store(*state, &err) : -1;
}

static int teardown(void **state)
{
    static const char *const names[] = {"sluice.db",     "sluice.db-wal",     "sluice.db-shm",
                                        "sluice.db.new", "sluice.db.new-wal", "sluice.lock"};
    struct fixture *f = *state;
    char path[128];
    store_close(f->store);
    catalog_fini(&f->catalog);
    close(f->wake_fd);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, names[i]);
        unlink(path);
    }
    rmdir(f->folder);
    free(f);
    return 0;
}

/* -- jobs ---------------------------------------------------------------------------------------
 */

struct job {
    int (*body)(struct txn *txn, struct job *job, struct error *err);
    const char *name;
    const char *request_id;
    uint64_t value;
    ProtobufCMessage *response;
    bool done;
    struct error status;
};

static int run_job(struct txn *txn, void *arg, struct error *err)
{
    struct job *job = arg;
    return job->body(txn, job, err);
}

static void job_done(void *arg, const struct error *status)
{
    struct job *job = arg;
    job->done = true;
    job->status = *status;
}

static int finish(struct fixture *f, struct job *job)
{
    while (!job->done) {
        struct pollfd fd = {.fd = f->wake_fd, .events = POLLIN};
        uint64_t n;
        assert_int_equal(poll(&fd, 1, 20000), 1);
        assert_int_equal(read(f->wake_fd, &n, sizeof(n)), sizeof(n));
        store_poll(f->store);
    }
    return job->status.status;
}

static int run(struct fixture *f, struct job *job)
{
    struct error err;
    job->done = false;
    assert_int_equal(store_submit(f->store, run_job, job_done, job, &err), 0);
    return finish(f, job);
}

static pb_model *new_model(const char *name, uint64_t generation)
{
    pb_model *model = MESSAGE_NEW(pb_model, sluice__manager__v1__model__descriptor);
    assert_true(message_set(&model->name, name));
    model->generation = generation;
    return model;
}

static int put_model(struct txn *txn, struct job *job, struct error *err)
{
    struct txn_event event = {.type = "model.registered", .model = job->name};
    if (txn_put(txn, TABLE_MODEL, &new_model(job->name, job->value)->base, err) != 0)
        return err->status;
    return txn_event(txn, &event, err);
}

static int put_then_fail(struct txn *txn, struct job *job, struct error *err)
{
    uint64_t n;
    if (put_model(txn, job, err) != 0 || txn_next(txn, "replica", &n, err) != 0 ||
        txn_delete(txn, TABLE_MODEL, "kept", err) != 0)
        return err->status;
    assert_non_null(catalog_model(txn_catalog(txn), job->name)); /* it sees its own writes */
    assert_null(catalog_model(txn_catalog(txn), "kept"));
    return error_set(err, STATUS_ABORTED, "on purpose");
}

static int next_value(struct txn *txn, struct job *job, struct error *err)
{
    return txn_next(txn, "replica", &job->value, err);
}

/* -- tests --------------------------------------------------------------------------------------
 */

static void test_put_when_reopened_then_every_field_is_back(void **state)
{
    struct fixture *f = *state;
    struct job job = {.body = put_model, .name = "m", .value = 7};
    assert_int_equal(run(f, &job), 0);
    assert_int_equal(catalog_model(&f->catalog, "m")->generation, 7);
    assert_int_equal(f->catalog.generation, 1);
    assert_int_equal(f->catalog.last_event_seq, 1);
    uint64_t epoch = f->catalog.manager_epoch;
    reopen(f);
    assert_int_equal(catalog_model(&f->catalog, "m")->generation, 7);
    assert_int_equal(f->catalog.generation, 1);
    assert_int_equal(f->catalog.last_event_seq, 1);
    assert_int_equal(f->catalog.manager_epoch, epoch + 1);
}

static int put_everything(struct txn *txn, struct job *job, struct error *err)
{
    pb_version *version = MESSAGE_NEW(pb_version, sluice__manager__v1__model_version__descriptor);
    pb_operation *operation = MESSAGE_NEW(pb_operation, sluice__manager__v1__operation__descriptor);
    (void)job;
    if (txn_put(txn, TABLE_MODEL, &new_model("m", 1)->base, err) != 0)
        return err->status;
    assert_true(message_set(&version->model, "m"));
    assert_true(message_set(&version->version, "1"));
    assert_true(message_set(&version->path, "/models/m.gguf"));
    version->sequence = UINT64_MAX / 3;
    version->info = MESSAGE_NEW(pb_info, sluice__v1__model_info__descriptor);
    assert_true(message_set(&version->info->architecture, "llama"));
    version->info->has_bos_token_id = 1;
    version->config = MESSAGE_NEW(pb_config, sluice__manager__v1__model_config__descriptor);
    version->config->has_kv_tokens = 1;
    version->config->kv_tokens = 4096;
    if (txn_put(txn, TABLE_MODEL_VERSION, &version->base, err) != 0)
        return err->status;
    assert_true(message_set(&operation->id, "o12"));
    operation->kind = (Sluice__Manager__V1__OperationKind)OPERATION_UNLOAD;
    operation->state = (Sluice__Manager__V1__OperationState)OPERATION_RUNNING;
    char *replica = strdup("r3");
    assert_true(message_append(&operation->n_replica_ids, &operation->replica_ids, replica));
    return txn_put_extra(txn, TABLE_OPERATION, &operation->base, 1234, err);
}

static void test_put_when_nested_and_repeated_fields_then_they_are_back_too(void **state)
{
    struct fixture *f = *state;
    struct job job = {.body = put_everything};
    assert_int_equal(run(f, &job), 0);
    reopen(f);
    const pb_version *version = catalog_version(&f->catalog, "m", "1");
    assert_string_equal(version->path, "/models/m.gguf");
    assert_true(version->sequence == UINT64_MAX / 3);
    assert_string_equal(version->info->architecture, "llama");
    assert_true(version->info->has_bos_token_id);
    assert_int_equal(version->config->kv_tokens, 4096);
    const pb_operation *operation = catalog_operation(&f->catalog, "o12");
    assert_int_equal(operation->kind, OPERATION_UNLOAD);
    assert_int_equal(operation->n_replica_ids, 1);
    assert_string_equal(operation->replica_ids[0], "r3");
    assert_int_equal(row_extra(catalog_get(&f->catalog, TABLE_OPERATION, "o12")), 1234);
}

static void test_transaction_when_it_fails_then_nothing_of_it_stays(void **state)
{
    struct fixture *f = *state;
    struct job kept = {.body = put_model, .name = "kept", .value = 1};
    struct job failing = {.body = put_then_fail, .name = "lost", .value = 1};
    struct job counter = {.body = next_value};
    assert_int_equal(run(f, &kept), 0);
    assert_int_equal(run(f, &failing), STATUS_ABORTED);
    for (int again = 0; again < 2; again++) {
        assert_null(catalog_model(&f->catalog, "lost"));
        assert_non_null(catalog_model(&f->catalog, "kept"));
        assert_int_equal(f->catalog.generation, 1);
        assert_int_equal(f->catalog.last_event_seq, 1);
        reopen(f);
    }
    assert_int_equal(run(f, &counter), 0);
    assert_int_equal(counter.value, 1); /* the failed one's number was given back */
}

static int put_orphan(struct txn *txn, struct job *job, struct error *err)
{
    pb_replica *replica = MESSAGE_NEW(pb_replica, sluice__manager__v1__replica__descriptor);
    (void)job;
    assert_true(message_set(&replica->id, "r1"));
    assert_true(message_set(&replica->model, "nobody"));
    assert_true(message_set(&replica->version, "1"));
    replica->state = (Sluice__Manager__V1__ReplicaState)REPLICA_PENDING;
    return txn_put(txn, TABLE_REPLICA, &replica->base, err);
}

static void test_put_when_a_foreign_key_is_missing_then_refused(void **state)
{
    struct fixture *f = *state;
    struct job job = {.body = put_orphan};
    assert_int_equal(run(f, &job), STATUS_INTERNAL);
    assert_non_null(strstr(job.status.message, "FOREIGN KEY"));
    assert_null(catalog_replica(&f->catalog, "r1"));
}

/* -- request ids */

static int once(struct txn *txn, struct job *job, struct error *err)
{
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    Sluice__Manager__V1__DeleteModelVersionResponse response =
        SLUICE__MANAGER__V1__DELETE_MODEL_VERSION_RESPONSE__INIT;
    char name[32];
    snprintf(name, sizeof(name), "%s", job->name);
    request.model = name;
    if (txn_idempotency_find(txn, job->request_id, "Test", &request.base, response.base.descriptor,
                             &job->response, err) != 0)
        return err->status;
    if (job->response)
        return 0;
    job->value = 1; /* the work was done */
    response.model_deleted = 1;
    if (put_model(txn, job, err) != 0)
        return err->status;
    return txn_idempotency_record(txn, job->request_id, "Test", &request.base, &response.base, err);
}

static void test_request_id_when_used_again_then_answered_again_and_done_once(void **state)
{
    struct fixture *f = *state;
    struct job first = {.body = once, .name = "a", .request_id = "id-1"};
    struct job again = first, other = first, empty = first;
    assert_int_equal(run(f, &first), 0);
    assert_null(first.response);
    reopen(f);
    assert_int_equal(run(f, &again), 0);
    assert_int_equal(again.value, 0);
    assert_non_null(again.response);
    assert_true(((Sluice__Manager__V1__DeleteModelVersionResponse *)again.response)->model_deleted);
    message_free(again.response);
    other.name = "b";
    assert_int_equal(run(f, &other), STATUS_INVALID_ARGUMENT);
    assert_string_equal(other.status.reason, "REQUEST_ID_REUSED");
    assert_string_equal(other.status.field, "request_id");
    for (int i = 0; i < 2; i++) {
        empty.request_id = "";
        empty.value = 0;
        assert_int_equal(run(f, &empty), 0);
        assert_int_equal(empty.value, 1); /* no id: done each time */
    }
}

static void test_events_when_many_then_numbered_without_gaps(void **state)
{
    struct fixture *f = *state;
    sqlite3 *db;
    sqlite3_stmt *stmt;
    for (int i = 0; i < 50; i++) {
        struct job good = {.body = put_model, .name = "m", .value = (uint64_t)i};
        struct job bad = {.body = put_then_fail, .name = "x"};
        assert_int_equal(run(f, &good), 0);
        assert_int_equal(run(f, &bad), STATUS_ABORTED);
    }
    assert_int_equal(f->catalog.last_event_seq, 50);
    store_close(f->store);
    f->store = NULL;
    assert_int_equal(sqlite3_open(f->path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(db, "SELECT count(*), min(seq), max(seq) FROM event", -1, &stmt, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(stmt, 0), 50);
    assert_int_equal(sqlite3_column_int(stmt, 1), 1);
    assert_int_equal(sqlite3_column_int(stmt, 2), 50);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
}

struct reading {
    uint64_t from_seq;
    struct row *rows[32];
    size_t n_rows;
    bool done;
};

static int read_events(struct txn *txn, void *arg, struct error *err)
{
    struct reading *reading = arg;
    return txn_read_events(txn, reading->from_seq, 32, reading->rows, &reading->n_rows, err);
}

static void reading_done(void *arg, const struct error *status)
{
    assert_int_equal(status->status, 0);
    ((struct reading *)arg)->done = true;
}

static void count_event(void *arg, struct row *row)
{
    uint64_t *last = arg;
    uint64_t seq = ((const pb_event *)row_message(row))->seq;
    assert_true(seq == *last + 1);
    *last = seq;
}

static void test_events_when_read_then_in_order_and_as_many_as_kept(void **state)
{
    struct fixture *f = *state;
    struct error err;
    uint64_t told = 0;
    struct store_config config = {.path = f->path,
                                  .max_events = 150,
                                  .wake = wake,
                                  .wake_arg = f,
                                  .on_event = count_event,
                                  .event_arg = &told};
    store_close(f->store);
    catalog_fini(&f->catalog);
    assert_int_equal(store_open(&config, &f->catalog, &f->store, &err), 0);
    for (uint64_t i = 0; i < 320; i++) {
        struct job job = {.body = put_model, .name = "m", .value = i};
        assert_int_equal(run(f, &job), 0);
    }
    assert_true(told == 320 && f->catalog.last_event_seq == 320);
    assert_true(f->catalog.first_event_seq == 151); /* of 300, when last tidied */
    for (uint64_t from = 100; from <= 330; from += 115) {
        struct reading reading = {.from_seq = from};
        assert_int_equal(store_submit(f->store, read_events, reading_done, &reading, &err), 0);
        while (!reading.done)
            store_poll(f->store);
        uint64_t first = from < 151 ? 151 : from, n = 320 - first + 1;
        assert_int_equal(reading.n_rows, from > 320 ? 0 : n < 32 ? n : 32);
        for (size_t i = 0; i < reading.n_rows; i++) {
            assert_true(((const pb_event *)row_message(reading.rows[i]))->seq == first + i);
            row_release(reading.rows[i]);
        }
    }
}

static void test_submit_when_too_many_wait_then_refused(void **state)
{
    struct fixture *f = *state;
    struct store_config config = {.path = f->path, .max_jobs = 2, .wake = wake, .wake_arg = f};
    struct job jobs[3] = {{.body = put_model, .name = "a"},
                          {.body = put_model, .name = "b"},
                          {.body = put_model, .name = "c"}};
    struct error err;
    store_close(f->store);
    catalog_fini(&f->catalog);
    assert_int_equal(store_open(&config, &f->catalog, &f->store, &err), 0);
    assert_int_equal(store_submit(f->store, run_job, job_done, &jobs[0], &err), 0);
    assert_int_equal(store_submit(f->store, run_job, job_done, &jobs[1], &err), 0);
    assert_int_equal(store_submit(f->store, run_job, job_done, &jobs[2], &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(err.reason, "STORE_BUSY");
    assert_int_equal(finish(f, &jobs[1]), 0);
    assert_true(jobs[0].done);
    assert_false(jobs[2].done);
}

static void test_close_when_jobs_are_unpolled_then_done_but_told_cancelled(void **state)
{
    struct fixture *f = *state;
    struct job job = {.body = put_model, .name = "m"};
    struct error err;
    assert_int_equal(store_submit(f->store, run_job, job_done, &job, &err), 0);
    store_close(f->store);
    f->store = NULL;
    assert_true(job.done);
    assert_int_equal(job.status.status, STATUS_CANCELLED);
    catalog_fini(&f->catalog);
    assert_int_equal(open_store(f, &err), 0);
    assert_non_null(catalog_model(&f->catalog, "m"));
}

/* -- full disk ----------------------------------------------------------------------------------
 */

static int put_big(struct txn *txn, struct job *job, struct error *err)
{
    pb_version *version = MESSAGE_NEW(pb_version, sluice__manager__v1__model_version__descriptor);
    if (txn_put(txn, TABLE_MODEL, &new_model("m", 1)->base, err) != 0)
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
    struct job check = {.body = put_model, .name = "after"};
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
        status = run(f, &job);
    }
    assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(job.status.reason, "STATE_STORE_FULL");
    assert_null(catalog_version(&f->catalog, "m", name));
    store_stats(f->store, &stats);
    assert_string_equal(stats.reason, "STATE_STORE_FULL");
    assert_int_equal(catalog_count(&f->catalog, TABLE_MODEL_VERSION), n - 1); /* reads go on */
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(run(f, &job), 0);
    assert_int_equal(run(f, &check), 0);
    store_stats(f->store, &stats);
    assert_string_equal(stats.reason, "");
    reopen(f);
    assert_int_equal(catalog_count(&f->catalog, TABLE_MODEL_VERSION), n);
    assert_non_null(catalog_model(&f->catalog, "after"));
}

/* What was seen is in the catalog at once, in the database once there is room, and its event with
 * it; a change that was asked for is refused meanwhile. */
static void test_disk_full_when_something_was_seen_then_kept_and_written_late(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, none;
    struct job asked = {.body = put_model, .name = "asked"};
    struct job seen = {.body = put_model, .name = "seen"}, again = seen;
    struct store_stats stats;
    struct error err;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    none = old;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &none);
    assert_int_equal(run(f, &asked), STATUS_RESOURCE_EXHAUSTED);
    uint64_t generation = f->catalog.generation, last_seq = f->catalog.last_event_seq;
    for (int i = 0; i < 2; i++) { /* twice: the row is kept once */
        seen = again;
        assert_int_equal(store_submit_seen(f->store, run_job, job_done, &seen, &err), 0);
        assert_int_equal(finish(f, &seen), 0);
    }
    assert_non_null(catalog_model(&f->catalog, "seen"));
    assert_true(f->catalog.generation == generation && f->catalog.last_event_seq == last_seq);
    assert_int_equal(store_n_unsaved(f->store), 1);
    setrlimit(RLIMIT_FSIZE, &old);
    asked.done = false;
    assert_int_equal(run(f, &asked), 0); /* whatever comes next takes it along */
    assert_int_equal(store_n_unsaved(f->store), 0);
    store_stats(f->store, &stats);
    assert_string_equal(stats.reason, "");
    reopen(f);
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
    {"newer", make_newer, STATUS_FAILED_PRECONDITION, "newer than this program"},
    {"another program's", make_foreign, STATUS_DATA_LOSS, "another program's"},
    {"empty", make_empty, STATUS_DATA_LOSS, "empty"},
    {"cut", make_short, STATUS_DATA_LOSS, "backup"},
    {"text", make_text, STATUS_DATA_LOSS, "not a database"},
    {"flipped", make_flipped, STATUS_DATA_LOSS, "backup"},
};

static void test_open_when_the_file_is_damaged_then_refused_with_a_way_out(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        struct job job = {.body = put_model, .name = "m"};
        struct error err;
        unlink(f->path);
        assert_int_equal(open_store(f, &err), 0);
        assert_int_equal(run(f, &job), 0);
        store_close(f->store);
        f->store = NULL;
        catalog_fini(&f->catalog);
        damages[i].make(f->path);
        int status = open_store(f, &err);
        if (status != damages[i].status || !strstr(err.message, damages[i].text))
            fail_msg("%s: %s: %s", damages[i].name, status_name(status), err.message);
        struct stat st; /* it is kept for whoever looks into it */
        assert_int_equal(stat(f->path, &st), 0);
    }
}

static void test_open_when_a_creation_was_cut_short_then_starts_anew(void **state)
{
    struct fixture *f = *state;
    char path[128];
    struct error err;
    snprintf(path, sizeof(path), "%s.new", f->path);
    make_text(path);
    assert_int_equal(open_store(f, &err), 0);
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
    char path[128], holder[32];
    snprintf(path, sizeof(path), "%s/sluice.lock", f->folder);
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char c = 'x';
        int lock_fd;
        if (store_lock(path, &lock_fd, &err) == 0 && write(ready[1], &c, 1) == 1)
            pause();
        _exit(1);
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(store_lock(path, &fd, &err), STATUS_FAILED_PRECONDITION);
    assert_string_equal(err.reason, "LOCKED");
    snprintf(holder, sizeof(holder), "locked by pid %d", (int)pid);
    assert_non_null(strstr(err.message, holder));
    assert_int_equal(fd, -1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(store_lock(path, &fd, &err), 0); /* the kernel has freed it */
    close(fd);
    close(ready[0]);
    close(ready[1]);
}

/* -- kill ---------------------------------------------------------------------------------------
 */

static void write_until_killed(struct fixture *f, int out_fd)
{
    struct error err;
    if (open_store(f, &err) != 0)
        _exit(1);
    for (uint64_t i = f->catalog.generation;; i++) {
        char name[32];
        struct job job = {.body = put_model, .name = name, .value = i};
        snprintf(name, sizeof(name), "m%" PRIu64, i);
        if (store_submit(f->store, run_job, job_done, &job, &err) != 0)
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
            ; /* acknowledged before the kill, read after it */
        close(fds[0]);
        n_acknowledged = i + 1;
        assert_int_equal(open_store(f, &err), 0);
        size_t n_models = catalog_count(&f->catalog, TABLE_MODEL);
        assert_in_range(n_models, n_acknowledged, n_acknowledged + 1);
        assert_int_equal(f->catalog.last_event_seq, n_models); /* rows and events together */
        assert_int_equal(f->catalog.generation, n_models);
        store_close(f->store);
        f->store = NULL;
        catalog_fini(&f->catalog);
    }
    assert_true(n_acknowledged >= 8 * 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_when_reopened_then_every_field_is_back, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_put_when_nested_and_repeated_fields_then_they_are_back_too, setup, teardown),
        cmocka_unit_test_setup_teardown(test_transaction_when_it_fails_then_nothing_of_it_stays,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_put_when_a_foreign_key_is_missing_then_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_request_id_when_used_again_then_answered_again_and_done_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_events_when_many_then_numbered_without_gaps, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_submit_when_too_many_wait_then_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_close_when_jobs_are_unpolled_then_done_but_told_cancelled, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_disk_full_when_changing_then_refused_and_recovers_by_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_disk_full_when_something_was_seen_then_kept_and_written_late, setup, teardown),
        cmocka_unit_test_setup_teardown(test_events_when_read_then_in_order_and_as_many_as_kept,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_the_file_is_damaged_then_refused_with_a_way_out, setup_folder, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_a_creation_was_cut_short_then_starts_anew,
                                        setup_folder, teardown),
        cmocka_unit_test_setup_teardown(test_schema_when_created_then_strict_and_with_every_column,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_lock_when_held_then_names_the_holder_and_ends_with_it,
                                        setup_folder, teardown),
        cmocka_unit_test_setup_teardown(
            test_kill_when_in_the_middle_then_every_acknowledged_change_is_there, setup_folder,
            teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
