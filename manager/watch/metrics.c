#include "manager/watch/metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_process.h"
#include "manager/base/context.h"
#include "manager/capacity/ledger.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/idle.h"
#include "manager/rollout/lifecycle.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/watch/metrics_devices.h"
#include "manager/watch/routes.h"
#include "proto/http/http_metrics.h"
#include "proto/http/http_server.h"
#include "proto/http/worker_metrics.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/server.h"

enum {
    FAMILY_REPLICA_STATE,
    FAMILY_REPLICA_RESTARTS,
    FAMILY_REPLICA_RESIDENT,
    FAMILY_REPLICA_STALLED,
    FAMILY_MODELS,
    FAMILY_VERSIONS,
    FAMILY_OPERATIONS,
    FAMILY_ADOPTED,
    FAMILY_ROUTES,
    FAMILY_EVENTS,
    FAMILY_EPOCH,
    FAMILY_COMMITS,
    FAMILY_STORE_FAILED,
    FAMILY_STORE_BYTES,
    FAMILY_STORE_UNSAVED,
    FAMILY_STORE_WRITABLE,
    FAMILY_CALLS,
    FAMILY_CALLS_LIVE,
    FAMILY_REFUSALS,
    FAMILY_CONNECTIONS,
    FAMILY_ACCESS_REFUSALS,
    FAMILY_ACCESS_RELOADS,
    FAMILY_IDLE,
    FAMILY_TAKEN,
    FAMILY_BUDGET,
    N_FAMILIES
};

#define BY_REPLICA .labels = {"model", "version", "replica"}

