/* Tests of the CPUs of a worker's threads, by its settings, on simulated machines of two CPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/forward/executor.h"
#include "server/worker/base/settings.h"
#include "server/worker/place/place.h"

/* Settings as the parser leaves them. The message's texts are not const, so a cast is needed. */
#define CONFIG(text, n)                                                                            \
    {                                                                                              \
        .cpus = (char *)(uintptr_t)(text), .n_threads = (uint32_t)(n)                              \
    }
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/base/system/support_sysfs.h"

static const struct sysfs_machine one_node = {1, 1, 1, 2, 1}, two_nodes = {2, 1, 1, 1, 1},
                                  two_caches = {1, 1, 2, 1, 1}, siblings = {1, 1, 1, 1, 2};

static int decide(const struct sysfs_machine *machine, const struct settings *settings,
                  struct place *place, struct error *err)
{
    char *root = sysfs_create();
    sysfs_make(root, machine);
    int rc = place_init(place, settings, root, err);
    sysfs_destroy(root);
    return rc;
}

static void assert_mask(const struct place *place, uint32_t i, const char *text)
{
    sysfs_assert_cpus(&place->thread_cpus[i], text);
}

static void test_threads_are_kept_only_where_they_may_be(void **state)
{
    (void)state;
    static const struct {
        const struct sysfs_machine *machine;
        const char *devices, *cpus;
        uint64_t threads;
        uint32_t n_threads;
        bool confined;
        const char *masks[2], *names;
    } cases[] = {
        /* A single cache: the kernel places threads better, because it knows the other processes.
         */
        {&one_node, "cpu", "", 0, 2, false, {NULL}, "cpu:0"},
        {&one_node, "cpu:0", "", 1, 1, false, {NULL}, "cpu:0"},
        /* A worker with CPUs of its own has a thread on each. SMT siblings stay unused unless the
         * config asks for more threads. */
        {&one_node, "cpu", "0-1", 0, 2, true, {"0", "1"}, "cpu:0"},
        {&one_node, "cpu", "1", 0, 1, true, {"1"}, "cpu:0"},
        {&siblings, "cpu", "0-1", 0, 1, true, {"0"}, "cpu:0"},
        {&siblings, "cpu", "0-1", 2, 2, true, {"0", "1"}, "cpu:0"},
        {&siblings, "cpu", "", 0, 1, false, {NULL}, "cpu:0"},
        /* Several caches or nodes, and a thread for every core: only one placement exists. */
        {&two_caches, "cpu", "", 0, 2, true, {"0", "1"}, "cpu:0"},
        {&two_caches, "cpu", "", 1, 1, false, {NULL}, "cpu:0"},
        {&two_nodes, "cpu", "", 0, 2, true, {"0", "1"}, "cpu:0,cpu:1"},
        {&two_nodes, "cpu:1", "", 0, 1, false, {NULL}, "cpu:1"},
        {&two_nodes, "cpu:1,cpu:0", "node:1", 0, 1, true, {"1"}, "cpu:1,cpu:0"},
        /* More threads than CPUs: no thread is pinned. */
        {&one_node, "cpu", "0-1", 3, 3, false, {NULL}, "cpu:0"},
        {&two_nodes, "cpu", "", 3, 3, false, {NULL}, "cpu:0,cpu:1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings settings = {.devices = cases[i].devices,
                                    .config = CONFIG(cases[i].cpus, cases[i].threads)};
        struct place place;
        struct executor_config cfg = {0};
        struct error err;
        assert_int_equal(decide(cases[i].machine, &settings, &place, &err), 0);
        assert_string_equal(place.devices, cases[i].names);
        assert_string_equal(place.note, "");
        place_apply(&place, &cfg);
        assert_int_equal(cfg.n_threads, cases[i].n_threads);
        assert_int_equal(cfg.thread_cpus != NULL, cases[i].confined);
        for (int j = 0; j < 2 && cases[i].masks[j]; j++)
            assert_mask(&place, (uint32_t)j, cases[i].masks[j]);
        assert_null(cfg.rank_nodes);
        place_fini(&place);
    }
}

static void test_each_rank_is_on_a_node_where_they_come_out_even(void **state)
{
    (void)state;
    struct settings settings = {.devices = "cpu", .config = CONFIG("", 0), .tp = 2};
    struct executor_config cfg = {0};
    struct place place;
    struct error err;
    assert_int_equal(decide(&two_nodes, &settings, &place, &err), 0);
    place_apply(&place, &cfg);
    assert_non_null(cfg.rank_nodes);
    assert_int_equal(cfg.rank_nodes[0], 0);
    assert_int_equal(cfg.rank_nodes[1], 1);
    place_fini(&place);
    /* Binding on a single node has no effect. */
    assert_int_equal(decide(&one_node, &settings, &place, &err), 0);
    place_apply(&place, &cfg);
    assert_null(cfg.rank_nodes);
    place_fini(&place);
}

