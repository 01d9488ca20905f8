/* sim_devices.c: the GPUs as their driver reports them (manager/devices/device_watch.h). A GPU's
 * used memory is that of its workers and, for a while, of workers that ended. */
#include <stdio.h>
#include <string.h>

#include "manager/devices/device_watch.h"
#include "tests/sim/sim.h"

static const uint64_t total_bytes = 1ULL << 34;

bool device_watch_is_up(struct device_watch *watch)
{
    (void)watch;
    return true;
}

const char *device_watch_why_not(struct device_watch *watch)
{
    (void)watch;
    return "";
}

static bool is_on(const struct sim_process *process, const char *device)
{
    return process->gpu && strstr(process->devices, device) != NULL;
}

/* True if the GPU still counts the process. Memory of an ended process counts a moment longer, and
 * in one process of ten much longer. */
static bool is_counted(const struct sim_process *process)
{
    int64_t lingers_ms = process->start_ticks % 10 == 3 ? 5000 : 300;
    return process->alive ||
           (process->ended_ns && sim.now_ns < process->ended_ns + lingers_ms * NS_PER_MS);
}

/* Reads a device. The driver reports memory in two of four histories, and in half of these also
 * memory per process. */
static void look(const char *device, struct device_view *out)
{
    struct nvml_figures *figures = &out->figures;
    figures->has_memory = true;
    figures->memory_total_bytes = total_bytes;
    figures->has_processes = sim.history_seed % 4 != 1;
    for (size_t i = 0; i < sim.n_processes && figures->n_processes < NVML_MAX_PROCESSES; i++) {
        const struct sim_process *process = &sim.processes[i];
        if (!is_on(process, device) || !is_counted(process))
            continue;
        figures->memory_used_bytes += process->bytes;
        if (figures->has_processes)
            figures->processes[figures->n_processes++] =
                (struct nvml_process){.pid = (uint32_t)process->pid, .bytes = process->bytes};
    }
}

bool device_watch_view(struct device_watch *watch, const pb_device *device,
                       struct device_view *out_view)
{
    (void)watch;
    *out_view = (struct device_view){0};
    if (sim.history_seed % 4 > 1 || strncmp(device->name, "cuda", 4) != 0)
        return false;
    out_view->sampled = true;
    out_view->sampled_unix_ns = clock_wall_ns() - (int64_t)sim_below(500) * NS_PER_MS;
    look(device->name, out_view);
    return true;
}

void device_watch_fill(struct device_watch *watch, struct arena *arena, pb_device *device)
{
    struct device_view view;
    if (!device_watch_view(watch, device, &view))
        return;
    Sluice__V1__DeviceFigures *figures =
        message_new_in(arena, &sluice__v1__device_figures__descriptor);
    if (!figures)
        return;
    figures->memory_total_bytes = view.figures.memory_total_bytes;
    figures->memory_used_bytes = view.figures.memory_used_bytes;
    device->figures = figures;
}
