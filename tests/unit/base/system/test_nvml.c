/* Tests of NVML with scenario files (tests/support/fake/fake_nvml.c): figures, errors, gaps of an
 * old library, Xids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/nvml.h"
#include "tests/support/names.h"

#define FAKE   SLUICE_BIN_DIR "/fake_nvml.so"
#define OLD    SLUICE_BIN_DIR "/fake_nvml_old.so"
#define BROKEN SLUICE_BIN_DIR "/fake_nvml_broken.so"
#define GPU_0                                                                                      \
    "gpu 0 uuid=GPU-a bus=00000000:3B:00.0 name=Fake total=1000 used=300 busy=42 membusy=7 "       \
    "heat=61 power=312500 limit=700000 sm=1500 mem=2600 throttle=0x44 ecc1=5 ecc2=1\n"

static char path[64];

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/sluice-nvml-%d", (int)getpid());
    return setenv("SLUICE_FAKE_NVML", path, 1);
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static void write_scenario(const char *mode, const char *text)
{
    FILE *file = fopen(path, mode);
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static struct nvml *open_fake(const char *library, const char *text)
{
    struct nvml *nvml = NULL;
    struct error err;
    write_scenario("we", text);
    if (nvml_open(library, &nvml, &err) != 0)
        fail_msg("%s", err.message);
    return nvml;
}

static void test_open_when_absent_broken_or_without_driver_then_says_why(void **state)
{
    (void)state;
    struct nvml *nvml = NULL;
    struct error err;
    assert_int_equal(nvml_open("/nonexistent/libnvidia-ml.so.1", &nvml, &err), STATUS_NOT_FOUND);
    assert_true(names_all(err.message, "libnvidia-ml.so.1"));
    assert_int_equal(nvml_open(BROKEN, &nvml, &err), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "nvmlDeviceGetHandleByIndex_v2"));
    write_scenario("we", "init=9\n");
    assert_int_equal(nvml_open(FAKE, &nvml, &err), STATUS_FAILED_PRECONDITION);
    assert_true(names_all(err.message, "NVML|9"));
    assert_null(nvml);
    nvml_close(NULL);
}

static void test_open_when_the_environment_names_a_library_then_that_one(void **state)
{
    (void)state;
    struct nvml *nvml = NULL;
    struct error err;
    write_scenario("we", GPU_0 "gpu 1 uuid=GPU-b\n");
    setenv("SLUICE_NVML_LIBRARY", FAKE, 1);
    assert_int_equal(nvml_open(NULL, &nvml, &err), 0);
    unsetenv("SLUICE_NVML_LIBRARY");
    assert_int_equal(nvml_n_devices(nvml), 2);
    assert_string_equal(nvml_driver_version(nvml), "580.0.fake");
    nvml_close(nvml);
}

static void test_identify_when_told_then_all_of_it_and_else_empty(void **state)
{
    (void)state;
    struct nvml *nvml = open_fake(FAKE, GPU_0 "gpu 1 uuid=GPU-b\n");
    struct nvml_identity identity;
    nvml_identify(nvml, 0, &identity);
    assert_string_equal(identity.name, "Fake");
    assert_string_equal(identity.uuid, "GPU-a");
    assert_string_equal(identity.pci_bus_id, "00000000:3B:00.0");
    nvml_identify(nvml, 1, &identity);
    assert_string_equal(identity.uuid, "GPU-b");
    assert_string_equal(identity.name, "");
    assert_string_equal(identity.pci_bus_id, "");
    nvml_identify(nvml, 7, &identity);
    assert_string_equal(identity.uuid, "");
    nvml_close(nvml);
}

static void test_is_device_when_uuid_bus_or_neither_is_known_then_by_what_both_have(void **state)
{
    static const struct {
        const char *uuid, *bus;
        uint32_t index;
        bool is;
    } rows[] = {
        {"GPU-a", "", 9, true},
        {"GPU-b", "00000000:3B:00.0", 3, false},
        {"", "0000:3b:00.0", 9, true},
        {"", "0000:3c:00.0", 3, false},
        {"", "", 3, true},
        {"", "", 0, false},
    };
    const struct nvml_identity identity = {.uuid = "GPU-a", .pci_bus_id = "00000000:3B:00.0"};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(nvml_is_device(&identity, 3, rows[i].uuid, rows[i].bus, rows[i].index),
                         rows[i].is);
}

static void check_all_figures(const char *library)
{
    struct nvml *nvml = open_fake(library, GPU_0);
    struct nvml_figures f;
    struct error err;
    assert_int_equal(nvml_sample(nvml, 0, &f, &err), 0);
    assert_true(f.has_memory && f.has_utilization && f.has_temperature && f.has_power &&
                f.has_power_limit && f.has_sm_clock && f.has_memory_clock && f.has_throttle &&
                f.has_ecc_corrected && f.has_ecc_uncorrected);
    assert_int_equal(f.memory_total_bytes, 1000);
    assert_int_equal(f.memory_used_bytes, 300);
    assert_int_equal(f.utilization_percent, 42);
    assert_int_equal(f.memory_utilization_percent, 7);
    assert_int_equal(f.temperature_celsius, 61);
    assert_int_equal(f.power_milliwatts, 312500);
    assert_int_equal(f.power_limit_milliwatts, 700000);
    assert_int_equal(f.sm_clock_mhz, 1500);
    assert_int_equal(f.memory_clock_mhz, 2600);
    assert_int_equal(f.throttle, NVML_THROTTLE_HW_THERMAL | NVML_THROTTLE_POWER_CAP);
    assert_int_equal(f.ecc_corrected, 5);
    assert_int_equal(f.ecc_uncorrected, 1);
    nvml_close(nvml);
}

static void test_sample_when_all_is_told_then_all_of_it(void **state)
{
    (void)state;
    check_all_figures(FAKE);
    check_all_figures(OLD); /* a function has another name in the old library */
}

