/* Tests of reconcile()'s action for one replica: by table, and for repeated deaths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "manager/replicas/reconcile.h"

enum { MAX_ACTIONS = 64 };

static struct reconcile_config config(void)
{
    struct reconcile_config c;
    reconcile_config_init(&c);
    return c;
}

/* Runs reconcile() on one replica of one deployment; returns the only action, or -1 where there is
 * none. */
static int decide(const struct reconcile_replica *replica, uint32_t n_wanted, int64_t now_ns,
                  struct action *out_action, int64_t *out_wake_ns)
{
    struct reconcile_config c = config();
    struct action actions[MAX_ACTIONS];
    struct reconcile_input input = {
        .n_wanted = &n_wanted, .n_deployments = 1, .replicas = replica, .n_replicas = 1};
    size_t n = reconcile(&c, &input, now_ns, actions, out_wake_ns);
    assert_true(n <= 1);
    if (n == 0)
        return -1;
    *out_action = actions[0];
    return (int)actions[0].type;
}

struct decision {
    const char *name;
    struct reconcile_replica replica;
    uint32_t n_wanted;
    int action; /* -1: none */
    enum reason reason;
    int state;
};

static const int64_t now = 1000 * NS_PER_S;

static const struct decision decisions[] = {
    {"pending and due", {.state = REPLICA_PENDING}, 1, ACTION_START, REASON_NONE, 0},
    {"pending, not due",
     {.state = REPLICA_PENDING, .next_start_ns = 1001 * NS_PER_S},
     1,
     -1,
     REASON_NONE,
     0},
    {"pending, not wanted", {.state = REPLICA_PENDING}, 0, ACTION_STOP, REASON_NONE, 0},
    {"under way", {.state = REPLICA_PENDING, .busy = true}, 1, -1, REASON_NONE, 0},
    {"recorded ready, process gone", {.state = REPLICA_READY}, 1, ACTION_RETRY, REASON_NONE, 0},
    {"silent, young",
     {.state = REPLICA_LOADING, .process = PROCESS_RUNNING, .started_ns = 990 * NS_PER_S},
     1,
     -1,
     REASON_NONE,
     0},
    {"silent too long",
     {.state = REPLICA_LOADING, .process = PROCESS_RUNNING, .started_ns = 960 * NS_PER_S},
     1,
     ACTION_KILL,
     REASON_CONNECT_TIMEOUT,
     0},
    {"silent too long, killed already",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .started_ns = 960 * NS_PER_S,
      .kill_sent = true},
     1,
     -1,
     REASON_NONE,
     0},
    {"warming",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_WARMING,
      .started_ns = 990 * NS_PER_S},
     1,
     ACTION_STATE,
     REASON_NONE,
     REPLICA_WARMING},
    {"ready",
     {.state = REPLICA_WARMING, .process = PROCESS_RUNNING, .worker = WORKER_READY},
     1,
     ACTION_STATE,
     REASON_NONE,
     REPLICA_READY},
    {"ready and recorded",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY},
     1,
     -1,
     REASON_NONE,
     0},
    {"loads for ever",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_LOADING,
      .started_ns = now - 1801 * NS_PER_S},
     1,
     ACTION_KILL,
     REASON_LOAD_TIMEOUT,
     0},
    {"another epoch answers",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .fenced = true},
     1,
     ACTION_KILL,
     REASON_STALE_EPOCH,
     0},
    {"speaks another protocol",
     {.state = REPLICA_LOADING, .process = PROCESS_RUNNING, .refused = true, .started_ns = now},
     1,
     ACTION_KILL,
     REASON_PROTOCOL_MISMATCH,
     0},
    {"speaks another protocol, adopted",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .refused = true, .started_ns = now},
     1,
     ACTION_KILL,
     REASON_PROTOCOL_MISMATCH,
     0},
    {"speaks another protocol, not wanted", /* the process cannot be asked to drain */
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .refused = true, .started_ns = now},
     0,
     ACTION_KILL,
     REASON_PROTOCOL_MISMATCH,
     0},
    {"drains by itself",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_DRAINING},
     1,
     ACTION_STATE,
     REASON_NONE,
     REPLICA_DRAINING},
    {"died", {.state = REPLICA_READY, .process = PROCESS_EXITED}, 1, ACTION_RETRY, REASON_NONE, 0},
    {"cannot load",
     {.state = REPLICA_LOADING, .process = PROCESS_EXITED, .permanent = true},
     1,
     ACTION_FAIL,
     REASON_LOAD_FAILED,
     0},
    {"not wanted",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY},
     0,
     ACTION_DRAIN,
     REASON_NONE,
     0},
    {"not wanted, drains",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .drain_sent = true,
      .drain_deadline_ns = 1010 * NS_PER_S},
     0,
     -1,
     REASON_NONE,
     0},
    {"not wanted, drains too long",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .drain_sent = true,
      .drain_deadline_ns = 990 * NS_PER_S},
     0,
     ACTION_KILL,
     REASON_DRAIN_TIMEOUT,
     0},
    {"not wanted, ended",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED},
     0,
     ACTION_STOP,
     REASON_NONE,
     0},
    {"fails and stays",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_FAILED,
      .failed_ns = now - 6 * NS_PER_S},
     1,
     ACTION_KILL,
     REASON_LOAD_FAILED,
     0},
    {"has just failed",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_FAILED,
      .failed_ns = now - NS_PER_S},
     1,
     -1,
     REASON_NONE,
     0},
    {"an earlier process may live",
     {.state = REPLICA_PENDING, .ghost = true},
     1,
     -1,
     REASON_NONE,
     0},
    {"stands still for a moment",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .progress_ns = now - 9 * NS_PER_S},
     1,
     -1,
     REASON_NONE,
     0},
    {"stands still",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .progress_ns = now - 10 * NS_PER_S},
     1,
     ACTION_STALL,
     REASON_NONE,
     1},
    {"stands still, recorded",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .stalled = true,
      .progress_ns = now - 19 * NS_PER_S},
     1,
     -1,
     REASON_NONE,
     0},
    {"stands still too long",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .stalled = true,
      .progress_ns = now - 20 * NS_PER_S},
     1,
     ACTION_KILL,
     REASON_STALLED,
     0},
    {"stands still too long as it drains",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .drain_sent = true,
      .drain_deadline_ns = now + NS_PER_S,
      .progress_ns = now - 20 * NS_PER_S},
     0,
     ACTION_KILL,
     REASON_STALLED,
     0},
    {"moves again",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .stalled = true,
      .progress_ns = now - NS_PER_S},
     1,
     ACTION_STALL,
     REASON_NONE,
     0},
    {"to restart",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .restart = true},
     1,
     ACTION_DRAIN,
     REASON_NONE,
     0},
    {"to restart, drains too long",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .restart = true,
      .drain_sent = true,
      .drain_deadline_ns = 990 * NS_PER_S},
     1,
     ACTION_KILL,
     REASON_DRAIN_TIMEOUT,
     0},
    {"to restart, ended",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED, .restart = true},
     1,
     ACTION_RETRY,
     REASON_RESTART,
     0},
    {"to restart, waits for its backoff",
     {.state = REPLICA_PENDING, .restart = true, .next_start_ns = now + NS_PER_S},
     1,
     ACTION_START,
     REASON_NONE,
     0},
    {"to restart, failed",
     {.state = REPLICA_FAILED, .restart = true},
     1,
     ACTION_RETRY,
     REASON_RESTART,
     0},
    {"retires",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .retiring = true},
     1,
     ACTION_DRAIN,
     REASON_NONE,
     0},
    {"retired and ended",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED, .retiring = true},
     1,
     ACTION_STOP,
     REASON_NONE,
     0},
    {"its device is put aside",
     {.state = REPLICA_PENDING, .blocked = true},
     1,
     ACTION_RETRY,
     REASON_DEVICE_QUARANTINED,
     0},
    {"its device is put aside, told",
     {.state = REPLICA_PENDING, .blocked = true, .blocked_recorded = true},
     1,
     -1,
     REASON_NONE,
     0},
    {"its device is released",
     {.state = REPLICA_PENDING, .blocked_recorded = true},
     1,
     ACTION_START,
     REASON_NONE,
     0},
    {"on a quarantined device",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .blocked = true,
      .evacuate = true},
     1,
     ACTION_DRAIN,
     REASON_NONE,
     0},
    {"on a quarantined device, does not end",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .evacuate = true,
      .drain_sent = true,
      .drain_deadline_ns = 990 * NS_PER_S},
     1,
     ACTION_KILL,
     REASON_DRAIN_TIMEOUT,
     0},
    {"has left its quarantined device",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED, .blocked = true, .drain_sent = true},
     1,
     ACTION_RETRY,
     REASON_DEVICE_QUARANTINED,
     0},
    {"its device was put aside as it was to start",
     {.state = REPLICA_LOADING, .process = PROCESS_EXITED, .blocked = true, .held_back = true},
     1,
     ACTION_RETRY,
     REASON_DEVICE_QUARANTINED,
     0},
    {"has left its quarantined device, another is free",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED, .drain_sent = true},
     1,
     ACTION_RETRY,
     REASON_RESTART,
     0},
    {"on a cordoned device",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .blocked = true},
     1,
     -1,
     REASON_NONE,
     0},
    {"died of its quarantined device",
     {.state = REPLICA_READY, .process = PROCESS_EXITED, .blocked = true},
     1,
     ACTION_RETRY,
     REASON_NONE,
     0},
    {"its device has just failed",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .fault_ns = now - NS_PER_S},
     1,
     -1,
     REASON_NONE,
     0},
    {"its device has failed and it lives on",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .fault_ns = now - 2 * NS_PER_S},
     1,
     ACTION_KILL,
     REASON_DEVICE_FAULT,
     0},
    {"failed stays", {.state = REPLICA_FAILED}, 1, -1, REASON_NONE, 0},
    {"failed, not wanted", {.state = REPLICA_FAILED}, 0, ACTION_STOP, REASON_NONE, 0},
    {"stopped stays", {.state = REPLICA_STOPPED}, 1, -1, REASON_NONE, 0},
};

