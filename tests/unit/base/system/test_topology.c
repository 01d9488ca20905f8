/* Tests of the topology reader on simulated machines, which are trees like /sys. Covers correct and
 * implausible values, and the names of CPUs that operators write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/topology.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/base/system/support_sysfs.h"

#define CPU  "devices/system/cpu/"
#define NODE "devices/system/node/"

/* 2 packages × 2 nodes × 2 domains × 2 cores × 2 threads: CPUs 0-15, their siblings 16-31. */
static const struct sysfs_machine large = {2, 2, 2, 2, 2};

static void test_a_machine_of_two_packages_is_read(void **state)
{
    (void)state;
    char *root = sysfs_create();
    struct topology t;
    struct error err;
    struct cpus set;
    uint64_t bytes;
    sysfs_make(root, &large);
    assert_int_equal(topology_init(&t, root, &err), 0);
    assert_int_equal(t.n_cpus, 32);
    assert_int_equal(t.n_nodes, 4);
    const struct topology_cpu *cpu = topology_cpu(&t, 27); /* second thread of core 11 */
    assert_int_equal(cpu->core, 11);
    assert_int_equal(cpu->sibling, 1);
    assert_int_equal(cpu->node, 2);
    assert_int_equal(cpu->package, 1);
    assert_int_equal(cpu->domain, 10);
    assert_int_equal(cpu->caches[3].bytes, 32 << 20);
    assert_int_equal(cpu->caches[1].bytes,
                     32 << 10); /* the data cache, not the instruction cache */
    assert_null(topology_cpu(&t, 32));
    assert_true(topology_node_cpus(&t, 3, &set));
    sysfs_assert_cpus(&set, "12-15,28-31");
    assert_false(topology_node_cpus(&t, 4, &set));
    set = sysfs_cpus("0-3,16-19,4");
    assert_int_equal(topology_n_cores(&t, &set), 5);
    assert_int_equal(topology_n_nodes(&t, &set), 2);
    assert_int_equal(topology_n_caches(&t, &set, 3, &bytes), 3);
    assert_int_equal(bytes, 32 << 20);
    assert_int_equal(topology_n_caches(&t, &set, 2, &bytes), 5);
    assert_int_equal(topology_n_caches(&t, &set, 4, &bytes), 0);
    topology_fini(&t);
    sysfs_destroy(root);
}

/* The machine has offline CPUs, and gaps in the numbers of CPUs and nodes. */
static void test_gaps_and_offline_cpus_are_left_out(void **state)
{
    (void)state;
    char *root = sysfs_create();
    struct topology t;
    struct error err;
    sysfs_make(root, &(struct sysfs_machine){1, 3, 1, 2, 2});
    sysfs_put(root, CPU "online", "0-1,4-7,9-11\n"); /* 2, 3, 8 are not */
    for (int cpu = 2; cpu <= 3; cpu++)
        sysfs_putf(root, NULL, CPU "cpu%d/topology/thread_siblings_list", cpu);
    sysfs_putf(root, NULL, CPU "cpu8/topology/thread_siblings_list");
    sysfs_put(root, NODE "online", "0,2\n");
    sysfs_put(root, NODE "node0/cpulist", "0-1,6-7\n");
    sysfs_put(root, NODE "node1/cpulist", NULL);
    sysfs_put(root, NODE "node2/cpulist", "4-5,9-11\n");
    assert_int_equal(topology_init(&t, root, &err), 0);
    assert_int_equal(t.n_cpus, 9);
    assert_int_equal(t.n_nodes, 2);
    assert_int_equal(t.nodes[1], 2);
    assert_null(topology_cpu(&t, 2));
    assert_int_equal(topology_cpu(&t, 9)->core,
                     9); /* CPU 3 of this core is offline, so CPU 9 is the first */
    assert_int_equal(topology_cpu(&t, 9)->sibling, 0);
    assert_int_equal(topology_cpu(&t, 9)->node, 2);
    assert_int_equal(topology_cpu(&t, 11)->sibling, 1);
    topology_fini(&t);
    sysfs_destroy(root);
}

