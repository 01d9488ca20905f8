/* Runs reconcile() over random histories of a small simulated world. Workers load, work, stall and
 * die at random. A user loads and unloads at random. Records take time or are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "manager/replicas/reconcile.h"

enum { MAX_ACTIONS = 64, N_SLOTS = 12, N_DEPLOYMENTS = 3, N_OPERATIONS = 6 };

static struct reconcile_config config(void)
{
    struct reconcile_config c;
    reconcile_config_init(&c);
    return c;
}

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
    if (r->progress_ns && draw(w, 100) == 0)
        r->progress_ns = 0; /* the progress continues */
    else if (!w->calm && draw(w, 300) == 0 && !r->progress_ns)
        r->progress_ns = w->now_ns;
    if (r->progress_ns)
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
            /* the replica was given up while the start was being recorded */
            r->process = PROCESS_NONE;
            r->worker = WORKER_UNKNOWN;
            return;
        }
        if (w->calm || draw(w, 20)) {
            w->n_processes[i]++;
            w->n_starts++;
            r->process = PROCESS_RUNNING;
        } else {
            r->process = PROCESS_EXITED; /* the start failed */
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
        if (action->reason && action->reason == REASON_RESTART)
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
        r->ready_ns = r->progress_ns = 0;
    }
}

/* Adds a fresh replica in a free slot and returns the slot; SIZE_MAX without a free slot. */
static size_t add_replica(struct world *w, size_t d)
{
    for (size_t i = 0; i < N_SLOTS; i++) {
        struct reconcile_replica *r = &w->replicas[i];
        bool member = false; /* an operation still names this id, so it must not be used again */
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

/* Writes of the RPCs: load, scale up, scale down, drain, restart, unload, and cancel. */
static void start_operation(struct world *w)
{
    size_t o = 0, n = 0, d = (size_t)draw(w, N_DEPLOYMENTS), live[N_SLOTS], n_live = 0;
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        if (!w->open[i] || w->members[i][0] % N_DEPLOYMENTS != d)
            continue;
        struct reconcile_operation *operation = &w->operations[i];
        if (operation->kind != OPERATION_LOAD || operation->cancelling || draw(w, 3))
            return;
        operation->cancelling = true; /* all replicas of the deployment belong to this load */
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

/* Checks a start: with it, a deployment has at most the wanted number of running and starting
 * processes. */
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
            w->n_stalls += a->reason == REASON_STALLED;
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
        struct world w = {.seed = seed * 7919, .now_ns = 1000 * NS_PER_S};
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
                         i, pb_replica_state_name(r->state), w.n_processes[i]);
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
        cmocka_unit_test(test_random_histories_when_the_world_calms_down_then_everything_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