static void test_reconcile_when_one_replica_then_one_decision(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(decisions) / sizeof(decisions[0]); i++) {
        const struct decision *d = &decisions[i];
        struct action action = {0};
        int64_t wake;
        int got = decide(&d->replica, d->n_wanted, now, &action, &wake);
        if (got != d->action)
            fail_msg("%s: action %d, not %d", d->name, got, d->action);
        if (d->reason && d->reason != action.reason)
            fail_msg("%s: reason %s, not %s", d->name, reason_name(action.reason),
                     reason_name(d->reason));
        if (d->state)
            assert_int_equal(action.state, d->state);
    }
}

static void test_reconcile_when_waiting_then_wakes_at_the_earliest_time(void **state)
{
    (void)state;
    struct action action;
    int64_t wake;
    struct reconcile_replica replica = {.state = REPLICA_PENDING, .next_start_ns = now + 7};
    assert_int_equal(decide(&replica, 1, now, &action, &wake), -1);
    assert_int_equal(wake, now + 7);
    replica = (struct reconcile_replica){
        .state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY};
    assert_int_equal(decide(&replica, 1, now, &action, &wake), -1);
    assert_true(wake == INT64_MAX);
}

static void test_backoff_when_dying_again_then_doubles_up_to_the_limit(void **state)
{
    (void)state;
    static const int64_t expected_s[] = {1, 2, 4, 8, 16, 32, 60, 60};
    struct reconcile_config c = config();
    struct reconcile_replica replica = {.state = REPLICA_READY, .process = PROCESS_EXITED};
    int64_t at = now;
    for (size_t i = 0; i < sizeof(expected_s) / sizeof(expected_s[0]); i++) {
        struct action action;
        int64_t wake;
        replica.ready_ns = at - NS_PER_S; /* ready, but not for long */
        assert_int_equal(decide(&replica, 1, at, &action, &wake), ACTION_RETRY);
        assert_int_equal(action.at_ns - at, expected_s[i] * NS_PER_S);
        reconcile_note_death(&c, &replica.deaths, replica.ready_ns, at);
        at += 20 * NS_PER_S; /* too slow for a crash loop */
    }
    struct action action;
    int64_t wake;
    replica.ready_ns = at - 61 * NS_PER_S;
    assert_int_equal(decide(&replica, 1, at, &action, &wake), ACTION_RETRY);
    /* the replica was stable: the backoff starts again */
    assert_int_equal(action.at_ns - at, NS_PER_S);
}