static void test_what_cannot_be_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *cpus, *message;
    } cases[] = {
        {"cpu:2", "", "--devices|cpu:2|1"},
        {"gpu:0", "", "--devices|gpu:0|cpu:0|cuda:0"},
        {"cpu:0x", "", "--devices|cpu:0x|cpu:0|cuda:0"},
        {",", "", "--devices"},
        {"cpu:1", "0", "--cpus|0|CPU 0|cpu:1"},
        {"cpu", "0-2", "--cpus|0-2|CPU 2"},
        {"cpu", "node:2", "--cpus|node:2|node 2|1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings settings = {.devices = cases[i].devices,
                                    .config = CONFIG(cases[i].cpus, 0)};
        struct place place;
        struct error err;
        assert_int_equal(decide(&two_nodes, &settings, &place, &err), STATUS_INVALID_ARGUMENT);
        assert_true(names_all(err.message, cases[i].message));
        place_fini(&place);
    }
}

/* The kernel's affinity mask excludes CPUs, as a cpuset does. The worker takes none of the excluded
 * CPUs. */
static void test_cpus_that_others_keep_from_us_are_not_taken(void **state)
{
    (void)state;
    struct settings settings = {.devices = "cpu", .config = CONFIG("", 0)};
    struct place place;
    struct error err;
    struct cpus all, one = {{0}};
    assert_int_equal(cpus_allowed(&all, &err), 0);
    cpus_add(&one, 1);
    assert_int_equal(cpus_confine(&one, &err), 0);
    assert_int_equal(decide(&two_nodes, &settings, &place, &err), 0);
    assert_true(cpus_equal(&place.cpus, &one));
    assert_int_equal(place.placement.n_threads, 1);
    place_fini(&place);
    settings.config.cpus = (char *)(uintptr_t) "0";
    assert_int_equal(decide(&two_nodes, &settings, &place, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "--cpus|CPU 0"));
    place_fini(&place);
    settings = (struct settings){.devices = "cpu:0", .config = CONFIG("", 0)};
    assert_int_equal(decide(&two_nodes, &settings, &place, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "--devices|cpu:0"));
    place_fini(&place);
    assert_int_equal(cpus_confine(&all, &err), 0);
}

static void test_a_machine_that_tells_nonsense_is_flat(void **state)
{
    (void)state;
    struct settings settings = {.devices = "cpu", .config = CONFIG("1", 0)};
    struct place place;
    struct error err;
    char *root = sysfs_create();
    sysfs_make(root, &two_nodes);
    sysfs_put(root, "devices/system/node/node1/cpulist", "0-1\n");
    assert_int_equal(place_init(&place, &settings, root, &err), 0);
    assert_true(names_all(place.note, "devices/system/node/node1/cpulist|CPU 0"));
    assert_int_equal(place.topology.n_nodes, 1);
    assert_true(place.confined);
    assert_mask(&place, 0, "1");
    place_fini(&place);
    sysfs_destroy(root);
}

static void test_a_process_runs_where_it_was_told(void **state)
{
    (void)state;
    struct settings settings = {.devices = "cpu", .config = CONFIG("1", 0)};
    struct place place;
    struct error err;
    struct cpus all, now;
    assert_int_equal(cpus_allowed(&all, &err), 0);
    assert_int_equal(decide(&one_node, &settings, &place, &err), 0);
    assert_int_equal(cpus_allowed(&now, &err), 0);
    assert_true(cpus_equal(&now, &all)); /* a decision changes nothing yet */
    assert_int_equal(place_enter(&place, &err), 0);
    assert_int_equal(cpus_allowed(&now, &err), 0);
    assert_true(cpus_equal(&now, &place.cpus));
    assert_int_equal(cpus_confine(&all, &err), 0);
    place_fini(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_are_kept_only_where_they_may_be),
        cmocka_unit_test(test_each_rank_is_on_a_node_where_they_come_out_even),
        cmocka_unit_test(test_what_cannot_be_is_named),
        cmocka_unit_test(test_cpus_that_others_keep_from_us_are_not_taken),
        cmocka_unit_test(test_a_machine_that_tells_nonsense_is_flat),
        cmocka_unit_test(test_a_process_runs_where_it_was_told),
    };
    struct cpus allowed;
    struct error err;
    if (cpus_allowed(&allowed, &err) != 0 || !cpus_has(&allowed, 0) || !cpus_has(&allowed, 1)) {
        printf("needs CPUs 0 and 1: skipped\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