static const struct metric_spec specs[N_FAMILIES] = {
    [FAMILY_REPLICA_STATE] = {.name = "sluice_manager_replica_state",
                              .help = "1, with the replica's recorded state as a label.",
                              .type = METRIC_GAUGE,
                              .labels = {"model", "version", "replica", "state"}},
    [FAMILY_REPLICA_RESTARTS] = {.name = "sluice_manager_replica_restarts_total",
                                 .help =
                                     "Starts of a replica's worker after an end that no command "
                                     "asked for.",
                                 .type = METRIC_COUNTER,
                                 BY_REPLICA},
    [FAMILY_REPLICA_RESIDENT] = {.name = "sluice_manager_replica_resident_bytes",
                                 .help = "Anonymous and shared memory of a replica's worker.",
                                 .type = METRIC_GAUGE,
                                 BY_REPLICA},
    [FAMILY_REPLICA_STALLED] = {.name = "sluice_manager_replica_stalled",
                                .help = "1 while the replica's process makes no progress.",
                                .type = METRIC_GAUGE,
                                BY_REPLICA},
    [FAMILY_MODELS] = {.name = "sluice_manager_models",
                       .help = "Registered models.",
                       .type = METRIC_GAUGE},
    [FAMILY_VERSIONS] = {.name = "sluice_manager_model_versions",
                         .help = "Registered versions of all models.",
                         .type = METRIC_GAUGE},
    [FAMILY_OPERATIONS] = {.name = "sluice_manager_open_operations",
                           .help = "Operations that have not ended.",
                           .type = METRIC_GAUGE},
    [FAMILY_ADOPTED] = {.name = "sluice_manager_adopted_workers",
                        .help = "Workers of an earlier manager that were adopted.",
                        .type = METRIC_GAUGE},
    [FAMILY_ROUTES] = {.name = "sluice_manager_route_generation",
                       .help = "Generation of the route table that servers receive.",
                       .type = METRIC_GAUGE},
    [FAMILY_EVENTS] = {.name = "sluice_manager_event_sequence",
                       .help = "Sequence number of the last event.",
                       .type = METRIC_GAUGE},
    [FAMILY_EPOCH] = {.name = "sluice_manager_epoch",
                      .help = "Grows with every start of a manager on this state.",
                      .type = METRIC_GAUGE},
    [FAMILY_COMMITS] = {.name = "sluice_manager_store_commits_total",
                        .help = "Changes that were made durable.",
                        .type = METRIC_COUNTER},
    [FAMILY_STORE_FAILED] = {.name = "sluice_manager_store_failures_total",
                             .help = "Changes that the state store could not make.",
                             .type = METRIC_COUNTER},
    [FAMILY_STORE_BYTES] = {.name = "sluice_manager_store_bytes",
                            .help = "Size of the state database and its log.",
                            .type = METRIC_GAUGE},
    [FAMILY_STORE_UNSAVED] = {.name = "sluice_manager_store_unsaved_rows",
                              .help = "Rows in memory alone until the disk takes writes again: "
                                      "states of replicas, revoked keys.",
                              .type = METRIC_GAUGE},
    [FAMILY_STORE_WRITABLE] = {.name = "sluice_manager_store_writable",
                               .help = "0 while changes are refused because they cannot be made "
                                       "durable.",
                               .type = METRIC_GAUGE},
    [FAMILY_CALLS] = {.name = "sluice_grpc_calls_total",
                      .help = "Calls that ended, by the status that the client saw; health and "
                              "reflection included.",
                      .type = METRIC_COUNTER,
                      .labels = {"code"}},
    [FAMILY_CALLS_LIVE] = {.name = "sluice_grpc_calls_live",
                           .help = "Calls under way.",
                           .type = METRIC_GAUGE},
    [FAMILY_REFUSALS] = {.name = "sluice_manager_refusals_total",
                         .help = "Connections and calls that were refused or ended because of a "
                                 "limit.",
                         .type = METRIC_COUNTER,
                         .labels = {"limit"}},
    [FAMILY_CONNECTIONS] = {.name = "sluice_manager_connections",
                            .help = "Connections to the management port.",
                            .type = METRIC_GAUGE},
    [FAMILY_ACCESS_REFUSALS] = {.name = "sluice_access_refusals_total",
                                .help = "Calls refused because of API key, certificate or role, by "
                                        "reason.",
                                .type = METRIC_COUNTER,
                                .labels = {"reason"}},
    [FAMILY_ACCESS_RELOADS] =
        {.name = "sluice_access_reloads_total",
         .help = "Reloads of TLS files and API keys, by result (ok; failed: the old "
                 "files stay in use).",
         .type = METRIC_COUNTER,
         .labels = {"result"}},
    [FAMILY_IDLE] = {.name = "sluice_manager_idle_actions_total",
                     .help = "Versions that were parked or unloaded because they were idle.",
                     .type = METRIC_COUNTER,
                     .labels = {"action"}},
    [FAMILY_TAKEN] = {.name = "sluice_manager_memory_taken_bytes",
                      .help = "Host memory that workers plan to take or hold. Weights "
                              "that several share count once; a parked replica that is being "
                              "woken counts whole.",
                      .type = METRIC_GAUGE},
    [FAMILY_BUDGET] = {.name = "sluice_manager_memory_budget_bytes",
                       .help = "Host memory that workers may take together; 0: all free memory.",
                       .type = METRIC_GAUGE},
};

/* by the number on the wire */
static const char *const state_names[] = {"unspecified", "pending", "loading", "warming", "ready",
                                          "draining",    "stopped", "parked",  "failed"};
enum { N_STATES = sizeof(state_names) / sizeof(state_names[0]) };

struct manager_metrics {
    struct fleet *fleet;
    struct manager_metrics_config config;
    struct metrics *registry;
    struct worker_metrics *workers;
    struct metrics_devices *devices;
    struct metrics_family *families[N_FAMILIES];
    struct http_route routes[2];
    struct http_server *http;
    struct http_metrics of_http;
};