static void test_crash_loop_when_five_deaths_within_the_window_then_fails(void **state)
{
    (void)state;
    struct reconcile_config c = config();
    for (int64_t gap_s = 10; gap_s <= 20; gap_s += 10) {
        struct reconcile_replica replica = {.state = REPLICA_READY, .process = PROCESS_EXITED};
        struct action action = {0};
        int64_t wake, at = now;
        int got = -1;
        for (int i = 0; i < 5; i++) {
            replica.ready_ns = at - NS_PER_S;
            got = decide(&replica, 1, at, &action, &wake);
            if (i < 4)
                assert_int_equal(got, ACTION_RETRY);
            reconcile_note_death(&c, &replica.deaths, replica.ready_ns, at);
            at += gap_s * NS_PER_S;
        }
        if (gap_s == 10) { /* 40 s from the first to the fifth */
            assert_int_equal(got, ACTION_FAIL);
            assert_int_equal(action.reason, REASON_CRASH_LOOP);
        } else { /* 80 s */
            assert_int_equal(got, ACTION_RETRY);
        }
    }
}

static void test_crash_loop_when_the_limit_is_another_then_it_holds(void **state)
{
    (void)state;
    for (uint32_t limit = 1; limit <= DEATHS_MAX; limit += 21) {
        struct reconcile_config c = config();
        struct reconcile_replica replica = {.state = REPLICA_READY, .process = PROCESS_EXITED};
        struct reconcile_input input = {.n_wanted = (const uint32_t[]){1},
                                        .n_deployments = 1,
                                        .replicas = &replica,
                                        .n_replicas = 1};
        struct action action = {0};
        int64_t wake;
        c.crash_limit = limit;
        for (uint32_t i = 1; i <= limit; i++) {
            replica.ready_ns = now + i - NS_PER_S;
            assert_int_equal(reconcile(&c, &input, now + i, &action, &wake), 1);
            assert_int_equal(action.type, i < limit ? ACTION_RETRY : ACTION_FAIL);
            reconcile_note_death(&c, &replica.deaths, replica.ready_ns, now + i);
        }
    }
}

