#include "server/gateway/metrics.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_process.h"
#include "proto/http/http_server.h"
#include "proto/rpc/server/health.h"
#include "proto/rpc/server/server.h"
#include "server/gateway/base/meter.h"
#include "server/gateway/dispatch/waiting.h"
#include "server/gateway/gateway.h"
#include "server/gateway/http/http_front.h"
#include "server/gateway/metrics_vllm.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"

enum {
    FAMILY_WAITING,
    FAMILY_REPLICA_REQUESTS,
    FAMILY_REPLICA_KV,
    FAMILY_REPLICA_WINDOW_KV,
    FAMILY_REPLICA_STATE_SLOTS,
    FAMILY_REPLICA_SNAPSHOTS,
    FAMILY_REPLICA_USABLE,
    FAMILY_REPLICA_STATE,
    FAMILY_SERVING,
    FAMILY_SERVER_SERVING,
    FAMILY_ROUTE_GENERATION,
    FAMILY_REFUSALS,
    FAMILY_ACCESS_REFUSALS,
    FAMILY_ACCESS_RELOADS,
    FAMILY_CONNECTIONS,
    FAMILY_PAUSES,
    FAMILY_SLOW_READERS,
    FAMILY_RESUMES,
    FAMILY_REATTACHES,
    FAMILY_WAKES,
    FAMILY_STALLS,
    FAMILY_CALLS,
    FAMILY_CALLS_LIVE,
    FAMILY_MESSAGES,
    FAMILY_BYTES,
    FAMILY_HTTP_ANSWERS,
    FAMILY_HTTP_LIVE,
    FAMILY_HTTP_CONNECTIONS,
    N_FAMILIES
};

