/* The state store's events: numbered without gaps, read from any number, as many as are kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "manager/store/txn.h"
#include "tests/unit/manager/store/support_store.h"

static void test_events_when_many_then_numbered_without_gaps(void **state)
{
    struct fixture *f = *state;
    sqlite3 *db;
    sqlite3_stmt *stmt;
    for (int i = 0; i < 50; i++) {
        struct job good = {.body = job_put_model, .name = "m", .value = (uint64_t)i};
        struct job bad = {.body = job_put_then_fail, .name = "x"};
        assert_int_equal(job_run(f, &good), 0);
        assert_int_equal(job_run(f, &bad), STATUS_ABORTED);
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
                                  .wake = fixture_wake,
                                  .wake_arg = f,
                                  .on_event = count_event,
                                  .event_arg = &told};
    fixture_close(f);
    assert_int_equal(store_open(&config, &f->catalog, &f->store, &err), 0);
    for (uint64_t i = 0; i < 320; i++) {
        struct job job = {.body = job_put_model, .name = "m", .value = i};
        assert_int_equal(job_run(f, &job), 0);
    }
    assert_true(told == 320 && f->catalog.last_event_seq == 320);
    /* 150 of 300 were deleted at the last tidying */
    assert_true(f->catalog.first_event_seq == 151);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events_when_many_then_numbered_without_gaps,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_events_when_read_then_in_order_and_as_many_as_kept,
                                        fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
