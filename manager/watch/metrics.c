#include "manager/watch/metrics.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_process.h"
#include "manager/base/context.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_hold.h"
#include "manager/devices/device_watch.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/idle.h"
#include "manager/rollout/lifecycle.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/watch/routes.h"
#include "proto/http/http_metrics.h"
#include "proto/http/http_server.h"
#include "proto/http/worker_metrics.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/server.h"

/* clang-format off */
#define BY_REPLICA "model", "version", "replica"
#define BY_DEVICE "device"
/* The families: id, type, name, help, and labels (NULL: none). */
#define FAMILIES(ROW) \
    ROW(REPLICA_STATE, GAUGE, "sluice_manager_replica_state", \
        "1, with the replica's recorded state as a label.", "model", "version", "replica", \
        "state") \
    ROW(REPLICA_RESTARTS, COUNTER, "sluice_manager_replica_restarts_total", \
        "Starts of a replica's worker after an end that no command asked for.", BY_REPLICA) \
    ROW(REPLICA_RESIDENT, GAUGE, "sluice_manager_replica_resident_bytes", \
        "Anonymous and shared memory of a replica's worker.", BY_REPLICA) \
    ROW(REPLICA_STALLED, GAUGE, "sluice_manager_replica_stalled", \
        "1 while the replica's process makes no progress.", BY_REPLICA) \
    ROW(MODELS, GAUGE, "sluice_manager_models", \
        "Registered models.", NULL) \
    ROW(VERSIONS, GAUGE, "sluice_manager_model_versions", \
        "Registered versions of all models.", NULL) \
    ROW(OPERATIONS, GAUGE, "sluice_manager_open_operations", \
        "Operations that have not ended.", NULL) \
    ROW(ADOPTED, GAUGE, "sluice_manager_adopted_workers", \
        "Workers of an earlier manager that were adopted.", NULL) \
    ROW(ROUTES, GAUGE, "sluice_manager_route_generation", \
        "Generation of the route table that servers receive.", NULL) \
    ROW(EVENTS, GAUGE, "sluice_manager_event_sequence", \
        "Sequence number of the last event.", NULL) \
    ROW(EPOCH, GAUGE, "sluice_manager_epoch", \
        "Grows with every start of a manager on this state.", NULL) \
    ROW(COMMITS, COUNTER, "sluice_manager_store_commits_total", \
        "Changes that were made durable.", NULL) \
    ROW(STORE_FAILED, COUNTER, "sluice_manager_store_failures_total", \
        "Changes that the state store could not make.", NULL) \
    ROW(STORE_BYTES, GAUGE, "sluice_manager_store_bytes", \
        "Size of the state database and its log.", NULL) \
    ROW(STORE_UNSAVED, GAUGE, "sluice_manager_store_unsaved_rows", \
        "Rows in memory alone until the disk takes writes again: states of replicas, " \
        "revoked keys.", NULL) \
    ROW(STORE_WRITABLE, GAUGE, "sluice_manager_store_writable", \
        "0 while changes are refused because they cannot be made durable.", NULL) \
    ROW(CALLS, COUNTER, "sluice_grpc_calls_total", \
        "Calls that ended, by the status that the client saw; health and reflection " \
        "included.", "code") \
    ROW(CALLS_LIVE, GAUGE, "sluice_grpc_calls_live", \
        "Calls under way.", NULL) \
    ROW(REFUSALS, COUNTER, "sluice_manager_refusals_total", \
        "Connections and calls that were refused or ended because of a limit.", "limit") \
    ROW(CONNECTIONS, GAUGE, "sluice_manager_connections", \
        "Connections to the management port.", NULL) \
    ROW(ACCESS_REFUSALS, COUNTER, "sluice_access_refusals_total", \
        "Calls refused because of API key, certificate or role, by reason.", "reason") \
    ROW(ACCESS_RELOADS, COUNTER, "sluice_access_reloads_total", \
        "Reloads of TLS files and API keys, by result (ok; failed: the old files stay in " \
        "use).", "result") \
    ROW(IDLE, COUNTER, "sluice_manager_idle_actions_total", \
        "Versions that were parked or unloaded because they were idle.", "action") \
    ROW(TAKEN, GAUGE, "sluice_manager_memory_taken_bytes", \
        "Host memory that workers plan to take or hold. Weights that several share count " \
        "once; a parked replica that is being woken counts whole.", NULL) \
    ROW(BUDGET, GAUGE, "sluice_manager_memory_budget_bytes", \
        "Host memory that workers may take together; 0: all free memory.", NULL) \
    ROW(DEVICE_STATE, GAUGE, "sluice_device_state", \
        "1, with the device's state as a label: usable, cordoned (nothing new starts " \
        "there), quarantined (nothing runs there).", "device", "state") \
    ROW(DEVICE_NVML, GAUGE, "sluice_device_nvml_up", \
        "1 where NVIDIA's management library reports on the GPUs.", NULL) \
    ROW(DEVICE_ANSWERS, GAUGE, "sluice_device_answers", \
        "0 while the GPU does not answer its driver.", BY_DEVICE) \
    ROW(DEVICE_UTILIZATION, GAUGE, "sluice_device_utilization_ratio", \
        "Share of the last sample period in which a kernel ran.", BY_DEVICE) \
    ROW(DEVICE_MEMORY_UTILIZATION, GAUGE, "sluice_device_memory_utilization_ratio", \
        "Share of the sample period in which device memory was read or written.", BY_DEVICE) \
    ROW(DEVICE_MEMORY_USED, GAUGE, "sluice_device_memory_used_bytes", \
        "Device memory in use by all processes.", BY_DEVICE) \
    ROW(DEVICE_MEMORY_TOTAL, GAUGE, "sluice_device_memory_total_bytes", \
        "Total device memory.", BY_DEVICE) \
    ROW(DEVICE_TEMPERATURE, GAUGE, "sluice_device_temperature_celsius", \
        "Temperature of the GPU.", BY_DEVICE) \
    ROW(DEVICE_POWER, GAUGE, "sluice_device_power_watts", \
        "Power that the GPU draws.", BY_DEVICE) \
    ROW(DEVICE_POWER_LIMIT, GAUGE, "sluice_device_power_limit_watts", \
        "Power limit of the GPU.", BY_DEVICE) \
    ROW(DEVICE_CLOCK, GAUGE, "sluice_device_clock_hertz", \
        "Clocks of the GPU: sm, memory.", "device", "clock") \
    ROW(DEVICE_THROTTLED, GAUGE, "sluice_device_throttled", \
        "1 while this reason lowers the clocks.", "device", "reason") \
    ROW(DEVICE_ECC, COUNTER, "sluice_device_ecc_errors_total", \
        "Memory errors since the driver was loaded: corrected, uncorrected.", "device", "kind") \
    ROW(DEVICE_XIDS, COUNTER, "sluice_device_xids_total", \
        "Critical errors (Xids) that the driver reported since the manager started, by " \
        "Xid; 0: all beyond the first few kinds.", "device", "xid")
