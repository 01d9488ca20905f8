/* sim_process.c: worker processes, and their files in the run folder. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/message.h"
#include "manager/host/process.h"
#include "manager/host/run_folder.h"
#include "tests/sim/sim.h"

enum {
    LOAD_FAILED = SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_LOAD_FAILED,
    REQUESTED = SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_REQUESTED,
    DEVICE_LOST = SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_DEVICE_LOST
};

const uint64_t sim_kept_bytes = 500000, sim_all_bytes = 1000000;

struct sim_process *sim_process_live(const char *replica_id)
{
    for (size_t i = sim.n_processes; i-- > 0;)
        if (sim.processes[i].alive && strcmp(sim.processes[i].replica_id, replica_id) == 0)
            return &sim.processes[i];
    return NULL;
}

static struct sim_folder *folder_of(const char *id, bool make)
{
    for (size_t i = 0; i < sim.n_folders; i++)
        if (strcmp(sim.folders[i].id, id) == 0)
            return &sim.folders[i];
    if (!make || sim.n_folders == SIM_MAX_FOLDERS)
        return NULL;
    struct sim_folder *folder = &sim.folders[sim.n_folders++];
    *folder = (struct sim_folder){.fault = 0};
    snprintf(folder->id, sizeof(folder->id), "%s", id);
    return folder;
}

static void leave_report(const struct sim_process *process, int cause, int status, int fault)
{
    struct sim_folder *folder = folder_of(process->replica_id, false);
    if (!folder)
        return;
    folder->has_report = true;
    folder->epoch = process->epoch;
    folder->cause = cause;
    folder->status = status;
    folder->fault = fault;
}

/* --- behaviour of a worker --- */

void sim_process_end(struct sim_process *process, int exit_status, int signal_number)
{
    if (!process->alive)
        return;
    sim_trace("worker %s pid %d epoch %llu ends: status %d signal %d", process->replica_id,
              (int)process->pid, (unsigned long long)process->epoch, exit_status, signal_number);
    process->alive = false;
    process->ended_ns = sim.now_ns;
    sim.n_process_changes++;
    process->exit_status = exit_status;
    process->signal_number = signal_number;
    process->next_ns = INT64_MAX;
    sim.stats.n_deaths++;
    sim.n_deaths++;
}

static void enter(struct sim_process *process, enum worker_state state, int64_t next_ns)
{
    process->state = state;
    sim.n_process_changes++;
    process->next_ns = next_ns;
    sim_link_push(process->replica_id);
}

static void finish_load(struct sim_process *process)
{
    switch (process->fate) {
    case FATE_DIES_IN_LOAD:
        sim_process_end(process, 0, SIGSEGV);
        return;
    case FATE_CANNOT_LOAD:
        leave_report(process, LOAD_FAILED, STATUS_INVALID_ARGUMENT, 0);
        sim_process_end(process, 1, 0);
        return;
    case FATE_SAYS_FAILED:
        enter(process, WORKER_FAILED, INT64_MAX);
        return;
    case FATE_LOADS_FOR_EVER:
        process->next_ns = INT64_MAX;
        return;
    default:
        process->bytes = sim_all_bytes;
        enter(process, WORKER_WARMING, sim_soon(20, 800));
    }
}

static void park(struct sim_process *process)
{
    process->bytes = sim_kept_bytes;
    enter(process, WORKER_PARKED, INT64_MAX);
}

void sim_process_step(struct sim_process *process)
{
    if (process->killed) {
        sim_process_end(process, 0, SIGKILL);
        return;
    }
    switch (process->state) {
    case WORKER_UNKNOWN:
        if (process->fate == FATE_DIES_AT_START)
            sim_process_end(process, 3, 0);
        else if (process->fate == FATE_NEVER_CONNECTS)
            process->next_ns = INT64_MAX;
        else if (process->keeps)
            park(process);
        else
            enter(process, WORKER_LOADING, sim_soon(50, 2500));
        return;
    case WORKER_LOADING:
        finish_load(process);
        return;
    case WORKER_WARMING:
        enter(process, WORKER_READY,
              process->fate == FATE_DEVICE_LOST ? sim_soon(500, 4000) : INT64_MAX);
        return;
    case WORKER_READY:
        leave_report(process, DEVICE_LOST, STATUS_INTERNAL,
                     1 + (int)sim_below(SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_UNKNOWN));
        sim_process_end(process, 80, 0);
        return;
    case WORKER_DRAINING:
        sim_link_answer_shutdown(process);
        leave_report(process, REQUESTED, 0, 0);
        sim_process_end(process, 0, 0);
        return;
    default:
        process->next_ns = INT64_MAX;
    }
}

void sim_process_drain(struct sim_process *process, uint32_t grace_ms)
{
    process->asked = true;
    if (process->state ==
        WORKER_UNKNOWN) { /* the worker has no handler yet, so SIGTERM ends the process */
        sim_process_end(process, 0, SIGTERM);
        return;
    }
    uint32_t most = grace_ms < 4000 ? grace_ms : 4000;
    if (process->state == WORKER_FAILED)
        most = 0;
    enter(process, WORKER_DRAINING, process->hung ? INT64_MAX : sim_soon(0, most));
}

