#include "manager/watch/memory_report.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/device_name.h"
#include "base/system/memory_limit.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_watch.h"
#include "manager/host/process.h"
#include "manager/replicas/replica_view.h"
#include "manager/slots/fleet.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"

/* A report that is being built. */
struct report {
    struct fleet *fleet;
    const pb_operation *operation;
    struct arena *arena;
    pb_operation_result *result;
    struct memory_report_left *left;
};

/* Adds to the row of the device; a missing row is created. NULL where memory is exhausted. */
static pb_memory *find_memory(const struct report *report, const char *device)
{
    pb_operation_result *result = report->result;
    for (size_t i = 0; i < result->n_memory; i++)
        if (strcmp(result->memory[i]->device, device) == 0)
            return result->memory[i];
    pb_memory *memory = message_add_in(report->arena, &result->n_memory, &result->memory,
                                       &sluice__v1__device_memory__descriptor);
    if (memory)
        memory->device = message_text_in(report->arena, device);
    return memory;
}

static uint64_t bytes_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static bool is_gpu(const pb_memory *memory)
{
    return device_name_is_gpu(memory->device);
}

/* Adds the memory of a loaded replica. `counted_bytes` of its weights were counted with another
 * replica. */
static void add_loaded(const struct report *report, const pb_memory *from, uint64_t counted_bytes)
{
    pb_memory *memory = find_memory(report, from->device);
    if (!memory)
        return;
    if (!memory->before_bytes || from->before_bytes < memory->before_bytes)
        memory->before_bytes = from->before_bytes;
    memory->after_bytes += bytes_less(from->after_bytes, counted_bytes);
    memory->expected_bytes += bytes_less(from->expected_bytes, counted_bytes);
    memory->weight_bytes += bytes_less(from->weight_bytes, counted_bytes);
    memory->kv_bytes += from->kv_bytes;
    memory->state_bytes += from->state_bytes;
    memory->workspace_bytes += from->workspace_bytes;
    memory->free_bytes = from->free_bytes;
    memory->total_bytes = from->total_bytes;
}

static bool has_replica(const pb_operation *operation, const char *replica_id)
{
    for (size_t i = 0; i < operation->n_replica_ids; i++)
        if (strcmp(operation->replica_ids[i], replica_id) == 0)
            return true;
    return false;
}

/* Share of device i of n in the bytes of a worker on n devices. */
static uint64_t share_of(uint64_t bytes, size_t i, size_t n)
{
    return bytes / n + (i < bytes % n);
}

struct held {
    uint64_t before, now, expected;
};

/* Adds the bytes to n devices in equal shares. */
static void add_shares(const struct report *report, char *const *devices, size_t n,
                       const struct held *held)
{
    for (size_t i = 0; i < n; i++) {
        pb_memory *memory = find_memory(report, devices[i]);
        if (!memory)
            return;
        memory->before_bytes += share_of(held->before, i, n);
        memory->after_bytes += share_of(held->now, i, n);
        memory->expected_bytes += share_of(held->expected, i, n);
    }
}

/* Adds host memory of one replica: to the machine for a replica on a GPU, else to the devices of
 * its group. */
static void add_host(const struct report *report, const pb_group *group,
                     const struct replica_view *view, const struct held *held)
{
    static char cpu[] = "cpu", *const machine[] = {cpu};
    if (*view->gpu)
        add_shares(report, machine, 1, held);
    else
        add_shares(report, group->devices, group->n_devices, held);
}

static void add_gpu(const struct report *report, const struct replica_view *view,
                    const struct held *held)
{
    char *gpu[] = {(char *)(uintptr_t)view->gpu}; /* only read */
    add_shares(report, gpu, 1, held);
}

/* Fills in free and total memory of the row's device. A GPU's figures are those of the last
 * sample; without a sample they stay 0. */
static void read_device(struct fleet *fleet, pb_memory *memory)
{
    const pb_device *device = catalog_device(fleet->context->catalog, memory->device);
    struct device_view view;
    struct memory_limit limit;
    if (!is_gpu(memory)) {
        if (memory_limit_read("", 0, &limit)) {
            memory->free_bytes = limit.free_bytes;
            memory->total_bytes = limit.total_bytes;
        }
        return;
    }
    if (!device || !device_watch_view(fleet->device_watch, device, &view) || !view.sampled)
        return;
    memory->total_bytes = view.figures.memory_total_bytes;
    memory->free_bytes =
        bytes_less(view.figures.memory_total_bytes, view.figures.memory_used_bytes);
}