static void test_crash_loop_when_never_ready_then_fails_however_slow(void **state)
{
    (void)state;
    struct reconcile_config c = config();
    struct reconcile_replica replica = {.state = REPLICA_LOADING, .process = PROCESS_EXITED};
    struct action action = {0};
    int64_t wake, at = now;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(decide(&replica, 1, at, &action, &wake), ACTION_RETRY);
        reconcile_note_death(&c, &replica.deaths, 0, at);
        at += 600 * NS_PER_S;
    }
    assert_int_equal(decide(&replica, 1, at, &action, &wake), ACTION_FAIL);
    assert_int_equal(action.reason, REASON_CRASH_LOOP);
}

/* A parked worker of a deployment that is no longer parked. */
static const struct reconcile_replica woken = {.state = REPLICA_PARKED,
                                               .process = PROCESS_RUNNING,
                                               .worker = WORKER_PARKED,
                                               .is_parked_worker = true,
                                               .can_wake = true,
                                               .started_ns = now};

static int decide_woken(const struct reconcile_replica *replica, enum reason *out_reason)
{
    struct action action = {0};
    int64_t wake_ns;
    int type = decide(replica, 1, now, &action, &wake_ns);
    *out_reason = action.reason;
    return type;
}

static void test_wake_when_its_keeper_can_then_it_is_told_once_else_it_ends(void **state)
{
    enum reason reason;
    struct reconcile_replica r = woken;
    (void)state;
    assert_int_equal(decide_woken(&r, &reason), ACTION_WAKE);
    r.state = REPLICA_LOADING; /* state that an earlier manager recorded before it was killed */
    assert_int_equal(decide_woken(&r, &reason), ACTION_WAKE);
    /* Wake was sent; the worker's last status is older than Wake and does not count */
    r.wake_sent = true;
    assert_int_equal(decide_woken(&r, &reason), -1);
    r.started_ns = now - 31 * NS_PER_S;
    assert_int_equal(decide_woken(&r, &reason), ACTION_KILL);
    assert_int_equal(reason, REASON_CONNECT_TIMEOUT);
    r.wake_sent = r.can_wake = false; /* Wake was refused, so another process takes over */
    assert_int_equal(decide_woken(&r, &reason), ACTION_DRAIN);
    r.parked = r.can_wake = true; /* parked again before Wake was sent */
    assert_int_equal(decide_woken(&r, &reason), ACTION_STATE);
}

