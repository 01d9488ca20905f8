/* devices.c: ListDevices, ReleaseDevice, and the probe of the devices by the worker program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/system/device_name.h"
#include "base/system/memory_limit.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_hold.h"
#include "manager/devices/device_watch.h"
#include "manager/host/tool.h"
#include "manager/replicas/replica_view.h"
#include "manager/service/service.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

/* --- the probe --- */

struct probe {
    struct service *service;
    struct service_call *call; /* NULL: no call waits */
    pb_tool *report;           /* owned */
};

static bool device_is_same(const pb_device *a, const pb_device *b)
{
    return (int)a->kind == (int)b->kind && a->memory_total_bytes == b->memory_total_bytes &&
           strcmp(a->description, b->description) == 0 &&
           strcmp(a->unusable_reason, b->unusable_reason) == 0 && strcmp(a->uuid, b->uuid) == 0 &&
           strcmp(a->pci_bus_id, b->pci_bus_id) == 0 &&
           strcmp(a->driver_version, b->driver_version) == 0 && a->n_threads == b->n_threads &&
           a->n_cores == b->n_cores && strcmp(a->cpus, b->cpus) == 0 &&
           a->n_caches == b->n_caches && a->default_threads == b->default_threads;
}

static bool is_probed(const Sluice__Worker__V1__ProbeReport *probe, const char *name)
{
    for (size_t i = 0; i < probe->n_devices; i++)
        if (strcmp(probe->devices[i]->name, name) == 0)
            return true;
    return false;
}

/* Makes the device table equal to the probe's devices. Free memory alone is no change. */
static int update_devices(struct txn *txn, const Sluice__Worker__V1__ProbeReport *probe,
                          struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_device *row;
    bool changed = false;
    for (size_t i = 0; i < probe->n_devices; i++) {
        row = catalog_device(catalog, probe->devices[i]->name);
        if (row && device_is_same(row, probe->devices[i]))
            continue;
        changed = true;
        pb_device device = *probe->devices[i];
        device.figures = NULL; /* figures of this moment; they are not recorded */
        if (txn_put_copy(txn, TABLE_DEVICE, &device, err) != 0)
            return err->status;
    }
    for (size_t i = 0; (row = catalog_device_at(catalog, i));) {
        if (is_probed(probe, row->name)) {
            i++;
            continue;
        }
        changed = true;
        if (txn_delete(txn, TABLE_DEVICE, row->name, err) != 0)
            return err->status;
    }
    struct txn_event event = {.type = "devices.changed"};
    return changed ? txn_event(txn, &event, err) : 0;
}

/* Creates the group `cpu` with every CPU device at the first probe. */
static int ensure_cpu_group(struct txn *txn, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    char *devices[DEVICES_MAX], name[] = "cpu";
    if (catalog_group(catalog, name))
        return 0;
    pb_group group = SLUICE__MANAGER__V1__DEVICE_GROUP__INIT;
    group.name = name;
    group.generation = 1;
    group.built_in = 1;
    group.created_unix_ns = txn_now_unix_ns(txn);
    group.devices = devices;
    CATALOG_EACH(device, row, catalog) {
        if (row->kind == SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU && group.n_devices < DEVICES_MAX)
            devices[group.n_devices++] = row->name;
    }
    struct txn_event event = {.type = "device_group.created", .device_group = name};
    if (group.n_devices == 0 || txn_put_copy(txn, TABLE_DEVICE_GROUP, &group, err) != 0)
        return group.n_devices ? err->status : 0;
    return txn_event(txn, &event, err);
}

static int run_probe(struct txn *txn, void *arg, struct error *err)
{
    const struct probe *probe = arg;
    if (update_devices(txn, probe->report->probe, err) != 0)
        return err->status;
    return ensure_cpu_group(txn, err);
}

/* --- ListDevices --- */

/* True where the replica reports a GPU of its group other than `device`. A replica of one rank
 * takes only one GPU. */
static bool is_on_another(const struct replica_view *view, const pb_device *device)
{
    bool says = view->status && (int)view->status->state == WORKER_PARKED;
    for (size_t i = 0; view->status && i < view->status->n_memory; i++) {
        const char *name = view->status->memory[i]->device;
        if (strcmp(name, device->name) == 0)
            return false;
        says |= device_name_is_gpu(name);
    }
    return says;
}

/* Bytes that the replica plans on the device, less `counted` bytes of weights that were counted
 * with another replica. */
