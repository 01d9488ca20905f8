/* What reconcile() decides: by table, and over random histories of a small simulated world. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "manager/reconcile.h"

enum { MAX_ACTIONS = 64 };

static struct reconcile_config config(void)
{
    struct reconcile_config c;
    reconcile_config_init(&c);
    return c;
}

/* One replica of one deployment; returns the only action, or -1 where there is none. */
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
    const char *reason;
    int state;
};

static const int64_t now = 1000 * NS_PER_S;

static const struct decision decisions[] = {
    {"pending and due", {.state = REPLICA_PENDING}, 1, ACTION_START, NULL, 0},
    {"pending, not due",
     {.state = REPLICA_PENDING, .next_start_ns = 1001 * NS_PER_S},
     1,
     -1,
     NULL,
     0},
    {"pending, not wanted", {.state = REPLICA_PENDING}, 0, ACTION_STOP, NULL, 0},
    {"under way", {.state = REPLICA_PENDING, .busy = true}, 1, -1, NULL, 0},
    {"recorded ready, process gone", {.state = REPLICA_READY}, 1, ACTION_RETRY, NULL, 0},
    {"silent, young",
     {.state = REPLICA_LOADING, .process = PROCESS_RUNNING, .started_ns = 990 * NS_PER_S},
     1,
     -1,
     NULL,
     0},
    {"silent too long",
     {.state = REPLICA_LOADING, .process = PROCESS_RUNNING, .started_ns = 960 * NS_PER_S},
     1,
     ACTION_KILL,
     "CONNECT_TIMEOUT",
     0},
    {"silent too long, killed already",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .started_ns = 960 * NS_PER_S,
      .kill_sent = true},
     1,
     -1,
     NULL,
     0},
    {"warming",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_WARMING,
      .started_ns = 990 * NS_PER_S},
     1,
     ACTION_STATE,
     NULL,
     REPLICA_WARMING},
    {"ready",
     {.state = REPLICA_WARMING, .process = PROCESS_RUNNING, .worker = WORKER_READY},
     1,
     ACTION_STATE,
     NULL,
     REPLICA_READY},
    {"ready and recorded",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY},
     1,
     -1,
     NULL,
     0},
    {"loads for ever",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_LOADING,
      .started_ns = now - 1801 * NS_PER_S},
     1,
     ACTION_KILL,
     "LOAD_TIMEOUT",
     0},
    {"another epoch answers",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .fenced = true},
     1,
     ACTION_KILL,
     "STALE_EPOCH",
     0},
    {"drains by itself",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_DRAINING},
     1,
     ACTION_STATE,
     NULL,
     REPLICA_DRAINING},
    {"died", {.state = REPLICA_READY, .process = PROCESS_EXITED}, 1, ACTION_RETRY, NULL, 0},
    {"cannot load",
     {.state = REPLICA_LOADING, .process = PROCESS_EXITED, .permanent = true},
     1,
     ACTION_FAIL,
     "LOAD_FAILED",
     0},
    {"not wanted",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY},
     0,
     ACTION_DRAIN,
     NULL,
     0},
    {"not wanted, drains",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .drain_sent = true,
      .drain_deadline_ns = 1010 * NS_PER_S},
     0,
     -1,
     NULL,
     0},
    {"not wanted, drains too long",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .drain_sent = true,
      .drain_deadline_ns = 990 * NS_PER_S},
     0,
     ACTION_KILL,
     "DRAIN_TIMEOUT",
     0},
    {"not wanted, ended",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED},
     0,
     ACTION_STOP,
     NULL,
     0},
    {"fails and stays",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_FAILED,
      .failed_ns = now - 6 * NS_PER_S},
     1,
     ACTION_KILL,
     "LOAD_FAILED",
     0},
    {"has just failed",
     {.state = REPLICA_LOADING,
      .process = PROCESS_RUNNING,
      .worker = WORKER_FAILED,
      .failed_ns = now - NS_PER_S},
     1,
     -1,
     NULL,
     0},
    {"an earlier process may live", {.state = REPLICA_PENDING, .ghost = true}, 1, -1, NULL, 0},
    {"stands still for a moment",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .still_ns = now - 9 * NS_PER_S},
     1,
     -1,
     NULL,
     0},
    {"stands still",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .still_ns = now - 10 * NS_PER_S},
     1,
     ACTION_STALL,
     NULL,
     1},
    {"stands still, recorded",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .stalled = true,
      .still_ns = now - 19 * NS_PER_S},
     1,
     -1,
     NULL,
     0},
    {"stands still too long",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .stalled = true,
      .still_ns = now - 20 * NS_PER_S},
     1,
     ACTION_KILL,
     "STALLED",
     0},
    {"stands still too long as it drains",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .drain_sent = true,
      .drain_deadline_ns = now + NS_PER_S,
      .still_ns = now - 20 * NS_PER_S},
     0,
     ACTION_KILL,
     "STALLED",
     0},
    {"moves again",
     {.state = REPLICA_READY,
      .process = PROCESS_RUNNING,
      .worker = WORKER_READY,
      .stalled = true,
      .still_ns = now - NS_PER_S},
     1,
     ACTION_STALL,
     NULL,
     0},
    {"to restart",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .restart = true},
     1,
     ACTION_DRAIN,
     NULL,
     0},
    {"to restart, drains too long",
     {.state = REPLICA_DRAINING,
      .process = PROCESS_RUNNING,
      .restart = true,
      .drain_sent = true,
      .drain_deadline_ns = 990 * NS_PER_S},
     1,
     ACTION_KILL,
     "DRAIN_TIMEOUT",
     0},
    {"to restart, ended",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED, .restart = true},
     1,
     ACTION_RETRY,
     RECONCILE_RESTART,
     0},
    {"to restart, waits for its backoff",
     {.state = REPLICA_PENDING, .restart = true, .next_start_ns = now + NS_PER_S},
     1,
     ACTION_START,
     NULL,
     0},
    {"to restart, failed",
     {.state = REPLICA_FAILED, .restart = true},
     1,
     ACTION_RETRY,
     RECONCILE_RESTART,
     0},
    {"retires",
     {.state = REPLICA_READY, .process = PROCESS_RUNNING, .worker = WORKER_READY, .retiring = true},
     1,
     ACTION_DRAIN,
     NULL,
     0},
    {"retired and ended",
     {.state = REPLICA_DRAINING, .process = PROCESS_EXITED, .retiring = true},
     1,
     ACTION_STOP,
     NULL,
     0},
    {"failed stays", {.state = REPLICA_FAILED}, 1, -1, NULL, 0},
    {"failed, not wanted", {.state = REPLICA_FAILED}, 0, ACTION_STOP, NULL, 0},
    {"stopped stays", {.state = REPLICA_STOPPED}, 1, -1, NULL, 0},
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
        if (d->reason && (!action.reason || strcmp(d->reason, action.reason) != 0))
            fail_msg("%s: reason %s, not %s", d->name, action.reason, d->reason);
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
        at += 20 * NS_PER_S; /* slowly enough not to be a crash loop */
    }
    struct action action;
    int64_t wake;
    replica.ready_ns = at - 61 * NS_PER_S;
    assert_int_equal(decide(&replica, 1, at, &action, &wake), ACTION_RETRY);
    assert_int_equal(action.at_ns - at, NS_PER_S); /* it was stable: from the start again */
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
            assert_string_equal(action.reason, "CRASH_LOOP");
        } else { /* 80 s */
            assert_int_equal(got, ACTION_RETRY);
        }
    }
}

