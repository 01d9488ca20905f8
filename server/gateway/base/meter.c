#include "server/gateway/base/meter.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/metrics/metrics.h"
#include "base/seeded_bug.h"

enum { N_CODES = 17, N_FINISH_REASONS = 7, NAME_BYTES = 65 };

/* Indexed by FinishReason on the wire. */
static const char *const finish_names[N_FINISH_REASONS] = {
    "", "eos", "stop_string", "stop_token", "length", "context_length", "constraint"};

static const uint64_t latency_bounds[] = {
    1000000,     2500000,     5000000,     10000000,    25000000,     50000000,
    100000000,   250000000,   500000000,   1000000000,  2500000000,   5000000000,
    10000000000, 20000000000, 40000000000, 80000000000, 160000000000, 640000000000};
static const uint64_t token_bounds[] = {1000000,    2500000,    5000000,   7500000,    10000000,
                                        15000000,   25000000,   50000000,  75000000,   100000000,
                                        150000000,  250000000,  500000000, 1000000000, 2500000000,
                                        5000000000, 10000000000};
#define BOUNDS(list) .bounds = (list), .n_bounds = sizeof(list) / sizeof((list)[0]), .unit = 1e-9
#define BY_VERSION   .labels = {"model", "version"}

/* Series of a version, created with its meter. */
enum series {
    SERIES_PROMPT_TOKENS,
    SERIES_CACHED_TOKENS,
    SERIES_GENERATED_TOKENS,
    SERIES_FIRST_TOKEN,
    SERIES_INTER_TOKEN,
    SERIES_REQUEST,
    SERIES_QUEUE,
    SERIES_PREEMPTIONS,
    SERIES_PREFIX_QUERIES,
    SERIES_PREFIX_HITS,
    SERIES_SNAPSHOT_HITS,
    SERIES_SNAPSHOT_EVICTIONS,
    SERIES_REPLICA_LOSSES,
    N_SERIES,
    /* Sampled from the request counts. */
    FAMILY_ACCEPTED = N_SERIES,
    FAMILY_FINISHED,
    FAMILY_IN_FLIGHT,
    N_FAMILIES
};

