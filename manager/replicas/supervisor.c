#include "manager/replicas/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/capacity/device_room.h"
#include "manager/host/run_folder.h"
#include "manager/replicas/adopt.h"
#include "manager/replicas/facts.h"
#include "manager/replicas/park_copy.h"
#include "manager/replicas/record.h"
#include "manager/replicas/replica_view.h"
#include "manager/replicas/slot_process.h"
#include "manager/replicas/supervisor_private.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"

static const double settle_s = 3.0; /* wait for the first status of adopted workers */
/* A started worker reports its planned memory within moments. The next start waits for the
 * report, since both workers would count the same free bytes. sizing_ns limits the wait. */
static const int64_t sizing_ns = 3 * NS_PER_S;
static const int64_t sizing_hold_ns = 50 * NS_PER_MS;
static const int64_t refused_hold_ns = NS_PER_S; /* before a refused record is tried again */
/* --- actions --- */

static void submit(struct slot *slot, const struct record *record)
{
    struct error err;
    if (record_submit(slot, record, &err) == 0)
        return;
    log_warn(LOG_EVENT("record refused"), LOG_STR("replica", slot->id),
             LOG_STR("why", err.message));
    slot->hold_until_ns = fleet_now_ns(slot->fleet) + refused_hold_ns;
}

static void drain(struct slot *slot)
{
    const struct operation_ops *operations = &slot->fleet->supervisor->operations;
    /* A failed device may compute wrong results: its requests continue elsewhere at once. */
    slot->grace_ms =
        slot_is_quarantined(slot) ? 0 : operations->grace_ms(operations->arg, slot->id);
    slot_note_drain(slot);
    const pb_replica *row = catalog_replica(slot->fleet->context->catalog, slot->id);
    slot->drained.restarting = row && !row->retiring && row->restart_epoch == row->epoch;
    submit(slot, &(struct record){.kind = RECORD_DRAIN});
}

static void kill_worker(struct slot *slot, enum reason reason)
{
    log_warn(LOG_EVENT("killing worker"), LOG_STR("replica", slot->id),
             LOG_I64("pid", slot->run.process.pid), LOG_STR("reason", reason_name(reason)));
    slot->run.killed_for = reason;
    if (!slot->last_error.status) {
        error_set(&slot->last_error, STATUS_UNAVAILABLE, "the worker was ended: %s",
                  reason_name(reason));
        if (slot->run.health.fault_ns)
            error_set(&slot->last_error, STATUS_UNAVAILABLE,
                      "the worker was ended: its device failed (Xid %" PRIu64 ")",
                      slot->run.health.fault_xid);
        error_reason(&slot->last_error, reason);
    }
    process_signal(&slot->run.process, SIGKILL);
}

static bool another_is_unsized(const struct fleet *fleet, const struct slot *but, int64_t now_ns)
{
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor)))
        if (slot != but && slot->run.sizing_until_ns > now_ns)
            return true;
    return false;
}

/* True where the replica may take memory now. False: checked again soon. */
static bool may_take_memory(struct slot *slot)
{
    int64_t now_ns = fleet_now_ns(slot->fleet);
    struct weights_fds fds;
    if (park_copy_waits_for_gpu(slot) || another_is_unsized(slot->fleet, slot, now_ns) ||
        device_room_is_being_taken(slot->fleet, slot->id) ||
        replica_makes_room(slot->fleet, slot->id) ||
        !weights_take(slot->fleet->weights, slot->id, &fds)) {
        slot->hold_until_ns = now_ns + sizing_hold_ns;
        return false;
    }
    slot->run.sizing_until_ns = now_ns + sizing_ns;
    return true;
}

static void start(struct slot *slot)
{
    if (!may_take_memory(slot))
        return;
    failpoint("start.before_record");
    submit(slot, &(struct record){.kind = RECORD_STARTING});
}

static void wake(struct slot *slot)
{
    if (!slot_can_wake(slot)) {
        slot_give_up_wake(slot);
        supervisor_kick(slot->fleet->supervisor);
    }
    if (slot->phase != SLOT_PARKED || !may_take_memory(slot))
        return;
    failpoint("wake.before_record");
    submit(slot, &(struct record){.kind = RECORD_WAKE});
}