/* --- a scrape --- */

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
    const pb_replica *row;
    for (size_t i = 0; (row = catalog_replica_at(catalog, i)); i++)
        if (row->state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_STOPPED)
            sample_replica(m, sink, row);
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        n_open += pb_operation_is_open(catalog_operation_at(catalog, i));
    metrics_sample(sink, m->families[FAMILY_OPERATIONS], NULL, n_open);
    metrics_sample(sink, m->families[FAMILY_MODELS], NULL,
                   (double)catalog_count(catalog, TABLE_MODEL));
    metrics_sample(sink, m->families[FAMILY_VERSIONS], NULL,
                   (double)catalog_count(catalog, TABLE_MODEL_VERSION));
    metrics_sample(sink, m->families[FAMILY_EVENTS], NULL, (double)catalog->last_event_seq);
    metrics_sample(sink, m->families[FAMILY_EPOCH], NULL, (double)catalog->manager_epoch);
}

static void sample_store(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct store_stats stats;
    store_stats(m->fleet->context->store, &stats);
    metrics_sample(sink, m->families[FAMILY_COMMITS], NULL, (double)stats.n_commits);
    metrics_sample(sink, m->families[FAMILY_STORE_FAILED], NULL, (double)stats.n_failed);
    metrics_sample(sink, m->families[FAMILY_STORE_BYTES], NULL, (double)stats.n_bytes);
    metrics_sample(sink, m->families[FAMILY_STORE_UNSAVED], NULL,
                   (double)store_n_unsaved(m->fleet->context->store));
    metrics_sample(sink, m->families[FAMILY_STORE_WRITABLE], NULL, !stats.reason);
}

static void sample_calls(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct rpc_server_stats stats;
    rpc_server_stats(m->config.server, &stats);
    for (int i = 0; i < 17; i++) {
        const char *const values[] = {i ? status_name(-i) : "OK"};
        if (stats.n_ended[i])
            metrics_sample(sink, m->families[FAMILY_CALLS], values, (double)stats.n_ended[i]);
    }
    metrics_sample(sink, m->families[FAMILY_CALLS_LIVE], NULL, (double)stats.n_live);
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
        metrics_sample(sink, m->families[FAMILY_REFUSALS], &names[i],
                       (double)atomic_load(&m->config.n_refused[i]));
    metrics_sample(sink, m->families[FAMILY_CONNECTIONS], NULL,
                   rpc_server_n_connections(m->config.server));
}

static void sample_access(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct access_stats stats;
    const char *ok[] = {"ok"}, *failed[] = {"failed"};
    access_get_stats(m->config.access, &stats);
    for (int i = 0; i < N_ACCESS_REFUSALS; i++) {
        const char *const values[] = {reason_name(access_refusal_reason((enum access_refusal)i))};
        metrics_sample(sink, m->families[FAMILY_ACCESS_REFUSALS], values,
                       (double)stats.n_refused[i]);
    }
    metrics_sample(sink, m->families[FAMILY_ACCESS_RELOADS], ok, (double)stats.n_reloads);
    metrics_sample(sink, m->families[FAMILY_ACCESS_RELOADS], failed,
                   (double)stats.n_failed_reloads);
}

static void sample_memory(struct manager_metrics *m, struct metrics_sink *sink)
{
    struct idle_counts idle = idle_counts(m->config.idle);
    static const char *const park[] = {"park"}, *const unload[] = {"unload"};
    metrics_sample(sink, m->families[FAMILY_IDLE], park, (double)idle.n_parked);
    metrics_sample(sink, m->families[FAMILY_IDLE], unload, (double)idle.n_unloaded);
    metrics_sample(sink, m->families[FAMILY_TAKEN], NULL,
                   (double)ledger_sum(m->fleet, &(struct ledger_query){0}).taken_bytes);
    metrics_sample(sink, m->families[FAMILY_BUDGET], NULL,
                   (double)m->fleet->context->settings->memory_budget.total_bytes);
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
    metrics_sample(sink, m->families[FAMILY_ADOPTED], NULL, m->fleet->n_adopted);
    metrics_sample(sink, m->families[FAMILY_ROUTES], NULL,
                   (double)routes_generation(m->config.routes));
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
        metrics_devices_create(m->fleet, m->registry, &m->devices, err) != 0 ||
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
    metrics_devices_destroy(metrics->devices);
    metrics_destroy(metrics->registry);
    free(metrics);
}