static void test_crash_loop_when_the_limit_is_another_then_it_holds(void **state)
{
    (void)state;
    for (uint32_t limit = 1; limit <= RECONCILE_MAX_CRASHES; limit += 21) {
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
    assert_string_equal(action.reason, "CRASH_LOOP");
}

/* Symptom: a replica whose killed predecessor took long to end stayed PENDING until something else
 * happened. */
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
    int state; /* 0: goes on */
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

/* -- a world ------------------------------------------------------------------------------------
 */

/* Workers that load, work, stall and die at random; a user who loads and unloads at random; records
 * that take time or are refused. */
enum { N_SLOTS = 12, N_DEPLOYMENTS = 3, N_OPERATIONS = 6 };

struct world {
    uint64_t seed;
    int64_t now_ns;
    uint32_t n_wanted[N_DEPLOYMENTS];
    struct reconcile_replica replicas[N_SLOTS];
    bool drains[N_SLOTS];
    int n_processes[N_SLOTS];
    int64_t busy_until_ns[N_SLOTS];
    struct action pending[N_SLOTS];
    struct reconcile_operation operations[N_OPERATIONS];
    size_t members[N_OPERATIONS][N_SLOTS];
    bool open[N_OPERATIONS];
    uint64_t n_starts, n_ended_operations, n_stalls;
    bool calm; /* nothing bad happens any more */
};

static uint64_t draw(struct world *w, uint64_t n)
{
    w->seed = w->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (w->seed >> 33) % n;
}

static void end_process(struct world *w, size_t i)
{
    if (w->replicas[i].process == PROCESS_RUNNING) {
        w->replicas[i].process = PROCESS_EXITED;
        w->n_processes[i]--;
    }
}

static void worker_turn(struct world *w, size_t i)
{
    struct reconcile_replica *r = &w->replicas[i];
    if (r->process != PROCESS_RUNNING)
        return;
    if (r->kill_sent || (w->drains[i] && draw(w, 4) == 0)) {
        end_process(w, i);
        return;
    }
    if (r->still_ns && draw(w, 100) == 0)
        r->still_ns = 0; /* it moves again */
    else if (!w->calm && draw(w, 300) == 0 && !r->still_ns)
        r->still_ns = w->now_ns;
    if (r->still_ns)
        return;
    if (!w->calm && draw(w, 40) == 0) {
        r->permanent = draw(w, 6) == 0;
        end_process(w, i);
    } else if (r->worker < WORKER_READY && (w->calm || draw(w, 3) == 0) && !w->drains[i]) {
        r->worker++;
    }
}

static void apply(struct world *w, size_t i, const struct action *action)
{
    struct reconcile_config c = config();
    struct reconcile_replica *r = &w->replicas[i];
    switch (action->type) {
    case ACTION_START:
        r->state = REPLICA_LOADING;
        assert_int_equal(w->n_processes[i], 0); /* I6: never two on a slot */
        assert_int_equal(r->process, PROCESS_NONE);
        assert_false(r->ghost);
        r->restart = false;
        if (r->retiring || w->n_wanted[r->deployment] == 0) {
            r->process = PROCESS_NONE; /* given up while the record was on its way */
            r->worker = WORKER_UNKNOWN;
            return;
        }
        if (w->calm || draw(w, 20)) {
            w->n_processes[i]++;
            w->n_starts++;
            r->process = PROCESS_RUNNING;
        } else {
            r->process = PROCESS_EXITED; /* it could not be started */
        }
        r->worker = WORKER_UNKNOWN;
        r->started_ns = w->now_ns;
        r->ready_ns = 0;
        break;
    case ACTION_STALL:
        r->stalled = action->state;
        return;
    case ACTION_STATE:
        r->state = (enum replica_state)action->state;
        if (r->state == REPLICA_READY)
            r->ready_ns = w->now_ns;
        break;
    case ACTION_RETRY:
    case ACTION_FAIL:
        if (action->reason && strcmp(action->reason, RECONCILE_RESTART) == 0)
            r->deaths = (struct reconcile_deaths){0};
        else if (r->process == PROCESS_EXITED)
            reconcile_note_death(&c, &r->deaths, r->ready_ns, w->now_ns);
        r->state = action->type == ACTION_RETRY ? REPLICA_PENDING : REPLICA_FAILED;
        r->next_start_ns = action->at_ns;
        assert_int_not_equal(r->process, PROCESS_RUNNING);
        break;
    case ACTION_DRAIN:
        r->state = REPLICA_DRAINING;
        r->drain_sent = true;
        r->drain_deadline_ns = w->now_ns + 10 * NS_PER_S;
        w->drains[i] = r->process == PROCESS_RUNNING && (w->calm || draw(w, 5) != 0);
        return;
    case ACTION_STOP:
        assert_int_not_equal(r->process, PROCESS_RUNNING);
        r->state = REPLICA_STOPPED;
        break;
    default:
        return;
    }
    if (action->type == ACTION_RETRY || action->type == ACTION_FAIL ||
        action->type == ACTION_STOP) {
        r->process = PROCESS_NONE;
        r->worker = WORKER_UNKNOWN;
        r->permanent = r->fenced = r->kill_sent = r->drain_sent = r->stalled = false;
        w->drains[i] = false;
        r->ready_ns = r->still_ns = 0;
    }
}

/* A fresh replica in a slot that is free; SIZE_MAX: there is none. */
static size_t add_replica(struct world *w, size_t d)
{
    for (size_t i = 0; i < N_SLOTS; i++) {
        struct reconcile_replica *r = &w->replicas[i];
        bool member = false; /* ids are never used again while an operation speaks of them */
        for (size_t o = 0; o < N_OPERATIONS; o++)
            for (size_t j = 0; w->open[o] && j < w->operations[o].n_replicas; j++)
                member |= w->members[o][j] == i;
        if (i % N_DEPLOYMENTS != d || r->state != REPLICA_STOPPED || r->process != PROCESS_NONE ||
            r->busy || member)
            continue;
        *r = (struct reconcile_replica){.state = REPLICA_PENDING, .deployment = d};
        return i;
    }
    return SIZE_MAX;
}

static void open_operation(struct world *w, size_t o, enum operation_kind kind, size_t n)
{
    w->open[o] = true;
    w->operations[o] =
        (struct reconcile_operation){.kind = kind, .replicas = w->members[o], .n_replicas = n};
}

static void give_up(struct reconcile_replica *r)
{
    r->retiring = true;
    if (r->state == REPLICA_FAILED)
        r->state = REPLICA_STOPPED;
}

/* What the RPCs write: load, scale up, scale down, drain, restart, unload, and cancel. */
static void start_operation(struct world *w)
{
    size_t o = 0, n = 0, d = (size_t)draw(w, N_DEPLOYMENTS), live[N_SLOTS], n_live = 0;
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        if (!w->open[i] || w->members[i][0] % N_DEPLOYMENTS != d)
            continue;
        struct reconcile_operation *operation = &w->operations[i];
        if (operation->kind != OPERATION_LOAD || operation->cancelling || draw(w, 3))
            return;
        operation->cancelling = true; /* all of them are its own */
        w->n_wanted[d] = 0;
        for (size_t j = 0; j < operation->n_replicas; j++)
            if (w->replicas[w->members[i][j]].state != REPLICA_STOPPED)
                give_up(&w->replicas[w->members[i][j]]);
        return;
    }
    while (o < N_OPERATIONS && w->open[o])
        o++;
    if (o == N_OPERATIONS)
        return;
    for (size_t i = d; i < N_SLOTS; i += N_DEPLOYMENTS) {
        struct reconcile_replica *r = &w->replicas[i];
        if (r->state == REPLICA_STOPPED || r->retiring)
            continue;
        if (w->n_wanted[d] && r->state == REPLICA_FAILED && draw(w, 2)) {
            give_up(r);
            w->n_wanted[d] -= w->n_wanted[d] > 1;
        } else {
            live[n_live++] = i;
        }
    }
    uint64_t what = draw(w, 4);
    if (w->n_wanted[d] == 0) {
        if (n_live)
            return;
        for (size_t i; n < 2 && (i = add_replica(w, d)) != SIZE_MAX;)
            w->members[o][n++] = i;
        if (n)
            open_operation(w, o, OPERATION_LOAD, n);
        w->n_wanted[d] = (uint32_t)n;
    } else if (what == 0 || !n_live) {
        for (; n < n_live; n++)
            w->members[o][n] = live[n];
        w->n_wanted[d] = 0;
        if (n)
            open_operation(w, o, OPERATION_UNLOAD, n);
    } else if (what == 1) {
        size_t i = live[draw(w, n_live)];
        w->members[o][0] = i;
        w->replicas[i].restart = w->replicas[i].state != REPLICA_PENDING;
        open_operation(w, o, OPERATION_RESTART, 1);
    } else if (what == 2 && n_live > 1) {
        w->members[o][0] = live[draw(w, n_live)];
        give_up(&w->replicas[w->members[o][0]]);
        w->n_wanted[d] = (uint32_t)n_live - 1;
        open_operation(w, o, OPERATION_SCALE, 1);
    } else {
        size_t i = add_replica(w, d);
        if (i == SIZE_MAX)
            return;
        w->members[o][0] = i;
        w->members[o][1] = live[draw(w, n_live)];
        if (what == 3) /* a drain: the new one takes the place of the other */
            give_up(&w->replicas[w->members[o][1]]);
        w->n_wanted[d] = (uint32_t)n_live + (what != 3);
        open_operation(w, o, what == 3 ? OPERATION_DRAIN : OPERATION_SCALE, 2);
    }
}

