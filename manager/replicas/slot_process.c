/* slot_process.c: the process of a slot: the worker's status, the end and the start of the
 * process. */
#include "manager/replicas/slot_process.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/devices/device_hold.h"
#include "manager/host/run_folder.h"
#include "manager/replicas/launch.h"
#include "manager/replicas/park_copy.h"
#include "manager/replicas/supervisor_private.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"
#include "proto/rpc/message/message.h"

enum { PATH_BYTES = 4096 };

static void slot_path(const struct slot *slot, const char *name, char out_path[PATH_BYTES])
{
    snprintf(out_path, PATH_BYTES, "%s/replica-%s/%s", slot->fleet->context->settings->run_dir,
             slot->id, name);
}

/* --- the worker's status --- */

static bool same_process(const struct slot *slot, const pb_replica *row, const pb_status *status)
{
    return row && status->epoch == row->epoch && strcmp(status->replica_id, slot->id) == 0 &&
           (slot->run.process.pidfd < 0 || (pid_t)status->pid == slot->run.process.pid);
}

/* True for a load error that a retry would meet again. */
static bool is_permanent(int rc)
{
    switch (rc) {
    case STATUS_INVALID_ARGUMENT:
    case STATUS_FAILED_PRECONDITION:
    case STATUS_UNIMPLEMENTED:
    case STATUS_NOT_FOUND:
    case STATUS_PERMISSION_DENIED:
    case STATUS_RESOURCE_EXHAUSTED:
    case STATUS_OUT_OF_RANGE:
    case STATUS_DATA_LOSS:
        return true;
    default:
        return false;
    }
}

/* A finished layer counts as progress, and so does a worker without requests. */
static void note_progress(struct slot *slot, const pb_status *status)
{
    const Sluice__Worker__V1__Load *load = status->load;
    int64_t now_ns = fleet_now_ns(slot->fleet);
    struct slot_health *health = &slot->run.health;
    health->heard_ns = now_ns;
    if (!load || load->progress != health->progress || load->n_ready == 0 || !health->moved_ns)
        health->moved_ns = now_ns;
    /* A device fault is dropped once the worker makes progress, as a process on a failed device
     * makes none. Steps that were queued before the fault may still finish. Half of the fault
     * grace is left for them. */
    if (health->fault_ns && load && load->n_ready && load->progress != health->progress &&
        now_ns - health->fault_ns > slot->fleet->supervisor->config.fault_grace_ns / 2)
        health->fault_ns = 0;
    health->progress = load ? load->progress : 0;
    if ((int)status->state != WORKER_DRAINING || slot->run.drain_deadline_ns)
        health->leaving_ns = 0;
    else if (!health->leaving_ns)
        health->leaving_ns = now_ns;
    if ((int)status->state != WORKER_FAILED)
        health->failed_ns = 0;
    else if (!health->failed_ns)
        health->failed_ns = now_ns;
}

/* Passes the status to weights_on_status(): once when packed memory appears, and once when it is
 * sealed or the load is over. True where waiting replicas may start. */
static bool report_weights(struct slot *slot)
{
    const pb_status *status = slot->run.status;
    bool sealed = (int)status->state != WORKER_LOADING;
    if (status->n_packed && !sealed) {
        sealed = true;
        for (size_t i = 0; i < status->n_packed; i++)
            sealed &= status->packed[i]->sealed;
    }
    /* A park copy appears only on request, long after the load. */
    slot->run.packed_reported &= status->n_packed > 0;
    bool again = status->n_packed && !slot->run.packed_reported;
    if ((slot->run.sealed_reported && !again) || (slot->run.packed_reported && !sealed) ||
        (!status->n_packed && !sealed))
        return false;
    slot->run.packed_reported = status->n_packed > 0;
    slot->run.sealed_reported = sealed;
    return weights_on_status(slot->fleet->weights, slot->id, slot->run.process.pid, status);
}

/* Short requests come and go between two statuses. The worker's counter shows them. */
static void note_activity(struct slot *slot, const pb_status *status)
{
    const Sluice__Worker__V1__Load *load = status->load;
    struct slot_activity *activity = &slot->run.activity;
    uint64_t n_accepted = status->counters ? status->counters->n_accepted_requests : 0;
    activity->has_requests = load && (load->n_running || load->n_queued || load->n_paused);
    if (activity->has_requests || !activity->active_ns || n_accepted != activity->n_accepted ||
        (int)status->state == WORKER_LOADING || (int)status->state == WORKER_WARMING)
        activity->active_ns = fleet_now_ns(slot->fleet);
    activity->n_accepted = n_accepted;
}

