/* Tests of the state store: transactions are whole or have no effect. Covers answers by request id,
 * counters and the queue of changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "manager/store/txn.h"
#include "tests/unit/manager/store/support_store.h"

static int next_value(struct txn *txn, struct job *job, struct error *err)
{
    return txn_next(txn, "replica", &job->value, err);
}

static void test_put_when_reopened_then_every_field_is_back(void **state)
{
    struct fixture *f = *state;
    struct job job = {.body = job_put_model, .name = "m", .value = 7};
    assert_int_equal(job_run(f, &job), 0);
    assert_int_equal(catalog_model(&f->catalog, "m")->generation, 7);
    assert_int_equal(f->catalog.generation, 1);
    assert_int_equal(f->catalog.last_event_seq, 1);
    uint64_t epoch = f->catalog.manager_epoch;
    fixture_reopen(f);
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
    if (txn_put(txn, TABLE_MODEL, &job_new_model("m", 1)->base, err) != 0)
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
    assert_int_equal(job_run(f, &job), 0);
    fixture_reopen(f);
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
    struct job kept = {.body = job_put_model, .name = "kept", .value = 1};
    struct job failing = {.body = job_put_then_fail, .name = "lost", .value = 1};
    struct job counter = {.body = next_value};
    assert_int_equal(job_run(f, &kept), 0);
    assert_int_equal(job_run(f, &failing), STATUS_ABORTED);
    for (int again = 0; again < 2; again++) {
        assert_null(catalog_model(&f->catalog, "lost"));
        assert_non_null(catalog_model(&f->catalog, "kept"));
        assert_int_equal(f->catalog.generation, 1);
        assert_int_equal(f->catalog.last_event_seq, 1);
        fixture_reopen(f);
    }
    assert_int_equal(job_run(f, &counter), 0);
    assert_int_equal(counter.value, 1); /* the failed change did not use up a number */
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
    assert_int_equal(job_run(f, &job), STATUS_INTERNAL);
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
    if (job_put_model(txn, job, err) != 0)
        return err->status;
    return txn_idempotency_record(txn, job->request_id, "Test", &request.base, &response.base, err);
}

static void test_request_id_when_used_again_then_answered_again_and_done_once(void **state)
{
    struct fixture *f = *state;
    struct job first = {.body = once, .name = "a", .request_id = "id-1"};
    struct job again = first, other = first, empty = first;
    assert_int_equal(job_run(f, &first), 0);
    assert_null(first.response);
    fixture_reopen(f);
    assert_int_equal(job_run(f, &again), 0);
    assert_int_equal(again.value, 0);
    assert_non_null(again.response);
    assert_true(((Sluice__Manager__V1__DeleteModelVersionResponse *)again.response)->model_deleted);
    message_free(again.response);
    other.name = "b";
    assert_int_equal(job_run(f, &other), STATUS_INVALID_ARGUMENT);
    assert_int_equal(other.status.reason, REASON_REQUEST_ID_REUSED);
    assert_string_equal(other.status.field, "request_id");
    for (int i = 0; i < 2; i++) {
        empty.request_id = "";
        empty.value = 0;
        assert_int_equal(job_run(f, &empty), 0);
        assert_int_equal(empty.value, 1); /* no id: done each time */
    }
}

static void test_submit_when_too_many_wait_then_refused(void **state)
{
    struct fixture *f = *state;
    struct store_config config = {
        .path = f->path, .max_jobs = 2, .wake = fixture_wake, .wake_arg = f};
    struct job jobs[3] = {{.body = job_put_model, .name = "a"},
                          {.body = job_put_model, .name = "b"},
                          {.body = job_put_model, .name = "c"}};
    struct error err;
    fixture_close(f);
    assert_int_equal(store_open(&config, &f->catalog, &f->store, &err), 0);
    assert_int_equal(store_submit(f->store, job_body, job_done, &jobs[0], &err), 0);
    assert_int_equal(store_submit(f->store, job_body, job_done, &jobs[1], &err), 0);
    assert_int_equal(store_submit(f->store, job_body, job_done, &jobs[2], &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_STORE_BUSY);
    assert_int_equal(job_wait(f, &jobs[1]), 0);
    assert_true(jobs[0].done);
    assert_false(jobs[2].done);
}

static void test_close_when_jobs_are_unpolled_then_done_but_told_cancelled(void **state)
{
    struct fixture *f = *state;
    struct job job = {.body = job_put_model, .name = "m"};
    struct error err;
    assert_int_equal(store_submit(f->store, job_body, job_done, &job, &err), 0);
    store_close(f->store);
    f->store = NULL;
    assert_true(job.done);
    assert_int_equal(job.status.status, STATUS_CANCELLED);
    catalog_fini(&f->catalog);
    assert_int_equal(fixture_open(f, &err), 0);
    assert_non_null(catalog_model(&f->catalog, "m"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_when_reopened_then_every_field_is_back,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_put_when_nested_and_repeated_fields_then_they_are_back_too, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(test_transaction_when_it_fails_then_nothing_of_it_stays,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_put_when_a_foreign_key_is_missing_then_refused,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_request_id_when_used_again_then_answered_again_and_done_once, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(test_submit_when_too_many_wait_then_refused, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_close_when_jobs_are_unpolled_then_done_but_told_cancelled, fixture_setup,
            fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