static const struct metric_spec specs[N_FAMILIES] = {
    [FAMILY_WAITING] = {.name = "sluice_requests_waiting_for_replica",
                        .help = "Requests without a replica: none is ready yet, it was "
                                "lost, or all are full.",
                        .type = METRIC_GAUGE,
                        .labels = {"model", "version"}},
    [FAMILY_REPLICA_REQUESTS] = {.name = "sluice_replica_requests",
                                 .help =
                                     "Requests at a replica by state (running, queued, paused), "
                                     "as last reported; 0 without a link.",
                                 .type = METRIC_GAUGE,
                                 .labels = {"model", "version", "replica", "state"}},
    [FAMILY_REPLICA_KV] = {.name = "sluice_replica_kv_tokens",
                           .help = "KV cache of a replica in tokens by state: used, cached "
                                   "(a prefix that no request uses now), free.",
                           .type = METRIC_GAUGE,
                           .labels = {"model", "version", "replica", "state"}},
    [FAMILY_REPLICA_WINDOW_KV] = {.name = "sluice_replica_window_kv_tokens",
                                  .help = "KV cache of a replica's layers with a window in tokens, "
                                          "by the same states; absent where these layers have no "
                                          "cache of their own.",
                                  .type = METRIC_GAUGE,
                                  .labels = {"model", "version", "replica", "state"}},
    [FAMILY_REPLICA_STATE_SLOTS] = {.name = "sluice_replica_state_slots",
                                    .help = "Slots of a replica for recurrent states by state: "
                                            "used (held by sequences), free (snapshots included); "
                                            "absent for models without recurrent layers.",
                                    .type = METRIC_GAUGE,
                                    .labels = {"model", "version", "replica", "state"}},
    [FAMILY_REPLICA_SNAPSHOTS] = {.name = "sluice_replica_state_snapshots",
                                  .help = "State slots of a replica with a snapshot, from which a "
                                          "prefix hit can continue.",
                                  .type = METRIC_GAUGE,
                                  .labels = {"model", "version", "replica"}},
    [FAMILY_REPLICA_USABLE] = {.name = "sluice_replica_usable",
                               .help = "1 if new requests may go to the replica.",
                               .type = METRIC_GAUGE,
                               .labels = {"model", "version", "replica"}},
    [FAMILY_REPLICA_STATE] = {.name = "sluice_replica_state",
                              .help = "1, with the state in which the manager's routes list the "
                                      "replica as a label.",
                              .type = METRIC_GAUGE,
                              .labels = {"model", "version", "replica", "state"}},
    [FAMILY_SERVING] = {.name = "sluice_serving",
                        .help = "1 if the health of a loaded version is SERVING.",
                        .type = METRIC_GAUGE,
                        .labels = {"model", "version"}},
    [FAMILY_SERVER_SERVING] = {.name = "sluice_server_serving",
                               .help =
                                   "1 if the health of the server is SERVING: some version serves.",
                               .type = METRIC_GAUGE},
    [FAMILY_ROUTE_GENERATION] = {.name = "sluice_route_generation",
                                 .help = "Generation of the current routes; 0: none yet.",
                                 .type = METRIC_GAUGE},
    [FAMILY_REFUSALS] = {.name = "sluice_refusals_total",
                         .help = "Requests that were refused, paused or ended because of a limit.",
                         .type = METRIC_COUNTER,
                         .labels = {"limit"}},
    [FAMILY_ACCESS_REFUSALS] =
        {.name = "sluice_access_refusals_total",
         .help = "Calls refused because of API key, certificate or role, by reason.",
         .type = METRIC_COUNTER,
         .labels = {"reason"}},
    [FAMILY_ACCESS_RELOADS] = {.name = "sluice_access_reloads_total",
                               .help = "Reloads of TLS files and API keys, by result "
                                       "(ok; failed: the old files stay in use).",
                               .type = METRIC_COUNTER,
                               .labels = {"result"}},
    [FAMILY_CONNECTIONS] = {.name = "sluice_connections",
                            .help = "Connections to the port of the data plane.",
                            .type = METRIC_GAUGE},
    [FAMILY_PAUSES] = {.name = "sluice_stream_pauses_total",
                       .help = "Sequences paused because their client did not read what was "
                               "ready.",
                       .type = METRIC_COUNTER},
    [FAMILY_SLOW_READERS] = {.name = "sluice_slow_readers_total",
                             .help = "Streams ended because their client took no message for too "
                                     "long.",
                             .type = METRIC_COUNTER},
    [FAMILY_RESUMES] = {.name = "sluice_resumes_total",
                        .help = "Requests that continued at another replica, or at the same one "
                                "after it was lost.",
                        .type = METRIC_COUNTER},
    [FAMILY_REATTACHES] = {.name = "sluice_reattaches_total",
                           .help = "Requests that lost their connection and were reattached "
                                   "on another connection.",
                           .type = METRIC_COUNTER},
    [FAMILY_WAKES] = {.name = "sluice_wakes_total",
                      .help = "Parked versions that a request woke.",
                      .type = METRIC_COUNTER},
    [FAMILY_STALLS] = {.name = "sluice_replica_stalls_total",
                       .help = "Replicas that were given up because they had work and made "
                               "no progress.",
                       .type = METRIC_COUNTER},
    [FAMILY_CALLS] = {.name = "sluice_grpc_calls_total",
                      .help = "Calls that ended, by the status that the client saw; health and "
                              "reflection included.",
                      .type = METRIC_COUNTER,
                      .labels = {"code"}},
    [FAMILY_CALLS_LIVE] = {.name = "sluice_grpc_calls_live",
                           .help = "Calls under way.",
                           .type = METRIC_GAUGE},
    [FAMILY_MESSAGES] = {.name = "sluice_grpc_messages_total",
                         .help = "Messages received and sent.",
                         .type = METRIC_COUNTER,
                         .labels = {"direction"}},
    [FAMILY_BYTES] = {.name = "sluice_grpc_bytes_total",
                      .help = "Bytes of messages received and sent.",
                      .type = METRIC_COUNTER,
                      .labels = {"direction"}},
    [FAMILY_HTTP_ANSWERS] = {.name = "sluice_http_answers_total",
                             .help = "Answers over HTTP that began, by status.",
                             .type = METRIC_COUNTER,
                             .labels = {"status"}},
    [FAMILY_HTTP_LIVE] = {.name = "sluice_http_requests_live",
                          .help = "Requests over HTTP under way.",
                          .type = METRIC_GAUGE},
    [FAMILY_HTTP_CONNECTIONS] = {.name = "sluice_http_connections",
                                 .help = "Connections to the addresses of HTTP.",
                                 .type = METRIC_GAUGE},
};

