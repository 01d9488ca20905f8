/* Tests of reconcile()'s actions for GPU replicas that are to be parked. Their weights are copied
 * to host memory while they serve, before their processes end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "manager/replicas/reconcile.h"

enum { MAX_ACTIONS = 64, NOTHING = -1 };

static const int64_t now = 1000 * NS_PER_S;

/* A serving replica that is to be parked, without a park copy of its weights. */
static const struct reconcile_replica serving = {.state = REPLICA_READY,
                                                 .process = PROCESS_RUNNING,
                                                 .worker = WORKER_READY,
                                                 .parked = true,
                                                 .must_copy = true};

static size_t decide(const struct reconcile_replica *replicas, size_t n, struct action *actions,
                     int64_t *out_wake_ns)
{
    struct reconcile_config c;
    const uint32_t n_wanted[2] = {4, 4};
    struct reconcile_input input = {
        .n_wanted = n_wanted, .n_deployments = 2, .replicas = replicas, .n_replicas = n};
    reconcile_config_init(&c);
    return reconcile(&c, &input, now, actions, out_wake_ns);
}

/* Returns the action for one replica, or NOTHING. */
static int decide_one(const struct reconcile_replica *replica, enum reason *out_reason)
{
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    size_t n = decide(replica, 1, actions, &wake);
    assert_true(n <= 1);
    *out_reason = n ? actions[0].reason : REASON_NONE;
    return n ? (int)actions[0].type : NOTHING;
}

static void assert_asked(const struct reconcile_replica *replicas, size_t n, size_t index)
{
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    assert_int_equal(decide(replicas, n, actions, &wake), 1);
    assert_int_equal(actions[0].type, ACTION_PARK_COPY);
    assert_int_equal(actions[0].index, index);
}

struct decision {
    const char *name;
    struct reconcile_replica replica;
    int action;
    enum reason reason;
};

/* A serving replica with further fields. */
#define SERVING(...)                                                                               \
    {                                                                                              \
        .state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY,                \
        .parked = true, .must_copy = true, __VA_ARGS__                                             \
    }

static const struct decision decisions[] = {
    {"it serves", SERVING(.ready_ns = 1), ACTION_PARK_COPY, REASON_NONE},
    {"it was asked", SERVING(.copy_sent = true), NOTHING, REASON_NONE},
    {"it was asked a moment ago", SERVING(.copy_at_ns = now + 1), NOTHING, REASON_NONE},
    {"it may be asked again", SERVING(.copy_at_ns = now), ACTION_PARK_COPY, REASON_NONE},
    {"it could not, and may be asked again", SERVING(.copy_failed = true, .copy_at_ns = now),
     ACTION_PARK_COPY, REASON_NONE},
    {"its weights are kept",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .parked = true},
     ACTION_DRAIN,
     REASON_NONE},
    {"it is not to be parked",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY},
     NOTHING,
     REASON_NONE},
    {"it loads, and may be packing what is to be kept",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_LOADING,
      .parked = true,
      .must_copy = true,
      .started_ns = now},
     NOTHING,
     REASON_NONE},
    {"it has just become ready, which is recorded first",
     {.state = REPLICA_WARMING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .parked = true,
      .must_copy = true},
     ACTION_STATE,
     REASON_NONE},
    {"another epoch answers", SERVING(.fenced = true), ACTION_KILL, REASON_STALE_EPOCH},
    {"it speaks another protocol", SERVING(.refused = true), ACTION_KILL, REASON_PROTOCOL_MISMATCH},
    {"its device failed", SERVING(.fault_ns = now - 2 * NS_PER_S), ACTION_KILL,
     REASON_DEVICE_FAULT},
    {"its device failed a moment ago, and what it has may be wrong", SERVING(.fault_ns = now - 1),
     NOTHING, REASON_NONE},
    {"its device failed a moment ago, and it was asked",
     SERVING(.fault_ns = now - 1, .copy_sent = true), NOTHING, REASON_NONE},
    {"it stands still, which is recorded first", SERVING(.progress_ns = now - 10 * NS_PER_S),
     ACTION_STALL, REASON_NONE},
    {"it stands still for long", SERVING(.stalled = true, .progress_ns = now - 20 * NS_PER_S),
     ACTION_KILL, REASON_STALLED},
    {"it stands still as it copies", SERVING(.copy_sent = true, .progress_ns = now - 10 * NS_PER_S),
     ACTION_STALL, REASON_NONE},
    {"it stands still for long as it copies",
     SERVING(.copy_sent = true, .stalled = true, .progress_ns = now - 20 * NS_PER_S), ACTION_KILL,
     REASON_STALLED},
    {"it moves again as it copies",
     SERVING(.copy_sent = true, .stalled = true, .progress_ns = now - 1), ACTION_STALL,
     REASON_NONE},
    {"it is given up", SERVING(.retiring = true), ACTION_DRAIN, REASON_NONE},
    {"it is given up as it copies", SERVING(.retiring = true, .copy_sent = true), ACTION_DRAIN,
     REASON_NONE},
    {"it is to be restarted", SERVING(.restart = true), ACTION_DRAIN, REASON_NONE},
    {"it is to be restarted as it copies", SERVING(.restart = true, .copy_sent = true),
     ACTION_DRAIN, REASON_NONE},
    {"its device is put aside", SERVING(.evacuate = true), ACTION_DRAIN, REASON_NONE},
    {"its device is put aside as it copies", SERVING(.evacuate = true, .copy_sent = true),
     ACTION_DRAIN, REASON_NONE},
    {"it drains", SERVING(.drain_sent = true, .drain_deadline_ns = now), NOTHING, REASON_NONE},
    {"it drains for too long", SERVING(.drain_sent = true, .drain_deadline_ns = now - 5 * NS_PER_S),
     ACTION_KILL, REASON_DRAIN_TIMEOUT},
    {"it has ended as it copied",
     {.state = REPLICA_READY,
      .process = PROCESS_EXITED,
      .worker = WORKER_READY,
      .parked = true,
      .copy_sent = true,
      .ready_ns = 1},
     ACTION_RETRY,
     REASON_NONE},
};

