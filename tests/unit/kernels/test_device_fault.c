/* Tests of the classes of a device driver's error codes. Covers every code with a class, codes
 * without a class, and the class in an error's reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/device_fault.h"

static const struct {
    int code;
    enum device_fault fault;
    bool is_final;
} codes[] = {
    {0, DEVICE_FAULT_NONE, false},
    {1, DEVICE_FAULT_CALL, false},   /* invalid value */
    {2, DEVICE_FAULT_MEMORY, false}, /* memory allocation */
    {3, DEVICE_FAULT_DRIVER, true},
    {35, DEVICE_FAULT_DRIVER, true},
    {46, DEVICE_FAULT_DRIVER, true},
    {98, DEVICE_FAULT_CALL, false},  /* invalid device function */
    {209, DEVICE_FAULT_CALL, false}, /* no kernel image */
    {214, DEVICE_FAULT_ECC, true},
    {220, DEVICE_FAULT_NVLINK, true},
    {226, DEVICE_FAULT_CONTAINED, true},
    {600, DEVICE_FAULT_CALL, false}, /* not ready */
    {700, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {701, DEVICE_FAULT_CALL, false}, /* launch out of resources */
    {702, DEVICE_FAULT_TIMEOUT, true},
    {709, DEVICE_FAULT_DRIVER, true},
    {710, DEVICE_FAULT_ILLEGAL_ACCESS, true}, /* assert */
    {714, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {715, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {716, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {717, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {718, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {719, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {720, DEVICE_FAULT_CALL, false}, /* cooperative launch too large */
    {721, DEVICE_FAULT_ILLEGAL_ACCESS, true},
    {802, DEVICE_FAULT_DRIVER, true},
    {803, DEVICE_FAULT_DRIVER, true},
    {806, DEVICE_FAULT_DRIVER, true},
    {810, DEVICE_FAULT_DRIVER, true},
    {900, DEVICE_FAULT_CALL, false}, /* stream capture */
    {999, DEVICE_FAULT_UNKNOWN, true},
    {-1, DEVICE_FAULT_CALL, false},
    {123456, DEVICE_FAULT_CALL, false},
};

static void test_class_when_code_then_as_the_driver_documents(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        enum device_fault fault = device_fault_of_cuda(codes[i].code);
        if (fault != codes[i].fault || device_fault_is_final(fault) != codes[i].is_final)
            fail_msg("code %d is of class %d", codes[i].code, (int)fault);
    }
}

static void test_reason_when_carried_by_an_error_then_found_again(void **state)
{
    (void)state;
    for (int fault = 0; fault < N_DEVICE_FAULTS; fault++) {
        struct error err = {0};
        enum reason reason = device_fault_reason((enum device_fault)fault);
        error_set(&err, STATUS_INTERNAL, "cuda:0: queued work");
        error_reason(&err, reason);
        error_prefix(&err, "the device failed");
        assert_int_equal(device_fault_of_error(&err),
                         fault == DEVICE_FAULT_CALL ? DEVICE_FAULT_NONE : fault);
        for (int other = 0; other < fault && reason; other++)
            assert_int_not_equal(reason, device_fault_reason((enum device_fault)other));
    }
    struct error other = {0};
    error_set(&other, STATUS_INTERNAL, "no device had a part in it");
    error_reason(&other, REASON_QUEUE_FULL);
    assert_int_equal(device_fault_of_error(&other), DEVICE_FAULT_NONE);
}

static void test_device_when_named_then_found(void **state)
{
    static const struct {
        const char *message;
        bool found;
        uint32_t index;
    } rows[] = {
        {"cuda:0: queued work: an illegal memory access (700)", true, 0},
        {"the device failed: cuda:13: upload: unspecified launch failure (719)", true, 13},
        {"cuda: no index, but cuda:2: has one", true, 2},
        {"cuda:99999999999999999999: not a device", false, 0},
        {"no device had a part in it", false, 0},
        {"", false, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err = {0};
        uint32_t index = 0;
        error_set(&err, STATUS_INTERNAL, "%s", rows[i].message);
        if (device_fault_device(&err, &index) != rows[i].found || index != rows[i].index)
            fail_msg("\"%s\": %u", rows[i].message, index);
    }
}

static void test_exit_status_when_class_then_its_own(void **state)
{
    (void)state;
    /* The manager knows these by number (manager/devices/device_policy.c). */
    assert_int_equal(device_fault_exit_status(DEVICE_FAULT_MEMORY), 82);
    assert_int_equal(device_fault_exit_status(DEVICE_FAULT_ECC), 86);
    assert_int_equal(device_fault_exit_status(DEVICE_FAULT_UNKNOWN), 89);
    for (int fault = 0; fault < N_DEVICE_FAULTS; fault++) {
        int status = device_fault_exit_status((enum device_fault)fault);
        assert_in_range(status, 80, 99); /* differs from the statuses of shells and of sysexits.h */
        for (int other = 0; other < fault; other++)
            assert_int_not_equal(status, device_fault_exit_status((enum device_fault)other));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_class_when_code_then_as_the_driver_documents),
        cmocka_unit_test(test_reason_when_carried_by_an_error_then_found_again),
        cmocka_unit_test(test_device_when_named_then_found),
        cmocka_unit_test(test_exit_status_when_class_then_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