/* With this start a deployment has no more processes, there or on their way, than are wanted. */
static void check_place(const struct world *w, size_t i_start)
{
    size_t d = i_start % N_DEPLOYMENTS;
    uint32_t n = 1;
    for (size_t i = d; i < N_SLOTS; i += N_DEPLOYMENTS) {
        bool on_its_way = w->replicas[i].busy && w->pending[i].type == ACTION_START;
        n += w->n_processes[i] > 0 || (on_its_way && !w->replicas[i].retiring);
    }
    if (n > w->n_wanted[d])
        fail_msg("deployment %zu: %u processes, %u wanted", d, n, w->n_wanted[d]);
}

static void turn(struct world *w)
{
    struct reconcile_config c = config();
    struct reconcile_operation operations[N_OPERATIONS];
    size_t map[N_OPERATIONS], n_operations = 0;
    struct action actions[MAX_ACTIONS];
    int64_t wake;
    for (size_t i = 0; i < N_SLOTS; i++) {
        worker_turn(w, i);
        if (w->replicas[i].busy && w->now_ns >= w->busy_until_ns[i]) {
            w->replicas[i].busy = false;
            if (w->calm || draw(w, 10)) /* else the record was refused: nothing has changed */
                apply(w, i, &w->pending[i]);
        }
    }
    for (size_t i = 0; i < N_OPERATIONS; i++)
        if (w->open[i]) {
            map[n_operations] = i;
            operations[n_operations++] = w->operations[i];
        }
    struct reconcile_input input = {.n_wanted = w->n_wanted,
                                    .n_deployments = N_DEPLOYMENTS,
                                    .replicas = w->replicas,
                                    .n_replicas = N_SLOTS,
                                    .operations = operations,
                                    .n_operations = n_operations};
    size_t n = reconcile(&c, &input, w->now_ns, actions, &wake);
    assert_true(n <= N_SLOTS + n_operations);
    for (size_t i = 0; i < n; i++) {
        const struct action *a = &actions[i];
        if (a->type == ACTION_FINISH) {
            w->open[map[a->index]] = false;
            w->n_ended_operations++;
        } else if (a->type == ACTION_KILL) {
            assert_int_equal(w->replicas[a->index].process, PROCESS_RUNNING);
            w->n_stalls += strcmp(a->reason, "STALLED") == 0;
            w->replicas[a->index].kill_sent = true;
        } else {
            assert_false(w->replicas[a->index].busy);
            if (a->type == ACTION_START)
                check_place(w, a->index);
            w->replicas[a->index].busy = true;
            w->busy_until_ns[a->index] = w->now_ns + (int64_t)draw(w, 300) * NS_PER_MS;
            w->pending[a->index] = *a;
        }
    }
    w->now_ns += 100 * NS_PER_MS;
}

