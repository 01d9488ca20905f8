#include "server/worker/serve/meter.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/metrics/metrics.h"
#include "base/metrics/metrics_process.h"
#include "engine/engine_stats.h"
#include "proto/http/http_metrics.h"
#include "proto/http/http_server.h"
#include "proto/http/worker_metrics.h"
#include "server/worker/base/settings.h"
#include "server/worker/serve/status.h"
#include "server/worker/serve/stream_request.h"
#include "server/worker/state/worker.h"

enum { MAX_BOUNDS = 39 };
enum { KIND_QUEUE, KIND_PREFILL, KIND_DECODE, KIND_PROMPT, KIND_GENERATED, KIND_FIRST, N_KINDS };

static const uint64_t time_bounds[] = {
    1000000,     2500000,     5000000,     10000000,    25000000,     50000000,
    100000000,   250000000,   500000000,   1000000000,  2500000000,   5000000000,
    10000000000, 20000000000, 40000000000, 80000000000, 160000000000, 640000000000};
static const uint64_t token_bounds[] = {1,    4,    8,    16,   32,    64,    128,   256,   512,
                                        1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
/* From 1 ms on, two bounds for each doubling: fine enough to compare quantiles. */
static const uint64_t first_bounds[] = {
    1000000,      1414214,      2000000,      2828427,     4000000,     5656854,     8000000,
    11313708,     16000000,     22627417,     32000000,    45254834,    64000000,    90509668,
    128000000,    181019336,    256000000,    362038672,   512000000,   724077344,   1024000000,
    1448154688,   2048000000,   2896309376,   4096000000,  5792618751,  8192000000,  11585237503,
    16384000000,  23170475006,  32768000000,  46340950012, 65536000000, 92681900024, 131072000000,
    185363800047, 262144000000, 370727600095, 524288000000};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
_Static_assert(COUNT(time_bounds) <= MAX_BOUNDS && COUNT(token_bounds) <= MAX_BOUNDS &&
                   COUNT(first_bounds) <= MAX_BOUNDS,
               "room");

/* Indexed by kind; the wire's kinds count from 1 in the same order. */
static const struct {
    const uint64_t *bounds;
    uint32_t n_bounds;
    double unit;
} kinds[N_KINDS] = {
    [KIND_QUEUE] = {time_bounds, COUNT(time_bounds), 1e-9},
    [KIND_PREFILL] = {time_bounds, COUNT(time_bounds), 1e-9},
    [KIND_DECODE] = {time_bounds, COUNT(time_bounds), 1e-9},
    [KIND_PROMPT] = {token_bounds, COUNT(token_bounds), 1},
    [KIND_GENERATED] = {token_bounds, COUNT(token_bounds), 1},
    [KIND_FIRST] = {first_bounds, COUNT(first_bounds), 1e-9},
};

struct worker_meter {
    struct metric_histogram histograms[N_KINDS];
    _Atomic uint64_t counts[N_KINDS][MAX_BOUNDS + 1];
    /* Set only if /metrics is served. */
    struct worker *worker;
    struct metrics *registry;
    struct worker_metrics *families;
    struct http_route routes[2];
    struct http_server *http;
    struct http_metrics of_http;
};

void meter_label_set(struct request_label *label, const Sluice__Worker__V1__Submit *submit)
{
    struct trace_context *trace = &label->trace;
    snprintf(label->request_id, sizeof(label->request_id), "%s", submit->request_id);
    if (!trace_parse(submit->traceparent, strlen(submit->traceparent), trace))
        memset(trace, 0, sizeof(*trace));
}

int worker_meter_create(struct worker_meter **out_meter, struct error *err)
{
    struct worker_meter *meter = calloc(1, sizeof(*meter));
    if (!meter)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    for (int i = 0; i < N_KINDS; i++) {
        meter->histograms[i].bounds = kinds[i].bounds;
        meter->histograms[i].n_bounds = kinds[i].n_bounds;
        meter->histograms[i].counts = meter->counts[i];
    }
    *out_meter = meter;
    return 0;
}

void worker_meter_destroy(struct worker_meter *meter)
{
    if (!meter)
        return;
    worker_meter_close(meter);
    worker_metrics_destroy(meter->families);
    metrics_destroy(meter->registry);
    free(meter);
}

/* --- requests --- */

static uint64_t not_negative(int64_t ns)
{
    return ns > 0 ? (uint64_t)ns : 0;
}

void worker_meter_end(struct worker *worker, const struct stream_request *request,
                      const struct engine_usage *usage, const char *outcome)
{
    struct metric_histogram *h = worker->meter->histograms;
    const struct request_label *label = &request->label;
    metric_histogram_observe(&h[KIND_QUEUE], not_negative(usage->queue_ns), 1);
    metric_histogram_observe(&h[KIND_PROMPT], usage->n_prompt_tokens, 1);
    metric_histogram_observe(&h[KIND_GENERATED], usage->n_generated_tokens, 1);
    if (usage->n_generated_tokens) {
        metric_histogram_observe(&h[KIND_PREFILL], not_negative(usage->prefill_ns), 1);
        metric_histogram_observe(&h[KIND_DECODE], not_negative(usage->decode_ns), 1);
        metric_histogram_observe(
            &h[KIND_FIRST], not_negative(usage->queue_ns) + not_negative(usage->prefill_ns), 1);
    }
    log_info(LOG_EVENT("request"), LOG_STR("request_id", label->request_id),
             LOG_STR("outcome", outcome), LOG_U64("prompt_tokens", usage->n_prompt_tokens),
             LOG_U64("cached_tokens", usage->n_cached_tokens),
             LOG_U64("generated_tokens", usage->n_generated_tokens),
             LOG_F64("queue_ms", (double)usage->queue_ns / 1e6),
             LOG_F64("prefill_ms", (double)usage->prefill_ns / 1e6),
             LOG_F64("decode_ms", (double)usage->decode_ns / 1e6),
             LOG_U64("preemptions", usage->n_preemptions),
             LOG_STR("trace_id", label->trace.trace_id),
             LOG_STR("parent_span_id", label->trace.parent_span),
             LOG_U64("sampled", label->trace.sampled));
}

void worker_meter_refused(const struct stream_request *request, const struct error *why)
{
    const struct request_label *label = &request->label;
    log_info(LOG_EVENT("request refused"), LOG_STR("request_id", label->request_id),
             LOG_STR("code", status_name(why->status)), LOG_STR("reason", error_reason_name(why)),
             LOG_STR("field", why->field), LOG_STR("trace_id", label->trace.trace_id),
             LOG_STR("parent_span_id", label->trace.parent_span),
             LOG_U64("sampled", label->trace.sampled));
}

/* --- reports --- */

static bool fill_one(const struct metric_histogram *from, int kind, struct arena *arena,
                     Sluice__Worker__V1__Histogram *out)
{
    uint32_t n = from->n_bounds;
    double *bounds = arena_calloc(arena, n, sizeof(*bounds));
    uint64_t *counts = arena_calloc(arena, n + 1, sizeof(*counts));
    if (!bounds || !counts)
        return false;
    sluice__worker__v1__histogram__init(out);
    for (uint32_t i = 0; i < n; i++)
        bounds[i] = (double)from->bounds[i] * kinds[kind].unit;
    for (uint32_t i = 0; i <= n; i++)
        counts[i] = atomic_load_explicit(&from->counts[i], memory_order_relaxed);
    out->kind = (Sluice__Worker__V1__HistogramKind)(kind + 1);
    out->bounds = bounds;
    out->n_bounds = n;
    out->counts = counts;
    out->n_counts = n + 1;
    out->sum = (double)atomic_load_explicit(&from->sum, memory_order_relaxed) * kinds[kind].unit;
    return true;
}

void worker_meter_fill(const struct worker_meter *meter, struct arena *arena,
                       Sluice__Worker__V1__WorkerCounters *counters)
{
    Sluice__Worker__V1__Histogram **list = arena_calloc(arena, N_KINDS, sizeof(*list));
    Sluice__Worker__V1__Histogram *rows = arena_calloc(arena, N_KINDS, sizeof(*rows));
    if (!list || !rows)
        return;
    for (int i = 0; i < N_KINDS; i++) {
        if (!fill_one(&meter->histograms[i], i, arena, &rows[i]))
            return;
        list[i] = &rows[i];
    }
    counters->histograms = list;
    counters->n_histograms = N_KINDS;
}

static void collect(void *arg, struct metrics_sink *sink)
{
    struct worker_meter *meter = arg;
    Sluice__Worker__V1__WorkerStatus status;
    struct arena arena;
    arena_init(&arena, 0, 0);
    status_fill(meter->worker, &arena, &status);
    worker_metrics_sample(meter->families, sink, &status);
    arena_fini(&arena);
}

static void handle_metrics(void *arg, struct http_reply *reply)
{
    const struct worker_meter *meter = arg;
    reply->content_type = METRICS_CONTENT_TYPE;
    metrics_render(meter->registry, &reply->body);
}

static void handle_healthz(void *arg, struct http_reply *reply)
{
    const struct worker_meter *meter = arg;
    bool ready =
        worker_state(meter->worker) == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
    reply->status = ready ? 200 : 503;
    strbuf_add_str(&reply->body, ready ? "ok\n" : "not serving\n");
}

int worker_meter_listen(struct worker *worker, const char *address, struct error *err)
{
    struct worker_meter *meter = worker->meter;
    struct http_server_config config;
    meter->worker = worker;
    if (metrics_create(&meter->registry, err) != 0 ||
        metrics_process_add(meter->registry, "sluice-worker", err) != 0 ||
        worker_metrics_create(meter->registry, &meter->families, err) != 0 ||
        http_metrics_add(meter->registry, &meter->of_http, err) != 0 ||
        metrics_add_collector(meter->registry, collect, meter, err) != 0)
        return err->status;
    meter->routes[0] =
        (struct http_route){.path = "/metrics", .page = handle_metrics, .arg = meter};
    meter->routes[1] =
        (struct http_route){.path = "/healthz", .page = handle_healthz, .arg = meter};
    http_server_config_init(&config);
    config.listen = address;
    config.routes = meter->routes;
    config.n_routes = 2;
    int rc = http_server_create(&config, &meter->http, err);
    if (!rc)
        atomic_store(&meter->of_http.server, meter->http);
    return rc;
}

void worker_meter_close(struct worker_meter *meter)
{
    if (!meter)
        return;
    http_server_destroy(meter->http);
    meter->http = NULL;
}