struct gateway_metrics {
    struct gateway *gateway;
    struct metrics *registry;
    struct meters *meters;
    struct metrics_vllm *vllm; /* NULL without the aliases */
    struct metrics_family *families[N_FAMILIES];
    struct http_route routes[2];
    struct http_server *http;
    pthread_mutex_t routed_lock;
    struct version_meter **routed; /* each retained */
    size_t n_routed;
};

/* --- a scrape --- */

/* A cache in tokens, by state. values[3] is the state. */
static void sample_cache(struct metrics_family *family, struct metrics_sink *sink,
                         const char *values[4], uint64_t n_all, uint64_t n_free, uint64_t n_cached)
{
    values[3] = "used";
    metrics_sample(sink, family, values, (double)(n_all - n_free));
    values[3] = "cached";
    metrics_sample(sink, family, values, (double)n_cached);
    values[3] = "free";
    metrics_sample(sink, family, values, (double)(n_free - n_cached));
}

static void sample_replica(struct gateway_metrics *m, struct metrics_sink *sink,
                           const struct link_view *view)
{
    const struct link_load *load = &view->load;
    const char *values[] = {view->model, view->version, view->replica_id, "running"};
    metrics_sample(sink, m->families[FAMILY_REPLICA_USABLE], values, view->usable);
    metrics_sample(sink, m->families[FAMILY_REPLICA_REQUESTS], values, load->n_running);
    values[3] = "queued";
    metrics_sample(sink, m->families[FAMILY_REPLICA_REQUESTS], values, load->n_queued);
    values[3] = "paused";
    metrics_sample(sink, m->families[FAMILY_REPLICA_REQUESTS], values, load->n_paused);
    sample_cache(m->families[FAMILY_REPLICA_KV], sink, values, load->total_kv_tokens,
                 load->free_kv_tokens, load->cached_kv_tokens);
    if (load->total_window_tokens)
        sample_cache(m->families[FAMILY_REPLICA_WINDOW_KV], sink, values, load->total_window_tokens,
                     load->free_window_tokens, load->cached_window_tokens);
    if (!load->n_state_slots)
        return;
    metrics_sample(sink, m->families[FAMILY_REPLICA_SNAPSHOTS], values, load->n_snapshots);
    values[3] = "used";
    metrics_sample(sink, m->families[FAMILY_REPLICA_STATE_SLOTS], values, load->n_states_used);
    values[3] = "free";
    metrics_sample(sink, m->families[FAMILY_REPLICA_STATE_SLOTS], values,
                   load->n_state_slots - load->n_states_used);
}

/* The label has the word of the enum: REPLICA_STATE_READY is "READY". */
static void sample_states(struct gateway_metrics *m, struct metrics_sink *sink, const route *r)
{
    static const char prefix[] = "REPLICA_STATE_";
    for (size_t i = 0; i < r->n_replicas; i++) {
        const Sluice__Manager__V1__RouteReplica *replica = r->replicas[i];
        const ProtobufCEnumValue *state = protobuf_c_enum_descriptor_get_value(
            &sluice__manager__v1__replica_state__descriptor, (int)replica->state);
        if (!state)
            continue; /* a newer manager's word */
        const char *const values[] = {r->model, r->version, replica->id,
                                      state->name + sizeof(prefix) - 1};
        metrics_sample(sink, m->families[FAMILY_REPLICA_STATE], values, 1);
    }
}

/* True if the version is loaded or has replicas. Routes also list versions that are only
 * registered, without figures. */
static bool has_figures(const route *r)
{
    return r->loaded || r->n_replicas;
}

/* Counts a version's requests that wait for a replica. Under the replicas' lock. */
static uint64_t count_waiting(const struct gateway *gateway, const route *r)
{
    uint64_t n = 0;
    const struct relay *relay;
    for (struct waiting_walk walk = waiting_walk(&gateway->dispatch);
         (relay = waiting_walk_on(&walk));)
        n += strcmp(relay->model, r->model) == 0 && strcmp(relay->version, r->version) == 0;
    return n;
}

