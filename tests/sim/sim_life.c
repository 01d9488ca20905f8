/* sim_life.c: a manager's life in the world, and a history of lives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/loop_queue.h"
#include "manager/devices/device_hold.h"
#include "manager/host/tool.h"
#include "manager/replicas/supervisor.h"
#include "manager/rollout/idle.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/update.h"
#include "manager/slots/weights.h"
#include "manager/store/store.h"
#include "manager/watch/events.h"
#include "manager/watch/operations.h"
#include "manager/watch/routes.h"
#include "proto/rpc/server/call.h"
#include "tests/sim/sim.h"

char sim_path[256];
static char *no_environment[] = {NULL};

/* -- a life ---------------------------------------------------------------------------------------
 */

static void wake(void *arg)
{
    (void)arg;
    sim.store_woken = true;
}

static void on_event(void *arg, struct row *row)
{
    sim_check_event((const pb_event *)row_message(row));
    events_add(arg, row);
}

static void configure(struct settings *settings)
{
    *settings = (struct settings){
        .state_dir = "/sim/state",
        .run_dir = "/sim/run",
        .socket = "/sim/run/manager.sock",
        .worker = "/sim/sluice-worker",
        .model_root = "",
        .log_level = "error",
        .log_format = "kv",
        .drain_grace_ms = 3000,
        .restart_backoff_initial_ms = 1000,
        .restart_backoff_max_ms = 60000,
        .crash_window_ms = 60000,
        .crash_limit = 5,
        .kill_grace_ms = 5000,
        .connect_timeout_ms = 10000,
        .load_timeout_ms = 20000,
        .tool_timeout_ms = 10000,
        .max_open_operations = sim.history_seed % 5 == 2 ? 2 : 6,
        .max_replicas = 14,
        .event_retention = sim.history_seed % 3 ? 150 : 20,
        .stall_timeout_ms = 10000,
        .slow_reader_ms = 30000,
    };
    static const char *const policies[] = {"auto", "spread", "pack"};
    static const char *const budgets[] = {"",
                                          "",
                                          "",
                                          "100M,node:0=20M",
                                          "3M",
                                          "node:1=2M",
                                          "node:0=2M,node:1=2500000",
                                          "3M,4M",
                                          "node:x=10",
                                          "node:64=1",
                                          "1M,,"};
    struct error err;
    (void)fit_policy_parse(policies[sim.history_seed % 3], &settings->placement);
    if (memory_budget_parse("budget", budgets[sim.history_seed % 11], &settings->memory_budget,
                            &err) != 0 ||
        memory_budget_check_nodes("budget", &settings->memory_budget, "/sim", &err) != 0)
        /* this machine cannot have the budget: main.c would end here, so run without a budget */
        settings->memory_budget = (struct memory_budget){.total_bytes = 0};
}

static bool create(struct manager *manager, struct error *err)
{
    struct store_config store_config = {
        .path = sim_path,
        .wake = wake,
        .by_hand = true,
        .max_events = manager->settings.event_retention,
        .max_jobs = sim.history_seed % 7 == 3 ? 3 : 64,
        .on_event = on_event,
    };
    struct tool_config tool_config = {.program = "/sim/sluice-worker"};
    struct context *context = &manager->context;
    struct fleet *fleet = &manager->fleet;
    if (events_create(context, &manager->events, err) != 0)
        return false;
    store_config.event_arg = manager->events;
    if (loop_queue_create(context->loop, &context->queue, err) != 0 ||
        store_open(&store_config, &manager->catalog, &context->store, err) != 0 ||
        tool_runner_create(&tool_config, &fleet->tools, err) != 0 ||
        operations_create(fleet, &manager->operations, err) != 0)
        return false;
    const struct operation_ops operations = operations_ops(manager->operations);
    if (updates_create(fleet, &operations, &manager->updates, err) != 0 ||
        policy_runner_create(fleet, &manager->policies, err) != 0 ||
        idle_create(fleet, &manager->idle, err) != 0 ||
        routes_create(fleet, &manager->routes, err) != 0)
        return false;
    operations_show_updates(manager->operations, manager->updates);
    const struct service_config service_config = {
        .fleet = fleet,
        .operations = manager->operations,
        .events = manager->events,
        .routes = manager->routes,
        .gate = &manager->gate,
    };
    return service_create(&service_config, &manager->service, err) == 0 &&
           weights_create(fleet, &fleet->weights, err) == 0 &&
           device_holds_create(context, &fleet->device_holds, err) == 0 &&
           (sim_check_after_start(), true) &&
           supervisor_create(fleet, &operations, &manager->supervisor, err) == 0;
}

