/* Tests of device holds: holds of renumbered devices, the remaining devices of a group, release,
 * and restarts. tests/e2e/gpu/test_devices.py tests the reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "manager/devices/device_hold.h"
#include "manager/store/txn.h"
#include "tests/support/names.h"
#include "tests/unit/manager/store/support_store.h"

static int put_device(struct txn *txn, const char *name, const char *uuid, struct error *err)
{
    pb_device *device = MESSAGE_NEW(pb_device, sluice__v1__device__descriptor);
    assert_non_null(device);
    assert_true(message_set(&device->name, name) && message_set(&device->uuid, uuid));
    device->kind = SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
    return txn_put(txn, TABLE_DEVICE, &device->base, err);
}

static int put_hold(struct txn *txn, const char *key, const char *device, struct error *err)
{
    pb_hold *hold = MESSAGE_NEW(pb_hold, sluice__manager__v1__device_hold__descriptor);
    assert_non_null(hold);
    assert_true(message_set(&hold->key, key) && message_set(&hold->device, device) &&
                message_set(&hold->reason, "XID_48") && message_set(&hold->message, "reset it"));
    hold->state = SLUICE__MANAGER__V1__DEVICE_STATE__DEVICE_STATE_QUARANTINED;
    hold->since_unix_ns = 7;
    hold->n_reports = 3;
    return txn_put(txn, TABLE_DEVICE_HOLD, &hold->base, err);
}

/* Three devices, the second of which is held; the third has no UUID and is held by its name. */
static int put_three(struct txn *txn, struct job *job, struct error *err)
{
    (void)job;
    pb_group *group = MESSAGE_NEW(pb_group, sluice__manager__v1__device_group__descriptor);
    assert_non_null(group);
    assert_true(message_set(&group->name, "g"));
    static const char *const names[] = {"cuda:0", "cuda:1", "cuda:2"};
    for (size_t i = 0; i < 3; i++)
        assert_true(message_append_text(&group->n_devices, &group->devices, names[i]));
    int rc = txn_put(txn, TABLE_DEVICE_GROUP, &group->base, err);
    if (rc == 0)
        rc = put_device(txn, "cuda:0", "GPU-a", err);
    if (rc == 0)
        rc = put_device(txn, "cuda:1", "GPU-b", err);
    if (rc == 0)
        rc = put_device(txn, "cuda:2", "", err);
    if (rc == 0)
        rc = put_hold(txn, "GPU-b", "cuda:1", err);
    return rc == 0 ? put_hold(txn, "cuda:2", "cuda:2", err) : rc;
}

/* GPU-a is gone and GPU-b has its number. */
static int renumber(struct txn *txn, struct job *job, struct error *err)
{
    (void)job;
    int rc = put_device(txn, "cuda:0", "GPU-b", err);
    return rc == 0 ? txn_delete(txn, TABLE_DEVICE, "cuda:1", err) : rc;
}

static int release(struct txn *txn, struct job *job, struct error *err)
{
    pb_hold *hold = NULL;
    int rc = device_hold_release(txn, job->name, &hold, err);
    if (rc == 0)
        job->response = &hold->base;
    return rc;
}

static void put_fixture(struct fixture *f)
{
    struct job job = {.body = put_three};
    assert_int_equal(job_run(f, &job), 0);
}

static void test_find_when_held_by_uuid_or_name_then_after_a_restart_too(void **state)
{
    struct fixture *f = *state;
    put_fixture(f);
    for (int i = 0; i < 2; i++) {
        assert_null(device_hold_find(&f->catalog, "cuda:0"));
        const pb_hold *hold = device_hold_find(&f->catalog, "cuda:1");
        assert_non_null(hold);
        assert_string_equal(hold->reason, "XID_48");
        assert_string_equal(hold->message, "reset it");
        assert_int_equal(hold->since_unix_ns, 7);
        assert_int_equal(hold->n_reports, 3);
        assert_non_null(device_hold_find(&f->catalog, "cuda:2"));
        assert_null(device_hold_find(&f->catalog, "cpu:0"));
        fixture_reopen(f);
    }
}

static void
test_find_when_devices_are_numbered_anew_then_the_hold_stays_with_its_device(void **state)
{
    struct fixture *f = *state;
    struct job job = {.body = renumber};
    put_fixture(f);
    assert_int_equal(job_run(f, &job), 0);
    assert_non_null(device_hold_find(&f->catalog, "cuda:0"));
    assert_null(device_hold_find(&f->catalog, "cuda:1"));
}

static void
test_check_when_a_group_is_left_with_few_then_refused_where_more_are_needed(void **state)
{
    struct fixture *f = *state;
    struct error err;
    char *usable[DEVICES_MAX];
    put_fixture(f);
    const pb_group *group = catalog_group(&f->catalog, "g");
    assert_int_equal(device_hold_choose(&f->catalog, group, usable), 1);
    assert_string_equal(usable[0], "cuda:0");
    assert_int_equal(device_hold_check(&f->catalog, group, 0, &err), 0);
    assert_int_equal(device_hold_check(&f->catalog, group, 1, &err), 0);
    assert_int_equal(device_hold_check(&f->catalog, group, 2, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_DEVICE_QUARANTINED);
    assert_true(names_all(err.message, "XID_48|reset it"));
    assert_non_null(strstr(err.message, "sluice devices release cuda:1"));
}

static void test_release_when_held_then_over_and_else_refused(void **state)
{
    struct fixture *f = *state;
    put_fixture(f);
    static const struct {
        const char *device;
        int status;
        const char *reason; /* reason of the refusal, or key of the ended hold */
    } rows[] = {
        {"cuda:0", STATUS_FAILED_PRECONDITION, "DEVICE_NOT_HELD"},
        {"cuda:7", STATUS_NOT_FOUND, "DEVICE_NOT_FOUND"},
        {"cuda:1", 0, "GPU-b"},
        {"cuda:1", STATUS_FAILED_PRECONDITION, "DEVICE_NOT_HELD"},
        {"cuda:2", 0, "cuda:2"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job job = {.body = release, .name = rows[i].device};
        assert_int_equal(job_run(f, &job), rows[i].status);
        if (rows[i].status != 0)
            assert_string_equal(error_reason_name(&job.status), rows[i].reason);
        else
            assert_string_equal(((const pb_hold *)job.response)->key, rows[i].reason);
        message_free(job.response);
        fixture_reopen(f);
    }
    assert_int_equal(catalog_count(&f->catalog, TABLE_DEVICE_HOLD), 0);
}

static void test_release_when_the_device_is_gone_then_by_its_key_or_old_name(void **state)
{
    struct fixture *f = *state;
    struct job gone = {.body = renumber};
    put_fixture(f);
    assert_int_equal(job_run(f, &gone), 0);
    /* the device's name at the hold; its name is now cuda:0 */
    struct job job = {.body = release, .name = "cuda:1"};
    assert_int_equal(job_run(f, &job), 0);
    assert_string_equal(((const pb_hold *)job.response)->key, "GPU-b");
    message_free(job.response);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_find_when_held_by_uuid_or_name_then_after_a_restart_too, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_find_when_devices_are_numbered_anew_then_the_hold_stays_with_its_device,
            fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_check_when_a_group_is_left_with_few_then_refused_where_more_are_needed,
            fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_release_when_held_then_over_and_else_refused,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_release_when_the_device_is_gone_then_by_its_key_or_old_name, fixture_setup,
            fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