static uint64_t planned_on(const pb_status *status, const pb_device *device, uint64_t counted)
{
    uint64_t n_bytes = 0, elsewhere = counted / status->n_memory;
    for (size_t i = 0; i < status->n_memory; i++) {
        const pb_memory *memory = status->memory[i];
        uint64_t planned =
            memory->weight_bytes + memory->kv_bytes + memory->state_bytes + memory->workspace_bytes;
        if (strcmp(memory->device, device->name) != 0)
            continue;
        if (device->kind == SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA &&
            memory->expected_bytes > planned)
            planned = memory->expected_bytes; /* also before the memory is taken */
        n_bytes += planned > elsewhere ? planned - elsewhere : 0;
    }
    return n_bytes;
}

static void fill_use(const struct service_call *call, struct arena *arena,
                     Sluice__Manager__V1__DeviceUse *use)
{
    const pb_device *device = use->device;
    struct ledger_shares shared = {0};
    CATALOG_EACH(group, group, call->catalog) {
        if (service_group_has(group, device->name))
            message_append_text_in(arena, &use->n_device_groups, &use->device_groups, group->name);
    }
    CATALOG_EACH(replica, replica, call->catalog) {
        const pb_group *group = catalog_group(call->catalog, replica->device_group);
        struct replica_view view = {0};
        if ((int)replica->state == REPLICA_STOPPED || !group ||
            !service_group_has(group, device->name))
            continue;
        replica_view_take(call->fleet, replica->id, &view);
        if (is_on_another(&view, device))
            continue;
        message_append_text_in(arena, &use->n_replica_ids, &use->replica_ids, replica->id);
        if (!view.status || !view.status->n_memory)
            continue;
        uint64_t counted = view.shared_bytes - ledger_count_once(&shared, NULL, view.shared_bytes,
                                                                 view.shared_bytes, view.shared_id);
        use->planned_bytes += planned_on(view.status, device, counted);
    }
}

/* Sets a CPU's memory to the kernel's current figures, as a virtual machine's memory may grow
 * and shrink after the probe. */
static void read_memory(pb_device *device)
{
    struct memory_limit limit;
    if (!device->has_numa_node || !memory_limit_read_node("", device->numa_node, &limit))
        return;
    device->memory_total_bytes = limit.total_bytes;
    device->memory_free_bytes = limit.free_bytes;
}

/* Adds the observed figures to a device's row. `fresh`: report of a new probe, or NULL. */
static void overlay(const struct service_call *call, struct arena *arena,
                    const Sluice__Worker__V1__ProbeReport *fresh,
                    Sluice__Manager__V1__DeviceUse *use)
{
    struct fleet *fleet = call->fleet;
    pb_device *device = use->device;
    const pb_hold *hold = device_hold_find(call->catalog, device->name);
    for (size_t i = 0; fresh && i < fresh->n_devices; i++)
        if (strcmp(fresh->devices[i]->name, device->name) == 0)
            device->memory_free_bytes = fresh->devices[i]->memory_free_bytes;
    read_memory(device);
    use->promised_bytes =
        ledger_sum(fleet, &(struct ledger_query){.device = device->name}).promised_bytes;
    use->state = (Sluice__Manager__V1__DeviceState)(hold ? (int)hold->state : DEVICE_USABLE);
    use->hold = message_copy_in(arena, hold);
    device_watch_fill(fleet->device_watch, arena, device);
    const Sluice__V1__DeviceFigures *figures = device->figures;
    if (figures && figures->memory_total_bytes)
        device->memory_free_bytes = figures->memory_total_bytes > figures->memory_used_bytes
                                        ? figures->memory_total_bytes - figures->memory_used_bytes
                                        : 0;
}

static bool is_present(const struct catalog *catalog, const pb_hold *hold)
{
    CATALOG_EACH(device, row, catalog) {
        if (device_hold_find(catalog, row->name) == hold)
            return true;
    }
    return false;
}

