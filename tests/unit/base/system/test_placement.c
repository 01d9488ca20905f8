/* Tests of the CPUs of threads on simulated machines, and of the node of pages on this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/system/memory_policy.h"
#include "base/system/placement.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/base/system/support_sysfs.h"

/* 2 packages × 2 nodes × 2 domains × 2 cores × 2 threads: CPUs 0-15, their siblings 16-31; a node
 * has four cores, a domain two. */
static const struct sysfs_machine large = {2, 2, 2, 2, 2};
static const struct sysfs_machine small = {1, 1, 1, 2, 1};

static struct topology machine(const struct sysfs_machine *m)
{
    char *root = sysfs_create();
    struct topology t;
    struct error err;
    sysfs_make(root, m);
    assert_int_equal(topology_init(&t, root, &err), 0);
    sysfs_destroy(root);
    return t;
}

static void test_threads_take_cores_of_one_cache_then_of_one_node(void **state)
{
    (void)state;
    static const struct {
        const char *allowed;
        uint32_t n;
        const char *order; /* the CPU of each thread */
        uint32_t n_nodes;
    } cases[] = {
        {"0-31", 1, "0", 1},
        {"0-31", 2, "0 1", 1},
        {"0-31", 4, "0 1 2 3", 1},
        /* More threads than a node has cores: two nodes share them evenly. No core gets a second
           thread. */
        {"0-31", 6, "0 1 2 4 5 6", 2},
        {"0-31", 16, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", 4},
        /* More threads than cores: sibling CPUs come last within their node. */
        {"0-31", 18, "0 1 2 3 16 4 5 6 7 20 8 9 10 11 12 13 14 15", 4},
        /* The node with the most allowed CPUs is chosen, then the domain with the most. */
        {"2-7", 2, "4 5", 1},
        {"1-3,18-19", 3, "2 3 1", 1},
        {"1,18", 2, "1 18", 1},
        /* If only the sibling is allowed, it counts as the first thread of its core. Both threads
         * of a core are used only if no other core is free. */
        {"16-17", 2, "16 17", 1},
        {"0,16", 2, "0 16", 1},
        {"0,16,1", 2, "0 1", 1},
        {"3,12", 2, "3 12", 2},
        {"40-50,5", 1, "5", 1},
    };
    struct topology t = machine(&large);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cpus allowed = sysfs_cpus(cases[i].allowed);
        struct placement p;
        struct error err;
        char order[256] = "";
        assert_int_equal(placement_choose(&t, &allowed, cases[i].n, &p, &err), 0);
        for (uint32_t j = 0; j < p.n_threads; j++) {
            snprintf(order + strlen(order), sizeof(order) - strlen(order), j ? " %u" : "%u",
                     p.cpus[j]);
            assert_int_equal(p.node_of[j], topology_cpu(&t, p.cpus[j])->node);
        }
        assert_string_equal(order, cases[i].order);
        assert_int_equal(p.n_nodes, cases[i].n_nodes);
        assert_false(p.crowded);
    }
    topology_fini(&t);
}