/* True if link i is the last link of its replica. A replica is sampled once, even if an old link
 * and its successor exist. Under the replicas' lock. */
static bool is_last_link(const struct gateway *gateway, uint32_t i)
{
    for (uint32_t k = i + 1; k < gateway->replicas.n_links; k++)
        if (strcmp(link_replica_id(gateway->replicas.links[k]),
                   link_replica_id(gateway->replicas.links[i])) == 0)
            return false;
    return true;
}

static void sample_routes(struct gateway_metrics *m, struct metrics_sink *sink)
{
    struct gateway *gateway = m->gateway;
    pthread_mutex_lock(&gateway->replicas.lock);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(gateway->replicas.routes);
    metrics_sample(sink, m->families[FAMILY_ROUTE_GENERATION], NULL, (double)table->generation);
    for (size_t i = 0; i < table->n_routes; i++) {
        const route *r = table->routes[i];
        const char *const values[] = {r->model, r->version};
        if (!has_figures(r))
            continue;
        sample_states(m, sink, r);
        struct metrics_vllm_version sums = {.model = r->model, .version = r->version};
        uint64_t n_waiting = count_waiting(gateway, r);
        for (uint32_t k = 0; k < gateway->replicas.n_links; k++) {
            struct link_view view;
            if (!link_serves(gateway->replicas.links[k], r->model, r->version) ||
                !is_last_link(gateway, k))
                continue;
            link_get_view(gateway->replicas.links[k], &view);
            sample_replica(m, sink, &view);
            sums.n_running += view.load.n_running;
            sums.n_waiting += view.load.n_queued;
            sums.kv_block_tokens = view.load.kv_block_tokens;
            sums.kv_tokens += view.load.total_kv_tokens;
            sums.kv_tokens_used += view.load.total_kv_tokens - view.load.free_kv_tokens;
        }
        sums.n_waiting += n_waiting;
        metrics_sample(sink, m->families[FAMILY_WAITING], values, (double)n_waiting);
        metrics_vllm_sample(m->vllm, sink, &sums);
    }
    pthread_mutex_unlock(&gateway->replicas.lock);
}

/* Samples the health states. Called without any lock of the gateway. */
static void sample_health(struct gateway_metrics *m, struct metrics_sink *sink)
{
    struct rpc_health *health = rpc_server_health(m->gateway->server);
    struct route_table *routes = replicas_routes(&m->gateway->replicas);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    metrics_sample(sink, m->families[FAMILY_SERVER_SERVING], NULL,
                   rpc_health_is_serving(health, ""));
    for (size_t i = 0; i < table->n_routes; i++) {
        const route *r = table->routes[i];
        const char *const values[] = {r->model, r->version};
        char name[160];
        if (!r->loaded)
            continue; /* the version should not serve */
        snprintf(name, sizeof(name), "model/%s/%s", r->model, r->version);
        metrics_sample(sink, m->families[FAMILY_SERVING], values,
                       rpc_health_is_serving(health, name));
    }
    route_table_release(routes);
}

static void sample_counters(struct gateway_metrics *m, struct metrics_sink *sink)
{
    struct gateway_counters c;
    gateway_get_counters(m->gateway, &c);
    metrics_sample(sink, m->families[FAMILY_PAUSES], NULL, (double)c.pauses);
    metrics_sample(sink, m->families[FAMILY_SLOW_READERS], NULL, (double)c.slow_readers);
    metrics_sample(sink, m->families[FAMILY_RESUMES], NULL, (double)c.resumes);
    metrics_sample(sink, m->families[FAMILY_REATTACHES], NULL, (double)c.reattaches);
    metrics_sample(sink, m->families[FAMILY_WAKES], NULL, (double)c.wakes);
    metrics_sample(sink, m->families[FAMILY_STALLS], NULL, (double)c.stalls);
    for (int i = LIMIT_NONE + 1; i < N_GATEWAY_LIMITS; i++) {
        const char *const values[] = {gateway_limit_rows[i].name};
        metrics_sample(sink, m->families[FAMILY_REFUSALS], values,
                       (double)gateway_n_refusals(m->gateway, (enum gateway_limit)i));
    }
}