/* Follows the kind of worker that the status shows. A parked worker also loads, with its weights
 * alone. A worker may wake though its answer to Wake was lost. */
static void follow_worker(struct slot *slot, const pb_status *status)
{
    int state = (int)status->state;
    bool serves = state == WORKER_WARMING || state == WORKER_READY;
    switch (slot->phase) {
    case SLOT_SERVING:
        if (state == WORKER_PARKED)
            slot_move(slot, SLOT_PARKED);
        break;
    case SLOT_PARKED:
        if (serves)
            slot_move(slot, SLOT_SERVING);
        break;
    case SLOT_STUCK:
        if (serves || state == WORKER_LOADING)
            slot_move(slot, SLOT_SERVING);
        break;
    case SLOT_WAKING:
        if (state != WORKER_PARKED && slot_status_has_size(status))
            slot_move(slot, SLOT_SERVING);
        break;
    case SLOT_DRAINING:
        if (state == WORKER_PARKED)
            slot_move(slot, SLOT_PARKED_DRAINING);
        break;
    case SLOT_PARKED_DRAINING:
        if (serves)
            slot_move(slot, SLOT_DRAINING);
        break;
    default:
        break;
    }
}

/* True where the worker serves or loads to serve. A parked worker also loads and drains, with
 * its weights alone. A draining worker has reported its plan before. */
static bool is_serving(const struct slot *slot, const pb_status *status)
{
    return !slot_is_parked_worker(slot) && (int)status->state != WORKER_PARKED &&
           (int)status->state != WORKER_DRAINING;
}

static bool take_reported_weights(struct slot *slot)
{
    if (!report_weights(slot))
        return false;
    slot->run.copy.n_done = slot->run.copy.n_waits = slot->run.copy.n_failures = 0;
    return true;
}

static void on_status(void *arg, const pb_status *status)
{
    struct slot *slot = arg;
    struct fleet *fleet = slot->fleet;
    const pb_replica *row = catalog_replica(fleet->context->catalog, slot->id);
    if (!same_process(slot, row, status)) {
        if (slot->run.peer == PEER_OWN)
            log_warn(LOG_EVENT("another worker answers on the socket"),
                     LOG_STR("replica", slot->id), LOG_U64("epoch", status->epoch),
                     LOG_U64("pid", status->pid));
        slot->run.peer = PEER_FOREIGN;
        supervisor_kick(slot->fleet->supervisor);
        return;
    }
    note_progress(slot, status);
    note_activity(slot, status);
    bool changed = !slot->run.status || slot->run.status->state != status->state || !slot->settled;
    struct slot_gpus gpus;
    pb_status *copy = MESSAGE_COPY(pb_status, status);
    if (!copy)
        return;
    slot_set_status(slot, copy);
    follow_worker(slot, status);
    slot_read_gpus(slot, false, &gpus);
    if (gpus.n)
        slot->served.gpus = gpus;
    if (is_serving(slot, status) && slot_status_has_size(status)) {
        slot->served.host_bytes = slot_planned_bytes(slot);
        slot->served.by_earlier = false;
    }
    slot_note_shared(slot);
    slot->settled = true;
    if (slot->run.adopted && *status->cpus) {
        struct error why;
        (void)cpus_parse("cpus", status->cpus, &slot->run.cpus, &why);
    }
    bool woken =
        slot->phase == SLOT_WAKING && (int)status->state == WORKER_PARKED; /* LOADING will follow */
    if (slot->run.sizing_until_ns && !woken &&
        (slot_status_has_size(status) || (int)status->state != WORKER_LOADING)) {
        slot->run.sizing_until_ns = 0;
        changed = true;
    }
    changed |= take_reported_weights(slot);
    if (status->error) {
        message_to_error(&status->error->base, &slot->last_error);
        slot->run.outlook =
            is_permanent(slot->last_error.status) ? OUTLOOK_PERMANENT : OUTLOOK_RETRY;
    }
    change_hub_notify(&fleet->context->progress, slot->id);
    if (changed)
        change_hub_notify(&fleet->context->changes, NULL);
}