/* True where the replica frees memory: all, or all but its weights. */
static bool frees_memory(const pb_operation *operation, const pb_replica *replica)
{
    int kind = (int)operation->kind;
    return has_replica(operation, replica->id) &&
           (kind == OPERATION_UNLOAD || replica->retiring ||
            /* else the park copy failed */
            (kind == OPERATION_PARK && (int)replica->state != REPLICA_READY) ||
            (kind == OPERATION_RESTART && (int)replica->state == REPLICA_FAILED));
}

/* Sums the bytes of the replicas that left: before, now, and expected to stay. Weights that
 * several replicas share count once. */
static void fill_released(const struct report *report)
{
    const struct catalog *catalog = report->fleet->context->catalog;
    const pb_operation *operation = report->operation;
    struct ledger_shares before = {0}, now = {0}, expected = {0};
    for (int staying = 0; staying < 2; staying++)
        CATALOG_EACH(replica, replica, catalog) {
            const pb_group *group = catalog_group(catalog, replica->device_group);
            struct replica_view view;
            if (frees_memory(operation, replica) == staying || !group || !group->n_devices ||
                !replica_view_take(report->fleet, replica->id, &view) ||
                (staying && !view.resident_bytes))
                continue;
            uint64_t held = view.resident_bytes;
            uint64_t then =
                staying ? ledger_count_once(&before, NULL, held, view.shared_bytes, view.shared_id)
                        : ledger_count_once(&before, NULL, view.drained_bytes,
                                            view.drained_shared_bytes, view.drained_shared_id);
            bool parks = (int)operation->kind == OPERATION_PARK && !replica->retiring;
            /* A parked worker stays too, with its weights and the parts of the file that it
             * needs to wake. */
            uint64_t kept = parks && held < view.shared_bytes ? view.shared_bytes : held;
            uint64_t to_stay =
                staying || parks
                    ? ledger_count_once(&expected, NULL, kept, view.shared_bytes, view.shared_id)
                    : 0;
            const struct held host = {
                .before = then,
                .now = ledger_count_once(&now, NULL, held, view.shared_bytes, view.shared_id),
                .expected = to_stay,
            };
            const struct held gpu = {.before = staying ? view.gpu_bytes : view.drained_gpu_bytes,
                                     .now = view.gpu_bytes,
                                     .expected = staying ? view.gpu_bytes : 0};
            add_host(report, group, &view, &host);
            if (*view.gpu)
                add_gpu(report, &view, &gpu);
        }
    for (size_t i = 0; i < report->result->n_memory; i++)
        read_device(report->fleet, report->result->memory[i]);
}

/* Packed memory, by inode numbers. */
struct inode_set {
    uint64_t inodes[64];
    size_t n;
};

static bool inode_set_add(struct inode_set *set, uint64_t inode)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->inodes[i] == inode)
            return false;
    if (set->n == sizeof(set->inodes) / sizeof(set->inodes[0]))
        return false;
    set->inodes[set->n++] = inode;
    return true;
}

/* Adds the packed memory of replicas that stay, which must not be freed. */
static void add_staying(const struct report *report, struct inode_set *seen)
{
    CATALOG_EACH(replica, replica, report->fleet->context->catalog) {
        struct replica_view view;
        if (frees_memory(report->operation, replica) ||
            !replica_view_take(report->fleet, replica->id, &view) || !view.status)
            continue;
        for (size_t j = 0; j < view.status->n_packed; j++)
            (void)inode_set_add(seen, view.status->packed[j]->inode);
    }
}

/* Adds the GPU memory that the driver still counts for the process. Without NVML nothing is
 * added. */
static void add_unreleased_gpu(const struct report *report, const struct replica_view *view)
{
    const pb_device *device = catalog_device(report->fleet->context->catalog, view->gpu);
    struct device_view seen;
    struct held held = {.now = 0};
    if (!view->drained_pid || !device ||
        !device_watch_view(report->fleet->device_watch, device, &seen) || !seen.sampled ||
        !seen.figures.has_processes)
        return;
    report->left->pending |= seen.sampled_unix_ns < view->ended_unix_ns;
    for (uint32_t i = 0; i < seen.figures.n_processes; i++)
        if ((pid_t)seen.figures.processes[i].pid == view->drained_pid)
            held.now += seen.figures.processes[i].bytes;
    if (held.now)
        add_gpu(report, view, &held);
}