static void sample_access(struct gateway_metrics *m, struct metrics_sink *sink)
{
    struct access_stats stats;
    const char *ok[] = {"ok"}, *failed[] = {"failed"};
    access_get_stats(m->gateway->access, &stats);
    for (int i = 0; i < N_ACCESS_REFUSALS; i++) {
        const char *const values[] = {reason_name(access_refusal_reason((enum access_refusal)i))};
        metrics_sample(sink, m->families[FAMILY_ACCESS_REFUSALS], values,
                       (double)stats.n_refused[i]);
    }
    metrics_sample(sink, m->families[FAMILY_ACCESS_RELOADS], ok, (double)stats.n_reloads);
    metrics_sample(sink, m->families[FAMILY_ACCESS_RELOADS], failed,
                   (double)stats.n_failed_reloads);
    metrics_sample(sink, m->families[FAMILY_CONNECTIONS], NULL,
                   (double)rpc_server_n_connections(m->gateway->server));
}

static void sample_calls(struct gateway_metrics *m, struct metrics_sink *sink)
{
    struct rpc_server_stats stats;
    const char *in[] = {"in"}, *out[] = {"out"};
    rpc_server_stats(m->gateway->server, &stats);
    for (int i = 0; i < 17; i++) {
        const char *const values[] = {i ? status_name(-i) : "OK"};
        if (stats.n_ended[i])
            metrics_sample(sink, m->families[FAMILY_CALLS], values, (double)stats.n_ended[i]);
    }
    metrics_sample(sink, m->families[FAMILY_CALLS_LIVE], NULL, (double)stats.n_live);
    metrics_sample(sink, m->families[FAMILY_MESSAGES], in, (double)stats.n_messages_in);
    metrics_sample(sink, m->families[FAMILY_MESSAGES], out, (double)stats.n_messages_out);
    metrics_sample(sink, m->families[FAMILY_BYTES], in, (double)stats.bytes_in);
    metrics_sample(sink, m->families[FAMILY_BYTES], out, (double)stats.bytes_out);
}

static void sample_http(struct gateway_metrics *m, struct metrics_sink *sink)
{
    struct http_front *front = atomic_load(&m->gateway->http);
    if (!front)
        return;
    for (unsigned status = 100; status <= HTTP_MAX_STATUS; status++) {
        uint64_t n = http_front_n_answers(front, status);
        char text[8];
        const char *const values[] = {text};
        snprintf(text, sizeof(text), "%u", status);
        if (n)
            metrics_sample(sink, m->families[FAMILY_HTTP_ANSWERS], values, (double)n);
    }
    metrics_sample(sink, m->families[FAMILY_HTTP_LIVE], NULL, http_front_n_live(front));
    metrics_sample(sink, m->families[FAMILY_HTTP_CONNECTIONS], NULL,
                   http_front_n_connections(front));
}

static void collect(void *arg, struct metrics_sink *sink)
{
    struct gateway_metrics *m = arg;
    sample_routes(m, sink);
    sample_health(m, sink);
    sample_counters(m, sink);
    sample_access(m, sink);
    sample_calls(m, sink);
    sample_http(m, sink);
}

static void handle_metrics(void *arg, struct http_reply *reply)
{
    struct gateway_metrics *m = arg;
    reply->content_type = METRICS_CONTENT_TYPE;
    metrics_render(m->registry, &reply->body);
}

static void handle_healthz(void *arg, struct http_reply *reply)
{
    struct gateway_metrics *m = arg;
    bool serving = rpc_health_is_serving(rpc_server_health(m->gateway->server), "");
    reply->status = serving ? 200 : 503;
    strbuf_add_str(&reply->body, serving ? "ok\n" : "not serving\n");
}

/* --- life --- */

