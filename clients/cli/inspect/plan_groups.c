#include "clients/cli/inspect/plan_groups.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/settings/device_spec.h"
#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

typedef Sluice__Manager__V1__ListDeviceGroupsResponse group_list;
typedef Sluice__Manager__V1__ListDevicesResponse device_list;

/* The manager's answers, asked for at the first name. */
struct known {
    ProtobufCMessage *groups, *devices; /* owned; NULL before */
};

static int ask(struct cli *cli, struct known *known, struct error *err)
{
    Sluice__Manager__V1__ListDeviceGroupsRequest groups =
        SLUICE__MANAGER__V1__LIST_DEVICE_GROUPS_REQUEST__INIT;
    Sluice__Manager__V1__ListDevicesRequest devices =
        SLUICE__MANAGER__V1__LIST_DEVICES_REQUEST__INIT;
    if (known->groups)
        return 0;
    int rc = cli_call(cli, "ListDeviceGroups", &groups.base, &known->groups, err);
    return rc ? rc : cli_call(cli, "ListDevices", &devices.base, &known->devices, err);
}

static const Sluice__Manager__V1__DeviceGroup *find_group(const struct known *known,
                                                          const char *name, size_t n)
{
    const group_list *all = (const group_list *)known->groups;
    for (size_t i = 0; i < all->n_groups; i++)
        if (strlen(all->groups[i]->name) == n && memcmp(all->groups[i]->name, name, n) == 0)
            return all->groups[i];
    return NULL;
}

static const Sluice__V1__Device *find_device(const struct known *known, const char *name)
{
    const device_list *all = (const device_list *)known->devices;
    for (size_t i = 0; i < all->n_devices; i++)
        if (all->devices[i]->device && strcmp(all->devices[i]->device->name, name) == 0)
            return all->devices[i]->device;
    return NULL;
}

/* Counts cores for a CPU and devices for GPUs. Ranks hold equal shares, so the device with the
 * least memory counts. */
static int add_group(const struct known *known, const Sluice__Manager__V1__DeviceGroup *group,
                     struct strbuf *out, struct error *err)
{
    const Sluice__V1__Device *first = NULL;
    uint64_t memory = 0, n = 0;
    for (size_t i = 0; i < group->n_devices; i++) {
        const Sluice__V1__Device *device = find_device(known, group->devices[i]);
        if (!device)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "--groups: device %s of group %s is not on the manager's machine",
                             group->devices[i], group->name);
        if (first && (first->kind != device->kind ||
                      (device->kind == SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA &&
                       strcmp(first->description, device->description) != 0)))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "--groups: the devices of group %s differ (%s is %s, %s is %s); a "
                             "plan needs devices of one kind",
                             group->name, first->name, first->description, device->name,
                             device->description);
        bool cpu = device->kind == SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU;
        n += cpu ? device->n_cores : 1;
        if (cpu)
            memory += device->memory_free_bytes;
        else if (!first || device->memory_total_bytes < memory)
            memory = device->memory_total_bytes;
        first = first ? first : device;
    }
    if (!first || !n)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--groups: group %s has no devices",
                         group->name);
    bool cpu = first->kind == SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU;
    const char *kind = cpu ? "cpu" : device_spec_kind_of(first->description);
    strbuf_printf(out, "%" PRIu64 "x%s:memory=%" PRIu64 ":name=%s", n, kind ? kind : "gpu", memory,
                  group->name);
    return 0;
}

static int add_word(struct cli *cli, struct known *known, const char *word, size_t n,
                    struct strbuf *out, struct error *err)
{
    const char *colon = n ? memchr(word, ':', n) : NULL;
    size_t n_name = colon ? (size_t)(colon - word) : n;
    if (!n_name)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--groups: a group is empty; write groups like 8xh100,4xcpu");
    if (device_spec_is_description(word, n)) {
        strbuf_add(out, word, n);
        return 0;
    }
    int rc = ask(cli, known, err);
    if (rc) {
        snprintf(
            cli->advice, sizeof(cli->advice),
            "\"%.*s\" is no description like 8xh100, so it was taken for a device group of the "
            "manager",
            (int)(n_name < 60 ? n_name : 60), word);
        return rc;
    }
    const Sluice__Manager__V1__DeviceGroup *group = find_group(known, word, n_name);
    if (!group)
        return error_set(err, STATUS_NOT_FOUND,
                         "--groups: \"%.*s\" is neither a description like 8xh100 nor one of "
                         "`sluice groups`",
                         (int)(n_name < 60 ? n_name : 60), word);
    rc = add_group(known, group, out, err);
    if (!rc && colon) /* figures of the word replace those of the kind */
        strbuf_add(out, colon, n - n_name);
    return rc;
}

int plan_groups_describe(struct cli *cli, const char *list, struct strbuf *out, struct error *err)
{
    struct known known = {NULL, NULL};
    int rc = 0;
    do {
        size_t n = strcspn(list, ",");
        rc = add_word(cli, &known, list, n, out, err);
        list += n;
        if (!rc && *list)
            strbuf_add_str(out, ",");
    } while (!rc && *list++);
    if (known.groups)
        rpc_message_free(known.groups);
    if (known.devices)
        rpc_message_free(known.devices);
    if (!rc && strbuf_failed(out))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "--groups: out of memory");
    return rc;
}
