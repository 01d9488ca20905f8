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

typedef Sluice__Manager__V1__DeviceUse device_use;
typedef Sluice__Manager__V1__ListDevicesResponse list_response;
typedef Sluice__Manager__V1__ReleaseDeviceRequest release_request;
typedef Sluice__Manager__V1__ReleaseDeviceResponse release_response;

/* --- the probe --- */

struct probe {
    struct service *service;
    struct rpc_call *call; /* a reference, or NULL: no call waits */
    pb_tool *report;       /* owned */
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
    bool changed = false;
    for (size_t i = 0; i < probe->n_devices; i++) {
        struct row *row = catalog_get(catalog, TABLE_DEVICE, probe->devices[i]->name);
        if (row && device_is_same((const pb_device *)row_message(row), probe->devices[i]))
            continue;
        changed = true;
        pb_device *device = MESSAGE_COPY(pb_device, probe->devices[i]);
        if (!device)
            return error_no_memory(err);
        if (device->figures) /* figures of this moment; they are not recorded */
            message_free(&device->figures->base);
        device->figures = NULL;
        if (txn_put(txn, TABLE_DEVICE, &device->base, err) != 0)
            return err->status;
    }
    for (size_t i = 0; catalog_device_at(catalog, i);) {
        const pb_device *device = catalog_device_at(catalog, i);
        if (is_probed(probe, device->name)) {
            i++;
            continue;
        }
        changed = true;
        if (txn_delete(txn, TABLE_DEVICE, device->name, err) != 0)
            return err->status;
    }
    struct txn_event event = {.type = "devices.changed"};
    return changed ? txn_event(txn, &event, err) : 0;
}

/* Creates the group `cpu` with every CPU device at the first probe. */
static int ensure_cpu_group(struct txn *txn, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    if (catalog_group(catalog, "cpu"))
        return 0;
    pb_group *group = MESSAGE_NEW(pb_group, sluice__manager__v1__device_group__descriptor);
    if (!group || !message_set(&group->name, "cpu")) {
        if (group)
            message_free(&group->base);
        return error_no_memory(err);
    }
    group->generation = 1;
    group->built_in = 1;
    group->created_unix_ns = txn_now_unix_ns(txn);
    for (size_t i = 0; catalog_device_at(catalog, i); i++)
        if (catalog_device_at(catalog, i)->kind == SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU &&
            !service_group_add(group, catalog_device_at(catalog, i)->name)) {
            message_free(&group->base);
            return error_no_memory(err);
        }
    if (group->n_devices == 0) {
        message_free(&group->base);
        return 0;
    }
    struct txn_event event = {.type = "device_group.created", .device_group = "cpu"};
    return txn_put(txn, TABLE_DEVICE_GROUP, &group->base, err) == 0 ? txn_event(txn, &event, err)
                                                                    : err->status;
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

static bool fill_use(struct fleet *fleet, const pb_device *device, device_use *use)
{
    const struct catalog *catalog = fleet->context->catalog;
    struct ledger_shares shared = {0};
    for (size_t i = 0; catalog_group_at(catalog, i); i++)
        if (service_group_has(catalog_group_at(catalog, i), device->name) &&
            !message_append_text(&use->n_device_groups, &use->device_groups,
                                 catalog_group_at(catalog, i)->name))
            return false;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        const pb_group *group = catalog_group(catalog, replica->device_group);
        struct replica_view view = {0};
        if ((int)replica->state == REPLICA_STOPPED || !group ||
            !service_group_has(group, device->name))
            continue;
        replica_view_take(fleet, replica->id, &view);
        if (is_on_another(&view, device))
            continue;
        if (!message_append_text(&use->n_replica_ids, &use->replica_ids, replica->id))
            return false;
        if (!view.status || !view.status->n_memory)
            continue;
        uint64_t counted = view.shared_bytes - ledger_count_once(&shared, NULL, view.shared_bytes,
                                                                 view.shared_bytes, view.shared_id);
        for (size_t j = 0; j < view.status->n_memory; j++) {
            const pb_memory *memory = view.status->memory[j];
            uint64_t planned = memory->weight_bytes + memory->kv_bytes + memory->state_bytes +
                               memory->workspace_bytes;
            if (device->kind == SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA &&
                memory->expected_bytes > planned)
                planned = memory->expected_bytes; /* also before the memory is taken */
            uint64_t elsewhere = counted / view.status->n_memory;
            if (strcmp(memory->device, device->name) == 0)
                use->planned_bytes += planned > elsewhere ? planned - elsewhere : 0;
        }
    }
    return true;
}

/* Sets a CPU's memory to the kernel's current figures, as a virtual machine's memory may grow
 * and shrink after the probe. */
static void read_memory(device_use *use)
{
    struct memory_limit limit;
    if (!use->device->has_numa_node || !memory_limit_read_node("", use->device->numa_node, &limit))
        return;
    use->device->memory_total_bytes = limit.total_bytes;
    use->device->memory_free_bytes = limit.free_bytes;
}