static void destroy(struct manager *manager)
{
    struct context *context = &manager->context;
    struct fleet *fleet = &manager->fleet;
    if (context->queue)
        loop_queue_run(context->queue);
    tool_runner_destroy(fleet->tools);
    store_close(context->store);
    sim_client_lose();
    if (context->queue)
        loop_queue_run(context->queue);
    supervisor_destroy(manager->supervisor);
    change_hub_close(&context->changes);
    change_hub_close(&context->progress);
    change_hub_close(&context->ticks);
    if (context->queue)
        loop_queue_run(context->queue);
    loop_queue_destroy(context->queue);
    service_destroy(manager->service);
    weights_destroy(fleet->weights);
    device_holds_destroy(fleet->device_holds);
    idle_destroy(manager->idle);
    policy_runner_destroy(manager->policies);
    updates_destroy(manager->updates);
    routes_destroy(manager->routes);
    operations_destroy(manager->operations);
    events_destroy(manager->events);
    catalog_fini(&manager->catalog);
    memset(manager, 0, sizeof(*manager));
}

void sim_life_start(void)
{
    struct manager *manager = &sim.manager;
    struct error err;
    memset(manager, 0, sizeof(*manager));
    configure(&manager->settings);
    manager_init(manager);
    manager->context.environment = no_environment;
    manager->context.loop =
        (struct ev_loop *)manager; /* an address only: the simulated libev reads no field */
    manager->context.started_unix_ns = clock_wall_ns();
    sim.up = true;
    sim.io_failed = sim.memory_failed = false;
    sim.life++;
    sim.store_woken = sim.async_sent = sim.stopping = sim.workers_ended = false;
    sim_trace("manager %u starts", sim.life);
    if (!create(manager, &err)) { /* the disk failed: the manager ends and starts again later */
        sim_trace("manager not started: %s", err.message);
        bool lasting = err.status == STATUS_DATA_LOSS && !sim.damaged;
        sim.why_not_started = err.status;
        sim.restart_at_ns = sim.now_ns + NS_PER_S;
        sim_kill_manager(false);
        destroy(manager);
        sim.up = sim.dead = false;
        if (lasting)
            sim_broken("I1: the state store is damaged: %s", err.message);
        return;
    }
    sim_client_watch_routes(false);
    service_probe_devices(manager->service);
    change_hub_notify(&manager->context.changes, NULL);
}

void sim_life_end(void)
{
    sim_kill_manager(false);
    destroy(&sim.manager);
    if (sim.n_links || sim.n_timers)
        sim_broken("I5: %zu lines and %zu timers are left of a manager", sim.n_links, sim.n_timers);
    sim.n_timers = 0;
    sim.up = sim.dead = sim.cut = false;
    sim.frozen = false;
}

/* -- steps ----------------------------------------------------------------------------------------
 */