/* A worker that ended on request while no manager ran is no death: the earlier manager may have
 * ended it. If this manager sees the end, another program asked for it, and the end counts as a
 * death. */
static enum reason retry_reason(const struct slot *slot)
{
    return slot->run.asked_to_end && slot->phase == SLOT_EMPTY ? REASON_RESTART : REASON_BACKOFF;
}

static void carry_out(struct supervisor *supervisor, const struct facts *facts,
                      const struct action *action)
{
    struct fleet *fleet = supervisor->fleet;
    const struct operation_ops *operations = &supervisor->operations;
    if (action->type == ACTION_FINISH) {
        operations->finish(operations->arg, facts->operation_ids[action->index],
                           (enum operation_state)action->state, action->reason);
        return;
    }
    const pb_replica *row = catalog_replica_at(fleet->context->catalog, action->index);
    struct slot *slot = slot_find(supervisor->fleet, row->id);
    struct record record = {.reason = action->reason, .at_ns = action->at_ns};
    switch (action->type) {
    case ACTION_START:
        start(slot);
        return;
    case ACTION_WAKE:
        wake(slot);
        return;
    case ACTION_PARK_COPY: /* the memory of a starting worker is not yet known */
        if (another_is_unsized(fleet, slot, fleet_now_ns(fleet)))
            slot->hold_until_ns = fleet_now_ns(fleet) + sizing_hold_ns;
        else
            park_copy_start(slot);
        return;
    case ACTION_STATE:
        failpoint(action->state == REPLICA_READY ? "ready.before_record" : "state.before_record");
        record.kind = RECORD_STATE;
        record.state = (enum replica_state)action->state;
        if (record.state == REPLICA_READY || record.state == REPLICA_PARKED)
            error_clear(&slot->last_error);
        break;
    case ACTION_RETRY:
        record.kind = RECORD_RETRY;
        record.reason = action->reason ? action->reason : retry_reason(slot);
        break;
    case ACTION_STALL:
        log_warn(action->state ? LOG_EVENT("worker stalled") : LOG_EVENT("worker recovered"),
                 LOG_STR("replica", slot->id), LOG_I64("pid", slot->run.process.pid));
        record.kind = RECORD_STALL;
        record.stalled = action->state;
        break;
    case ACTION_FAIL:
        record.kind = RECORD_FAIL;
        break;
    case ACTION_DRAIN:
        failpoint("drain.before_record");
        drain(slot);
        return;
    case ACTION_KILL:
        kill_worker(slot, action->reason);
        return;
    case ACTION_STOP:
        failpoint("stop.before_record");
        record.kind = RECORD_STOP;
        break;
    case ACTION_FINISH:
        return;
    }
    submit(slot, &record);
}

/* True where the replica is still wanted after its record was written. */
static bool still_wanted(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    return row && !row->retiring &&
           catalog_deployment(catalog, row->model, row->version, row->device_group);
}

static void after_starting(struct slot *slot)
{
    struct error err;
    failpoint("spawn.before");
    if (slot->fleet->supervisor->stopping || !still_wanted(slot)) {
        slot->run.sizing_until_ns = 0;
        return;
    }
    if (!slot_is_to_park(slot) &&
        !slot->drained.restarting) /* else the memory report still needs the drain */
        slot_forget_drain(slot);
    if (slot_spawn(slot, &err) != 0) {
        log_error(LOG_EVENT("worker not started"), LOG_STR("replica", slot->id),
                  LOG_STR("why", err.message));
        slot->last_error = err;
        if (err.reason == REASON_DEVICE_QUARANTINED)
            slot->run.outlook = OUTLOOK_HELD_BACK;
        else if (err.status != STATUS_RESOURCE_EXHAUSTED && err.status != STATUS_INTERNAL)
            slot->run.outlook = OUTLOOK_PERMANENT;
        else
            slot->run.outlook = OUTLOOK_RETRY;
        slot_move(slot, SLOT_EXITED);
        slot->run.sizing_until_ns = 0;
        return;
    }
    failpoint("spawn.after");
    log_info(LOG_EVENT("worker started"), LOG_STR("replica", slot->id),
             LOG_I64("pid", slot->run.process.pid));
    submit(slot, &(struct record){.kind = RECORD_PID});
}