static int fill(struct gateway_metrics *m, struct error *err)
{
    const char *aliases = m->gateway->config.metrics_aliases;
    bool vllm = aliases && strcmp(aliases, "vllm") == 0;
    if (aliases && *aliases && !vllm)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--metrics-aliases: \"%.40s\" is unknown; the known name is vllm",
                         aliases);
    if (metrics_create(&m->registry, err) != 0 ||
        metrics_process_add(m->registry, "sluice-server", err) != 0 ||
        meters_create(m->registry, &m->meters, err) != 0 ||
        metrics_add(m->registry, specs, N_FAMILIES, m->families, err) != 0 ||
        metrics_add_collector(m->registry, collect, m, err) != 0)
        return err->status;
    return vllm ? metrics_vllm_create(m->registry, m->meters, &m->vllm, err) : 0;
}

int gateway_metrics_create(struct gateway *gateway, struct gateway_metrics **out_metrics,
                           struct error *err)
{
    struct gateway_metrics *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    m->gateway = gateway;
    pthread_mutex_init(&m->routed_lock, NULL);
    m->routes[0] = (struct http_route){.path = "/metrics", .page = handle_metrics, .arg = m};
    m->routes[1] = (struct http_route){.path = "/healthz", .page = handle_healthz, .arg = m};
    int rc = fill(m, err);
    if (rc) {
        gateway_metrics_destroy(m);
        return rc;
    }
    *out_metrics = m;
    return 0;
}

/* The limits have the names and counters of the data plane's. */
static void on_limit(void *arg, enum http_limit limit)
{
    struct gateway_metrics *m = arg;
    counters_refusal(&m->gateway->counters, http_front_limit(limit));
}

int gateway_metrics_listen(struct gateway_metrics *metrics, struct error *err)
{
    const struct gateway_limits *limits = &metrics->gateway->config.limits;
    struct http_server_config config;
    const char *listen = metrics->gateway->config.metrics_listen;
    if (!listen || !*listen)
        return 0;
    http_server_config_init(&config);
    config.listen = listen;
    config.routes = metrics->routes;
    config.n_routes = 2;
    config.max_header_bytes = limits->max_metadata_bytes;
    config.max_requests = (uint32_t)limits->max_connection_requests;
    config.on_limit = on_limit;
    config.arg = metrics;
    config.share = metrics->gateway->config.share;
    if (http_server_create(&config, &metrics->http, err) == 0)
        return 0;
    struct error cause = *err;
    error_set(err, cause.status, "--metrics: %s; an empty address turns the metrics off",
              cause.message);
    return error_reason_of(err, &cause);
}

const struct http_route *gateway_metrics_pages(struct gateway_metrics *metrics, size_t *out_n)
{
    *out_n = sizeof(metrics->routes) / sizeof(metrics->routes[0]);
    return metrics->routes;
}

void gateway_metrics_close(struct gateway_metrics *metrics)
{
    if (!metrics)
        return;
    http_server_destroy(metrics->http);
    metrics->http = NULL;
}

static void release_all(struct version_meter **meters, size_t n)
{
    for (size_t i = 0; i < n; i++)
        meter_release_version(meters[i]);
    free(meters);
}

void gateway_metrics_destroy(struct gateway_metrics *metrics)
{
    if (!metrics)
        return;
    gateway_metrics_close(metrics);
    release_all(metrics->routed, metrics->n_routed);
    pthread_mutex_destroy(&metrics->routed_lock);
    metrics_vllm_destroy(metrics->vllm);
    meters_destroy(metrics->meters);
    metrics_destroy(metrics->registry);
    free(metrics);
}

struct meters *gateway_meters(struct gateway_metrics *metrics)
{
    return metrics->meters;
}

void gateway_metrics_routes(struct gateway_metrics *metrics,
                            const Sluice__Manager__V1__RouteTable *table)
{
    struct version_meter **now = calloc(table->n_routes + 1, sizeof(struct version_meter *));
    if (!now)
        return; /* the meters of the previous table stay */
    for (size_t i = 0; i < table->n_routes; i++)
        if (has_figures(table->routes[i]))
            now[i] = meter_hold_version(metrics->meters, table->routes[i]->model,
                                        table->routes[i]->version);
    pthread_mutex_lock(&metrics->routed_lock);
    struct version_meter **before = metrics->routed;
    size_t n_before = metrics->n_routed;
    metrics->routed = now;
    metrics->n_routed = table->n_routes;
    pthread_mutex_unlock(&metrics->routed_lock);
    release_all(before, n_before);
}