/* Adds the memory that is still held though the replicas have ended. */
static void add_unreleased(const struct report *report)
{
    const pb_operation *operation = report->operation;
    const struct catalog *catalog = report->fleet->context->catalog;
    struct inode_set seen = {.n = 0};
    weights_sweep(report->fleet->weights); /* the manager closes its own descriptors first */
    add_staying(report, &seen);
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(catalog, operation->replica_ids[i]);
        const pb_group *group = replica ? catalog_group(catalog, replica->device_group) : NULL;
        struct inode_set own = {.n = 0};
        struct replica_view view;
        pid_t holder;
        if (!group || !group->n_devices || !frees_memory(operation, replica) ||
            !replica_view_take(report->fleet, replica->id, &view))
            continue;
        bool parks = (int)operation->kind == OPERATION_PARK && !replica->retiring;
        for (size_t j = 0; !parks && j < view.n_drained_inodes; j++)
            if (inode_set_add(&seen, view.drained_inodes[j]))
                (void)inode_set_add(&own, view.drained_inodes[j]);
        struct held held = {.now = view.lingering_bytes +
                                   process_memory_held(own.inodes, own.n, &holder)};
        if (holder)
            report->left->holder = holder;
        if (held.now)
            add_host(report, group, &view, &held);
        if (*view.gpu)
            add_unreleased_gpu(report, &view);
    }
}

static int check_device(const char *device, const struct held *held, pid_t holder, const char *then,
                        struct error *err)
{
    char who[48] = "";
    if (held->now <= held->expected + MEMORY_REPORT_TOLERANCE_BYTES)
        return 0;
    if (holder)
        snprintf(who, sizeof(who), "; process %ld has the memory open", (long)holder);
    error_set(err, STATUS_INTERNAL,
              "%s: memory was not freed: before %" PRIu64 " bytes, after %" PRIu64
              ", expected %" PRIu64 ", tolerance %d%s; %s",
              device, held->before, held->now, held->expected, MEMORY_REPORT_TOLERANCE_BYTES, who,
              then);
    return error_reason(err, REASON_MEMORY_NOT_RELEASED);
}

int memory_report_check_released(const pb_operation_result *result,
                                 const struct memory_report_left *left, const char *then,
                                 struct error *err)
{
    struct held machine = {.expected = 0};
    for (size_t i = 0; i < result->n_memory; i++) {
        const pb_memory *memory = result->memory[i];
        const struct held held = {memory->before_bytes, memory->after_bytes,
                                  memory->expected_bytes};
        if (is_gpu(memory) && check_device(memory->device, &held, 0, then, err) != 0)
            return err->status;
        if (is_gpu(memory))
            continue;
        machine.before += held.before;
        machine.now += held.now;
        machine.expected += held.expected;
    }
    return check_device("cpu", &machine, left->holder, then, err);
}

static bool any_left(struct fleet *fleet, const pb_operation *operation)
{
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *replica =
            catalog_replica(fleet->context->catalog, operation->replica_ids[i]);
        if (replica && frees_memory(operation, replica))
            return true;
    }
    return (int)operation->kind == OPERATION_UNLOAD;
}

pb_operation_result *memory_report_build(struct fleet *fleet, struct arena *arena,
                                         const pb_operation *operation,
                                         struct memory_report_left *out_left)
{
    *out_left = (struct memory_report_left){.some = any_left(fleet, operation)};
    pb_operation_result *result =
        message_new_in(arena, &sluice__manager__v1__operation_result__descriptor);
    const struct report report = {fleet, operation, arena, result, out_left};
    struct ledger_shares shared = {0};
    for (size_t i = 0; result && i < operation->n_replica_ids; i++) {
        const pb_replica *replica =
            catalog_replica(fleet->context->catalog, operation->replica_ids[i]);
        struct replica_view view;
        if (!replica || !replica_view_take(fleet, replica->id, &view))
            continue;
        result->n_finished += view.n_finished;
        result->n_ended += view.n_ended;
        result->n_ready_replicas += (int)replica->state == REPLICA_READY;
        if (out_left->some || !view.status)
            continue;
        uint64_t counted = view.shared_bytes - ledger_count_once(&shared, NULL, view.shared_bytes,
                                                                 view.shared_bytes, view.shared_id);
        for (size_t j = 0; j < view.status->n_memory; j++)
            add_loaded(&report, view.status->memory[j], counted / view.status->n_memory);
    }
    if (result && out_left->some) {
        fill_released(&report);
        add_unreleased(&report);
    }
    return result;
}
