/* Tests of the GPU watch alone: a hanging driver, and an end while a report is under way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <ev.h>

#include "base/clock.h"
#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/loop_queue.h"
#include "manager/devices/device_watch.h"
#include "manager/store/catalog.h"
#include "tests/support/names.h"

enum { PATIENCE_S = 30 };

static char path[64];
static struct catalog catalog;
static struct context context;
static struct device_watch *watch;

static void add_to_scenario(const char *mode, const char *text)
{
    FILE *file = fopen(path, mode);
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state)
{
    const struct device_watch_config config = {.context = &context};
    struct error err;
    (void)state;
    snprintf(path, sizeof(path), "/tmp/sluice-watch-%d", (int)getpid());
    setenv("SLUICE_NVML_LIBRARY", SLUICE_BIN_DIR "/fake_nvml.so", 1);
    setenv("SLUICE_FAKE_NVML", path, 1);
    add_to_scenario("w", "gpu 0 uuid=GPU-a bus=00000000:3B:00.0 total=1000 used=300\n");
    context = (struct context){.catalog = &catalog, .loop = ev_loop_new(EVFLAG_NOENV)};
    assert_int_equal(loop_queue_create(context.loop, &context.queue, &err), 0);
    return device_watch_create(&config, &watch, &err);
}

static int teardown(void **state)
{
    (void)state;
    loop_queue_destroy(context.queue);
    ev_loop_destroy(context.loop);
    unlink(path);
    return 0;
}

static bool look(struct device_view *out_view)
{
    pb_device device;
    sluice__v1__device__init(&device);
    device.kind = SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
    device.uuid = (char *)(uintptr_t) "GPU-a";
    return device_watch_view(watch, &device, out_view);
}

static void wait_for_figures(struct device_view *out_view)
{
    int64_t until_ns = clock_now_ns() + PATIENCE_S * NS_PER_S;
    while (!look(out_view) || !out_view->sampled) {
        assert_true(clock_now_ns() < until_ns);
        usleep(10000);
    }
}

/* Symptom: when a driver hung, the last figures before were reported as current for ever. */
static void test_figures_when_the_driver_hangs_then_they_are_not_told(void **state)
{
    struct device_view view;
    int64_t until_ns = clock_now_ns() + PATIENCE_S * NS_PER_S;
    (void)state;
    wait_for_figures(&view);
    assert_int_equal(view.figures.memory_total_bytes, 1000);
    assert_string_equal(view.error, "");
    add_to_scenario("a", "hangs\n");
    while (look(&view) && view.sampled) {
        assert_true(clock_now_ns() < until_ns);
        usleep(50000);
    }
    assert_true(names_all(view.error, "NVML"));
    device_watch_destroy(watch); /* the watch leaves its hanging thread behind */
}

/* Symptom: the manager read an Xid, reported during its exit, after the watch was freed (ASan). */
static void test_xid_when_the_watch_ends_first_then_it_is_still_told(void **state)
{
    struct device_view view;
    int64_t until_ns = clock_now_ns() + PATIENCE_S * NS_PER_S;
    (void)state;
    wait_for_figures(&view);
    add_to_scenario("a", "xid 0 31\n");
    while (loop_queue_depth(context.queue) == 0) {
        assert_true(clock_now_ns() < until_ns);
        usleep(10000);
    }
    device_watch_destroy(watch);
    loop_queue_run(context.queue);
    assert_int_equal(loop_queue_depth(context.queue), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_xid_when_the_watch_ends_first_then_it_is_still_told,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_figures_when_the_driver_hangs_then_they_are_not_told,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
