/* cmd_devices.c: `devices`: devices for models, the replicas on them, and their health. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

typedef Sluice__Manager__V1__ListDevicesResponse list_response;
typedef Sluice__V1__DeviceFigures device_figures;

/* Formats the CPU caches: "2x32K L1, 2x1M L2, 1x32M L3". Borrowed from `out`. */
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

static const char *state_of(const Sluice__Manager__V1__DeviceUse *use, char out[32])
{
    if (use->device->unusable_reason[0])
        return "unusable";
    return output_enum(&sluice__manager__v1__device_state__descriptor, (int)use->state, out);
}

static void print_devices(const list_response *response)
{
    static const char *const headers[] = {"DEVICE", "STATE",    "MEMORY",     "FREE",  "PLANNED",
                                          "GROUPS", "REPLICAS", "CPUS",       "CORES", "THREADS",
                                          "CACHES", "FEATURES", "DESCRIPTION"};
    struct output_table table;
    struct strbuf groups = {0}, replicas = {0}, features = {0}, caches = {0};
    output_table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < response->n_devices; i++) {
        const Sluice__Manager__V1__DeviceUse *use = response->devices[i];
        const Sluice__V1__Device *device = use->device;
        char total[32], available[32], planned[32], cores[16], threads[16], state[32];
        if (!device)
            continue;
        snprintf(cores, sizeof(cores), "%u", device->n_cores);
        snprintf(threads, sizeof(threads), "%u", device->default_threads);
        const char *cells[] = {device->name,
                               state_of(use, state),
                               format_bytes(device->memory_total_bytes, total),
                               format_bytes(device->memory_free_bytes, available),
                               format_bytes(use->planned_bytes, planned),
                               cli_joined(use->n_device_groups, use->device_groups, &groups),
                               cli_joined(use->n_replica_ids, use->replica_ids, &replicas),
                               device->cpus,
                               cores,
                               threads,
                               format_caches(device, &caches),
                               cli_joined(device->n_features, device->features, &features),
                               device->unusable_reason[0] ? device->unusable_reason
                                                          : device->description};
        output_table_add(&table, cells);
    }
    output_table_print(&table);
    output_table_fini(&table);
    strbuf_fini(&groups);
    strbuf_fini(&replicas);
    strbuf_fini(&features);
    strbuf_fini(&caches);
    if (response->cuda_unusable_reason[0])
        printf("no CUDA devices: %s\n", response->cuda_unusable_reason);
}

enum { CELL = 32 };

/* Formats the value; "-" if the device does not report it. */
static const char *figure(bool has, double value, const char *format, char out[CELL])
{
    snprintf(out, CELL, "%.*f%s", value < 10 && value != (double)(int)value, value, format);
    return has ? out : "-";
}

static void add_figures(struct output_table *table, const char *name, const device_figures *f)
{
    char busy[CELL], used[CELL], heat[CELL], power[CELL], clock[CELL], ecc[CELL], xid[64];
    struct strbuf throttled = {0};
    snprintf(xid, sizeof(xid), f->n_xids ? "%" PRIu64 " (%" PRIu64 ")" : "-", f->last_xid,
             f->n_xids);
    const char *cells[] = {name,
                           figure(f->has_utilization_percent, f->utilization_percent, "%", busy),
                           f->memory_total_bytes ? format_bytes(f->memory_used_bytes, used) : "-",
                           figure(f->has_temperature_celsius, f->temperature_celsius, " C", heat),
                           figure(f->has_power_milliwatts, f->power_milliwatts / 1e3, " W", power),
                           figure(f->has_sm_clock_mhz, f->sm_clock_mhz, " MHz", clock),
                           f->n_throttle_reasons
                               ? cli_joined(f->n_throttle_reasons, f->throttle_reasons, &throttled)
                               : "-",
                           figure(f->has_ecc_uncorrected, (double)f->ecc_uncorrected, "", ecc),
                           xid,
                           f->error};
    output_table_add(table, cells);
    strbuf_fini(&throttled);
}

static void print_figures(const list_response *response)
{
    static const char *const headers[] = {"DEVICE", "BUSY",      "USED", "HEAT", "POWER",
                                          "CLOCK",  "THROTTLED", "ECC",  "XID",  "NOTE"};
    struct output_table table;
    size_t n = 0;
    output_table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < response->n_devices; i++) {
        const Sluice__V1__Device *device = response->devices[i]->device;
        if (!device || !device->figures)
            continue;
        add_figures(&table, device->name, device->figures);
        n++;
    }
    if (n) {
        printf("\n");
        output_table_print(&table);
    }
    output_table_fini(&table);
}

