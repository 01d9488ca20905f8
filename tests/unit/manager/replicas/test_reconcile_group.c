/* Tests of reconcile()'s actions for the replicas of a deployment together. Covers the choice of
 * replicas that drain or start, and the end of operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "manager/replicas/reconcile.h"

enum { MAX_ACTIONS = 64 };

static const int64_t now = 1000 * NS_PER_S;

static struct reconcile_config config(void)
{
    struct reconcile_config c;
    reconcile_config_init(&c);
    return c;
}

static void test_surplus_when_fewer_are_wanted_then_the_youngest_drain(void **state)
{
    (void)state;
    struct reconcile_config c = config();
    struct reconcile_replica replicas[4];
    uint32_t n_wanted = 2;
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    for (int i = 0; i < 4; i++)
        replicas[i] = (struct reconcile_replica){
            .state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY};
    replicas[0].state = REPLICA_STOPPED;
    replicas[0].process = PROCESS_NONE;
    struct reconcile_input input = {
        .n_wanted = &n_wanted, .n_deployments = 1, .replicas = replicas, .n_replicas = 4};
    assert_int_equal(reconcile(&c, &input, now, actions, &wake), 1);
    assert_int_equal(actions[0].type, ACTION_DRAIN);
    assert_int_equal(actions[0].index, 3);
}

static void test_place_when_a_retiring_process_lives_then_its_replacement_waits(void **state)
{
    (void)state;
    struct reconcile_config c = config();
    struct reconcile_replica replicas[3] = {
        {.state = REPLICA_DRAINING,
         .process = PROCESS_RUNNING,
         .retiring = true,
         .drain_sent = true,
         .drain_deadline_ns = now + NS_PER_S},
        {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY},
        {.state = REPLICA_PENDING},
    };
    struct reconcile_input input = {.n_wanted = (const uint32_t[]){2},
                                    .n_deployments = 1,
                                    .replicas = replicas,
                                    .n_replicas = 3};
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    assert_int_equal(reconcile(&c, &input, now, actions, &wake), 0);
    replicas[0].process = PROCESS_NONE;
    replicas[0].state = REPLICA_STOPPED;
    assert_int_equal(reconcile(&c, &input, now, actions, &wake), 1);
    assert_int_equal(actions[0].type, ACTION_START);
    assert_int_equal(actions[0].index, 2);
}

struct ending {
    const char *name;
    enum operation_kind kind;
    enum replica_state states[2];
    uint32_t n_wanted;
    int state; /* 0: the operation goes on */
    bool retiring[2], restart[2], cancelling;
};

static const struct ending endings[] = {
    {"load, both ready",
     OPERATION_LOAD,
     {REPLICA_READY, REPLICA_READY},
     2,
     .state = OPERATION_DONE},
    {"load, one ready", OPERATION_LOAD, {REPLICA_READY, REPLICA_LOADING}, 2, .state = 0},
    {"load, one failed",
     OPERATION_LOAD,
     {REPLICA_READY, REPLICA_FAILED},
     2,
     .state = OPERATION_FAILED},
    {"load, one failed, one loads",
     OPERATION_LOAD,
     {REPLICA_LOADING, REPLICA_FAILED},
     2,
     .state = 0},
    {"load, taken back, one drains",
     OPERATION_LOAD,
     {REPLICA_READY, REPLICA_DRAINING},
     1,
     .state = 0,
     .retiring = {false, true},
     .cancelling = true},
    {"load, taken back",
     OPERATION_LOAD,
     {REPLICA_READY, REPLICA_STOPPED},
     1,
     .state = OPERATION_CANCELLED,
     .retiring = {false, true},
     .cancelling = true},
    {"scale down, one drains",
     OPERATION_SCALE,
     {REPLICA_READY, REPLICA_DRAINING},
     1,
     .state = 0,
     .retiring = {false, true}},
    {"scale down",
     OPERATION_SCALE,
     {REPLICA_READY, REPLICA_STOPPED},
     1,
     .state = OPERATION_DONE,
     .retiring = {false, true}},
    {"scale, unloaded meanwhile",
     OPERATION_SCALE,
     {REPLICA_READY, REPLICA_LOADING},
     0,
     .state = OPERATION_CANCELLED},
    {"drain, stopped, replacement loads",
     OPERATION_DRAIN,
     {REPLICA_STOPPED, REPLICA_LOADING},
     1,
     .state = 0,
     .retiring = {true, false}},
    {"drain, replaced",
     OPERATION_DRAIN,
     {REPLICA_STOPPED, REPLICA_READY},
     1,
     .state = OPERATION_DONE,
     .retiring = {true, false}},
    {"restart, the old process is still there",
     OPERATION_RESTART,
     {REPLICA_READY, REPLICA_READY},
     2,
     .state = 0,
     .restart = {true, false}},
    {"restart, failed before and not yet again",
     OPERATION_RESTART,
     {REPLICA_FAILED, REPLICA_READY},
     2,
     .state = 0,
     .restart = {true, false}},
    {"restart, failed again",
     OPERATION_RESTART,
     {REPLICA_FAILED, REPLICA_READY},
     2,
     .state = OPERATION_FAILED},
    {"load, not wanted any more",
     OPERATION_LOAD,
     {REPLICA_LOADING, REPLICA_LOADING},
     0,
     .state = OPERATION_CANCELLED},
    {"load, one stopped",
     OPERATION_LOAD,
     {REPLICA_READY, REPLICA_STOPPED},
     2,
     .state = OPERATION_CANCELLED},
    {"unload, one drains", OPERATION_UNLOAD, {REPLICA_STOPPED, REPLICA_DRAINING}, 0, .state = 0},
    {"unload, both gone",
     OPERATION_UNLOAD,
     {REPLICA_STOPPED, REPLICA_STOPPED},
     0,
     .state = OPERATION_DONE},
};

static void test_operation_when_its_replicas_have_ended_then_it_ends(void **state)
{
    (void)state;
    static const size_t members[] = {0, 1};
    struct reconcile_config c = config();
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        struct reconcile_replica replicas[2];
        for (size_t j = 0; j < 2; j++)
            replicas[j] = (struct reconcile_replica){.state = endings[i].states[j],
                                                     .retiring = endings[i].retiring[j],
                                                     .restart = endings[i].restart[j],
                                                     .busy = true};
        struct reconcile_operation operation = {.kind = endings[i].kind,
                                                .replicas = members,
                                                .n_replicas = 2,
                                                .cancelling = endings[i].cancelling};
        struct reconcile_input input = {.n_wanted = &endings[i].n_wanted,
                                        .n_deployments = 1,
                                        .replicas = replicas,
                                        .n_replicas = 2,
                                        .operations = &operation,
                                        .n_operations = 1};
        struct action actions[MAX_ACTIONS];
        int64_t wake;
        size_t n = reconcile(&c, &input, now, actions, &wake);
        int got = n ? actions[0].state : 0;
        if (got != endings[i].state)
            fail_msg("%s: %d, not %d", endings[i].name, got, endings[i].state);
        operation.busy = true;
        assert_int_equal(reconcile(&c, &input, now, actions, &wake), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_surplus_when_fewer_are_wanted_then_the_youngest_drain),
        cmocka_unit_test(test_place_when_a_retiring_process_lives_then_its_replacement_waits),
        cmocka_unit_test(test_operation_when_its_replicas_have_ended_then_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