static const struct metric_spec specs[N_FAMILIES] = {
    [SERIES_PROMPT_TOKENS] = {.name = "sluice_prompt_tokens_total",
                              .help = "Prompt tokens of requests that left the queue.",
                              .type = METRIC_COUNTER,
                              BY_VERSION},
    [SERIES_CACHED_TOKENS] = {.name = "sluice_cached_prompt_tokens_total",
                              .help = "Prompt tokens that the prefix cache held.",
                              .type = METRIC_COUNTER,
                              BY_VERSION},
    [SERIES_GENERATED_TOKENS] = {.name = "sluice_generated_tokens_total",
                                 .help = "Generated tokens whose text is known.",
                                 .type = METRIC_COUNTER,
                                 BY_VERSION},
    [SERIES_FIRST_TOKEN] = {.name = "sluice_time_to_first_token_seconds",
                            .help =
                                "Time from a request's arrival at the server to its first token.",
                            .type = METRIC_HISTOGRAM,
                            BY_VERSION,
                            BOUNDS(latency_bounds)},
    [SERIES_INTER_TOKEN] = {.name = "sluice_inter_token_seconds",
                            .help = "Time between a choice's tokens; tokens that came at once "
                                    "share the time equally.",
                            .type = METRIC_HISTOGRAM,
                            BY_VERSION,
                            BOUNDS(token_bounds)},
    [SERIES_REQUEST] = {.name = "sluice_request_seconds",
                        .help = "Time from a request's arrival to its end, with any status.",
                        .type = METRIC_HISTOGRAM,
                        BY_VERSION,
                        BOUNDS(latency_bounds)},
    [SERIES_QUEUE] = {.name = "sluice_request_queue_seconds",
                      .help = "Time from a request's arrival to its first step in a worker.",
                      .type = METRIC_HISTOGRAM,
                      BY_VERSION,
                      BOUNDS(latency_bounds)},
    [SERIES_PREEMPTIONS] = {.name = "sluice_preemptions_total",
                            .help = "Sequences that lost their KV blocks to other sequences and "
                                    "were computed again.",
                            .type = METRIC_COUNTER,
                            BY_VERSION},
    [SERIES_PREFIX_QUERIES] = {.name = "sluice_prefix_query_tokens_total",
                               .help = "Tokens that were looked up in the prefix cache.",
                               .type = METRIC_COUNTER,
                               BY_VERSION},
    [SERIES_PREFIX_HITS] = {.name = "sluice_prefix_hit_tokens_total",
                            .help = "Tokens that were found in the prefix cache.",
                            .type = METRIC_COUNTER,
                            BY_VERSION},
    [SERIES_SNAPSHOT_HITS] = {.name = "sluice_state_snapshot_hits_total",
                              .help = "Sequences that continued from a snapshot of a recurrent "
                                      "state.",
                              .type = METRIC_COUNTER,
                              BY_VERSION},
    [SERIES_SNAPSHOT_EVICTIONS] = {.name = "sluice_state_snapshot_evictions_total",
                                   .help = "Snapshots that gave their slot to another state.",
                                   .type = METRIC_COUNTER,
                                   BY_VERSION},
    [SERIES_REPLICA_LOSSES] = {.name = "sluice_replica_losses_total",
                               .help = "Lost streams to replicas. A requested end of a replica "
                                       "does not count.",
                               .type = METRIC_COUNTER,
                               BY_VERSION},
    [FAMILY_ACCEPTED] = {.name = "sluice_requests_accepted_total",
                         .help = "Requests that arrived, refused ones included. An empty model: no "
                                 "version was found.",
                         .type = METRIC_COUNTER,
                         BY_VERSION},
    [FAMILY_FINISHED] = {.name = "sluice_requests_finished_total",
                         .help = "Requests that ended, by gRPC status and, if OK, by "
                                 "the first choice's finish reason. accepted = finished + in "
                                 "flight in every scrape.",
                         .type = METRIC_COUNTER,
                         .labels = {"model", "version", "code", "finish_reason"}},
    [FAMILY_IN_FLIGHT] = {.name = "sluice_requests_in_flight",
                          .help = "Requests that arrived and have not ended.",
                          .type = METRIC_GAUGE,
                          BY_VERSION},
};

struct version_meter {
    struct meters *meters;
    struct version_meter *next; /* this and all fields below, except `series`: under the meters'
                                 * lock */
    uint32_t n_refs;
    char model[NAME_BYTES], version[NAME_BYTES];
    struct metric *series[N_SERIES]; /* constant */
    uint64_t n_accepted, n_live;
    uint64_t n_ok[N_FINISH_REASONS], n_ended[N_CODES]; /* [0] of n_ended is unused */
    struct meter_totals totals;
};

struct meters {
    struct metrics *metrics;
    struct metrics_family *families[N_FAMILIES];
    pthread_mutex_t lock; /* innermost, except for the registry's own lock */
    struct version_meter *versions;
};

/* --- request counts in a scrape --- */

static void sample_version(const struct meters *meters, const struct version_meter *v,
                           struct metrics_sink *sink)
{
    const char *values[] = {v->model, v->version, "OK", ""};
    metrics_sample(sink, meters->families[FAMILY_ACCEPTED], values, (double)v->n_accepted);
    metrics_sample(sink, meters->families[FAMILY_IN_FLIGHT], values, (double)v->n_live);
    for (int i = 0; i < N_FINISH_REASONS; i++) {
        values[3] = finish_names[i];
        if (v->n_ok[i])
            metrics_sample(sink, meters->families[FAMILY_FINISHED], values, (double)v->n_ok[i]);
    }
    values[3] = "";
    for (int i = 1; i < N_CODES; i++) {
        values[2] = status_name(-i);
        if (v->n_ended[i])
            metrics_sample(sink, meters->families[FAMILY_FINISHED], values, (double)v->n_ended[i]);
    }
}