static void on_shutdown(void *arg, const Sluice__Worker__V1__ShutdownResponse *response,
                        const struct error *status)
{
    struct slot *slot = arg;
    if (response) {
        slot->drained.n_finished = response->n_finished;
        slot->drained.n_ended = response->n_ended;
    } else if (slot_runs(slot) && status->status != STATUS_CANCELLED) {
        log_warn(LOG_EVENT("worker did not answer Shutdown"), LOG_STR("replica", slot->id),
                 LOG_STR("why", status->message));
        process_signal(&slot->run.process, SIGTERM);
    }
}

/* Another process of the same binary would refuse as well. An adopted worker may have another
 * binary. */
static void on_refused(void *arg, const struct error *why)
{
    struct slot *slot = arg;
    log_warn(LOG_EVENT("worker has another protocol version"), LOG_STR("replica", slot->id),
             LOG_I64("pid", slot->run.process.pid), LOG_STR("why", why->message));
    slot->last_error = *why;
    slot->run.outlook = slot->run.adopted ? OUTLOOK_RETRY : OUTLOOK_PERMANENT;
    slot->run.peer = PEER_REFUSED;
    slot->settled = true;
    supervisor_kick(slot->fleet->supervisor);
}

/* The worker refused Wake, for example an older program or one that was started otherwise. Another
 * process replaces it. */
static void on_wake(void *arg, const struct error *status)
{
    struct slot *slot = arg;
    /* Success shows in the status. NOT_PARKED means that an earlier manager has already sent
     * Wake. */
    if (!status->status || status->reason == REASON_NOT_PARKED)
        return;
    log_info(LOG_EVENT("wake in place not possible"), LOG_STR("replica", slot->id),
             LOG_I64("pid", slot->run.process.pid), LOG_STR("why", status->message));
    slot_give_up_wake(slot);
    slot->run.sizing_until_ns = 0;
    supervisor_kick(slot->fleet->supervisor);
}

static void on_copy_answer(void *arg, const struct error *status)
{
    struct slot *slot = arg;
    /* The copy may not be taken over yet, or may have been dropped since. */
    slot->run.packed_reported &= status->status != 0;
    if (!status->status && slot->run.status && slot->run.status->n_packed &&
        take_reported_weights(slot))
        change_hub_notify(&slot->fleet->context->changes, NULL);
    park_copy_on_answer(slot, status);
}

static const struct worker_link_events link_events = {
    .on_status = on_status,
    .on_refused = on_refused,
    .on_wake = on_wake,
    .on_keep = on_copy_answer,
    .on_shutdown = on_shutdown,
};

/* --- the process --- */

/* The first device given to the process. For an adopted process: the device in its status or its
 * group. Empty: unknown. */
static void first_device(const struct slot *slot, char *out, size_t n_bytes)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_group *group = row ? catalog_group(catalog, row->device_group) : NULL;
    if (slot->run.devices && *slot->run.devices)
        snprintf(out, n_bytes, "%.*s", (int)strcspn(slot->run.devices, ","), slot->run.devices);
    else if (slot->served.gpus.n)
        snprintf(out, n_bytes, "%s", slot->served.gpus.gpus[0].name);
    else
        snprintf(out, n_bytes, "%s", group && group->n_devices ? group->devices[0] : "");
}

/* Clears the fault of the other processes on the device: the fault has hit the process of
 * `blamed`. */
static void clear_suspicion(struct fleet *fleet, const struct slot *blamed, const char *device)
{
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor)))
        if (slot != blamed && slot_is_on(slot, device))
            slot->run.health.fault_ns = 0;
}

/* `device`: the device that the report names, or empty. */
static void report_fault(struct slot *slot, Sluice__Worker__V1__DeviceFault fault,
                         const char *device)
{
    struct fleet *fleet = slot->fleet;
    struct device_report report = {.fault = fault};
    if (*device)
        snprintf(report.device, sizeof(report.device), "%s", device);
    else
        first_device(slot, report.device, sizeof(report.device));
    if (!*report.device)
        return;
    snprintf(report.replica_id, sizeof(report.replica_id), "%s", slot->id);
    snprintf(report.message, sizeof(report.message), "%.255s", slot->last_error.message);
    slot->blamed_ns = fleet_now_ns(slot->fleet);
    clear_suspicion(slot->fleet, slot, report.device);
    device_holds_report(fleet->device_holds, &report);
}

