/* Tests of the choice of a replica's device. The simulated machines have two to four NUMA nodes
 * with different budgets, and versions that run already. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "manager/capacity/fit.h"

#define G (UINT64_C(1) << 30)

enum { MAX_NODES = 4, MAX_LOADS = 8 };

struct machine {
    const char *what;
    enum fit_policy policy;
    struct fit_device nodes[MAX_NODES];
    size_t n_nodes;
    uint64_t loads[MAX_LOADS]; /* GiB, placed one after the other; 0 ends the list */
    size_t expected[MAX_LOADS];
};

/* Updates a node after a load: less room, and one more process. */
static void take(struct fit_device *node, uint64_t n_bytes)
{
    node->room_bytes = node->room_bytes > n_bytes ? node->room_bytes - n_bytes : 0;
    node->n_processes++;
}

static const struct machine machines[] = {
    {"spread over two equal nodes: in turn",
     FIT_SPREAD,
     {{true, 8 * G, 0}, {true, 8 * G, 0}},
     2,
     {2, 2, 2, 2},
     {0, 1, 0, 1}},
    {"pack on two equal nodes: the first until it is full",
     FIT_PACK,
     {{true, 8 * G, 0}, {true, 8 * G, 0}},
     2,
     {3, 3, 3, 3},
     {0, 0, 1, 1}},
    {"spread over uneven budgets: the larger one first, then by processes",
     FIT_SPREAD,
     {{true, 4 * G, 0}, {true, 16 * G, 0}, {true, 8 * G, 0}},
     3,
     {1, 1, 1, 1, 1},
     {1, 2, 0, 1, 2}},
    {"pack leaves the largest node to what needs it",
     FIT_PACK,
     {{true, 16 * G, 0}, {true, 4 * G, 0}, {true, 6 * G, 0}},
     3,
     {4, 5, 12, 3},
     {1, 2, 0, 0}},
    {"spread goes where it fits though others are emptier",
     FIT_SPREAD,
     {{true, 2 * G, 0}, {true, 12 * G, 3}, {true, 1 * G, 0}, {true, 3 * G, 0}},
     4,
     {8, 3, 2},
     {1, 3, 0}},
    {"versions that run already count as processes",
     FIT_SPREAD,
     {{true, 10 * G, 2}, {true, 6 * G, 1}, {true, 5 * G, 1}},
     3,
     {2, 2, 2},
     {1, 2, 0}},
    {"of equally full nodes pack takes the one that is in use",
     FIT_PACK,
     {{true, 4 * G, 0}, {true, 4 * G, 1}, {true, 4 * G, 0}},
     3,
     {2, 2, 2},
     {1, 1, 0}},
    {"what fits nowhere goes where there is most room",
     FIT_PACK,
     {{true, 2 * G, 0}, {true, 3 * G, 5}, {true, 1 * G, 0}},
     3,
     {9},
     {1}},
    {"the same of spread", FIT_SPREAD, {{true, 2 * G, 0}, {true, 3 * G, 5}}, 2, {9}, {1}},
    {"a device that is gone is the last choice",
     FIT_SPREAD,
     {{false, 9 * G, 0}, {true, 1 * G, 4}},
     2,
     {2},
     {1}},
    {"the same of pack", FIT_PACK, {{false, 1 * G, 3}, {true, 9 * G, 0}}, 2, {1}, {1}},
    {"a budget of nothing takes nothing",
     FIT_PACK,
     {{true, 0, 0}, {true, 4 * G, 0}},
     2,
     {1, 1},
     {1, 1}},
    {"what is not known fits: pack still fills one",
     FIT_PACK,
     {{true, UINT64_MAX, 0}, {true, UINT64_MAX, 1}},
     2,
     {1},
     {1}},
    {"one device is that one", FIT_PACK, {{true, 0, 7}}, 1, {5}, {0}},
    {"auto, where there is a choice, spreads",
     FIT_AUTO,
     {{true, 8 * G, 1}, {true, 2 * G, 0}},
     2,
     {1},
     {1}},
};

static void test_loads_one_after_the_other_go_where_the_policy_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        struct machine machine = machines[i];
        for (size_t k = 0; k < MAX_LOADS && machine.loads[k]; k++) {
            size_t got =
                fit_choose(machine.policy, machine.nodes, machine.n_nodes, machine.loads[k] * G);
            if (got != machine.expected[k])
                fail_msg("%s: load %zu went to node %zu, not %zu", machine.what, k, got,
                         machine.expected[k]);
            take(&machine.nodes[got], machine.loads[k] * G);
        }
    }
}

/* A packed machine accepts everything that a spread one has room for, the largest first. Best fit
 * keeps the large holes. */
static void test_pack_leaves_the_largest_hole_there_is(void **state)
{
    (void)state;
    for (uint64_t size = 1; size <= 8; size++) {
        struct fit_device nodes[] = {{true, 8 * G, 0}, {true, 9 * G, 0}, {true, 20 * G, 0}};
        take(&nodes[fit_choose(FIT_PACK, nodes, 3, size * G)], size * G);
        assert_int_equal(nodes[2].room_bytes, 20 * G);
    }
}

static void test_words_of_policies(void **state)
{
    enum fit_policy policy = FIT_AUTO;
    (void)state;
    assert_true(fit_policy_parse("spread", &policy));
    assert_int_equal(policy, FIT_SPREAD);
    assert_true(fit_policy_parse("pack", &policy));
    assert_int_equal(policy, FIT_PACK);
    assert_true(fit_policy_parse("auto", &policy));
    assert_int_equal(policy, FIT_AUTO);
    policy = FIT_PACK;
    assert_false(fit_policy_parse("", &policy));
    assert_false(fit_policy_parse("Pack", &policy));
    assert_int_equal(policy, FIT_PACK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads_one_after_the_other_go_where_the_policy_says),
        cmocka_unit_test(test_pack_leaves_the_largest_hole_there_is),
        cmocka_unit_test(test_words_of_policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