/* In a container, sysfs may show only the list of online CPUs. */
static void test_a_kernel_that_says_little_is_one_node(void **state)
{
    (void)state;
    char *root = sysfs_create();
    struct topology t;
    struct error err;
    sysfs_put(root, CPU "online", "0-3");
    assert_int_equal(topology_init(&t, root, &err), 0);
    assert_int_equal(t.n_cpus, 4);
    assert_int_equal(t.n_nodes, 1);
    assert_int_equal(topology_cpu(&t, 3)->core, 3);
    assert_int_equal(topology_cpu(&t, 3)->domain, 0);
    topology_fini(&t);
    sysfs_put(root, CPU "online", NULL);
    assert_int_equal(topology_init(&t, root, &err), STATUS_NOT_FOUND);
    assert_true(names_all(err.message, "topology|devices/system/cpu/online"));
    topology_fini(&t);
    struct cpus set = sysfs_cpus("1,3");
    assert_int_equal(topology_init_flat(&t, &set, &err), 0);
    assert_int_equal(t.n_cpus, 2);
    assert_int_equal(topology_cpu(&t, 3)->domain, 1);
    topology_fini(&t);
    sysfs_destroy(root);
}

/* A domain never spans nodes, even where the kernel reports a cache that does. */
static void test_a_cache_over_two_nodes_makes_two_domains(void **state)
{
    (void)state;
    char *root = sysfs_create();
    struct topology t;
    struct error err;
    sysfs_make(root, &(struct sysfs_machine){1, 1, 1, 4, 1});
    sysfs_put(root, NODE "online", "0-1\n");
    sysfs_put(root, NODE "node0/cpulist", "0-1\n");
    sysfs_put(root, NODE "node1/cpulist", "2-3\n");
    assert_int_equal(topology_init(&t, root, &err), 0);
    assert_int_equal(topology_cpu(&t, 1)->domain, 0);
    assert_int_equal(topology_cpu(&t, 3)->domain, 2);
    topology_fini(&t);
    sysfs_destroy(root);
}

static void test_hostile_contents_are_named(void **state)
{
    (void)state;
    static char long_text[20000];
    memset(long_text, '1', sizeof(long_text) - 1);
    static const struct {
        const char *path, *text, *message;
    } cases[] = {
        {CPU "online", "", "topology"},
        {CPU "online", "0-3x\n", "topology|devices/system/cpu/online|0-3x\n|byte 3"},
        {CPU "online", "0-99999\n", "topology|devices/system/cpu/online|0-99999\n|byte 2|0|4095"},
        {CPU "online", long_text, "topology|devices/system/cpu/online|16383"},
        {CPU "cpu1/topology/thread_siblings_list", "0\n",
         "topology|devices/system/cpu/cpu1/topology/thread_siblings_list|CPU 1"},
        {CPU "cpu1/topology/thread_siblings_list", "-\n",
         "topology|devices/system/cpu/cpu1/topology/thread_siblings_list|\"-\n\"|byte 0"},
        {CPU "cpu1/topology/physical_package_id", "many\n",
         "topology|devices/system/cpu/cpu1/topology/physical_package_id|many\n|0|65535"},
        {CPU "cpu1/cache/index3/level", "99999999999999999999\n",
         "topology|devices/system/cpu/cpu1/cache/index3/level|99999999999999999999\n|0|65535"},
        {CPU "cpu1/cache/index3/size", "big\n",
         "topology|devices/system/cpu/cpu1/cache/index3/size|big\n|0|1099511627776"},
        {CPU "cpu1/cache/index3/shared_cpu_list", "2-3\n",
         "topology|devices/system/cpu/cpu1/cache/index3/shared_cpu_list|CPU 1"},
        {NODE "online", "0-64\n", "topology|devices/system/node/online|node 64|0|63"},
        {NODE "node1/cpulist", "0-3\n", "topology|devices/system/node/node1/cpulist|CPU 0"},
        {NODE "node1/cpulist", "2\n", "topology|CPU 3"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *root = sysfs_create();
        struct topology t;
        struct error err;
        sysfs_make(root, &(struct sysfs_machine){1, 2, 1, 2, 1});
        sysfs_put(root, cases[i].path, cases[i].text);
        assert_int_equal(topology_init(&t, root, &err), STATUS_INVALID_ARGUMENT);
        assert_true(names_all(err.message, cases[i].message));
        topology_fini(&t);
        sysfs_destroy(root);
    }
}

/* Any contents of the files give a result or an error. No byte outside the contents is read. */
static void test_no_contents_do_harm(void **state)
{
    (void)state;
    static const char *const files[] = {
        CPU "online",
        CPU "cpu0/topology/thread_siblings_list",
        CPU "cpu0/cache/index3/level",
        CPU "cpu0/cache/index3/size",
        CPU "cpu0/cache/index3/shared_cpu_list",
        NODE "online",
        NODE "node0/cpulist",
    };
    static const char *const texts[] = {"",       "\n",   "0",    "0-",      ",",
                                        "-",      "0,,1", "4095", "0-4095",  "18446744073709551615",
                                        "node:0", "1K",   "M",    "\xff\xfe"};
    char *root = sysfs_create();
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        sysfs_make(root, &(struct sysfs_machine){1, 1, 1, 2, 2});
        for (size_t j = 0; j < sizeof(texts) / sizeof(texts[0]); j++) {
            struct topology t;
            struct error err;
            sysfs_put(root, files[i], texts[j]);
            if (topology_init(&t, root, &err) == 0)
                assert_true(t.n_cpus > 0 && t.n_nodes > 0);
            topology_fini(&t);
        }
    }
    sysfs_destroy(root);
}

