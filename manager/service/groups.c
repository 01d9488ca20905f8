/* groups.c: CreateDeviceGroup, ListDeviceGroups, DeleteDeviceGroup. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/system/device_name.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"

enum { MAX_GROUPS = 256 };

bool service_group_has(const pb_group *group, const char *device)
{
    for (size_t i = 0; i < group->n_devices; i++)
        if (strcmp(group->devices[i], device) == 0)
            return true;
    return false;
}

/* --- CreateDeviceGroup --- */

struct create_args {
    struct device_names names;
    char cuda_why[256]; /* why there is no GPU, where there is none */
};

static int check_devices(const struct catalog *catalog, const struct create_args *args,
                         struct error *err)
{
    for (size_t i = 0; i < args->names.n_names; i++) {
        const char *name = args->names.names[i];
        const pb_device *device = catalog_device(catalog, name);
        if (!device) {
            bool gpu = device_name_is_gpu(name);
            error_set(err, STATUS_NOT_FOUND, "devices: this machine has no %s%s%.200s", name,
                      gpu && *args->cuda_why ? ": " : "", gpu ? args->cuda_why : "");
            return error_reason(err, REASON_DEVICE_NOT_FOUND);
        }
        if (*device->unusable_reason) {
            error_set(err, STATUS_FAILED_PRECONDITION, "devices: %s cannot be used: %.300s", name,
                      device->unusable_reason);
            return error_reason(err, REASON_DEVICE_UNUSABLE);
        }
    }
    return 0;
}

static int group_exists(const pb_group *old, const struct device_names *names, struct error *err)
{
    char devices[256] = "";
    size_t n = 0;
    bool same = old->n_devices == names->n_names;
    for (size_t i = 0; same && i < names->n_names; i++)
        same = service_group_has(old, names->names[i]);
    if (same) {
        error_set(err, STATUS_ALREADY_EXISTS, "name: device group %s exists", old->name);
        return error_reason(err, REASON_DEVICE_GROUP_EXISTS);
    }
    for (size_t i = 0; i < old->n_devices && n < sizeof(devices) - 1; i++)
        n += (size_t)snprintf(devices + n, sizeof(devices) - n, "%s%s", i ? ", " : "",
                              old->devices[i]);
    error_set(err, STATUS_ALREADY_EXISTS, "name: device group %s exists with other devices: %s",
              old->name, devices);
    return error_reason(err, REASON_DEVICE_GROUP_DIFFERS);
}

static int apply_create(struct txn *txn, struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__CreateDeviceGroupRequest *request = call->request;
    Sluice__Manager__V1__CreateDeviceGroupResponse *response = call->response;
    const struct create_args *args = call->arg;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_group *old = catalog_group(catalog, request->name);
    if (service_check_generation(call, request->name, old ? old->generation : 0, err) != 0)
        return err->status;
    if (old)
        return group_exists(old, &args->names, err);
    if (check_devices(catalog, args, err) != 0)
        return err->status;
    if (catalog_count(catalog, TABLE_DEVICE_GROUP) >= MAX_GROUPS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "%d device groups exist: that is the limit; delete one first", MAX_GROUPS);
    pb_group *group = message_new_in(&call->arena, &sluice__manager__v1__device_group__descriptor);
    if (!group)
        return error_no_memory(err);
    group->name = request->name;
    for (size_t i = 0; i < args->names.n_names; i++)
        message_append_text_in(&call->arena, &group->n_devices, &group->devices,
                               args->names.names[i]);
    group->generation = 1;
    group->created_unix_ns = txn_now_unix_ns(txn);
    response->group = group;
    struct txn_event event = {.type = "device_group.created", .device_group = request->name};
    return txn_put_copy(txn, TABLE_DEVICE_GROUP, group, err) == 0 ? txn_event(txn, &event, err)
                                                                  : err->status;
}

static int check_create(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__CreateDeviceGroupRequest *request = call->request;
    struct create_args *args = call->arg;
    snprintf(args->cuda_why, sizeof(args->cuda_why), "%s", call->service->cuda_unusable_reason);
    return name_parse_devices("devices", request->devices, request->n_devices, &args->names, err);
}

const struct service_change service_create_group = {
    .arg_bytes = sizeof(struct create_args), .check = check_create, .apply = apply_create};

/* --- ListDeviceGroups --- */

int service_list_groups(struct service_call *call, struct error *err)
{
    Sluice__Manager__V1__ListDeviceGroupsResponse *response = call->response;
    (void)err;
    CATALOG_EACH(group, row, call->catalog)
        message_append_in(&call->arena, &response->n_groups, &response->groups,
                          build_group(&call->arena, call->catalog, row));
    return 0;
}

/* --- DeleteDeviceGroup --- */

static int check_unused(const struct catalog *catalog, const char *group, struct error *err)
{
    const char *user = NULL;
    CATALOG_EACH(deployment, row, catalog)
        user = strcmp(row->device_group, group) == 0 ? row->model : user;
    CATALOG_EACH(replica, row, catalog)
        user = strcmp(row->device_group, group) == 0 && (int)row->state != REPLICA_STOPPED
                   ? row->model
                   : user;
    if (!user)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION, "name: %s is used by model %s", group, user);
    return error_reason(err, REASON_DEVICE_GROUP_IN_USE);
}

static int apply_delete(struct txn *txn, struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__DeleteDeviceGroupRequest *request = call->request;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_group *group = catalog_group(catalog, request->name);
    if (!group) {
        error_set(err, STATUS_NOT_FOUND, "name: no device group \"%.64s\"", request->name);
        return error_reason(err, REASON_DEVICE_GROUP_NOT_FOUND);
    }
    if (group->built_in) {
        error_set(err, STATUS_FAILED_PRECONDITION, "name: %s is built in", request->name);
        return error_reason(err, REASON_DEVICE_GROUP_BUILT_IN);
    }
    struct txn_event event = {.type = "device_group.deleted", .device_group = request->name};
    if (service_check_generation(call, request->name, group->generation, err) != 0 ||
        check_unused(catalog, request->name, err) != 0 ||
        txn_delete(txn, TABLE_DEVICE_GROUP, request->name, err) != 0)
        return err->status;
    return txn_event(txn, &event, err);
}

const struct service_change service_delete_group = {.apply = apply_delete};