static void collect(void *arg, struct metrics_sink *sink)
{
    struct meters *meters = arg;
    pthread_mutex_lock(&meters->lock);
    for (const struct version_meter *v = meters->versions; v; v = v->next)
        sample_version(meters, v, sink);
    pthread_mutex_unlock(&meters->lock);
}

void meters_each(struct meters *meters, meter_visit_fn *visit, void *ctx)
{
    pthread_mutex_lock(&meters->lock);
    for (const struct version_meter *v = meters->versions; v; v = v->next) {
        uint64_t n[3] = {v->n_ok[0] + v->n_ok[1] + v->n_ok[2] + v->n_ok[3] + v->n_ok[6],
                         v->n_ok[4] + v->n_ok[5], v->n_ended[-STATUS_CANCELLED]};
        visit(ctx, v->model, v->version, n);
    }
    pthread_mutex_unlock(&meters->lock);
}

bool meters_get(struct meters *meters, const char *model, const char *version,
                struct meter_totals *out_totals)
{
    pthread_mutex_lock(&meters->lock);
    const struct version_meter *v = meters->versions;
    while (v && (strcmp(v->model, model) != 0 || strcmp(v->version, version) != 0))
        v = v->next;
    if (v)
        *out_totals = v->totals;
    pthread_mutex_unlock(&meters->lock);
    return v;
}

int meters_create(struct metrics *metrics, struct meters **out_meters, struct error *err)
{
    struct meters *meters = calloc(1, sizeof(*meters));
    if (!meters)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    pthread_mutex_init(&meters->lock, NULL);
    meters->metrics = metrics;
    if (metrics_add(metrics, specs, N_FAMILIES, meters->families, err) != 0 ||
        metrics_add_collector(metrics, collect, meters, err) != 0) {
        pthread_mutex_destroy(&meters->lock);
        free(meters);
        return err->status;
    }
    *out_meters = meters;
    return 0;
}

static void free_version(struct version_meter *v)
{
    for (int i = 0; i < N_SERIES; i++)
        metric_release(v->series[i]);
    free(v);
}

void meters_destroy(struct meters *meters)
{
    if (!meters)
        return;
    while (meters->versions) {
        struct version_meter *v = meters->versions;
        meters->versions = v->next;
        free_version(v);
    }
    pthread_mutex_destroy(&meters->lock);
    free(meters);
}

/* --- versions --- */

static struct version_meter *make_version(struct meters *meters, const char *model,
                                          const char *version)
{
    struct version_meter *v = calloc(1, sizeof(*v));
    const char *const values[] = {model, version};
    if (!v)
        return NULL;
    v->meters = meters;
    snprintf(v->model, sizeof(v->model), "%s", model);
    snprintf(v->version, sizeof(v->version), "%s", version);
    for (int i = 0; i < N_SERIES && model[0]; i++)
        v->series[i] = metrics_series(meters->metrics, meters->families[i], values);
    v->next = meters->versions;
    meters->versions = v;
    return v;
}

struct version_meter *meter_hold_version(struct meters *meters, const char *model,
                                         const char *version)
{
    pthread_mutex_lock(&meters->lock);
    struct version_meter *v = meters->versions;
    while (v && (strcmp(v->model, model) != 0 || strcmp(v->version, version) != 0))
        v = v->next;
    if (!v)
        v = make_version(meters, model, version);
    if (v)
        v->n_refs++;
    pthread_mutex_unlock(&meters->lock);
    return v;
}