static void test_more_threads_than_cpus_are_told(void **state)
{
    (void)state;
    struct topology t = machine(&small);
    struct cpus all = sysfs_cpus("0-1"), none = sysfs_cpus("7");
    struct placement p;
    struct error err;
    assert_int_equal(placement_choose(&t, &all, 5, &p, &err), 0);
    assert_true(p.crowded);
    assert_int_equal(p.n_threads, 5);
    for (uint32_t i = 0; i < 5; i++)
        assert_true(p.cpus[i] <= 1);
    assert_int_equal(placement_choose(&t, &all, PLACEMENT_MAX_THREADS, &p, &err), 0);
    assert_int_equal(placement_choose(&t, &all, 0, &p, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "placement|0|1..1024"));
    assert_int_equal(placement_choose(&t, &all, 1025, &p, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(placement_choose(&t, &none, 1, &p, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "placement"));
    topology_fini(&t);
}

static void test_default_threads_are_cores_within_the_quota(void **state)
{
    (void)state;
    struct topology t = machine(&large);
    struct cpus all = sysfs_cpus("0-31"), some = sysfs_cpus("0,16,1"), none = sysfs_cpus("");
    assert_int_equal(placement_default_threads(&t, &all, 0), 16);
    assert_int_equal(placement_default_threads(&t, &some, 0), 2);
    assert_int_equal(placement_default_threads(&t, &all, 2500), 3);
    assert_int_equal(placement_default_threads(&t, &all, 1), 1);
    assert_int_equal(placement_default_threads(&t, &all, 99000), 16);
    assert_int_equal(placement_default_threads(&t, &none, 0), 1);
    topology_fini(&t);
}

static void test_masks_are_a_cpu_or_its_cache(void **state)
{
    (void)state;
    struct topology t = machine(&large);
    struct cpus allowed = sysfs_cpus("0-31"), mask, few = sysfs_cpus("0-1,17,2");
    struct placement p;
    struct error err;
    assert_int_equal(placement_choose(&t, &allowed, 4, &p, &err), 0);
    placement_mask(&t, &p, 3, true, &allowed, &mask);
    sysfs_assert_cpus(&mask, "3");
    placement_mask(&t, &p, 3, false, &allowed, &mask);
    sysfs_assert_cpus(&mask, "2-3,18-19");
    placement_mask(&t, &p, 0, false, &few, &mask);
    sysfs_assert_cpus(&mask, "0-1,17");
    topology_fini(&t);
}

/* Programs that start one after the other get separate CPUs as long as cores are free. */
static void test_shares_are_apart_while_there_is_room(void **state)
{
    (void)state;
    static const char *const wanted[] = {"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"};
    struct topology t = machine(&large);
    struct cpus all = sysfs_cpus("0-31"), share;
    uint16_t n_users[CPUS_MAX] = {0};
    struct error err;
    bool shared;
    for (int turn = 0; turn < 4; turn++) {
        assert_int_equal(placement_share(&t, &all, n_users, 4, &share, &shared, &err), 0);
        assert_false(shared);
        sysfs_assert_cpus(&share, wanted[turn]);
        for (uint32_t i = 0; i < CPUS_MAX; i++)
            n_users[i] += cpus_has(&share, i);
    }
    assert_int_equal(placement_share(&t, &all, n_users, 2, &share, &shared, &err), 0);
    assert_true(shared); /* no core is free: the share has the cores with the fewest users */
    sysfs_assert_cpus(&share, "0-1,16-17");
    n_users[5] = 0; /* the sibling of CPU 5 is used, so the core is not free */
    n_users[30] = 0;
    n_users[14] = 0;
    assert_int_equal(placement_share(&t, &all, n_users, 1, &share, &shared, &err), 0);
    assert_false(shared);
    sysfs_assert_cpus(&share, "14,30");
    assert_int_equal(placement_share(&t, &all, n_users, 99, &share, &shared, &err), 0);
    assert_true(shared);
    sysfs_assert_cpus(&share, "0-31");
    topology_fini(&t);
}

static void test_cgroups_limit_cpu_time(void **state)
{
    (void)state;
    char *root = sysfs_create();
    assert_int_equal(placement_quota_milli(root, root), 0);
    sysfs_put(root, "self/cgroup", "1:cpu:/old\n0::/a/b\n");
    assert_int_equal(placement_quota_milli(root, root), 0);
    sysfs_put(root, "fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(placement_quota_milli(root, root), 0);
    sysfs_put(root, "fs/cgroup/a/cpu.max", "250000 100000\n");
    assert_int_equal(placement_quota_milli(root, root), 2500);
    sysfs_put(root, "fs/cgroup/a/b/cpu.max", "400000 100000\n");
    assert_int_equal(placement_quota_milli(root, root), 2500);
    sysfs_put(root, "fs/cgroup/cpu.max", "50000 100000\n"); /* a container's own root */
    assert_int_equal(placement_quota_milli(root, root), 500);
    static const char *const hostile[] = {
        "", "\n", "x", "1", "1 0", "99999999999999999999 1", "-5 100000"};
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        sysfs_put(root, "fs/cgroup/cpu.max", hostile[i]);
        assert_int_equal(placement_quota_milli(root, root), 2500);
    }
    sysfs_destroy(root);
}

/* Symptom: in a container of cgroup version 1, a quota of two CPUs got a thread on each of 64
 * cores. */
static void test_cgroups_of_version_1_limit_cpu_time(void **state)
{
    (void)state;
    char *root = sysfs_create();
    sysfs_put(root, "self/cgroup",
              "9:name=systemd:/a\n4:memory:/m\n3:cpuset:/a\n"
              "2:cpuacct,cpu:/a/b\n0::/\n");
    assert_int_equal(placement_quota_milli(root, root), 0);
    sysfs_put(root, "fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    sysfs_put(root, "fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
    assert_int_equal(placement_quota_milli(root, root), 0);
    sysfs_put(root, "fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(placement_quota_milli(root, root), 0); /* no quota without a period */
    sysfs_put(root, "fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n");
    assert_int_equal(placement_quota_milli(root, root), 5000);
    sysfs_put(root, "fs/cgroup/cpu/cpu.cfs_quota_us", "40000\n"); /* a container's own root */
    sysfs_put(root, "fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(placement_quota_milli(root, root), 400);
    sysfs_put(root, "fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    sysfs_put(root, "fs/cgroup/cpuacct,cpu/cpu.cfs_quota_us", "300000\n");
    sysfs_put(root, "fs/cgroup/cpuacct,cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(placement_quota_milli(root, root), 3000);
    /* Groups of other controllers and malformed lines are ignored. */
    static const char *const others[] = {
        "2:cpuset:/a\n", "2:cpuacct:/a\n", "2:xcpu:/a\n",   "2:cpu\n",
        "2:cpu:\n",      ":::\n",          "2:cpu/..:/a\n", "",
        "1::/a\n"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        sysfs_put(root, "self/cgroup", others[i]);
        assert_int_equal(placement_quota_milli(root, root), 0);
    }
    sysfs_destroy(root);
}

/* Makes the memory policy calls on this machine. A node that does not exist gives an error. */
static void test_pages_lie_on_the_node_that_was_asked_for(void **state)
{
    (void)state;
    struct topology t;
    struct error err = {0};
    size_t n_bytes = 1 << 20;
    assert_int_equal(topology_init(&t, "/sys", &err), 0);
    uint16_t node = t.nodes[t.n_nodes - 1];
    int rc = memory_policy_set(&node, 1, &err);
    if (rc == STATUS_PERMISSION_DENIED || rc == STATUS_UNIMPLEMENTED) {
        topology_fini(&t);
        skip();
    }
    assert_int_equal(rc, 0);
    char *at = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    at[0] = 1;
    assert_int_equal(memory_policy_node(at), node);
    assert_int_equal(memory_policy_set(t.nodes, t.n_nodes, &err), 0);
    at[8192] = 1;
    assert_true(memory_policy_node(at + 8192) >= 0);
    assert_int_equal(memory_policy_set(NULL, 0, &err), 0);
    assert_int_equal(memory_policy_bind(at + 100000, 5000, node, &err), 0);
    at[100000] = 1;
    assert_int_equal(memory_policy_node(at + 100000), node);
    /* This node does not exist. */
    uint16_t missing = 63;
    assert_true(memory_policy_set(&missing, 1, &err) < 0);
    assert_true(names_all(err.message, "1"));
    assert_true(memory_policy_bind(at, 4096, 63, &err) < 0);
    assert_true(names_all(err.message, "4096|node 63"));
    munmap(at, n_bytes);
    topology_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_take_cores_of_one_cache_then_of_one_node),
        cmocka_unit_test(test_more_threads_than_cpus_are_told),
        cmocka_unit_test(test_default_threads_are_cores_within_the_quota),
        cmocka_unit_test(test_masks_are_a_cpu_or_its_cache),
        cmocka_unit_test(test_shares_are_apart_while_there_is_room),
        cmocka_unit_test(test_cgroups_limit_cpu_time),
        cmocka_unit_test(test_cgroups_of_version_1_limit_cpu_time),
        cmocka_unit_test(test_pages_lie_on_the_node_that_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
