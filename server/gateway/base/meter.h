/* meter.h: what is measured of requests, per model version, and the line that each of them leaves
 * in the log. Any thread. A version's meter lives while it is routed, linked or has requests; its
 * series leave /metrics with it.
 *
 * Counting a token takes no lock. The books of requests have one, innermost of all: accepted =
 * Σ finished + in flight in every scrape. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/trace.h"

struct error;
struct gateway;
struct metrics;
struct metrics_sink;
struct meters;
struct relay;
struct version_meter;

enum { METER_MAX_CHOICES = 8, METER_REPLICA_BYTES = 64 };

/* A relay's part. Under the relay's lock, save what is fixed when it begins. */
struct request_meter {
    struct version_meter *version; /* retained from begin to the relay's last release */
    struct trace_context trace;    /* fixed */
    char traceparent[TRACE_PARENT_CHARS + 1];
    char replica_id[METER_REPLICA_BYTES]; /* that worked for it last; empty: none did */
    uint64_t n_prompt_tokens, n_tokens;
    int64_t first_token_ns;
    int64_t last_token_ns[METER_MAX_CHOICES];
};

/* Adds its families and its collector to `metrics`, which outlives it. *out_meters is owned. */
int meters_create(struct metrics *metrics, struct meters **out_meters, struct error *err);
void meters_destroy(struct meters *meters); /* all versions released; NULL is accepted */

/* The meter of a version, made where there is none; retained. NULL without memory: counting on NULL
 * does nothing. Both names empty: requests that never found a version. */
struct version_meter *version_meter_hold(struct meters *meters, const char *model,
                                         const char *version);
void version_meter_release(struct version_meter *meter); /* NULL is accepted */

/* -- a request ------------------------------------------------------------------------------------
 */

/* It came; `relay` NULL: refused before it became one. */
void meter_begin(struct meters *meters, struct relay *relay);
/* It ended, with the status that its client saw. */
void meter_end(struct meters *meters, struct relay *relay, int status);
/* A request that was refused before it ran: its line in the log. */
void meter_log_refused(const char *caller, const char *request_id,
                       const struct trace_context *trace, const struct error *why);

/* Under the relay's lock: a worker has it; its prompt is known (it left the queue); n tokens of a
 * choice came, whose text is known. */
void meter_placed(struct request_meter *meter, const char *replica_id);
void meter_started(struct relay *relay, uint64_t n_prompt_tokens, uint64_t n_cached_tokens);
void meter_tokens(struct relay *relay, uint32_t choice, uint64_t n);

/* -- a replica ------------------------------------------------------------------------------------
 */

/* Totals that a worker tells with its load. */
struct load_totals {
    bool known;
    uint64_t n_preemptions, n_prefix_query_tokens, n_prefix_hit_tokens;
};
/* Adds what has come since *last (nothing, where that is not known yet) and keeps `now` there. */
void meter_load(struct version_meter *meter, struct load_totals *last,
                const struct load_totals *now);
void meter_replica_lost(struct version_meter *meter);

/* What the scrape shows of every version under vLLM's name: requests that ended well, by reason. */
typedef void meter_visit_fn(void *ctx, const char *model, const char *version,
                            const uint64_t n_finished[3]);
enum { METER_VLLM_STOP, METER_VLLM_LENGTH, METER_VLLM_ABORT };
void meters_each(struct meters *meters, meter_visit_fn *visit, void *ctx);