void meter_release_version(struct version_meter *meter)
{
    if (!meter)
        return;
    struct meters *meters = meter->meters;
    pthread_mutex_lock(&meters->lock);
    /* The meter of requests without a version is kept for ever: there is only one. */
    bool gone = --meter->n_refs == 0 && meter->model[0];
    for (struct version_meter **link = &meters->versions; gone && *link; link = &(*link)->next)
        if (*link == meter) {
            *link = meter->next;
            break;
        }
    pthread_mutex_unlock(&meters->lock);
    if (gone)
        free_version(meter);
}

/* --- requests --- */

void meter_begin(struct meters *meters, struct request_meter *request, const char *model,
                 const char *version)
{
    struct version_meter *v = meter_hold_version(meters, model, version);
    if (!v)
        return;
    pthread_mutex_lock(&meters->lock);
    v->n_accepted++;
    v->n_live++;
    pthread_mutex_unlock(&meters->lock);
    if (request)
        request->version = v;
    else
        meter_release_version(v); /* the meter of requests without a version is never freed */
}

/* Logs one line for each request, without the prompt or the answer. */
static void log_end(const struct request_meter *m, const struct meter_end *end, int reason,
                    int64_t now_ns)
{
    int64_t first_ns = m->first_token_ns ? m->first_token_ns - m->arrived_ns : 0;
    log_info(LOG_EVENT("request"), LOG_STR("request_id", end->request_id),
             LOG_STR("caller", end->caller), LOG_STR("model", end->model),
             LOG_STR("version", end->version), LOG_STR("code", status_name(end->status)),
             LOG_STR("reason", end->status ? end->reason : finish_names[reason]),
             LOG_U64("prompt_tokens", m->n_prompt_tokens), LOG_U64("generated_tokens", m->n_tokens),
             LOG_F64("ttft_ms", (double)first_ns / 1e6),
             LOG_F64("duration_ms", (double)(now_ns - m->arrived_ns) / 1e6),
             LOG_STR("replica", m->replica_id), LOG_U64("resumes", end->n_resumes),
             LOG_STR("trace_id", m->trace.trace_id), LOG_STR("span_id", m->trace.span),
             LOG_STR("parent_span_id", m->trace.parent_span), LOG_U64("sampled", m->trace.sampled));
}

void meter_log_refused(const char *caller, const char *request_id,
                       const struct trace_context *trace, const struct error *why)
{
    log_info(LOG_EVENT("request refused"), LOG_STR("request_id", request_id),
             LOG_STR("caller", caller), LOG_STR("code", status_name(why->status)),
             LOG_STR("reason", error_reason_name(why)), LOG_STR("field", why->field),
             LOG_STR("trace_id", trace->trace_id), LOG_STR("span_id", trace->span),
             LOG_STR("parent_span_id", trace->parent_span), LOG_U64("sampled", trace->sampled));
}

/* Under the lock. */
static void count_end(struct version_meter *v, int status, int reason)
{
    v->n_live--;
    if (status == STATUS_CANCELLED && seeded_bug("I8_cancelled_is_ok"))
        status = 0;
    if (status)
        v->n_ended[status_to_grpc(status)]++;
    else if (!seeded_bug("I8_miscounts"))
        v->n_ok[reason]++;
    if (!status && seeded_bug("I8_counts_twice")) { /* only a comparison with the clients' counts
                                                     * finds this bug */
        v->n_accepted++;
        v->n_ok[reason]++;
    }
}

/* Under the lock. */
static void add_end(struct meter_totals *totals, int status, int64_t duration_ns)
{
    *(status ? &totals->n_failed : &totals->n_ok) += 1;
    *(status ? &totals->failed_ns : &totals->ok_ns) += (uint64_t)duration_ns;
    totals->last_end_unix_ns = clock_wall_ns();
}

