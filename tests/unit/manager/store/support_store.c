#include "tests/unit/manager/store/support_store.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "manager/store/txn.h"

void fixture_wake(void *arg)
{
    struct fixture *f = arg;
    uint64_t one = 1;
    ssize_t n = write(f->wake_fd, &one, sizeof(one));
    (void)n;
}

int fixture_open(struct fixture *f, struct error *err)
{
    struct store_config config = {.path = f->path, .wake = fixture_wake, .wake_arg = f};
    return store_open(&config, &f->catalog, &f->store, err);
}

void fixture_close(struct fixture *f)
{
    store_close(f->store);
    f->store = NULL;
    catalog_fini(&f->catalog);
}

void fixture_reopen(struct fixture *f)
{
    struct error err;
    fixture_close(f);
    assert_int_equal(fixture_open(f, &err), 0);
}

int fixture_setup_folder(void **state)
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

int fixture_setup(void **state)
{
    struct error err;
    return fixture_setup_folder(state) == 0 ? fixture_open(*state, &err) : -1;
}

int fixture_teardown(void **state)
{
    static const char *const names[] = {"sluice.db",     "sluice.db-wal",     "sluice.db-shm",
                                        "sluice.db.new", "sluice.db.new-wal", "sluice.lock"};
    struct fixture *f = *state;
    char path[128];
    fixture_close(f);
    close(f->wake_fd);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, names[i]);
        unlink(path);
    }
    rmdir(f->folder);
    free(f);
    return 0;
}

int job_body(struct txn *txn, void *arg, struct error *err)
{
    struct job *job = arg;
    return job->body(txn, job, err);
}

void job_done(void *arg, const struct error *status)
{
    struct job *job = arg;
    job->done = true;
    job->status = *status;
}

int job_wait(struct fixture *f, struct job *job)
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

int job_run(struct fixture *f, struct job *job)
{
    struct error err;
    job->done = false;
    assert_int_equal(store_submit(f->store, job_body, job_done, job, &err), 0);
    return job_wait(f, job);
}

pb_model *job_new_model(const char *name, uint64_t generation)
{
    pb_model *model = MESSAGE_NEW(pb_model, sluice__manager__v1__model__descriptor);
    assert_true(message_set(&model->name, name));
    model->generation = generation;
    return model;
}

int job_put_model(struct txn *txn, struct job *job, struct error *err)
{
    struct txn_event event = {.type = "model.registered", .model = job->name};
    if (txn_put(txn, TABLE_MODEL, &job_new_model(job->name, job->value)->base, err) != 0)
        return err->status;
    return txn_event(txn, &event, err);
}

int job_put_then_fail(struct txn *txn, struct job *job, struct error *err)
{
    uint64_t n;
    if (job_put_model(txn, job, err) != 0 || txn_next(txn, "replica", &n, err) != 0 ||
        txn_delete(txn, TABLE_MODEL, "kept", err) != 0)
        return err->status;
    /* a transaction sees its own writes */
    assert_non_null(catalog_model(txn_catalog(txn), job->name));
    assert_null(catalog_model(txn_catalog(txn), "kept"));
    return error_set(err, STATUS_ABORTED, "on purpose");
}