static void test_keep_when_one_replica_then_one_decision(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(decisions) / sizeof(decisions[0]); i++) {
        enum reason reason, expected = decisions[i].reason;
        int action = decide_one(&decisions[i].replica, &reason);
        if (action != decisions[i].action || (expected && reason != expected))
            fail_msg("%s: action %d, reason %s", decisions[i].name, action, reason_name(reason));
    }
}

static void test_keep_when_it_is_to_wait_then_it_is_looked_at_again_then(void **state)
{
    (void)state;
    struct reconcile_replica waiting = serving;
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    waiting.copy_at_ns = now + 7 * NS_PER_S;
    assert_int_equal(decide(&waiting, 1, actions, &wake), 0);
    assert_true(wake == waiting.copy_at_ns);
    waiting.progress_ns = now - NS_PER_S; /* a stalled replica counts too, because it serves */
    waiting.copy_at_ns = now + 60 * NS_PER_S;
    assert_int_equal(decide(&waiting, 1, actions, &wake), 0);
    assert_true(wake == waiting.progress_ns + 10 * NS_PER_S);
    waiting.copy_sent = true; /* its answer will come */
    assert_int_equal(decide(&waiting, 1, actions, &wake), 0);
    assert_true(wake == waiting.progress_ns + 10 * NS_PER_S);
}

/* A worker that does not answer causes no event. So the decision must still set a time for the next
 * check. */
static void test_keep_when_it_is_asked_then_its_standing_still_is_looked_at_as_ever(void **state)
{
    (void)state;
    struct reconcile_replica asked = serving;
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    asked.progress_ns = now - NS_PER_S;
    assert_int_equal(decide(&asked, 1, actions, &wake), 1);
    assert_int_equal(actions[0].type, ACTION_PARK_COPY);
    assert_true(wake == asked.progress_ns + 10 * NS_PER_S);
}

static void test_keep_when_several_are_parked_then_one_does_it_for_all(void **state)
{
    (void)state;
    struct reconcile_replica replicas[3] = {serving, serving, serving};
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    assert_asked(replicas, 3, 0);
    replicas[1].copy_sent = true;
    assert_int_equal(decide(replicas, 3, actions, &wake), 0);
    replicas[1].process = PROCESS_EXITED; /* the process will not answer any more */
    replicas[1].busy = true;
    assert_asked(replicas, 3, 0);
}

/* The worker's status may still name the copy of its answer. Another copy would be useless. */
static void test_keep_when_one_has_just_answered_then_the_others_wait(void **state)
{
    (void)state;
    struct reconcile_replica replicas[2] = {serving, serving};
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    replicas[1].copy_at_ns = now + NS_PER_S;
    assert_int_equal(decide(replicas, 2, actions, &wake), 0);
    assert_true(wake == replicas[1].copy_at_ns);
}

/* The replica's process may be of an older program without this call. The process of another
 * replica may not. */
static void test_keep_when_one_could_not_then_the_next_is_asked(void **state)
{
    (void)state;
    struct reconcile_replica replicas[2] = {serving, serving};
    replicas[0].copy_failed = true;
    replicas[0].copy_at_ns = now + 60 * NS_PER_S;
    assert_asked(replicas, 2, 1);
}

/* Two copies at once would each take memory that both saw as free. */
static void test_keep_when_another_deployment_does_then_it_waits_for_its_turn(void **state)
{
    (void)state;
    struct reconcile_replica replicas[4] = {serving, serving, serving, serving};
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    replicas[1].deployment = replicas[3].deployment = 1;
    assert_asked(replicas, 4, 0);
    replicas[0].copy_sent = true;
    assert_int_equal(decide(replicas, 4, actions, &wake), 0);
    replicas[0].copy_sent = false; /* the copy of its own weights is done */
    replicas[0].must_copy = replicas[2].must_copy = false;
    replicas[0].drain_sent = replicas[2].drain_sent = true;
    replicas[0].drain_deadline_ns = replicas[2].drain_deadline_ns = now;
    assert_asked(replicas, 4, 1);
}