static void test_wake_when_another_process_is_due_then_its_keeper_ends(void **state)
{
    enum reason reason;
    struct reconcile_replica r;
    (void)state;
    bool *const flags[] = {&r.restart, &r.evacuate, &r.blocked, &r.retiring};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        r = woken;
        *flags[i] = true;
        assert_int_equal(decide_woken(&r, &reason), ACTION_DRAIN);
    }
    r = woken;
    r.fenced = true;
    assert_int_equal(decide_woken(&r, &reason), ACTION_KILL);
    assert_int_equal(reason, REASON_STALE_EPOCH);
    r = woken;
    r.refused = true;
    assert_int_equal(decide_woken(&r, &reason), ACTION_KILL);
    assert_int_equal(reason, REASON_PROTOCOL_MISMATCH);
}

/* Symptom: a replica whose killed predecessor took long to end stayed PENDING until some other
 * event. */
static void test_ghost_when_it_lives_then_it_is_looked_at_again_soon(void **state)
{
    (void)state;
    struct reconcile_replica replica = {.state = REPLICA_PENDING, .ghost = true};
    struct action action;
    int64_t wake;
    assert_int_equal(decide(&replica, 1, now, &action, &wake), -1);
    assert_true(wake > now && wake <= now + NS_PER_S);
    replica.ghost = false;
    assert_int_equal(decide(&replica, 1, wake, &action, &wake), ACTION_START);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reconcile_when_one_replica_then_one_decision),
        cmocka_unit_test(test_reconcile_when_waiting_then_wakes_at_the_earliest_time),
        cmocka_unit_test(test_backoff_when_dying_again_then_doubles_up_to_the_limit),
        cmocka_unit_test(test_crash_loop_when_five_deaths_within_the_window_then_fails),
        cmocka_unit_test(test_crash_loop_when_the_limit_is_another_then_it_holds),
        cmocka_unit_test(test_crash_loop_when_never_ready_then_fails_however_slow),
        cmocka_unit_test(test_wake_when_its_keeper_can_then_it_is_told_once_else_it_ends),
        cmocka_unit_test(test_wake_when_another_process_is_due_then_its_keeper_ends),
        cmocka_unit_test(test_ghost_when_it_lives_then_it_is_looked_at_again_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