bool slot_read_exit(struct slot *slot, uint64_t epoch)
{
    pb_exit *report = run_folder_read_exit(slot->fleet->context->settings->run_dir, slot->id);
    if (!report)
        return false;
    bool found = report->epoch == epoch && strcmp(report->replica_id, slot->id) == 0;
    slot->run.asked_to_end =
        found && report->cause == SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_REQUESTED;
    if (found && report->error) {
        message_to_error(&report->error->base, &slot->last_error);
        bool permanent =
            report->cause == SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_MODEL_FILE_CHANGED ||
            (report->cause == SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_LOAD_FAILED &&
             is_permanent(slot->last_error.status));
        slot->run.outlook = permanent ? OUTLOOK_PERMANENT : OUTLOOK_RETRY;
    }
    if (found && report->cause == SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_DEVICE_LOST &&
        report->device_fault)
        report_fault(slot, report->device_fault, report->device);
    if (found) {
        slot->drained.n_finished =
            report->n_finished ? report->n_finished : slot->drained.n_finished;
        slot->drained.n_ended = report->n_ended ? report->n_ended : slot->drained.n_ended;
    }
    rpc_message_free(&report->base);
    return found;
}

/* True where the kernel killed the worker for lack of memory: SIGKILL from outside, and no exit
 * report. */
static bool ended_for_memory(struct slot *slot, bool told)
{
    struct supervisor *supervisor = slot->fleet->supervisor;
    bool killed = slot->run.end.known ? slot->run.end.signal_number == SIGKILL : !told;
    return killed && !slot->run.killed_for &&
           oom_watch_check(&supervisor->oom, fleet_now_ns(slot->fleet));
}

/* The worker's program refuses its settings before there is a report. An older program does not
 * know --launch-fd. */
static void set_exit_error(struct slot *slot, bool told)
{
    enum { EXIT_USAGE = 2 };
    char log_path[PATH_BYTES];
    slot_path(slot, "log", log_path);
    if (!told && slot->run.end.exit_status == EXIT_USAGE)
        error_set(&slot->last_error, STATUS_UNAVAILABLE,
                  "the worker ended with status %d: its program refused the flags or the launch "
                  "record; the last lines of %s name the fault",
                  slot->run.end.exit_status, log_path);
    else
        error_set(&slot->last_error, STATUS_UNAVAILABLE, "the worker ended with status %d",
                  slot->run.end.exit_status);
}

static void on_exit_seen(struct ev_loop *loop, ev_io *watcher, int events)
{
    struct slot *slot = watcher->data;
    struct fleet *fleet = slot->fleet;
    const pb_replica *row = catalog_replica(fleet->context->catalog, slot->id);
    (void)events;
    if (!process_ended(&slot->run.process, &slot->run.end))
        return;
    ev_io_stop(loop, watcher);
    slot_read_gpus(slot, true, &slot->ended);
    slot_move(slot, slot_phase_exited(slot->phase));
    slot->ended_unix_ns = clock_wall_ns();
    weights_ended(fleet->weights, slot->id);
    slot->settled = true;
    slot->run.sizing_until_ns = 0;
    bool told = row && slot_read_exit(slot, row->epoch);
    Sluice__Worker__V1__DeviceFault fault;
    if (!told && slot->run.end.known && device_fault_of_exit(slot->run.end.exit_status, &fault))
        report_fault(slot, fault, "");
    if (!slot->last_error.status && ended_for_memory(slot, told)) {
        error_set(&slot->last_error, STATUS_RESOURCE_EXHAUSTED,
                  "the kernel ended the worker: memory was exhausted");
        error_reason(&slot->last_error, REASON_OUT_OF_MEMORY);
    }
    if (!slot->last_error.status && slot->run.end.known && slot->run.end.signal_number)
        error_set(&slot->last_error, STATUS_UNAVAILABLE, "the worker was ended by signal %d (%s)",
                  slot->run.end.signal_number, sigdescr_np(slot->run.end.signal_number));
    else if (!slot->last_error.status && slot->run.end.known &&
             (!told || slot->run.end.exit_status))
        set_exit_error(slot, told);
    else if (!slot->last_error.status && !told)
        error_set(&slot->last_error, STATUS_UNAVAILABLE, "the worker ended and left no report");
    log_info(LOG_EVENT("worker ended"), LOG_STR("replica", slot->id),
             LOG_I64("pid", slot->run.process.pid), LOG_I64("status", slot->run.end.exit_status),
             LOG_I64("signal", slot->run.end.signal_number),
             LOG_STR("error", slot->last_error.status ? slot->last_error.message : ""));
    change_hub_notify(&fleet->context->changes, NULL);
}

