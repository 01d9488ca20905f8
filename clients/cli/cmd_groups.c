/* groups, devices: what models can be loaded on. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "clients/cli/cli.h"
#include "clients/cli/output.h"
#include "proto/rpc/rpc_message.h"
#include "sluice/manager/v1/manager.pb-c.h"

static const char *joined(size_t n, char *const words[], struct strbuf *out)
{
    strbuf_clear(out);
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, "%s%s", i ? "," : "", words[i]);
    return strbuf_str(out);
}

static void print_groups(const Sluice__Manager__V1__ListDeviceGroupsResponse *response)
{
    static const char *const headers[] = {"GROUP", "DEVICES", "REPLICAS", "AGE"};
    struct table table;
    struct strbuf devices = {0}, replicas = {0};
    table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < response->n_groups; i++) {
        const Sluice__Manager__V1__DeviceGroup *group = response->groups[i];
        char age[32];
        const char *cells[] = {group->name, joined(group->n_devices, group->devices, &devices),
                               joined(group->n_replica_ids, group->replica_ids, &replicas),
                               format_age(group->created_unix_ns, age)};
        table_add(&table, cells);
    }
    table_print(&table);
    table_fini(&table);
    strbuf_fini(&devices);
    strbuf_fini(&replicas);
}

static int run_list(struct cli *cli)
{
    Sluice__Manager__V1__ListDeviceGroupsRequest request =
        SLUICE__MANAGER__V1__LIST_DEVICE_GROUPS_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    if (cli_call(cli, "ListDeviceGroups", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        print_json(message);
    else
        print_groups((const Sluice__Manager__V1__ListDeviceGroupsResponse *)message);
    rpc_message_free(message);
    return 0;
}

static char *request_id(const struct cli *cli, char id[UUID_BYTES])
{
    rng_uuid(id); /* so that a retry after a lost connection changes nothing twice */
    return cli->settings.request_id[0] ? (char *)(uintptr_t)cli->settings.request_id : id;
}