static void test_cpus_are_named_by_number_and_node(void **state)
{
    (void)state;
    static const struct {
        const char *text, *set, *message;
    } cases[] = {
        {"0-7,16-23", "0-7,16-23", NULL},
        {"node:0", "0-3,16-19", NULL},
        {"node:3,0,node:1", "0,4-7,12-15,20-23,28-31", NULL},
        {"", NULL, "--cpus|\"\"|byte 0"},
        {"node:", NULL, "--cpus|\"node:\"|byte 5"},
        {"node:4", NULL, "--cpus|node:4|node 4|3"},
        {"node:-1", NULL, "--cpus|node:-1|byte 5"},
        {"0,node:99999999999999999999", NULL,
         "--cpus|0,node:99999999999999999999|node 99999999999999999999|3"},
        {"0-1;2", NULL, "--cpus|0-1;2|byte 3"},
        {"0,", NULL, "--cpus|\"0,\"|byte 2"},
        {"node0", NULL, "--cpus|node0|byte 0"},
        {"30-33", NULL, "--cpus|30-33|CPU 32"},
    };
    char *root = sysfs_create();
    struct topology t;
    struct error err;
    sysfs_make(root, &large);
    assert_int_equal(topology_init(&t, root, &err), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cpus set;
        int rc = topology_parse(&t, "--cpus", cases[i].text, &set, &err);
        if (cases[i].message) {
            assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
            assert_true(names_all(err.message, cases[i].message));
        } else {
            assert_int_equal(rc, 0);
            sysfs_assert_cpus(&set, cases[i].set);
        }
    }
    topology_fini(&t);
    sysfs_destroy(root);
}

static void test_this_machine_is_read(void **state)
{
    (void)state;
    struct topology t;
    struct error err = {0};
    struct cpus allowed;
    assert_int_equal(topology_init(&t, "/sys", &err), 0);
    assert_int_equal(cpus_allowed(&allowed, &err), 0);
    for (uint32_t i = cpus_next(&allowed, 0); i < CPUS_MAX; i = cpus_next(&allowed, i + 1))
        assert_non_null(topology_cpu(&t, i));
    topology_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_machine_of_two_packages_is_read),
        cmocka_unit_test(test_gaps_and_offline_cpus_are_left_out),
        cmocka_unit_test(test_a_kernel_that_says_little_is_one_node),
        cmocka_unit_test(test_a_cache_over_two_nodes_makes_two_domains),
        cmocka_unit_test(test_hostile_contents_are_named),
        cmocka_unit_test(test_no_contents_do_harm),
        cmocka_unit_test(test_cpus_are_named_by_number_and_node),
        cmocka_unit_test(test_this_machine_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