/* clang-format on */

#define AS_ID(id, ...) FAMILY_##id,
#define AS_SPEC(id, type_, name_, help_, ...)                                                      \
    {.name = (name_), .help = (help_), .type = METRIC_##type_, .labels = {__VA_ARGS__}},

enum { FAMILIES(AS_ID) N_FAMILIES };

static const struct metric_spec specs[N_FAMILIES] = {FAMILIES(AS_SPEC)};

/* by the number on the wire */
static const char *const state_names[] = {"unspecified", "pending", "loading", "warming", "ready",
                                          "draining",    "stopped", "parked",  "failed"};
enum { N_STATES = sizeof(state_names) / sizeof(state_names[0]) };

struct manager_metrics {
    struct fleet *fleet;
    struct manager_metrics_config config;
    struct metrics *registry;
    struct worker_metrics *workers;
    struct metrics_family *families[N_FAMILIES];
    struct http_route routes[2];
    struct http_server *http;
    struct http_metrics of_http;
};

/* --- a scrape --- */

/* A sample of a family without labels, and of a family with one label. */
static void put(const struct manager_metrics *m, struct metrics_sink *sink, int family,
                double value)
{
    metrics_sample(sink, m->families[family], NULL, value);
}

static void put_for(const struct manager_metrics *m, struct metrics_sink *sink, int family,
                    const char *label, uint64_t value)
{
    metrics_sample(sink, m->families[family], &label, (double)value);
}

static void sample_replica(struct manager_metrics *m, struct metrics_sink *sink,
                           const pb_replica *row)
{
    struct replica_view view;
    int state = (int)row->state > 0 && (int)row->state < N_STATES ? (int)row->state : 0;
    const char *const values[] = {row->model, row->version, row->id, state_names[state]};
    metrics_sample(sink, m->families[FAMILY_REPLICA_STATE], values, 1);
    metrics_sample(sink, m->families[FAMILY_REPLICA_RESTARTS], values, row->n_restarts);
    if (!replica_view_take(m->fleet, row->id, &view) || !view.status)
        return;
    metrics_sample(sink, m->families[FAMILY_REPLICA_RESIDENT], values, (double)view.resident_bytes);
    metrics_sample(sink, m->families[FAMILY_REPLICA_STALLED], values, row->stalled);
    worker_metrics_sample(m->workers, sink, view.status);
}

/* Samples all replicas except stopped ones, which are history. */
static void sample_catalog(struct manager_metrics *m, struct metrics_sink *sink)
{
    const struct catalog *catalog = m->fleet->context->catalog;
    uint32_t n_open = 0;
    CATALOG_EACH(replica, row, catalog) {
        if ((int)row->state != REPLICA_STOPPED)
            sample_replica(m, sink, row);
    }
    CATALOG_EACH(operation, row, catalog)
        n_open += pb_operation_is_open(row);
    put(m, sink, FAMILY_OPERATIONS, n_open);
    put(m, sink, FAMILY_MODELS, (double)catalog_count(catalog, TABLE_MODEL));
    put(m, sink, FAMILY_VERSIONS, (double)catalog_count(catalog, TABLE_MODEL_VERSION));
    put(m, sink, FAMILY_EVENTS, (double)catalog->last_event_seq);
    put(m, sink, FAMILY_EPOCH, (double)catalog->manager_epoch);
}

static void sample_store(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct store_stats stats;
    store_stats(m->fleet->context->store, &stats);
    put(m, sink, FAMILY_COMMITS, (double)stats.n_commits);
    put(m, sink, FAMILY_STORE_FAILED, (double)stats.n_failed);
    put(m, sink, FAMILY_STORE_BYTES, (double)stats.n_bytes);
    put(m, sink, FAMILY_STORE_UNSAVED, (double)store_n_unsaved(m->fleet->context->store));
    put(m, sink, FAMILY_STORE_WRITABLE, !stats.reason);
}

static void sample_calls(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct rpc_server_stats stats;
    rpc_server_stats(m->config.server, &stats);
    for (int i = 0; i < 17; i++)
        if (stats.n_ended[i])
            put_for(m, sink, FAMILY_CALLS, i ? status_name(-i) : "OK", stats.n_ended[i]);
    put(m, sink, FAMILY_CALLS_LIVE, (double)stats.n_live);
}

/* Names of limits, as the server has them (docs/use/limits.md). */
static void sample_port(struct manager_metrics *m, struct metrics_sink *sink)
{
    static const char *const names[N_RPC_LIMITS] = {
        [RPC_LIMIT_CONNECTIONS] = "connections",
        [RPC_LIMIT_CALLS] = "calls",
        [RPC_LIMIT_METADATA] = "metadata_bytes",
        [RPC_LIMIT_MESSAGE] = "message_bytes",
        [RPC_LIMIT_REQUEST_TIME] = "request_timeout",
        [RPC_LIMIT_RESETS] = "resets",
        [RPC_LIMIT_STREAMS] = "streams",
        [RPC_LIMIT_HANDSHAKE] = "handshake_timeout",
        [RPC_LIMIT_KEEPALIVE] = "keepalive",
        [RPC_LIMIT_DRAIN] = "drain_grace",
        [RPC_LIMIT_DRAINING] = "draining",
    };
    for (int i = 0; i < N_RPC_LIMITS; i++)
        put_for(m, sink, FAMILY_REFUSALS, names[i], atomic_load(&m->config.n_refused[i]));
    put(m, sink, FAMILY_CONNECTIONS, rpc_server_n_connections(m->config.server));
}

static void sample_access(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct access_stats stats;
    access_get_stats(m->config.access, &stats);
    for (int i = 0; i < N_ACCESS_REFUSALS; i++)
        put_for(m, sink, FAMILY_ACCESS_REFUSALS,
                reason_name(access_refusal_reason((enum access_refusal)i)), stats.n_refused[i]);
    put_for(m, sink, FAMILY_ACCESS_RELOADS, "ok", stats.n_reloads);
    put_for(m, sink, FAMILY_ACCESS_RELOADS, "failed", stats.n_failed_reloads);
}

static void sample_memory(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct idle_counts idle = idle_counts(m->config.idle);
    put_for(m, sink, FAMILY_IDLE, "park", idle.n_parked);
    put_for(m, sink, FAMILY_IDLE, "unload", idle.n_unloaded);
    put(m, sink, FAMILY_TAKEN, (double)ledger_sum(m->fleet, &(struct ledger_query){0}).taken_bytes);
    put(m, sink, FAMILY_BUDGET, (double)m->fleet->context->settings->memory_budget.total_bytes);
}

static void put_device(const struct manager_metrics *m, struct metrics_sink *sink, int family,
                       bool has, const char *device, const char *label, double value)
{
    const char *const values[] = {device, label};
    if (has)
        metrics_sample(sink, m->families[family], values, value);
}

static void sample_figures(const struct manager_metrics *m, struct metrics_sink *sink,
                           const char *name, const struct nvml_figures *f)
{
    put_device(m, sink, FAMILY_DEVICE_UTILIZATION, f->has_utilization, name, NULL,
               f->utilization_percent / 1e2);
    put_device(m, sink, FAMILY_DEVICE_MEMORY_UTILIZATION, f->has_utilization, name, NULL,
               f->memory_utilization_percent / 1e2);
    put_device(m, sink, FAMILY_DEVICE_MEMORY_USED, f->has_memory, name, NULL,
               (double)f->memory_used_bytes);
    put_device(m, sink, FAMILY_DEVICE_MEMORY_TOTAL, f->has_memory, name, NULL,
               (double)f->memory_total_bytes);
    put_device(m, sink, FAMILY_DEVICE_TEMPERATURE, f->has_temperature, name, NULL,
               f->temperature_celsius);
    put_device(m, sink, FAMILY_DEVICE_POWER, f->has_power, name, NULL, f->power_milliwatts / 1e3);
    put_device(m, sink, FAMILY_DEVICE_POWER_LIMIT, f->has_power_limit, name, NULL,
               f->power_limit_milliwatts / 1e3);
    put_device(m, sink, FAMILY_DEVICE_CLOCK, f->has_sm_clock, name, "sm", f->sm_clock_mhz * 1e6);
    put_device(m, sink, FAMILY_DEVICE_CLOCK, f->has_memory_clock, name, "memory",
               f->memory_clock_mhz * 1e6);
    for (uint32_t i = 0; i < NVML_N_THROTTLES; i++) {
        uint64_t bit;
        const char *reason = nvml_throttle_name(i, &bit);
        put_device(m, sink, FAMILY_DEVICE_THROTTLED, f->has_throttle, name, reason,
                   (f->throttle & bit) != 0);
    }
    put_device(m, sink, FAMILY_DEVICE_ECC, f->has_ecc_corrected, name, "corrected",
               (double)f->ecc_corrected);
    put_device(m, sink, FAMILY_DEVICE_ECC, f->has_ecc_uncorrected, name, "uncorrected",
               (double)f->ecc_uncorrected);
}

static void sample_device(const struct manager_metrics *m, struct metrics_sink *sink,
                          const pb_device *device)
{
    static const char *const states[] = {"", "usable", "cordoned", "quarantined"};
    const pb_hold *hold = device_hold_find(m->fleet->context->catalog, device->name);
    struct device_view view;
    put_device(m, sink, FAMILY_DEVICE_STATE, true, device->name,
               states[hold ? (unsigned)hold->state % 4 : DEVICE_USABLE], 1);
    if (!device_watch_view(m->fleet->device_watch, device, &view))
        return;
    put_device(m, sink, FAMILY_DEVICE_ANSWERS, true, device->name, NULL, view.sampled);
    if (view.sampled)
        sample_figures(m, sink, device->name, &view.figures);
    for (size_t i = 0; i < DEVICE_WATCH_MAX_XIDS; i++) {
        char xid[24];
        snprintf(xid, sizeof(xid), "%" PRIu64, view.xids[i].xid);
        put_device(m, sink, FAMILY_DEVICE_XIDS, view.xids[i].n > 0, device->name, xid,
                   (double)view.xids[i].n);
    }
}

static void sample_devices(const struct manager_metrics *m, struct metrics_sink *sink)
{
    const struct catalog *catalog = m->fleet->context->catalog;
    CATALOG_EACH(device, device, catalog)
        sample_device(m, sink, device);
    put(m, sink, FAMILY_DEVICE_NVML, device_watch_is_up(m->fleet->device_watch));
}

static void collect(void *arg, struct metrics_sink *sink)
{
    struct manager_metrics *m = arg;
    sample_catalog(m, sink);
    sample_store(m, sink);
    sample_calls(m, sink);
    sample_port(m, sink);
    sample_access(m, sink);
    sample_memory(m, sink);
    sample_devices(m, sink);
    put(m, sink, FAMILY_ADOPTED, m->fleet->n_adopted);
    put(m, sink, FAMILY_ROUTES, (double)routes_generation(m->config.routes));
}

static void handle_metrics(void *arg, struct http_reply *reply)
{
    const struct manager_metrics *m = arg;
    reply->content_type = METRICS_CONTENT_TYPE;
    metrics_render(m->registry, &reply->body);
}

/* An answer shows that the loop runs. */
static void handle_healthz(void *arg, struct http_reply *reply)
{
    (void)arg;
    strbuf_add_str(&reply->body, "ok\n");
}

/* --- life --- */

static int create_parts(struct manager_metrics *m, struct error *err)
{
    struct http_server_config config;
    if (metrics_create(&m->registry, err) != 0 ||
        metrics_process_add(m->registry, "sluice-manager", err) != 0 ||
        metrics_add(m->registry, specs, N_FAMILIES, m->families, err) != 0 ||
        worker_metrics_create(m->registry, &m->workers, err) != 0 ||
        http_metrics_add(m->registry, &m->of_http, err) != 0 ||
        metrics_add_collector(m->registry, collect, m, err) != 0)
        return err->status;
    m->routes[0] = (struct http_route){.path = "/metrics", .page = handle_metrics, .arg = m};
    m->routes[1] = (struct http_route){.path = "/healthz", .page = handle_healthz, .arg = m};
    http_server_config_init(&config);
    config.listen = m->fleet->context->settings->metrics;
    config.routes = m->routes;
    config.n_routes = 2;
    config.loop = m->fleet->context->loop;
    if (http_server_create(&config, &m->http, err) == 0) {
        atomic_store(&m->of_http.server, m->http);
        return 0;
    }
    struct error cause = *err;
    error_set(err, cause.status, "--metrics: %s; give \"\" for no metrics", cause.message);
    return error_reason_of(err, &cause);
}

int manager_metrics_create(const struct manager_metrics_config *config,
                           struct manager_metrics **out_metrics, struct error *err)
{
    struct fleet *fleet = config->fleet;
    *out_metrics = NULL;
    if (!*fleet->context->settings->metrics)
        return 0;
    struct manager_metrics *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    m->fleet = fleet;
    m->config = *config;
    if (create_parts(m, err) != 0) {
        manager_metrics_destroy(m);
        return err->status;
    }
    *out_metrics = m;
    return 0;
}

void manager_metrics_destroy(struct manager_metrics *metrics)
{
    if (!metrics)
        return;
    http_server_destroy(metrics->http);
    worker_metrics_destroy(metrics->workers);
    metrics_destroy(metrics->registry);
    free(metrics);
}