/* The worker loads as a new process does. The faults of a load hit the worker too. */
void sim_process_wake(struct sim_process *process)
{
    process->keeps = process->image = false;
    process->unwell |= sim.memory_in > 0 || sim.links_lossy;
    sim.stats.n_woken++;
    sim_trace("worker %s pid %d epoch %llu is woken", process->replica_id, (int)process->pid,
              (unsigned long long)process->epoch);
    enter(process, WORKER_LOADING, sim_soon(50, 2500));
}

/* -- manager/host/process.h
 * ----------------------------------------------------------------------------
 */

static struct sim_process *add(const char *replica_id, uint64_t epoch)
{
    if (sim.n_processes == SIM_MAX_PROCESSES)
        return NULL;
    struct sim_process *process = &sim.processes[sim.n_processes++];
    sim.n_process_changes++;
    *process = (struct sim_process){
        .used = true,
        .alive = true,
        .life = sim.life,
        .start_ticks = ++sim.ticks,
        .epoch = epoch,
        .next_ns = sim_soon(5, 200),
    };
    snprintf(process->replica_id, sizeof(process->replica_id), "%s", replica_id);
    bool taken = true;
    while (taken) { /* pids of ended processes are reused */
        process->pid = (pid_t)(100 + sim_below(300));
        taken = false;
        for (size_t i = 0; i + 1 < sim.n_processes; i++)
            taken |= sim.processes[i].alive && sim.processes[i].pid == process->pid;
    }
    return process;
}

static int to_fd(const struct sim_process *process)
{
    return SIM_FIRST_FD + (int)(process - sim.processes);
}

static struct sim_process *of_fd(int fd)
{
    size_t i = (size_t)(fd - SIM_FIRST_FD);
    return fd >= SIM_FIRST_FD && i < sim.n_processes ? &sim.processes[i] : NULL;
}

int process_spawn(const struct process_launch *launch, struct process *out_process,
                  struct error *err)
{
    const char *id = launch->record->replica;
    uint64_t epoch = launch->record->epoch;
    if (sim.dead)
        return error_set(err, STATUS_INTERNAL, "no more");
    if (sim.spawn_fails) {
        if (sim_chance(50)) {
            error_set(err, STATUS_RESOURCE_EXHAUSTED, "the limit on processes is reached");
            return error_reason(err, REASON_TOO_MANY_PROCESSES);
        }
        return error_set(err, STATUS_INTERNAL, "pidfd_open");
    }
    sim_check_spawn(id, epoch);
    struct sim_process *process = add(id, epoch);
    if (!process)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "the world is full");
    snprintf(process->devices, sizeof(process->devices), "%s", launch->record->devices);
    process->gpu = strncmp(process->devices, "cuda", 4) == 0;
    process->keeps = launch->record->parked;
    process->fails_requests = sim_chance(15);
    if (sim.n_fated) {
        sim.n_fated--;
        process->fate = sim.next_fate;
        process->unwell = true;
    }
    /* A manager without memory may neglect the worker. A lossy connection may lose its reports. */
    process->unwell |= sim.memory_in > 0 || sim.links_lossy;
    sim.stats.n_spawns++;
    sim_trace("worker %s pid %d epoch %llu starts (fate %d)", id, (int)process->pid,
              (unsigned long long)epoch, (int)process->fate);
    *out_process = (struct process){
        .pid = process->pid, .start_ticks = process->start_ticks, .pidfd = to_fd(process)};
    return 0;
}

struct sim_process *sim_process_plant(const char *replica_id, uint64_t epoch)
{
    struct sim_process *process = add(replica_id, epoch);
    if (process) {
        process->life = 0;
        process->unwell = true;
    }
    return process;
}

int process_open(pid_t pid, uint64_t start_ticks, struct process *out_process, struct error *err)
{
    for (size_t i = 0; i < sim.n_processes; i++)
        if (sim.processes[i].alive && sim.processes[i].pid == pid &&
            sim.processes[i].start_ticks == start_ticks) {
            *out_process = (struct process){
                .pid = pid, .start_ticks = start_ticks, .pidfd = to_fd(&sim.processes[i])};
            return 0;
        }
    return error_set(err, STATUS_NOT_FOUND, "no process %ld", (long)pid);
}

void process_fini(struct process *process)
{
    *process = (struct process){.pidfd = -1};
}

bool process_signal(const struct process *process, int signal_number)
{
    struct sim_process *target = of_fd(process->pidfd);
    if (!target || !target->alive || sim.dead)
        return false;
    sim_trace("signal %d to %s pid %d", signal_number, target->replica_id, (int)target->pid);
    if (signal_number == SIGKILL) {
        sim_check_kill(target);
        target->killed = target->asked = true;
        target->stopped = false;
        target->next_ns = sim_chance(10) ? sim_soon(0, 3000) : sim_soon(0, 30);
    } else if (signal_number == SIGTERM && !target->killed) {
        sim_process_drain(target, 3000);
    }
    return true;
}