void meter_end(struct meters *meters, struct request_meter *request, const struct meter_end *end)
{
    struct version_meter *v = request ? request->version : meter_hold_version(meters, "", "");
    int64_t now_ns = clock_now_ns();
    bool known = !end->status && end->finish_reason > 0 && end->finish_reason < N_FINISH_REASONS;
    int reason = known ? end->finish_reason : 0; /* index into finish_names */
    if (v) {
        pthread_mutex_lock(&meters->lock);
        count_end(v, end->status, reason);
        if (request)
            add_end(&v->totals, end->status, now_ns - request->arrived_ns);
        pthread_mutex_unlock(&meters->lock);
        if (request && v->model[0])
            metric_observe(v->series[SERIES_REQUEST], (uint64_t)(now_ns - request->arrived_ns));
    }
    if (request)
        log_end(request, end, reason, now_ns);
    else
        meter_release_version(v);
}

void meter_placed(struct request_meter *request, const char *replica_id)
{
    snprintf(request->replica_id, sizeof(request->replica_id), "%s", replica_id);
}

void meter_started(struct request_meter *request, uint64_t n_prompt_tokens,
                   uint64_t n_cached_tokens)
{
    struct version_meter *v = request->version;
    uint64_t queue_ns = (uint64_t)(clock_now_ns() - request->arrived_ns);
    request->n_prompt_tokens = n_prompt_tokens;
    if (!v)
        return;
    pthread_mutex_lock(&v->meters->lock);
    v->totals.n_started++;
    v->totals.queue_ns += queue_ns;
    pthread_mutex_unlock(&v->meters->lock);
    metric_observe(v->series[SERIES_QUEUE], queue_ns);
    metric_add(v->series[SERIES_PROMPT_TOKENS], n_prompt_tokens);
    metric_add(v->series[SERIES_CACHED_TOKENS], n_cached_tokens);
}

void meter_tokens(struct request_meter *request, uint32_t choice, uint64_t n)
{
    const struct version_meter *v = request->version;
    if (!n || !v)
        return;
    int64_t now_ns = clock_now_ns(), *last_ns = &request->last_token_ns[choice];
    request->n_tokens += n;
    metric_add(v->series[SERIES_GENERATED_TOKENS], n);
    if (!request->first_token_ns) {
        request->first_token_ns = now_ns;
        metric_observe(v->series[SERIES_FIRST_TOKEN], (uint64_t)(now_ns - request->arrived_ns));
    }
    /* A choice's first token, and tokens that arrived with it, have no gap before them. */
    if (*last_ns)
        metric_observe_n(v->series[SERIES_INTER_TOKEN], (uint64_t)(now_ns - *last_ns) / n, n);
    *last_ns = now_ns;
}

/* --- replicas --- */

void meter_load(struct version_meter *meter, struct load_totals *last,
                const struct load_totals *now)
{
    bool grew = last->known && now->n_preemptions >= last->n_preemptions &&
                now->n_prefix_query_tokens >= last->n_prefix_query_tokens &&
                now->n_prefix_hit_tokens >= last->n_prefix_hit_tokens &&
                now->n_snapshot_hits >= last->n_snapshot_hits &&
                now->n_snapshot_evictions >= last->n_snapshot_evictions;
    if (meter && grew) {
        metric_add(meter->series[SERIES_PREEMPTIONS], now->n_preemptions - last->n_preemptions);
        metric_add(meter->series[SERIES_PREFIX_QUERIES],
                   now->n_prefix_query_tokens - last->n_prefix_query_tokens);
        metric_add(meter->series[SERIES_PREFIX_HITS],
                   now->n_prefix_hit_tokens - last->n_prefix_hit_tokens);
        metric_add(meter->series[SERIES_SNAPSHOT_HITS],
                   now->n_snapshot_hits - last->n_snapshot_hits);
        metric_add(meter->series[SERIES_SNAPSHOT_EVICTIONS],
                   now->n_snapshot_evictions - last->n_snapshot_evictions);
    }
    *last = *now;
    last->known = true;
}

void meter_replica_lost(struct version_meter *meter)
{
    if (meter)
        metric_add(meter->series[SERIES_REPLICA_LOSSES], 1);
}