static void after_wake(struct slot *slot)
{
    failpoint("wake.after_record");
    if (slot->fleet->supervisor->stopping || !still_wanted(slot) || slot_is_to_park(slot) ||
        !slot_wake(slot))
        slot->run.sizing_until_ns = 0;
}

static void after_drain(struct slot *slot)
{
    struct error err;
    failpoint("drain.after_record");
    uint32_t grace_ms = slot->grace_ms;
    bool loading = slot->run.status && ((int)slot->run.status->state == WORKER_LOADING ||
                                        (int)slot->run.status->state == WORKER_WARMING);
    if (!slot->run.status || loading)
        grace_ms = 0; /* no request can be running */
    if (slot_runs(slot))
        slot_move(slot, slot_phase_draining(slot->phase));
    slot->run.drain_deadline_ns = fleet_now_ns(slot->fleet) + (int64_t)grace_ms * NS_PER_MS;
    if (slot_runs(slot) &&
        (!slot->run.link || worker_link_shutdown(slot->run.link, grace_ms, &err) != 0))
        process_signal(&slot->run.process, SIGTERM);
}

/* True where a command asked for the end: no death. */
static bool is_asked(const struct record *record)
{
    return record->kind == RECORD_RETRY && record_is_asked_for(record->reason);
}

static bool is_held_back(const struct record *record)
{
    return record->kind == RECORD_RETRY && record->reason == REASON_DEVICE_QUARANTINED;
}

static void after_death(struct slot *slot, const struct record *record)
{
    if (is_asked(record)) {
        slot->deaths = (struct reconcile_deaths){0};
        error_clear(&slot->last_error);
    } else if (slot_phase_process(slot->phase) == PROCESS_EXITED && !is_held_back(record)) {
        reconcile_note_death(&slot->fleet->supervisor->config, &slot->deaths, slot->run.ready_ns,
                             fleet_now_ns(slot->fleet));
    }
    slot_forget(slot);
    slot->next_start_ns = record->kind == RECORD_RETRY ? record->at_ns : 0;
}

void supervisor_record_done(struct supervisor *supervisor, const char *replica_id,
                            const struct record *record, const struct error *status)
{
    struct slot *slot = slot_find(supervisor->fleet, replica_id);
    if (!slot)
        return;
    slot->busy = false;
    if (status->status != 0) {
        if (record->kind == RECORD_STARTING || record->kind == RECORD_WAKE)
            slot->run.sizing_until_ns = 0;
        if (status->status != STATUS_CANCELLED)
            log_warn(LOG_EVENT("record refused"), LOG_STR("replica", replica_id),
                     LOG_STR("why", status->message));
        slot->hold_until_ns = fleet_now_ns(slot->fleet) + refused_hold_ns;
        supervisor_kick(supervisor);
        return;
    }
    switch (record->kind) {
    case RECORD_STARTING:
        failpoint("start.after_record");
        after_starting(slot);
        break;
    case RECORD_WAKE:
        after_wake(slot);
        break;
    case RECORD_PID:
        failpoint("pid.after_record");
        break;
    case RECORD_STATE:
        failpoint(record->state == REPLICA_READY ? "ready.after_record" : "state.after_record");
        if ((record->state == REPLICA_READY || record->state == REPLICA_PARKED) &&
            !slot->run.ready_ns)
            slot->run.ready_ns = fleet_now_ns(supervisor->fleet);
        break;
    case RECORD_RETRY:
    case RECORD_FAIL:
        after_death(slot, record);
        break;
    case RECORD_DRAIN:
        after_drain(slot);
        break;
    case RECORD_STOP:
        failpoint("stop.after_record");
        slot_forget(slot);
        break;
    case RECORD_ADOPT:
    case RECORD_STALL:
        break;
    }
    change_hub_notify(&supervisor->context->progress, replica_id);
    change_hub_notify(&supervisor->context->changes, NULL);
}

/* Destroys the slots of replicas whose rows are gone. */
static void drop_slots(struct supervisor *supervisor)
{
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(supervisor->fleet, &cursor))) {
        if (slot->busy || slot_runs(slot) ||
            catalog_replica(supervisor->context->catalog, slot->id))
            continue;
        hash_map_remove_str(&supervisor->fleet->slots, slot->id);
        run_folder_remove(supervisor->context->settings->run_dir, slot->id);
        slot_destroy(slot);
    }
}

