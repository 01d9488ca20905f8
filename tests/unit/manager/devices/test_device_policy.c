/* Tests of the action for each Xid and each class of error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "manager/devices/device_policy.h"

#define FAULT(name) SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_##name

static void test_xid_when_in_the_catalogue_then_its_bucket_decides(void **state)
{
    static const struct {
        uint64_t xid;
        enum device_action action;
        const char *resolution;
    } rows[] = {
        {13, DEVICE_RESTART, "RESTART_APP"},
        {31, DEVICE_RESTART, "RESTART_APP"},
        {43, DEVICE_NOTE, "IGNORE"},
        {45, DEVICE_NOTE, "WORKFLOW_XID_45"},
        {46, DEVICE_QUARANTINE, "RESET_GPU"},
        {48, DEVICE_QUARANTINE, "WORKFLOW_XID_48"},
        {63, DEVICE_NOTE, "IGNORE"},
        {64, DEVICE_QUARANTINE, "RESET_GPU"},
        {74, DEVICE_QUARANTINE, "WORKFLOW_NVLINK_ERR"},
        {79, DEVICE_DRAIN_NODE, "RESTART_BM"},
        {94, DEVICE_RESTART, "RESTART_APP"},
        {95, DEVICE_QUARANTINE, "RESET_GPU"},
        {119, DEVICE_QUARANTINE, "RESET_GPU"},
        {1, DEVICE_NOTE, ""},
        {65535 + 48, DEVICE_NOTE, ""},
        {UINT64_MAX, DEVICE_NOTE, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct device_verdict verdict = device_policy_xid(rows[i].xid);
        if (verdict.action != rows[i].action || strcmp(verdict.resolution, rows[i].resolution) != 0)
            fail_msg("Xid %llu: %s (%s)", (unsigned long long)rows[i].xid,
                     device_action_name(verdict.action), verdict.resolution);
        assert_true(verdict.text[0]);
    }
}

static void test_fault_when_classified_then_decided_and_named(void **state)
{
    static const struct {
        Sluice__Worker__V1__DeviceFault fault;
        enum device_action action;
        enum reason reason;
    } rows[] = {
        {FAULT(UNSPECIFIED), DEVICE_RESTART, REASON_DEVICE_LOST},
        {FAULT(MEMORY), DEVICE_RESTART, REASON_DEVICE_MEMORY},
        {FAULT(ILLEGAL_ACCESS), DEVICE_RESTART, REASON_DEVICE_ILLEGAL_ACCESS},
        {FAULT(TIMEOUT), DEVICE_RESTART, REASON_DEVICE_TIMEOUT},
        {FAULT(CONTAINED), DEVICE_RESTART, REASON_DEVICE_CONTAINED},
        {FAULT(ECC), DEVICE_QUARANTINE, REASON_DEVICE_ECC},
        {FAULT(NVLINK), DEVICE_QUARANTINE, REASON_DEVICE_NVLINK},
        {FAULT(DRIVER), DEVICE_RESTART, REASON_DEVICE_DRIVER},
        {FAULT(UNKNOWN), DEVICE_RESTART, REASON_DEVICE_UNKNOWN},
        {(Sluice__Worker__V1__DeviceFault)99, DEVICE_RESTART,
         REASON_DEVICE_LOST}, /* unknown here, from a newer worker */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct device_verdict verdict = device_policy_fault(rows[i].fault);
        assert_int_equal(verdict.action, rows[i].action);
        assert_int_equal(device_policy_reason(rows[i].fault), rows[i].reason);
        assert_true(verdict.text[0]);
    }
}

/* Tests the exit statuses of kernels/device_fault.c. They are in the order of the proto's classes.
 */
static void test_exit_status_when_no_report_then_tells_the_class(void **state)
{
    static const struct {
        int status;
        int fault; /* 0: none */
    } rows[] = {{0, 0},
                {1, 0},
                {80, 0},
                {81, 0},
                {82, FAULT(MEMORY)},
                {83, FAULT(ILLEGAL_ACCESS)},
                {84, FAULT(TIMEOUT)},
                {85, FAULT(CONTAINED)},
                {86, FAULT(ECC)},
                {87, FAULT(NVLINK)},
                {88, FAULT(DRIVER)},
                {89, FAULT(UNKNOWN)},
                {90, 0},
                {134, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        Sluice__Worker__V1__DeviceFault fault = FAULT(UNSPECIFIED);
        bool told = device_fault_of_exit(rows[i].status, &fault);
        if (told != (rows[i].fault != 0) || (int)fault != rows[i].fault)
            fail_msg("status %d tells of %d", rows[i].status, (int)fault);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xid_when_in_the_catalogue_then_its_bucket_decides),
        cmocka_unit_test(test_fault_when_classified_then_decided_and_named),
        cmocka_unit_test(test_exit_status_when_no_report_then_tells_the_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