static void elapse(void)
{
    if (sim_disk_faults.full && sim.now_ns >= sim_disk_faults.full_until_ns)
        sim_disk_faults.full = false;
    if (sim.spawn_fails && sim.now_ns >= sim.spawn_ok_ns)
        sim.spawn_fails = false;
    if (sim.folder_fails && sim.now_ns >= sim.folder_ok_ns)
        sim.folder_fails = false;
    if (sim.links_lossy && sim.now_ns >= sim.lossy_until_ns)
        sim.links_lossy = false;
    if (sim.frozen && sim.now_ns >= sim.frozen_until_ns)
        sim.frozen = false;
    for (size_t i = 0; i < sim.n_processes; i++)
        if (sim.processes[i].stopped && sim.now_ns >= sim.processes[i].kill_at_ns)
            sim.processes[i].stopped = false;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t next_moment(void)
{
    int64_t at = INT64_MAX;
    for (size_t i = 0; i < sim.n_processes; i++) {
        const struct sim_process *process = &sim.processes[i];
        if (process->alive)
            at = earlier(at, process->stopped ? process->kill_at_ns : process->next_ns);
    }
    if (!sim.up)
        return earlier(at, sim.restart_at_ns);
    if (sim.frozen)
        return earlier(at, sim.frozen_until_ns);
    for (size_t i = 0; i < sim.n_links; i++)
        at = earlier(at, sim_link_next_ns(sim.links[i]));
    for (size_t i = 0; i < sim.n_tools; i++)
        at = earlier(at, sim.tools[i].at_ns);
    return earlier(at, sim_timers_next_ns());
}

enum thing {
    THING_NONE,
    THING_WORKER,
    THING_EXIT,
    THING_LINK,
    THING_TIMER,
    THING_TOOL,
    THING_ASYNC,
    THING_POLL,
    THING_JOB,
    THING_CALL
};

/* An event that could happen now; all such events are equally likely. */
struct choice {
    enum thing thing;
    size_t i;
    uint64_t n;
};

static void offer(struct choice *choice, enum thing thing, size_t i)
{
    if (sim_below(++choice->n) == 0) {
        choice->thing = thing;
        choice->i = i;
    }
}

static struct choice choose(void)
{
    struct choice choice = {THING_NONE, 0, 0};
    size_t timer;
    bool runs = sim.up && !sim.frozen;
    for (size_t i = 0; i < sim.n_processes; i++) {
        const struct sim_process *process = &sim.processes[i];
        if (process->alive && !process->stopped && process->next_ns <= sim.now_ns)
            offer(&choice, THING_WORKER, i);
        if (runs && !process->alive && process->watch && !process->seen)
            offer(&choice, THING_EXIT, i);
    }
    if (!runs)
        return choice;
    for (size_t i = 0; i < sim.n_links; i++)
        if (sim_link_next_ns(sim.links[i]) <= sim.now_ns)
            offer(&choice, THING_LINK, i);
    for (size_t i = 0; i < sim.n_tools; i++)
        if (sim.tools[i].at_ns <= sim.now_ns)
            offer(&choice, THING_TOOL, i);
    if (sim_timer_due(&timer))
        offer(&choice, THING_TIMER, timer);
    if (sim.async_sent)
        offer(&choice, THING_ASYNC, 0);
    if (sim.store_woken)
        offer(&choice, THING_POLL, 0);
    return choice;
}

static const enum sim_memory_fault memory_of[] = {
    [THING_EXIT] = NO_MEMORY_FOR_EXIT,   [THING_LINK] = NO_MEMORY_FOR_LINK,
    [THING_TIMER] = NO_MEMORY_FOR_TIMER, [THING_TOOL] = NO_MEMORY_FOR_TOOL,
    [THING_ASYNC] = NO_MEMORY_FOR_QUEUE, [THING_POLL] = NO_MEMORY_FOR_POLL,
    [THING_CALL] = NO_MEMORY_NOWHERE,
};

static bool carry_out(const struct choice *choice)
{
    sim_fault_memory(memory_of[choice->thing]);
    switch (choice->thing) {
    case THING_WORKER:
        sim_process_step(&sim.processes[choice->i]);
        return true;
    case THING_EXIT:
        sim_process_tell_end(&sim.processes[choice->i]);
        return true;
    case THING_LINK:
        sim_link_step(sim.links[choice->i]);
        return true;
    case THING_TIMER:
        sim_timer_fire(choice->i);
        return true;
    case THING_TOOL:
        sim_tool_step(choice->i);
        return true;
    case THING_ASYNC:
        sim.async_sent = false;
        sim.async->cb(NULL, sim.async, EV_ASYNC);
        return true;
    case THING_POLL:
        sim.store_woken = false;
        sim.store_woken =
            !manager_poll_store(&sim.manager); /* without memory for all jobs, polls again later */
        return true;
    default:
        return false;
    }
}

static bool run_job(void)
{
    sim_fault_memory(NO_MEMORY_FOR_JOB);
    sim.in_manager = true;
    bool done = store_run_next(sim.manager.context.store);
    sim.in_manager = false;
    return done;
}

/* Ends all watches, as main.c does before its end. */
static void end_watches(void)
{
    struct error err;
    error_set(&err, STATUS_UNAVAILABLE, "the manager is stopping");
    operations_end_watches(sim.manager.operations, &err);
    events_end_watches(sim.manager.events, &err);
    routes_end_watches(sim.manager.routes, &err);
}

/* Runs one event that is possible now, or lets time pass up to `until_ns`. */
static void step(int64_t until_ns)
{
    sim.stats.n_steps++;
    elapse();
    sim.began_ns = sim.now_ns;
    if (sim.up && (sim.dead || sim.workers_ended)) {
        if (!sim.dead)
            end_watches();
        sim_life_end();
        sim.restart_at_ns = sim.now_ns + (int64_t)sim_below(2000) * NS_PER_MS;
        sim.stats.n_restarts++;
        if (!sim.quiet_phase && sim_chance(10))
            sim_fault_plant_stranger();
    }
    if (!sim.up && sim.now_ns >= sim.restart_at_ns) {
        sim_life_start();
        return;
    }
    bool runs = sim.up && !sim.frozen;
    if (runs && sim_chance(60) && run_job())
        return;
    struct choice choice = choose();
    sim.in_manager = true;
    bool done = carry_out(&choice) || (runs && (sim_call_step() || run_job()));
    sim.in_manager = false;
    if (!done) {
        int64_t at = earlier(next_moment(), until_ns);
        if (at > sim.now_ns)
            sim.now_ns = at;
    }
    sim_check_step();
}

static bool run_until(int64_t until_ns)
{
    while (sim.now_ns < until_ns && !sim.broken)
        step(until_ns);
    return !sim.broken;
}

/* -- histories ------------------------------------------------------------------------------------
 */

static void reset(uint64_t seed)
{
    struct sim_statistics stats = sim.stats;
    bool verbose = sim.verbose;
    memset(&sim, 0, sizeof(sim));
    sim.stats = stats;
    sim.verbose = verbose;
    sim.history_seed = seed;
    sim.n_process_changes = 1;
    sim.now_ns = sim.began_ns = 1000 * NS_PER_S;
    sim.wall_offset_ns = 1700000000LL * NS_PER_S;
    sim_seed(seed);
    sim_client_reset();
    sim_check_reset();
}

/* Longest time until the world is at rest: a backoff, a load that must be given up, a drain, and a
 * margin. */
static const int64_t rest_ns = 300 * NS_PER_S;

static void come_to_rest(void)
{
    int64_t until_ns = sim.now_ns + rest_ns, again_ns = sim.now_ns + 5 * NS_PER_S;
    sim.quiet_phase = true;
    sim_fault_heal();
    if (sim.up && !sim.dead) /* an earlier probe may have reported wrong devices */
        service_probe_devices(sim.manager.service);
    while (sim.now_ns < until_ns && !sim.broken) {
        step(earlier(until_ns, again_ns));
        if (sim.now_ns < again_ns)
            continue;
        if (sim.up && !sim.dead && sim_check_is_at_rest())
            break;
        if (sim.up && !sim.dead && sim.manager.supervisor)
            sim_client_retry_lost(), sim_client_release();
        again_ns = sim.now_ns + 5 * NS_PER_S;
    }
    if (!sim.broken && sim.up)
        sim_check_rest();
    else if (!sim.broken)
        sim_broken("I2: the manager does not start");
}

bool sim_starts_from_nothing(void)
{
    return sim.history_seed % 64 == 9;
}

static void begin(int moment)
{
    if (!sim_starts_from_nothing()) {
        sim_client_begin();
        return;
    }
    if (moment == 0)
        sim_client_create_groups();
    sim_client_register(moment ? "b" : "a", "1");
    sim_client_register(moment ? "b" : "a", moment ? "3" : "2");
}

/* The manager must refuse a damaged or locked database and leave the file unchanged. */
static void start_damaged(void)
{
    int wanted = sim_disk_damage();
    uint64_t before = sim_disk_hash();
    sim_life_start();
    if (sim.up)
        sim_life_end();
    else if (sim.why_not_started != wanted && !sim.memory_failed)
        sim_broken("I1: a database that is %s is refused with status %d",
                   wanted == STATUS_DATA_LOSS ? "damaged" : "another's", sim.why_not_started);
    if (wanted == STATUS_DATA_LOSS && sim_disk_hash() != before)
        sim_broken("I1: a damaged database was written");
    sim_disk_repair();
}

void sim_history(uint64_t seed)
{
    enum { MOMENTS = 24 };
    reset(seed);
    sim_disk_reset();
    sim_life_start();
    for (int i = 0; i < MOMENTS && !sim.broken; i++) {
        if (!run_until(sim.now_ns + (int64_t)sim_below(3000) * NS_PER_MS))
            break;
        if (i % 2 && i > 3)
            sim_fault_strike();
        else if (sim.up && !sim.dead && !sim.frozen && !sim.stopping)
            i < 2 ? begin(i) : sim_client_act();
        if (sim.up && !sim.dead && sim_chance(5))
            sim_client_cancel();
        if (sim_chance(1))
            sim_fault_stop_everything();
    }
    if (!sim.broken)
        come_to_rest();
    /* The next manager must read the state that the last manager reported. */
    if (sim.up)
        sim_life_end();
    if (!sim.broken && seed % 16 == 4)
        start_damaged();
    else if (!sim.broken && seed % 4 == 0) {
        sim_life_start();
        if (sim.up)
            sim_life_end();
    }
    sim_client_reset();
    sim.stats.n_histories++;
}

bool sim_prepare(const char *folder)
{
    snprintf(sim_path, sizeof(sim_path), "%s/sim.db", folder);
    if (sim_disk_install() != 0)
        return false;
    reset(0);
    sim.quiet_phase = true;
    sim_life_start();
    if (!sim.up)
        return false;
    run_until(sim.now_ns + 5 * NS_PER_S);
    sim_client_create_groups();
    sim_client_register("a", "1");
    sim_client_register("a", "2");
    sim_client_register("b", "1");
    sim_client_register("b", "3");
    run_until(sim.now_ns + 5 * NS_PER_S);
    sim_life_end();
    sim_client_reset();
    return sim_disk_keep_templates(sim_path) && !sim.broken;
}