/* Adds the observed figures to a device's row. `fresh`: report of a new probe, or NULL. */
static bool overlay(struct fleet *fleet, const Sluice__Worker__V1__ProbeReport *fresh,
                    device_use *use)
{
    const pb_hold *hold = device_hold_find(fleet->context->catalog, use->device->name);
    for (size_t i = 0; fresh && i < fresh->n_devices; i++)
        if (strcmp(fresh->devices[i]->name, use->device->name) == 0)
            use->device->memory_free_bytes = fresh->devices[i]->memory_free_bytes;
    read_memory(use);
    use->promised_bytes =
        ledger_sum(fleet, &(struct ledger_query){.device = use->device->name}).promised_bytes;
    use->state = (Sluice__Manager__V1__DeviceState)(hold ? (int)hold->state : DEVICE_USABLE);
    if (!message_set_copy(&use->hold, hold) || !device_watch_fill(fleet->device_watch, use->device))
        return false;
    const Sluice__V1__DeviceFigures *figures = use->device->figures;
    if (figures && figures->memory_total_bytes)
        use->device->memory_free_bytes =
            figures->memory_total_bytes > figures->memory_used_bytes
                ? figures->memory_total_bytes - figures->memory_used_bytes
                : 0;
    return true;
}

static bool is_present(const struct catalog *catalog, const pb_hold *hold)
{
    for (size_t i = 0; catalog_device_at(catalog, i); i++)
        if (device_hold_find(catalog, catalog_device_at(catalog, i)->name) == hold)
            return true;
    return false;
}

static bool fill_devices(struct service *service, const Sluice__Worker__V1__ProbeReport *fresh,
                         list_response *response)
{
    struct fleet *fleet = service->fleet;
    const struct catalog *catalog = fleet->context->catalog;
    for (size_t i = 0; catalog_device_at(catalog, i); i++) {
        const pb_device *device = catalog_device_at(catalog, i);
        device_use *use = MESSAGE_NEW(device_use, sluice__manager__v1__device_use__descriptor);
        if (!use)
            return false;
        if (!message_set_copy(&use->device, device) || !fill_use(fleet, device, use) ||
            !overlay(fleet, fresh, use) ||
            !message_append(&response->n_devices, &response->devices, use)) {
            message_free(&use->base);
            return false;
        }
    }
    for (size_t i = 0; catalog_hold_at(catalog, i); i++)
        if (!is_present(catalog, catalog_hold_at(catalog, i)) &&
            !message_append_copy(&response->n_absent, &response->absent,
                                 catalog_hold_at(catalog, i)))
            return false;
    return message_set(&response->cuda_unusable_reason, service->cuda_unusable_reason) &&
           message_set(&response->nvml_unusable_reason, device_watch_why_not(fleet->device_watch));
}

/* `fresh` has the current free memory; may be NULL. */
static void answer_devices(struct service *service, struct rpc_call *call,
                           const Sluice__Worker__V1__ProbeReport *fresh)
{
    list_response *response =
        MESSAGE_NEW(list_response, sluice__manager__v1__list_devices_response__descriptor);
    bool complete = response && fill_devices(service, fresh, response);
    service_reply(call, (ProtobufCMessage *)response, complete);
}

static void free_probe(struct probe *probe)
{
    if (!probe->call)
        probe->service->probing = false;
    rpc_call_release(probe->call);
    if (probe->report)
        message_free(&probe->report->base);
    free(probe);
}

static void end_probe(void *arg, const struct error *status)
{
    struct probe *probe = arg;
    if (status->status != 0 && probe->call)
        service_fail(probe->call, status);
    else if (probe->call)
        answer_devices(probe->service, probe->call, probe->report->probe);
    else if (status->status != 0)
        log_warn(LOG_EVENT("devices not recorded"), LOG_STR("why", status->message));
    if (status->status == 0)
        change_hub_notify(&probe->service->fleet->context->changes, NULL);
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
    if (probe->call)
        service_fail(probe->call, &err);
    else if (err.status != STATUS_CANCELLED)
        log_error(LOG_EVENT("devices not probed"), LOG_STR("why", err.message));
    free_probe(probe);
}

static int start_probe(struct service *service, struct rpc_call *call, struct error *err)
{
    static const char *const arguments[] = {"probe", NULL};
    struct probe *probe = calloc(1, sizeof(*probe));
    if (!probe)
        return error_no_memory(err);
    probe->service = service;
    if (call) {
        rpc_call_retain(call);
        probe->call = call;
    }
    int rc = tool_run(service->fleet->tools, arguments, NULL, on_probed, probe, err);
    if (rc != 0)
        free_probe(probe);
    return rc;
}

void service_probe_devices(struct service *service)
{
    struct error err;
    service->probing = true;
    if (start_probe(service, NULL, &err) == 0)
        return;
    service->probing = false;
    log_error(LOG_EVENT("devices not probed"), LOG_STR("why", err.message));
}

bool service_is_probing(const struct service *service)
{
    return service->probing;
}

void service_list_devices(struct service *service, struct rpc_call *call,
                          const ProtobufCMessage *message)
{
    const Sluice__Manager__V1__ListDevicesRequest *request =
        (const Sluice__Manager__V1__ListDevicesRequest *)message;
    struct error err;
    if (!request->refresh)
        answer_devices(service, call, NULL);
    else if (start_probe(service, call, &err) != 0)
        service_fail(call, &err);
}

/* --- ReleaseDevice --- */

static int apply_release(struct txn *txn, const ProtobufCMessage *message, void *arg,
                         ProtobufCMessage *response, struct error *err)
{
    (void)arg;
    return device_hold_release(txn, ((const release_request *)message)->device,
                               &((release_response *)response)->hold, err);
}

static int check_release(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *message, void *arg, struct error *err)
{
    enum { MAX_BYTES = 96 };
    size_t n = strlen(((const release_request *)message)->device);
    (void)service;
    (void)call;
    (void)arg;
    if (n == 0 || n > MAX_BYTES)
        return error_field(err, "device", "%zu bytes are not between 1 and %d", n, MAX_BYTES);
    return 0;
}

const struct service_change service_release_device = {.check = check_release,
                                                      .apply = apply_release};
