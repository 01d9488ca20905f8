/* Tests of transitions: every pair of states against a separate matrix. The store writes nothing of
 * a change with a forbidden transition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "manager/store/transition.h"
#include "manager/store/txn.h"
#include "tests/unit/manager/store/support_store.h"

/* A row for each old state (the first: no state), and a column for each new state. States count
 * from 1 on, as in types.proto. */
static const char *const replicas[] = {
    /* PENDING LOADING WARMING READY DRAINING STOPPED PARKED FAILED */
    "+-------", /* new */
    "++---+-+", /* PENDING */
    "++++++++", /* LOADING */
    "++++++-+", /* WARMING */
    "++-+++-+", /* READY */
    "++++++++", /* DRAINING */
    "-----+--", /* STOPPED: the end */
    "++++++++", /* PARKED */
    "+----+-+", /* FAILED */
};

static const char *const operations[] = {
    /* PENDING RUNNING DONE FAILED CANCELLED */
    "++---", /* new */
    "+++++", /* PENDING */
    "-++++", /* RUNNING */
    "--+--", /* DONE */
    "---+-", /* FAILED */
    "----+", /* CANCELLED */
};

static const char *const phases[] = {
    /* LOAD SHIFT DRAIN ROLL_BACK END */
    "+----", /* new */
    "++-+-", /* LOAD */
    "-+++-", /* SHIFT */
    "--+-+", /* DRAIN: the old version is on its way out */
    "---++", /* ROLL_BACK */
    "----+", /* END */
};

static struct row *replica_row(int state, uint64_t epoch)
{
    pb_replica *replica = MESSAGE_NEW(pb_replica, sluice__manager__v1__replica__descriptor);
    assert_true(message_set(&replica->id, "r1"));
    assert_true(message_set(&replica->model, "m"));
    assert_true(message_set(&replica->version, "1"));
    replica->state = (Sluice__Manager__V1__ReplicaState)state;
    replica->epoch = epoch;
    return row_create(TABLE_REPLICA, &replica->base, 0);
}

static struct row *operation_row(int state, int phase)
{
    pb_operation *operation = MESSAGE_NEW(pb_operation, sluice__manager__v1__operation__descriptor);
    assert_true(message_set(&operation->id, "o1"));
    operation->state = (Sluice__Manager__V1__OperationState)state;
    if (phase) {
        operation->update =
            MESSAGE_NEW(pb_update, sluice__manager__v1__update_progress__descriptor);
        operation->update->phase = (Sluice__Manager__V1__UpdatePhase)phase;
    }
    return row_create(TABLE_OPERATION, &operation->base, 0);
}

static bool allowed(struct row *before, struct row *after)
{
    struct error err;
    error_clear(&err);
    int status = transition_check(before, after, &err);
    if (status != 0) {
        assert_int_equal(status, STATUS_INTERNAL);
        assert_int_equal(err.reason, REASON_ILLEGAL_TRANSITION);
        assert_non_null(strstr(err.message, " cannot "));
    }
    row_release(before);
    row_release(after);
    return status == 0;
}

static void check(const char *what, int from, int to, bool is, char wanted)
{
    if (is != (wanted == '+'))
        fail_msg("%s %d to %d is %s", what, from, to, is ? "allowed" : "refused");
}

static void test_every_pair_of_states(void **state)
{
    (void)state;
    for (int from = 0; from <= REPLICA_FAILED; from++)
        for (int to = 1; to <= REPLICA_FAILED; to++)
            check("replica", from, to,
                  allowed(from ? replica_row(from, 1) : NULL, replica_row(to, 1)),
                  replicas[from][to - 1]);
    for (int from = 0; from <= OPERATION_CANCELLED; from++)
        for (int to = 1; to <= OPERATION_CANCELLED; to++)
            check("operation", from, to,
                  allowed(from ? operation_row(from, 0) : NULL, operation_row(to, 0)),
                  operations[from][to - 1]);
    for (int from = 0; from <= UPDATE_END; from++)
        for (int to = 1; to <= UPDATE_END; to++)
            check("phase", from, to,
                  allowed(operation_row(OPERATION_RUNNING, from),
                          operation_row(OPERATION_RUNNING, to)),
                  phases[from][to - 1]);
}