/* False for some workers of earlier managers, as if the program file had been replaced since. */
bool process_runs(const struct process *process, const char *path)
{
    const struct sim_process *target = of_fd(process->pidfd);
    (void)path;
    return target && target->alive && (target->life == sim.life || target->pid % 4);
}

bool process_ended(const struct process *process, struct process_end *out_end)
{
    const struct sim_process *target = of_fd(process->pidfd);
    *out_end = (struct process_end){0};
    if (!target || target->alive)
        return false;
    out_end->known = target->life == sim.life;
    if (out_end->known) {
        out_end->exit_status = target->exit_status;
        out_end->signal_number = target->signal_number;
    }
    return true;
}

static const struct sim_process *live_pid(pid_t pid)
{
    for (size_t i = 0; i < sim.n_processes; i++)
        if (sim.processes[i].alive && sim.processes[i].pid == pid)
            return &sim.processes[i];
    return NULL;
}

uint64_t process_start_ticks(pid_t pid)
{
    const struct sim_process *process = live_pid(pid);
    return process ? process->start_ticks : 0;
}

uint64_t process_resident_bytes(pid_t pid)
{
    const struct sim_process *process = live_pid(pid);
    return process ? process->bytes : 0;
}

/* For one process in sixteen, another process holds the packed weights. */
uint64_t process_memory_held(const uint64_t *inodes, size_t n_inodes, pid_t *out_holder)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < n_inodes; i++)
        n_bytes += inodes[i] % 16 == 5 ? 1 << 24 : 0;
    *out_holder = n_bytes ? SIM_HOLDER : 0;
    return n_bytes;
}

/* Counts a third of all deaths. The kernel's counter names no process. */
uint64_t process_oom_kills(void)
{
    return sim.n_deaths / 3;
}

void process_scan(const char *run_dir,
                  void (*found)(void *arg, const struct process_found *process), void *arg)
{
    (void)run_dir;
    for (size_t i = 0; i < sim.n_processes; i++) {
        const struct sim_process *process = &sim.processes[i];
        struct process_found entry = {
            .pid = process->pid, .start_ticks = process->start_ticks, .epoch = process->epoch};
        snprintf(entry.replica_id, sizeof(entry.replica_id), "%s", process->replica_id);
        if (process->alive)
            found(arg, &entry);
    }
}

void sim_process_tell_end(struct sim_process *process)
{
    process->seen = true;
    process->watch->cb(NULL, process->watch, EV_READ);
}

/* A power failure: all processes end, and the run folder is empty. */
void sim_processes_cut(void)
{
    for (size_t i = 0; i < sim.n_processes; i++)
        sim_process_end(&sim.processes[i], 0, SIGKILL);
    sim.n_folders = 0;
}

/* -- manager/host/run_folder.h
 * -------------------------------------------------------------------------
 */

int run_folder_prepare(const char *run_dir, const char *replica_id, struct error *err)
{
    (void)run_dir;
    if (sim.dead || sim.folder_fails)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "run/replica-%s: no space", replica_id);
    struct sim_folder *folder = folder_of(replica_id, true);
    if (!folder)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "the world is full");
    folder->has_report = false;
    return 0;
}

pb_exit *run_folder_read_exit(const char *run_dir, const char *replica_id)
{
    const struct sim_folder *folder = folder_of(replica_id, false);
    (void)run_dir;
    if (!folder || !folder->has_report)
        return NULL;
    pb_exit *report = MESSAGE_NEW(pb_exit, sluice__worker__v1__exit_report__descriptor);
    struct error err;
    if (!report || !message_set(&report->replica_id, replica_id)) {
        if (report)
            message_free(&report->base);
        return NULL;
    }
    report->epoch = folder->epoch;
    report->cause = (Sluice__Worker__V1__ExitCause)folder->cause;
    report->device_fault = (Sluice__Worker__V1__DeviceFault)folder->fault;
    if (folder->status) {
        error_set(&err, folder->status, "the worker's own words");
        report->error = (pb_error *)message_from_error(&err);
    }
    return report;
}

void run_folder_remove(const char *run_dir, const char *replica_id)
{
    struct sim_folder *folder = folder_of(replica_id, false);
    (void)run_dir;
    if (folder && !sim.dead)
        *folder = sim.folders[--sim.n_folders];
}

void run_folder_list(const char *run_dir, void (*found)(void *arg, const char *replica_id),
                     void *arg)
{
    (void)run_dir;
    for (size_t i = sim.n_folders; i-- > 0;) {
        char id[SIM_ID_BYTES];
        memcpy(id, sim.folders[i].id, sizeof(id));
        found(arg, id);
    }
}