static void test_sample_when_little_is_supported_then_the_rest_is_left_out(void **state)
{
    (void)state;
    struct nvml *nvml = open_fake(FAKE, "gpu 0 heat=30\n");
    struct nvml_figures f;
    struct error err;
    assert_int_equal(nvml_sample(nvml, 0, &f, &err), 0);
    assert_true(f.has_temperature);
    assert_int_equal(f.temperature_celsius, 30);
    assert_false(f.has_memory || f.has_utilization || f.has_power || f.has_power_limit ||
                 f.has_sm_clock || f.has_memory_clock || f.has_throttle || f.has_ecc_corrected ||
                 f.has_ecc_uncorrected);
    nvml_close(nvml);
}

static void test_sample_when_the_gpu_is_lost_then_unavailable_and_back_again(void **state)
{
    (void)state;
    struct nvml *nvml = open_fake(FAKE, GPU_0);
    struct nvml_figures f = {.temperature_celsius = 77};
    struct error err;
    write_scenario("we", "gpu 0 gone=15 heat=61\n");
    assert_int_equal(nvml_sample(nvml, 0, &f, &err), STATUS_UNAVAILABLE);
    assert_true(names_all(err.message, "NVML|GPU 0|15"));
    assert_int_equal(f.temperature_celsius, 77);
    assert_int_equal(nvml_sample(nvml, 9, &f, &err), STATUS_UNAVAILABLE);
    write_scenario("we", GPU_0);
    assert_int_equal(nvml_sample(nvml, 0, &f, &err), 0);
    assert_int_equal(f.temperature_celsius, 61);
    nvml_close(nvml);
}

static void test_wait_xid_when_they_come_then_each_once_and_in_order(void **state)
{
    (void)state;
    struct nvml *nvml = open_fake(FAKE, GPU_0 "gpu 1 uuid=GPU-b\nxid 0 13\n");
    uint32_t index;
    uint64_t xid;
    struct error err;
    assert_int_equal(nvml_wait_xid(nvml, 20, &index, &xid, &err), 0);
    assert_int_equal(xid, 0); /* an Xid from before the start is not reported */
    assert_int_equal(index, NVML_NO_DEVICE);
    write_scenario("ae", "xid 1 48\nxid 0 31\nxid 99 79\n");
    static const struct {
        uint32_t index;
        uint64_t xid;
    } wanted[] = {{1, 48}, {0, 31}, {NVML_NO_DEVICE, 79}, {NVML_NO_DEVICE, 0}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        assert_int_equal(nvml_wait_xid(nvml, 20, &index, &xid, &err), 0);
        assert_int_equal(index, wanted[i].index);
        assert_int_equal(xid, wanted[i].xid);
    }
    nvml_close(nvml);
}

static void test_wait_xid_when_nobody_tells_or_waiting_fails_then_says_so_at_once(void **state)
{
    (void)state;
    uint32_t index;
    uint64_t xid;
    struct error err;
    int64_t begin_ns = clock_now_ns();
    struct nvml *nvml = open_fake(OLD, GPU_0);
    assert_int_equal(nvml_wait_xid(nvml, 60000, &index, &xid, &err), STATUS_UNIMPLEMENTED);
    nvml_close(nvml);
    nvml = open_fake(FAKE, GPU_0 "silent\n");
    assert_int_equal(nvml_wait_xid(nvml, 60000, &index, &xid, &err), STATUS_UNIMPLEMENTED);
    nvml_close(nvml);
    nvml = open_fake(FAKE, GPU_0 "waits=15\n");
    assert_int_equal(nvml_wait_xid(nvml, 60000, &index, &xid, &err), STATUS_UNAVAILABLE);
    assert_true(names_all(err.message, "15"));
    nvml_close(nvml);
    assert_true(clock_now_ns() - begin_ns < 30 * NS_PER_S);
}

static void test_throttle_names_when_listed_then_each_bit_has_one(void **state)
{
    (void)state;
    uint64_t all = 0;
    for (uint32_t i = 0; i < NVML_N_THROTTLES; i++) {
        uint64_t bit;
        assert_non_null(nvml_throttle_name(i, &bit));
        assert_int_equal(all & bit, 0);
        all |= bit;
    }
    assert_int_equal(all, 0x1fe); /* all bits but bit 0, which means idle */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_when_absent_broken_or_without_driver_then_says_why),
        cmocka_unit_test(test_open_when_the_environment_names_a_library_then_that_one),
        cmocka_unit_test(test_identify_when_told_then_all_of_it_and_else_empty),
        cmocka_unit_test(test_is_device_when_uuid_bus_or_neither_is_known_then_by_what_both_have),
        cmocka_unit_test(test_sample_when_all_is_told_then_all_of_it),
        cmocka_unit_test(test_sample_when_little_is_supported_then_the_rest_is_left_out),
        cmocka_unit_test(test_sample_when_the_gpu_is_lost_then_unavailable_and_back_again),
        cmocka_unit_test(test_wait_xid_when_they_come_then_each_once_and_in_order),
        cmocka_unit_test(test_wait_xid_when_nobody_tells_or_waiting_fails_then_says_so_at_once),
        cmocka_unit_test(test_throttle_names_when_listed_then_each_bit_has_one),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
