/* The memory that a process may take, on fake machines and in fake memory cgroups. */
#include <stdio.h>
#include <string.h>

#include "base/system/memory_limit.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/base/system/support_sysfs.h"

#define MIB (1ULL << 20)

/* A machine of 24,000 MiB with 12,000 MiB available. */
static char *machine(void)
{
    char *root = sysfs_create();
    sysfs_put(
        root, "proc/meminfo",
        "MemTotal:       24576000 kB\nMemFree:        1024 kB\nMemAvailable:   12288000 kB\n");
    return root;
}

static uint64_t free_mib(const char *root)
{
    struct memory_limit limit;
    assert_true(memory_limit_read(root, 0, &limit));
    assert_int_equal(limit.machine_free_bytes, 12000 * MIB);
    assert_int_equal(limit.machine_total_bytes, 24000 * MIB);
    assert_int_equal(limit.free_bytes % MIB, 0);
    return limit.free_bytes / MIB;
}

static void put_v1(const char *root, const char *group, const char *limit, const char *usage,
                   const char *stat)
{
    sysfs_putf(root, limit, "sys/fs/cgroup/memory%s/memory.limit_in_bytes", group);
    sysfs_putf(root, usage, "sys/fs/cgroup/memory%s/memory.usage_in_bytes", group);
    sysfs_putf(root, stat, "sys/fs/cgroup/memory%s/memory.stat", group);
}

static const char v1_mount[] = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup "
                               "cgroup rw,memory\n";
static const char v2_mount[] = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";

static void test_without_cgroups_the_machine_counts(void **state)
{
    (void)state;
    struct memory_limit limit;
    char *root = sysfs_create();
    assert_false(memory_limit_read(root, 0, &limit));
    assert_int_equal(limit.free_bytes, 0);
    sysfs_destroy(root);
    root = machine();
    assert_int_equal(free_mib(root), 12000);
    sysfs_put(root, "proc/self/mountinfo", v1_mount);
    assert_int_equal(free_mib(root), 12000);
    sysfs_put(root, "proc/self/cgroup", "4:memory:/a\n0::/\n");
    assert_int_equal(free_mib(root), 12000); /* the files of this group do not exist */
    sysfs_destroy(root);
}

/* Symptom: in a cgroup of 500 MB the plan had a pool of 11.1 GiB, and the kernel killed the
 * worker. */
static void test_a_group_of_version_1_leaves_limit_less_usage_plus_cache(void **state)
{
    (void)state;
    struct memory_limit limit;
    char *root = machine();
    sysfs_put(root, "proc/self/mountinfo", v1_mount);
    sysfs_put(root, "proc/self/cgroup", "5:cpu:/other\n4:memory:/up/own\n0::/\n");
    put_v1(root, "", "9223372036854771712\n", "1\n", "total_inactive_file 0\n");
    put_v1(root, "/up/own", "524288000\n", "209715200\n",
           "inactive_file 1\ntotal_inactive_file 104857600\ntotal_active_file 52428800\n");
    assert_int_equal(free_mib(root), 500 - 200 + 100);
    assert_true(memory_limit_read(root, 0, &limit));
    assert_int_equal(limit.total_bytes, 500 * MIB);
    assert_int_equal(limit.group_limit_bytes, 500 * MIB);
    assert_string_equal(limit.group, "/up/own");
    char text[MEMORY_LIMIT_TEXT];
    assert_string_equal(memory_limit_text(&limit, text),
                        "400.0 MiB free in a memory cgroup of 500.0 MiB");
    /* The parent group has a larger limit, but other groups use most of its memory. */
    put_v1(root, "/up", "1048576000\n", "1038090240\n", "total_inactive_file 0\n");
    assert_int_equal(free_mib(root), 10);
    assert_true(memory_limit_read(root, 0, &limit));
    assert_int_equal(limit.total_bytes, 500 * MIB);
    assert_int_equal(limit.group_limit_bytes, 1000 * MIB);
    assert_string_equal(limit.group, "/up");
    /* A group beyond its limit leaves nothing. */
    put_v1(root, "/up", "1048576000\n", "1258291200\n", "total_inactive_file 0\n");
    assert_int_equal(free_mib(root), 0);
    sysfs_destroy(root);
}

/* A container of cgroup version 1 sees only its own group. The statistics of that group have the
 * limit of the groups above. */