static void print_hold(const Sluice__Manager__V1__DeviceHold *hold, const char *name,
                       const char *where)
{
    char state[32], age[32];
    printf("%s%s is %s, for %s: %s%s%s%s: %s; after the repair run sluice devices release %s\n",
           name, where,
           output_enum(&sluice__manager__v1__device_state__descriptor, (int)hold->state, state),
           output_age(hold->since_unix_ns, age), hold->reason, *hold->resolution ? " (" : "",
           hold->resolution, *hold->resolution ? ")" : "", hold->message, name);
}

static void print_holds(const list_response *response)
{
    for (size_t i = 0; i < response->n_devices; i++)
        if (response->devices[i]->hold && response->devices[i]->device)
            print_hold(response->devices[i]->hold, response->devices[i]->device->name, "");
    for (size_t i = 0; i < response->n_absent; i++)
        print_hold(response->absent[i], response->absent[i]->key, ", which is absent,");
}

/* Warns of replicas that may grow beyond the free memory. A virtual machine may have lost memory
 * after the replicas were planned. */
static void print_promises(const list_response *response)
{
    for (size_t i = 0; i < response->n_devices; i++) {
        const Sluice__Manager__V1__DeviceUse *use = response->devices[i];
        char promised[32], left[32];
        if (use->device && use->promised_bytes > use->device->memory_free_bytes)
            printf("%s: its replicas may still take %s, but only %s are free; scale down, unload a "
                   "model, or load with fewer --kv-tokens\n",
                   use->device->name, format_bytes(use->promised_bytes, promised),
                   format_bytes(use->device->memory_free_bytes, left));
    }
}

static void print_all(const list_response *response)
{
    print_devices(response);
    print_promises(response);
    print_figures(response);
    print_holds(response);
}

static int run_list(struct cli *cli)
{
    Sluice__Manager__V1__ListDevicesRequest request =
        SLUICE__MANAGER__V1__LIST_DEVICES_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    request.refresh = cli->settings.all;
    if (cli_call(cli, "ListDevices", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(message);
    else
        print_all((const list_response *)message);
    rpc_message_free(message);
    return 0;
}

static int run_release(struct cli *cli)
{
    Sluice__Manager__V1__ReleaseDeviceRequest request =
        SLUICE__MANAGER__V1__RELEASE_DEVICE_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    char id[UUID_BYTES];
    request.device = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = cli_request_id(cli, id);
    if (cli_call(cli, "ReleaseDevice", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__DeviceHold *hold =
        ((const Sluice__Manager__V1__ReleaseDeviceResponse *)message)->hold;
    if (cli->settings.json)
        output_json(message);
    else if (hold)
        printf("released %s (%s)\n", hold->device, hold->reason);
    rpc_message_free(message);
    return 0;
}

static const struct option_spec devices_specs[] = {
    {"refresh", 0, OPTION_BOOL, CLI_OPTION(all), "false", NULL,
     "probe the machine again, for added and removed devices", 0, 0},
};
static const struct manual_example list_examples[] = {{"sluice devices --refresh", NULL}};
static const struct manual_example release_examples[] = {{"sluice devices release cuda:0", NULL}};

const struct cli_command cmd_devices_list = {
    .name = "devices list",
    .arguments = "",
    .summary = "list devices and the replicas on them (also: sluice devices)",
    .description = "A device cpu:N is a NUMA node. CPUS are the node's CPUs that the manager and "
                   "its workers may use. THREADS are the threads of a worker without --threads: "
                   "one per core, within the CPU time of the cgroup. MEMORY and FREE are the "
                   "machine's, or less if memory cgroups limit the manager. PLANNED is the plan of "
                   "all replicas there; a part of it may be in use already. For GPUs a second "
                   "table shows load, temperature, power and errors from the driver's management "
                   "library. For a quarantined or cordoned GPU the reason and time are shown.",
    .examples = list_examples,
    .n_examples = CLI_N(list_examples),
    .specs = devices_specs,
    .n_specs = CLI_N(devices_specs),
    .groups = CLI_MANAGE,
    .run = run_list,
};
const struct cli_command cmd_devices_release = {
    .name = "devices release",
    .arguments = "DEVICE",
    .summary = "use a quarantined or cordoned device again",
    .description = "Sluice sets a failed GPU aside: nothing runs on it (quarantined), or nothing "
                   "new starts on it (cordoned). Sluice never resets a GPU. Reset or repair the "
                   "GPU, then release it. Replicas that wait for it start again.",
    .examples = release_examples,
    .n_examples = CLI_N(release_examples),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_release,
};