static void test_no_state_at_all_and_an_older_epoch_are_refused(void **state)
{
    (void)state;
    assert_false(allowed(replica_row(REPLICA_LOADING, 1), replica_row(0, 1)));
    assert_false(allowed(replica_row(REPLICA_LOADING, 1), replica_row(-1, 1)));
    assert_false(allowed(replica_row(REPLICA_LOADING, 1), replica_row(99, 1)));
    assert_false(allowed(operation_row(OPERATION_RUNNING, 0), operation_row(99, 0)));
    assert_false(allowed(operation_row(OPERATION_RUNNING, UPDATE_LOAD),
                         operation_row(OPERATION_RUNNING, 99)));
    assert_true(allowed(replica_row(REPLICA_READY, 7), replica_row(REPLICA_DRAINING, 7)));
    assert_true(allowed(replica_row(REPLICA_PENDING, 7), replica_row(REPLICA_LOADING, 8)));
    assert_false(allowed(replica_row(REPLICA_PENDING, 7), replica_row(REPLICA_LOADING, 6)));
}

/* -- the store ------------------------------------------------------------------------------------
 */

static int put_version(struct txn *txn, struct job *job, struct error *err)
{
    pb_version *version = MESSAGE_NEW(pb_version, sluice__manager__v1__model_version__descriptor);
    (void)job;
    assert_true(message_set(&version->model, "m"));
    assert_true(message_set(&version->version, "1"));
    if (txn_put(txn, TABLE_MODEL, &job_new_model("m", 1)->base, err) != 0)
        return err->status;
    return txn_put(txn, TABLE_MODEL_VERSION, &version->base, err);
}

/* Another generation of the model, and then the replica in state `value`. */
static int put_replica(struct txn *txn, struct job *job, struct error *err)
{
    pb_replica *replica = MESSAGE_NEW(pb_replica, sluice__manager__v1__replica__descriptor);
    assert_true(message_set(&replica->id, "r1"));
    assert_true(message_set(&replica->model, "m"));
    assert_true(message_set(&replica->version, "1"));
    replica->state = (Sluice__Manager__V1__ReplicaState)job->value;
    if (txn_put(txn, TABLE_MODEL, &job_new_model("m", 10 + job->value)->base, err) != 0)
        return err->status;
    return txn_put(txn, TABLE_REPLICA, &replica->base, err);
}

static void
test_store_when_a_state_cannot_follow_then_nothing_of_the_change_is_written(void **state)
{
    struct fixture *f = *state;
    struct job version = {.body = put_version};
    struct job put = {.body = put_replica, .value = REPLICA_READY};
    assert_int_equal(job_run(f, &version), 0);
    assert_int_equal(job_run(f, &put), STATUS_INTERNAL); /* no replica begins in state READY */
    assert_null(catalog_replica(&f->catalog, "r1"));
    put.value = REPLICA_PENDING;
    assert_int_equal(job_run(f, &put), 0);
    put.value = REPLICA_STOPPED;
    assert_int_equal(job_run(f, &put), 0);
    for (put.value = REPLICA_PENDING; put.value <= REPLICA_FAILED; put.value++)
        if (put.value != REPLICA_STOPPED) {
            assert_int_equal(job_run(f, &put), STATUS_INTERNAL);
            assert_int_equal(put.status.reason, REASON_ILLEGAL_TRANSITION);
        }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(catalog_replica(&f->catalog, "r1")->state, REPLICA_STOPPED);
        assert_int_equal(catalog_model(&f->catalog, "m")->generation, 10 + REPLICA_STOPPED);
        fixture_reopen(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_of_states),
        cmocka_unit_test(test_no_state_at_all_and_an_older_epoch_are_refused),
        cmocka_unit_test_setup_teardown(
            test_store_when_a_state_cannot_follow_then_nothing_of_the_change_is_written,
            fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