static void test_limits_above_what_is_visible_count(void **state)
{
    (void)state;
    char *root = machine();
    sysfs_put(root, "proc/self/mountinfo",
              "35 31 0:32 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    sysfs_put(root, "proc/self/cgroup", "4:memory:/docker/x\n");
    put_v1(root, "", "9223372036854771712\n", "104857600\n",
           "hierarchical_memory_limit 524288000\ntotal_inactive_file 0\n");
    assert_int_equal(free_mib(root), 400);
    /* A mount of a group that does not contain the process is ignored. */
    sysfs_put(root, "proc/self/cgroup", "4:memory:/docker/xy\n");
    assert_int_equal(free_mib(root), 12000);
    /* The mount's root lies above the cgroup namespace. Then only the files at the root are read.
     */
    sysfs_put(root, "proc/self/mountinfo",
              "35 31 0:32 /.. /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    sysfs_put(root, "proc/self/cgroup", "4:memory:/\n");
    assert_int_equal(free_mib(root), 400);
    sysfs_destroy(root);
}

static void test_a_group_of_version_2_has_two_limits(void **state)
{
    (void)state;
    struct memory_limit limit;
    char *root = machine();
    sysfs_put(root, "proc/self/mountinfo", v2_mount);
    sysfs_put(root, "proc/self/cgroup", "0::/a/b\n");
    sysfs_put(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    sysfs_put(root, "sys/fs/cgroup/a/b/memory.high", "max\n");
    sysfs_put(root, "sys/fs/cgroup/a/b/memory.current", "209715200\n");
    sysfs_put(root, "sys/fs/cgroup/a/b/memory.stat",
              "anon 1\nfile 2\ninactive_file 41943040\nslab_reclaimable 10485760\n");
    assert_int_equal(free_mib(root), 12000);
    sysfs_put(root, "sys/fs/cgroup/a/b/memory.max", "524288000\n");
    assert_int_equal(free_mib(root), 500 - 200 + 50);
    sysfs_put(root, "sys/fs/cgroup/a/b/memory.high", "314572800\n");
    assert_int_equal(free_mib(root), 300 - 200 + 50);
    sysfs_put(root, "sys/fs/cgroup/memory.max",
              "104857600\n"); /* the root group of a container has limits, too */
    assert_int_equal(free_mib(root), 100);
    assert_true(memory_limit_read(root, 0, &limit));
    assert_string_equal(limit.group, "");
    assert_int_equal(limit.group_limit_bytes, 100 * MIB);
    static const char *const none[] = {"", "\n", "max\n", "x", "-1\n"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        sysfs_put(root, "sys/fs/cgroup/memory.max", none[i]);
        assert_int_equal(free_mib(root), 150);
    }
    sysfs_destroy(root);
}

static void test_lines_that_are_none_set_no_limit(void **state)
{
    (void)state;
    static const char *const mounts[] = {
        "",
        "\n",
        " - ",
        "1 2 3 - cgroup2",
        "1 2 3 4 - cgroup2 a b",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu\n",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - tmpfs cgroup rw,memory\n",
        "35 31 0:32 / /sys/fs/cgroup/memory rw\n"};
    static const char *const groups[] = {
        "",      "\n",      "4:memory\n",    "4:memory:\n", "4:memory:a\n",
        ":::\n", "1::/a\n", "4:xmemory:/a\n"};
    char *root = machine();
    put_v1(root, "/a", "524288000\n", "209715200\n", "total_inactive_file 0\n");
    sysfs_put(root, "proc/self/mountinfo", v1_mount);
    sysfs_put(root, "proc/self/cgroup", "4:hugetlb,memory:/a\n");
    assert_int_equal(free_mib(root), 300);
    for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
        sysfs_put(root, "proc/self/mountinfo", mounts[i]);
        assert_int_equal(free_mib(root), 12000);
    }
    sysfs_put(root, "proc/self/mountinfo", v1_mount);
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        sysfs_put(root, "proc/self/cgroup", groups[i]);
        assert_int_equal(free_mib(root), 12000);
    }
    sysfs_destroy(root);
}

static void test_another_process_and_a_mount_with_a_blank(void **state)
{
    (void)state;
    struct memory_limit limit;
    char *root = machine();
    sysfs_put(root, "proc/self/mountinfo", "41 31 0:38 / /a\\040b rw - cgroup2 cgroup2 rw\n");
    sysfs_put(root, "proc/self/cgroup", "0::/\n");
    sysfs_put(root, "proc/12/cgroup", "0::/own\n");
    sysfs_put(root, "a b/own/memory.max", "524288000\n");
    assert_int_equal(free_mib(root), 12000);
    assert_true(memory_limit_read(root, 12, &limit));
    assert_int_equal(limit.free_bytes,
                     500 * MIB); /* without memory.current the whole limit counts as free */
    sysfs_destroy(root);
}

/* Writes a node's file, in MiB. `file`: cached pages; `shmem`: pages of memory files. */
static void put_node(const char *root, int node, int total, int free, int file, int shmem)
{
    char path[64], text[256];
    snprintf(path, sizeof(path), "sys/devices/system/node/node%d/meminfo", node);
    snprintf(text, sizeof(text),
             "Node %d MemTotal:  %d kB\nNode %d MemFree:  %d kB\nNode %d Active(file):  %d kB\n"
             "Node %d Inactive(file):  0 kB\nNode %d FilePages:  %d kB\nNode %d Dirty:  4 kB\n",
             node, total << 10, node, free << 10, node, file << 10, node, node,
             (file + shmem) << 10, node);
    sysfs_put(root, path, text);
}

static void expect_node(const char *root, uint32_t node, uint64_t total_mib, uint64_t free_mib)
{
    struct memory_limit limit;
    assert_true(memory_limit_read_node(root, node, &limit));
    assert_int_equal(limit.total_bytes, total_mib * MIB);
    assert_int_equal(limit.free_bytes, free_mib * MIB);
}

/* Symptom: in a virtual machine `sluice devices` said 17.0 GiB, from the node's own file. Doctor
 * and the plans of loads counted the 23.5 GiB of MemAvailable. */
static void test_the_only_node_has_the_whole_machines_memory(void **state)
{
    (void)state;
    char *root = machine();
    expect_node(root, 0, 24000, 12000); /* the kernel lists no nodes */
    sysfs_put(root, "sys/devices/system/node/online", "0\n");
    expect_node(root, 0, 24000, 12000); /* the node has no file */
    put_node(root, 0, 17000, 5000, 300, 900);
    expect_node(root, 0, 24000, 12000);
    expect_node(root, 1, 24000, 12000); /* a node that is not there */
    sysfs_destroy(root);
}

static void test_nodes_share_what_the_machine_and_its_limits_leave(void **state)
{
    (void)state;
    struct memory_limit limit;
    char *root = machine();
    sysfs_put(root, "sys/devices/system/node/online", "0-1,4\n");
    put_node(root, 0, 6000, 1000, 500, 4000); /* memory files are no free memory */
    put_node(root, 1, 2000, 400, 100, 0);
    put_node(root, 4, 0, 0, 0, 0);
    expect_node(root, 0, 18000, 9000);
    expect_node(root, 1, 6000, 3000);
    expect_node(root, 4, 24000, 12000); /* a node with CPUs only uses the memory of others */
    put_node(root, 1, 2000, 2000, 0, 0);
    put_node(root, 0, 6000, 0, 0, 0);
    expect_node(root, 0, 18000, 0);
    expect_node(root, 1, 6000, 6000); /* no more than the node has */
    put_node(root, 0, 6000, 1500, 0, 0);
    put_node(root, 1, 2000, 500, 0, 0);
    sysfs_put(root, "proc/self/mountinfo", v2_mount);
    sysfs_put(root, "proc/self/cgroup", "0::/\n");
    sysfs_put(root, "sys/fs/cgroup/memory.max", "104857600\n");
    expect_node(root, 0, 75, 75);
    expect_node(root, 1, 25, 25);
    assert_true(memory_limit_read_node(root, 1, &limit));
    assert_int_equal(limit.group_limit_bytes, 100 * MIB);
    assert_int_equal(limit.machine_total_bytes, 6000 * MIB);
    assert_int_equal(limit.machine_free_bytes, 3000 * MIB);
    sysfs_destroy(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_cgroups_the_machine_counts),
        cmocka_unit_test(test_a_group_of_version_1_leaves_limit_less_usage_plus_cache),
        cmocka_unit_test(test_limits_above_what_is_visible_count),
        cmocka_unit_test(test_a_group_of_version_2_has_two_limits),
        cmocka_unit_test(test_lines_that_are_none_set_no_limit),
        cmocka_unit_test(test_another_process_and_a_mount_with_a_blank),
        cmocka_unit_test(test_the_only_node_has_the_whole_machines_memory),
        cmocka_unit_test(test_nodes_share_what_the_machine_and_its_limits_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
