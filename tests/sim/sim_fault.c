/* sim_fault.c: faults of the manager, its workers and its disk. */
#include "manager/devices/device_hold.h"
#include "manager/replicas/supervisor.h"
#include "tests/sim/sim.h"

static struct sim_process *random_process(void)
{
    size_t n = 0;
    struct sim_process *chosen = NULL;
    for (size_t i = 0; i < sim.n_processes; i++)
        if (sim.processes[i].alive && sim_below(++n) == 0)
            chosen = &sim.processes[i];
    return chosen;
}

static void unwell_all(void)
{
    for (size_t i = 0; i < sim.n_processes; i++)
        sim.processes[i].unwell = true;
}

static void arm_failpoint(bool cut)
{
    sim.failpoint_in = 1 + (long)sim_below(30);
    sim.failpoint_cuts = cut;
#if !SLUICE_DEBUG_CHECKS
    sim.failpoint_in = 0;
    sim_kill_manager(cut);
#endif
}

static void freeze(int64_t s)
{
    sim.frozen = true;
    sim.frozen_until_ns = sim.now_ns + s * NS_PER_S;
}

/* Adds a live worker process of an earlier epoch, as if a manager had not killed it. */
void sim_fault_plant_stranger(void)
{
    if (sim.up || sim.n_processes > SIM_MAX_PROCESSES / 2)
        return;
    struct sim_process *live = random_process();
    if (!live)
        return;
    live->unwell = true;
    (void)sim_process_plant(live->replica_id, live->epoch ? live->epoch - 1 : 0);
}

static void fate(void)
{
    sim.next_fate = (enum worker_fate)(1 + sim_below(N_FATES - 1));
    sim.n_fated = 1 + (uint32_t)sim_below(7);
}

static void stop_worker(void)
{
    static const int64_t seconds[] = {1, 5, 15, 45};
    struct sim_process *process = random_process();
    int64_t s = seconds[sim_below(4)];
    if (!process || process->killed || process->stopped)
        return;
    sim_trace("worker %s pid %d stands still for %d s", process->replica_id, (int)process->pid,
              (int)s);
    process->stopped = true;
    process->unwell |= s > 5;
    process->kill_at_ns = sim.now_ns + s * NS_PER_S; /* SIGCONT follows at this time */
}