/* `fresh` has the current free memory; may be NULL. */
static void fill_devices(struct service_call *call, const Sluice__Worker__V1__ProbeReport *fresh)
{
    struct arena *arena = &call->arena;
    Sluice__Manager__V1__ListDevicesResponse *response = call->response;
    CATALOG_EACH(device, row, call->catalog) {
        Sluice__Manager__V1__DeviceUse *use =
            message_add_in(arena, &response->n_devices, &response->devices,
                           &sluice__manager__v1__device_use__descriptor);
        if (!use || !(use->device = message_copy_in(arena, row)))
            return;
        fill_use(call, arena, use);
        overlay(call, arena, fresh, use);
    }
    CATALOG_EACH(hold, hold, call->catalog) {
        if (!is_present(call->catalog, hold))
            message_append_in(arena, &response->n_absent, &response->absent,
                              message_copy_in(arena, hold));
    }
    response->cuda_unusable_reason = message_text_in(arena, call->service->cuda_unusable_reason);
    response->nvml_unusable_reason =
        message_text_in(arena, device_watch_why_not(call->fleet->device_watch));
}

static void free_probe(struct probe *probe)
{
    if (probe->report)
        message_free(&probe->report->base);
    free(probe);
}

/* Ends the probe: answers the call that waits, or logs a failure. */
static void end_probe(void *arg, const struct error *status)
{
    struct probe *probe = arg;
    struct service *service = probe->service;
    if (!probe->call)
        service->probing = false;
    if (probe->call && status->status != 0) {
        service_fail(probe->call, status);
    } else if (probe->call) {
        fill_devices(probe->call, probe->report->probe);
        service_reply(probe->call);
    } else if (status->status != 0 && probe->report) {
        log_warn(LOG_EVENT("devices not recorded"), LOG_STR("why", status->message));
    } else if (status->status != 0 && status->status != STATUS_CANCELLED) {
        log_error(LOG_EVENT("devices not probed"), LOG_STR("why", status->message));
    }
    if (status->status == 0)
        change_hub_notify(&service->fleet->context->changes, NULL);
    free_probe(probe);
}

static void on_probed(void *arg, const pb_tool *report, const struct error *status)
{
    struct probe *probe = arg;
    struct service *service = probe->service;
    struct error err = *status;
    if (err.status == 0 &&
        (!report || report->result_case != SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PROBE))
        error_set(&err, STATUS_INTERNAL, "the probing process sent a report of another kind");
    if (err.status == 0 && report) {
        snprintf(service->cuda_unusable_reason, sizeof(service->cuda_unusable_reason), "%s",
                 report->probe->cuda_unusable_reason);
        probe->report = MESSAGE_COPY(pb_tool, report);
        if (!probe->report)
            error_no_memory(&err);
        else if (store_submit(service->fleet->context->store, run_probe, end_probe, probe, &err) ==
                 0)
            return;
    }
    end_probe(probe, &err);
}

/* `call` is NULL where no call waits. */
static int start_probe(struct service *service, struct service_call *call, struct error *err)
{
    static const char *const arguments[] = {"probe", NULL};
    struct probe *probe = calloc(1, sizeof(*probe));
    if (!probe)
        return error_no_memory(err);
    *probe = (struct probe){.service = service, .call = call};
    int rc = tool_run(service->fleet->tools, arguments, NULL, on_probed, probe, err);
    if (rc != 0)
        free_probe(probe);
    return rc;
}

void service_probe_devices(struct service *service)
{
    struct error err;
    service->probing = start_probe(service, NULL, &err) == 0;
    if (!service->probing)
        log_error(LOG_EVENT("devices not probed"), LOG_STR("why", err.message));
}

bool service_is_probing(const struct service *service)
{
    return service->probing;
}

int service_list_devices(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__ListDevicesRequest *request = call->request;
    if (request->refresh)
        return start_probe(call->service, call, err) == 0 ? SERVICE_LATER : err->status;
    fill_devices(call, NULL);
    return 0;
}

/* --- ReleaseDevice --- */

static int apply_release(struct txn *txn, struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__ReleaseDeviceRequest *request = call->request;
    Sluice__Manager__V1__ReleaseDeviceResponse *response = call->response;
    pb_hold *hold = NULL;
    int rc = device_hold_release(txn, request->device, &hold, err);
    response->hold = message_copy_in(&call->arena, hold);
    if (hold)
        message_free(&hold->base);
    return rc;
}

static int check_release(struct service_call *call, struct error *err)
{
    enum { MAX_BYTES = 96 };
    const Sluice__Manager__V1__ReleaseDeviceRequest *request = call->request;
    size_t n = strlen(request->device);
    if (n == 0 || n > MAX_BYTES)
        return error_field(err, "device", "%zu bytes are not between 1 and %d", n, MAX_BYTES);
    return 0;
}

const struct service_change service_release_device = {.check = check_release,
                                                      .apply = apply_release};