/* When the earliest hold ends. `now_ns` and `clock_ns` are those of the facts: the pass skipped
 * a hold that has ended since. That hold is due at once. */
static int64_t earliest_hold(struct supervisor *supervisor, int64_t now_ns, int64_t clock_ns)
{
    int64_t at = INT64_MAX;
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(supervisor->fleet, &cursor)))
        if (slot->hold_until_ns > now_ns && slot->hold_until_ns < at)
            at = slot->hold_until_ns;
    if (seeded_bug("I2_misses_a_hold_that_ended"))
        clock_ns = clock_now_ns();
    int64_t operations_at = supervisor->operations.hold_ns(supervisor->operations.arg, clock_ns);
    if (operations_at != INT64_MAX && operations_at - clock_ns < at - now_ns)
        at = now_ns + operations_at - clock_ns;
    return at;
}

static bool check_stopped(struct supervisor *supervisor)
{
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(supervisor->fleet, &cursor)))
        if (slot_runs(slot))
            return false;
    if (!supervisor->finished) {
        supervisor->finished = true;
        ev_timer_stop(supervisor->context->loop, &supervisor->stop_timer);
        supervisor->stopped(supervisor->stopped_arg);
    }
    return true;
}

static void run(struct supervisor *supervisor)
{
    struct ev_loop *loop = supervisor->context->loop;
    struct facts facts;
    int64_t wake_ns = INT64_MAX, now_ns = fleet_now_ns(supervisor->fleet);
    if (supervisor->stopping) {
        check_stopped(supervisor);
        return;
    }
    ev_timer_stop(loop, &supervisor->wake);
    if (facts_take(supervisor->fleet, &supervisor->operations, now_ns, &facts)) {
        size_t n = reconcile(&supervisor->config, &facts.input, now_ns, facts.actions, &wake_ns);
        for (size_t i = 0; i < n; i++)
            carry_out(supervisor, &facts, &facts.actions[i]);
    } else {
        wake_ns = now_ns + NS_PER_S;
    }
    facts_fini(&facts);
    drop_slots(supervisor);
    weights_sweep(supervisor->fleet->weights);
    int64_t hold_ns = earliest_hold(supervisor, now_ns, facts.clock_ns);
    wake_ns = hold_ns < wake_ns ? hold_ns : wake_ns;
    if (wake_ns == INT64_MAX)
        return;
    double delay = (double)(wake_ns - now_ns) / 1e9;
    ev_timer_set(&supervisor->wake, delay > 0.001 ? delay : 0.001, 0.);
    ev_timer_start(loop, &supervisor->wake);
}

static void on_tick(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    struct supervisor *supervisor = timer->data;
    oom_watch_check(&supervisor->oom, fleet_now_ns(supervisor->fleet));
    store_flush(supervisor->context->store);
    change_hub_notify(&supervisor->context->ticks, NULL);
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    run(timer->data);
}

void supervisor_kick(struct supervisor *supervisor)
{
    if (!supervisor)
        return;
    ev_timer_stop(supervisor->context->loop, &supervisor->soon);
    ev_timer_set(&supervisor->soon, 0., 0.);
    ev_timer_start(supervisor->context->loop, &supervisor->soon);
}

/* --- life --- */

static void on_settled(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct supervisor *supervisor = timer->data;
    (void)loop;
    (void)events;
    supervisor->fleet->settled_timeout = true;
    change_hub_notify(&supervisor->context->changes, NULL);
}

static void configure(struct supervisor *supervisor, const struct settings *settings)
{
    struct reconcile_config *config = &supervisor->config;
    reconcile_config_init(config);
    config->backoff_initial_ns = (int64_t)settings->restart_backoff_initial_ms * NS_PER_MS;
    config->backoff_max_ns = (int64_t)settings->restart_backoff_max_ms * NS_PER_MS;
    config->crash_window_ns = (int64_t)settings->crash_window_ms * NS_PER_MS;
    config->crash_limit = (uint32_t)settings->crash_limit;
    config->stable_ns = config->crash_window_ns;
    config->kill_grace_ns = (int64_t)settings->kill_grace_ms * NS_PER_MS;
    config->connect_timeout_ns = (int64_t)settings->connect_timeout_ms * NS_PER_MS;
    config->load_timeout_ns = (int64_t)settings->load_timeout_ms * NS_PER_MS;
    config->stall_timeout_ns = (int64_t)settings->stall_timeout_ms * NS_PER_MS;
}