void sim_fault_strike(void)
{
    static const int64_t pauses[] = {2, 8, 30, 60};
    static const uint64_t xids[] = {13, 48, 63, 74, 79, 95, 31, 119, 140, 154};
    static const char *const names[] = {"cpu:0", "cuda:0", "cuda:1"};
    struct sim_process *process;
    sim.stats.n_faults++;
    switch (sim_below(30)) {
    case 0:
    case 1:
    case 2:
        arm_failpoint(false);
        break;
    case 3:
        arm_failpoint(true);
        break;
    case 4:
        sim_kill_manager(false);
        break;
    case 5:
        sim_kill_manager(true);
        break;
    case 6:
    case 19:
    case 20:
        if ((process = random_process()))
            sim_process_end(process, 0, 9);
        break;
    case 7:
    case 21:
        stop_worker();
        break;
    case 8:
        if ((process = random_process()) && process->state == WORKER_READY)
            process->hung = process->unwell = true;
        break;
    case 9:
        sim_trace("the manager is stopped");
        freeze(pauses[sim_below(4)]);
        break;
    case 10:
        sim_trace("everything stands still for five minutes");
        sim.now_ns += 300 * NS_PER_S;
        break;
    case 11:
        sim.wall_offset_ns +=
            (sim_chance(50) ? -1 : 1) * (sim_chance(50) ? 3600 : 86400) * NS_PER_S;
        sim_trace("the wall clock jumps");
        break;
    case 12:
        sim_trace("the disk is full");
        sim_disk_faults.full = true;
        sim_disk_faults.full_until_ns = sim.now_ns + (1 + (int64_t)sim_below(8)) * NS_PER_S;
        break;
    case 27:
        sim_trace("what is read from the disk does not come");
        sim_disk_faults.read_fail_in = 1 + (uint32_t)sim_below(40);
        sim_disk_faults.n_reads = 1 + (uint32_t)sim_below(4);
        if (sim_chance(50))
            sim_kill_manager(false);
        break;
    case 13:
    case 24:
        sim_disk_faults.fail_in = 1 + (uint32_t)sim_below(12);
        sim_disk_faults.n_more = (uint32_t)sim_below(4);
        if (sim_chance(30))
            arm_failpoint(false);
        break;
    case 25:
        if (sim.up && !sim.dead && sim.manager.fleet.device_holds)
            device_holds_report(
                sim.manager.fleet.device_holds,
                &(struct device_report){.xid = xids[sim_below(10)], .device = "cuda:0"});
        unwell_all();
        break;
    case 26:
    case 28:
        if (sim_chance(70)) {
            sim.memory_at = (enum sim_memory_fault)(1 + sim_below(N_MEMORY_FAULTS - 1));
            break;
        }
        sim_trace("no memory");
        sim.memory_in = 1 + (uint32_t)sim_below(60);
        sim.n_more_memory = (uint32_t)sim_below(24);
        unwell_all();
        break;
    case 14:
    case 22:
    case 23:
        fate();
        break;
    case 15:
        sim.spawn_fails = true;
        sim.spawn_ok_ns = sim.now_ns + (1 + (int64_t)sim_below(5)) * NS_PER_S;
        break;
    case 16:
        sim.folder_fails = true;
        sim.folder_ok_ns = sim.now_ns + (1 + (int64_t)sim_below(5)) * NS_PER_S;
        break;
    case 17:
        sim.links_lossy = true;
        sim.lossy_until_ns = sim.now_ns + (1 + (int64_t)sim_below(20)) * NS_PER_S;
        unwell_all();
        break;
    default:
        if (sim.up && !sim.dead && sim.manager.supervisor)
            supervisor_device_failed(sim.manager.supervisor, names[sim_below(3)],
                                     sim_chance(50) ? 31 : 95);
        unwell_all();
    }
}

/* Lets some of the next allocations fail, if the history plans the fault for this kind of
 * operation. */
void sim_fault_memory(enum sim_memory_fault place)
{
    if (place == NO_MEMORY_NOWHERE || sim.memory_at != place || sim.quiet_phase)
        return;
    sim_trace("no memory for it (%d)", (int)place);
    sim.memory_at = NO_MEMORY_NOWHERE;
    sim.memory_in = 1 + (uint32_t)sim_below(12);
    sim.n_more_memory = (uint32_t)sim_below(4);
    unwell_all();
}

static void workers_have_ended(void *arg)
{
    (void)arg;
    sim.workers_ended = true;
}

void sim_fault_stop_everything(void)
{
    if (!sim.up || sim.dead || sim.stopping)
        return;
    sim_trace("the manager is told to end, with its workers");
    sim.stopping = true;
    supervisor_stop_workers(sim.manager.supervisor, workers_have_ended, NULL);
}

/* Ends all faults. */
void sim_fault_heal(void)
{
    sim_disk_faults = (struct sim_disk_faults){0};
    sim.spawn_fails = sim.folder_fails = sim.links_lossy = sim.frozen = false;
    sim.failpoint_in = 0;
    sim.memory_in = 0;
    sim.memory_at = NO_MEMORY_NOWHERE;
    sim.n_fated = 0;
    for (size_t i = 0; i < sim.n_processes; i++) {
        struct sim_process *process = &sim.processes[i];
        if (process->stopped)
            process->kill_at_ns = sim.now_ns;
        if (process->fate == FATE_DEVICE_LOST && process->state == WORKER_READY && !process->killed)
            process->next_ns = INT64_MAX;
        if (process->fate == FATE_DEVICE_LOST)
            process->fate = FATE_HEALTHY;
    }
}