static void test_random_histories_when_the_world_calms_down_then_everything_has_ended(void **state)
{
    (void)state;
    uint64_t n_starts = 0, n_ended = 0, n_stalls = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world w = {.seed = seed * 7919, .now_ns = now};
        for (size_t i = 0; i < N_SLOTS; i++)
            w.replicas[i] = (struct reconcile_replica){.state = REPLICA_STOPPED,
                                                       .deployment = i % N_DEPLOYMENTS};
        for (int t = 0; t < 3000; t++) {
            if (draw(&w, 30) == 0)
                start_operation(&w);
            turn(&w);
        }
        w.calm = true;
        for (int t = 0; t < 3000; t++) /* five minutes */
            turn(&w);
        for (size_t i = 0; i < N_OPERATIONS; i++)
            if (w.open[i])
                fail_msg("seed %llu: operation %zu never ended", (unsigned long long)seed, i);
        for (size_t i = 0; i < N_SLOTS; i++) {
            const struct reconcile_replica *r = &w.replicas[i];
            bool settled = r->state == REPLICA_READY || r->state == REPLICA_FAILED ||
                           r->state == REPLICA_STOPPED;
            if (!settled || w.n_processes[i] != (r->state == REPLICA_READY))
                fail_msg("seed %llu: replica %zu is %s with %d processes", (unsigned long long)seed,
                         i, replica_state_name(r->state), w.n_processes[i]);
        }
        n_starts += w.n_starts;
        n_ended += w.n_ended_operations;
        n_stalls += w.n_stalls;
    }
    assert_true(n_starts > 1000); /* the histories did something */
    assert_true(n_ended > 500);
    assert_true(n_stalls > 20);
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
        cmocka_unit_test(test_ghost_when_it_lives_then_it_is_looked_at_again_soon),
        cmocka_unit_test(test_surplus_when_fewer_are_wanted_then_the_youngest_drain),
        cmocka_unit_test(test_place_when_a_retiring_process_lives_then_its_replacement_waits),
        cmocka_unit_test(test_operation_when_its_replicas_have_ended_then_it_ends),
        cmocka_unit_test(test_random_histories_when_the_world_calms_down_then_everything_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