static void on_change(void *arg, const char *replica_id)
{
    (void)replica_id;
    supervisor_kick(arg);
}

int supervisor_create(struct fleet *fleet, const struct operation_ops *operations,
                      struct supervisor **out_supervisor, struct error *err)
{
    struct supervisor *supervisor = calloc(1, sizeof(*supervisor));
    if (!supervisor)
        return error_no_memory(err);
    supervisor->fleet = fleet;
    supervisor->context = fleet->context;
    supervisor->operations = *operations;
    fleet->supervisor = supervisor;
    configure(supervisor, fleet->context->settings);
    oom_watch_init(&supervisor->oom);
    ev_timer_init(&supervisor->soon, on_timer, 0., 0.);
    ev_timer_init(&supervisor->wake, on_timer, 0., 0.);
    ev_timer_init(&supervisor->settle, on_settled, settle_s, 0.);
    double tick_s = (double)fleet_tick_ns() / 1e9;
    ev_timer_init(&supervisor->tick, on_tick, tick_s, tick_s);
    supervisor->soon.data = supervisor->wake.data = supervisor->settle.data = supervisor;
    supervisor->tick.data = supervisor;
    change_hub_subscribe(&supervisor->context->changes, &supervisor->on_change, on_change,
                         supervisor);
    ev_timer_start(fleet->context->loop, &supervisor->tick);
    ev_timer_start(fleet->context->loop, &supervisor->settle);
    adopt_all(supervisor);
    supervisor_kick(supervisor);
    *out_supervisor = supervisor;
    return 0;
}

void supervisor_destroy(struct supervisor *supervisor)
{
    if (!supervisor)
        return;
    struct ev_loop *loop = supervisor->context->loop;
    ev_timer_stop(loop, &supervisor->soon);
    ev_timer_stop(loop, &supervisor->wake);
    ev_timer_stop(loop, &supervisor->settle);
    ev_timer_stop(loop, &supervisor->tick);
    ev_timer_stop(loop, &supervisor->stop_timer);
    fleet_fini(supervisor->fleet);
    supervisor->fleet->supervisor = NULL;
    free(supervisor);
}

static void signal_all(struct supervisor *supervisor, int signal_number)
{
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(supervisor->fleet, &cursor)))
        if (slot_runs(slot))
            process_signal(&slot->run.process, signal_number);
}

static void on_stop_timeout(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    signal_all(timer->data, SIGKILL);
}

void supervisor_stop_workers(struct supervisor *supervisor, void (*done)(void *arg), void *arg)
{
    supervisor->stopping = true;
    supervisor->stopped = done;
    supervisor->stopped_arg = arg;
    double grace_s = (double)supervisor->config.kill_grace_ns / 1e9;
    ev_timer_init(&supervisor->stop_timer, on_stop_timeout, grace_s, 0.);
    supervisor->stop_timer.data = supervisor;
    ev_timer_start(supervisor->context->loop, &supervisor->stop_timer);
    signal_all(supervisor, SIGTERM);
    supervisor_kick(supervisor);
}

void supervisor_device_failed(struct supervisor *supervisor, const char *device, uint64_t xid)
{
    int64_t now_ns = fleet_now_ns(supervisor->fleet);
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(supervisor->fleet, &cursor)))
        if (slot->blamed_ns && now_ns - slot->blamed_ns < supervisor->config.fault_grace_ns &&
            slot_is_on(slot, device))
            return; /* the worker reported the fault before the driver */
    cursor = 0;
    while ((slot = fleet_next(supervisor->fleet, &cursor))) {
        if (!slot_runs(slot) || slot->run.health.fault_ns || !slot_is_on(slot, device))
            continue;
        slot->run.health.fault_ns = now_ns;
        slot->run.health.fault_xid = xid;
    }
    supervisor_kick(supervisor);
}