static int run_create(struct cli *cli)
{
    Sluice__Manager__V1__CreateDeviceGroupRequest request =
        SLUICE__MANAGER__V1__CREATE_DEVICE_GROUP_REQUEST__INIT;
    char *devices[64], id[UUID_BYTES];
    struct strbuf text = {0};
    ProtobufCMessage *message;
    struct error err;
    for (size_t i = 1; cli_word(cli, i) && request.n_devices < CLI_N(devices); i++)
        devices[request.n_devices++] = (char *)(uintptr_t)cli_word(cli, i);
    request.name = (char *)(uintptr_t)cli_word(cli, 0);
    request.devices = devices;
    request.request_id = request_id(cli, id);
    if (cli_call(cli, "CreateDeviceGroup", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__DeviceGroup *group =
        ((const Sluice__Manager__V1__CreateDeviceGroupResponse *)message)->group;
    if (cli->settings.json)
        print_json(message);
    else if (group)
        printf("created %s: %s\n", group->name, joined(group->n_devices, group->devices, &text));
    strbuf_fini(&text);
    rpc_message_free(message);
    return 0;
}

static int run_delete(struct cli *cli)
{
    Sluice__Manager__V1__DeleteDeviceGroupRequest request =
        SLUICE__MANAGER__V1__DELETE_DEVICE_GROUP_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    char id[UUID_BYTES];
    request.name = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = request_id(cli, id);
    if (cli_call(cli, "DeleteDeviceGroup", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        print_json(message);
    else
        printf("deleted %s\n", request.name);
    rpc_message_free(message);
    return 0;
}

/* "2x32K L1, 2x1M L2, 1x32M L3". Borrowed from `out`. */
static const char *format_caches(const Sluice__V1__Device *device, struct strbuf *out)
{
    strbuf_clear(out);
    for (size_t i = 0; i < device->n_caches; i++) {
        const Sluice__V1__CpuCache *cache = device->caches[i];
        uint64_t kib = cache->bytes / 1024;
        strbuf_printf(out, "%s%" PRIu32 "x", i ? ", " : "", cache->n_caches);
        if (kib && kib % 1024 == 0)
            strbuf_printf(out, "%" PRIu64 "M ", kib / 1024);
        else if (kib)
            strbuf_printf(out, "%" PRIu64 "K ", kib);
        strbuf_printf(out, "L%" PRIu32, cache->level);
    }
    return strbuf_str(out);
}

static void print_devices(const Sluice__Manager__V1__ListDevicesResponse *response)
{
    static const char *const headers[] = {"DEVICE",  "MEMORY",   "FREE",     "PLANNED",
                                          "GROUPS",  "REPLICAS", "CPUS",     "CORES",
                                          "THREADS", "CACHES",   "FEATURES", "DESCRIPTION"};
    struct table table;
    struct strbuf groups = {0}, replicas = {0}, features = {0}, caches = {0};
    table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < response->n_devices; i++) {
        const Sluice__Manager__V1__DeviceUse *use = response->devices[i];
        char total[32], available[32], planned[32], cores[16], threads[16];
        if (!use->device)
            continue;
        snprintf(cores, sizeof(cores), "%u", use->device->n_cores);
        snprintf(threads, sizeof(threads), "%u", use->device->default_threads);
        const char *cells[] = {use->device->name,
                               format_bytes(use->device->memory_total_bytes, total),
                               format_bytes(use->device->memory_free_bytes, available),
                               format_bytes(use->planned_bytes, planned),
                               joined(use->n_device_groups, use->device_groups, &groups),
                               joined(use->n_replica_ids, use->replica_ids, &replicas),
                               use->device->cpus,
                               cores,
                               threads,
                               format_caches(use->device, &caches),
                               joined(use->device->n_features, use->device->features, &features),
                               use->device->unusable_reason[0] ? use->device->unusable_reason
                                                               : use->device->description};
        table_add(&table, cells);
    }
    table_print(&table);
    table_fini(&table);
    strbuf_fini(&groups);
    strbuf_fini(&replicas);
    strbuf_fini(&features);
    strbuf_fini(&caches);
    if (response->cuda_unusable_reason[0])
        printf("no CUDA devices: %s\n", response->cuda_unusable_reason);
}

static int run_devices(struct cli *cli)
{
    Sluice__Manager__V1__ListDevicesRequest request =
        SLUICE__MANAGER__V1__LIST_DEVICES_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    request.refresh = cli->settings.all;
    if (cli_call(cli, "ListDevices", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        print_json(message);
    else
        print_devices((const Sluice__Manager__V1__ListDevicesResponse *)message);
    rpc_message_free(message);
    return 0;
}

static const struct option_spec devices_specs[] = {
    {"refresh", 0, OPTION_BOOL, CLI_OPTION(all), "false", NULL, "look at the machine again", 0, 0},
};
static const struct manual_example list_examples[] = {{"sluice groups", NULL}};
static const struct manual_example create_examples[] = {
    {"sluice groups create left cpu:0", NULL}, {"sluice groups create pair cuda:0-1", NULL}};
static const struct manual_example delete_examples[] = {{"sluice groups delete left", NULL}};
static const struct manual_example devices_examples[] = {{"sluice devices --refresh", NULL}};

const struct cli_command cmd_groups_list = {
    .name = "groups list",
    .arguments = "",
    .summary = "list device groups (also: sluice groups)",
    .examples = list_examples,
    .n_examples = CLI_N(list_examples),
    .run = run_list,
};
const struct cli_command cmd_groups_create = {
    .name = "groups create",
    .arguments = "NAME DEVICE...",
    .summary = "name a set of devices",
    .description = "Devices are cpu:0, cpu:0-1 or cuda:0,1, all of one kind; `sluice devices` "
                   "lists them. `sluice load MODEL --group NAME` loads on them.",
    .examples = create_examples,
    .n_examples = CLI_N(create_examples),
    .groups = CLI_REQUEST_ID,
    .run = run_create,
};
const struct cli_command cmd_groups_delete = {
    .name = "groups delete",
    .arguments = "GROUP",
    .summary = "forget a device group on which nothing is loaded",
    .examples = delete_examples,
    .n_examples = CLI_N(delete_examples),
    .groups = CLI_REQUEST_ID,
    .run = run_delete,
};
const struct cli_command cmd_devices = {
    .name = "devices",
    .arguments = "",
    .summary = "list devices and who is on them",
    .description = "A device cpu:N is a NUMA node: CPUS are those of it that the manager and its "
                   "workers may use, THREADS what a worker takes there when it is not told "
                   "(one per core, within the CPU time that a cgroup allows).",
    .examples = devices_examples,
    .n_examples = CLI_N(devices_examples),
    .specs = devices_specs,
    .n_specs = CLI_N(devices_specs),
    .run = run_devices,
};