static void test_keep_when_the_weights_are_kept_then_all_drain(void **state)
{
    (void)state;
    struct reconcile_replica replicas[2] = {serving, serving};
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    replicas[0].must_copy = replicas[1].must_copy = false;
    replicas[0].copy_at_ns = now + NS_PER_S; /* the replica answered a moment ago */
    assert_int_equal(decide(replicas, 2, actions, &wake), 2);
    assert_int_equal(actions[0].type, ACTION_DRAIN);
    assert_int_equal(actions[1].type, ACTION_DRAIN);
}

/* --- operations --- */

enum member { KEEPS, COPIES, CANNOT, PARKED, LEAVES, FAILED };

static const struct reconcile_replica members[] = {
    [KEEPS] = SERVING(.ready_ns = 1),
    [COPIES] = SERVING(.copy_sent = true),
    [CANNOT] = SERVING(.copy_failed = true, .copy_at_ns = now + 60 * NS_PER_S),
    [PARKED] = {.state = REPLICA_PARKED,
                .process = PROCESS_RUNNING,
                .worker = WORKER_PARKED,
                .parked = true,
                .is_parked_worker = true},
    [LEAVES] = {.state = REPLICA_DRAINING,
                .process = PROCESS_RUNNING,
                .worker = WORKER_DRAINING,
                .parked = true,
                .drain_sent = true},
    [FAILED] = {.state = REPLICA_FAILED, .parked = true},
};

struct ending {
    const char *name;
    enum member members[2];
    int state; /* 0: goes on */
    enum reason reason;
};

static const struct ending endings[] = {
    {"none was asked", {KEEPS, KEEPS}, 0, REASON_NONE},
    {"one copies", {COPIES, KEEPS}, 0, REASON_NONE},
    {"they drain", {LEAVES, LEAVES}, 0, REASON_NONE},
    {"they are parked", {PARKED, PARKED}, OPERATION_DONE, REASON_NONE},
    {"none could", {CANNOT, CANNOT}, OPERATION_FAILED, REASON_WEIGHTS_NOT_KEPT},
    {"one could not, another is to try", {CANNOT, KEEPS}, 0, REASON_NONE},
    {"one could not, another copies", {COPIES, CANNOT}, 0, REASON_NONE},
    {"one could not, one drains", {CANNOT, LEAVES}, 0, REASON_NONE},
    {"one could not, one is parked", {PARKED, CANNOT}, OPERATION_FAILED, REASON_WEIGHTS_NOT_KEPT},
    {"one could not, one failed", {CANNOT, FAILED}, OPERATION_FAILED, REASON_REPLICA_FAILED},
    {"one failed, one could not", {FAILED, CANNOT}, OPERATION_FAILED, REASON_REPLICA_FAILED},
    {"one failed, one is parked", {FAILED, PARKED}, OPERATION_FAILED, REASON_REPLICA_FAILED},
};

static void test_park_when_weights_cannot_be_kept_then_it_fails_and_says_so(void **state)
{
    (void)state;
    static const size_t both[] = {0, 1};
    const uint32_t n_wanted = 2;
    struct reconcile_config c;
    reconcile_config_init(&c);
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        struct reconcile_replica replicas[2];
        const struct reconcile_operation operation = {
            .kind = OPERATION_PARK, .replicas = both, .n_replicas = 2};
        for (size_t j = 0; j < 2; j++) {
            replicas[j] = members[endings[i].members[j]];
            replicas[j].busy = true; /* another test covers the actions on these */
        }
        const struct reconcile_input input = {.n_wanted = &n_wanted,
                                              .n_deployments = 1,
                                              .replicas = replicas,
                                              .n_replicas = 2,
                                              .operations = &operation,
                                              .n_operations = 1};
        struct action actions[MAX_ACTIONS];
        int64_t wake;
        size_t n = reconcile(&c, &input, now, actions, &wake);
        enum reason reason = n ? actions[0].reason : REASON_NONE, expected = endings[i].reason;
        if ((n ? actions[0].state : 0) != endings[i].state || reason != expected)
            fail_msg("%s: %d, reason %s", endings[i].name, n ? actions[0].state : 0,
                     reason_name(reason));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_when_one_replica_then_one_decision),
        cmocka_unit_test(test_keep_when_it_is_to_wait_then_it_is_looked_at_again_then),
        cmocka_unit_test(test_keep_when_it_is_asked_then_its_standing_still_is_looked_at_as_ever),
        cmocka_unit_test(test_keep_when_several_are_parked_then_one_does_it_for_all),
        cmocka_unit_test(test_keep_when_one_has_just_answered_then_the_others_wait),
        cmocka_unit_test(test_keep_when_one_could_not_then_the_next_is_asked),
        cmocka_unit_test(test_keep_when_another_deployment_does_then_it_waits_for_its_turn),
        cmocka_unit_test(test_keep_when_the_weights_are_kept_then_all_drain),
        cmocka_unit_test(test_park_when_weights_cannot_be_kept_then_it_fails_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