int slot_attach(struct slot *slot, struct process *process, enum slot_phase phase,
                struct error *err)
{
    struct fleet *fleet = slot->fleet;
    char path[PATH_BYTES];
    slot_path(slot, "worker.sock", path);
    struct worker_link *link = NULL;
    uint64_t stall_ms = fleet->context->settings->stall_timeout_ms;
    uint32_t interval_ms = stall_ms < 4000 ? (uint32_t)stall_ms / 4 : 1000;
    int rc = worker_link_open(fleet->context->loop, fleet->context->queue, path, interval_ms,
                              &link_events, slot, &link, err);
    if (rc != 0)
        return rc;
    slot->run.link = link;
    slot->run.process = *process;
    *process = (struct process){.pidfd = -1};
    slot_move(slot, phase);
    slot->run.started_ns = fleet_now_ns(slot->fleet);
    error_clear(&slot->last_error);
    ev_io_init(&slot->exit_watch, on_exit_seen, slot->run.process.pidfd, EV_READ);
    slot->exit_watch.data = slot;
    ev_io_start(fleet->context->loop, &slot->exit_watch);
    return 0;
}

void slot_note_devices(struct slot *slot, const pb_launch *launch)
{
    free(slot->run.devices);
    slot->run.devices = strdup(launch->devices); /* NULL: the status will name the devices */
}

/* The arguments by which process_scan() finds the worker; the rest is in the launch record. */
static int spawn_worker(const struct slot *slot, const pb_launch *launch,
                        const struct weights_fds *fds, struct process *out_process,
                        struct error *err)
{
    static char program[] = "sluice-worker", mode[] = "serve", socket[] = "--socket",
                replica[] = "--replica", epoch[] = "--epoch";
    char log_path[PATH_BYTES], number[24];
    slot_path(slot, "log", log_path);
    snprintf(number, sizeof(number), "%" PRIu64, launch->epoch);
    char *const argv[] = {program, mode,   socket, launch->socket, replica, launch->replica,
                          epoch,   number, NULL};
    const struct process_launch parts = {
        .program = slot->fleet->context->settings->worker,
        .argv = argv,
        .env = slot->fleet->context->environment,
        .log_path = log_path,
        .fds = fds->fds,
        .n_fds = fds->n_fds,
        .record = launch,
    };
    return process_spawn(&parts, out_process, err);
}

int slot_spawn(struct slot *slot, struct error *err)
{
    struct fleet *fleet = slot->fleet;
    pb_launch *launch = NULL;
    struct process process = {.pidfd = -1};
    struct weights_fds fds;
    struct cpus cpus = {{0}};
    (void)weights_take(fleet->weights, slot->id, &fds);
    bool keeps = slot_is_to_park(slot) && weights_are_whole(fleet->weights, slot->id);
    int rc = run_folder_prepare(fleet->context->settings->run_dir, slot->id, err);
    if (rc == 0)
        rc = launch_create(fleet, slot->id, fds.n_fds, keeps, &launch, &cpus, err);
    if (rc == 0)
        rc = spawn_worker(slot, launch, &fds, &process, err);
    if (rc == 0)
        rc = slot_attach(slot, &process, keeps ? SLOT_PARKED : SLOT_SERVING, err);
    if (rc == 0) {
        slot->run.cpus = cpus;
        slot_note_devices(slot, launch);
    }
    if (rc != 0 && process.pidfd >= 0)
        slot_add_ghost(slot, &process);
    process_fini(&process);
    launch_destroy(launch);
    return rc;
}
