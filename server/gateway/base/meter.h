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
struct metrics;
struct metrics_sink;
struct meters;
struct version_meter;

enum { METER_MAX_CHOICES = 8, METER_REPLICA_BYTES = 64 };

/* A request's part. Under its owner's lock, save what is fixed when it begins. */
struct request_meter {
    struct version_meter *version; /* retained from begin to the request's last release */
    struct trace_context trace;    /* fixed */
    char traceparent[TRACE_PARENT_CHARS + 1];
    char replica_id[METER_REPLICA_BYTES]; /* that worked for it last; empty: none did */
    uint64_t n_prompt_tokens, n_tokens;
    int64_t arrived_ns; /* fixed: clock_now_ns() */
    int64_t first_token_ns;
    int64_t last_token_ns[METER_MAX_CHOICES];
};

/* Adds its families and its collector to `metrics`, which outlives it. *out_meters is owned. */
int meters_create(struct metrics *metrics, struct meters **out_meters, struct error *err);
void meters_destroy(struct meters *meters); /* all versions released; NULL is accepted */

/* The meter of a version, made where there is none; retained. NULL without memory: counting on NULL
 * does nothing. Both names empty: requests that never found a version. */
struct version_meter *meter_hold_version(struct meters *meters, const char *model,
                                         const char *version);
void meter_release_version(struct version_meter *meter); /* NULL is accepted */

/* -- a request ------------------------------------------------------------------------------------
 */

/* The request came. `request` NULL: it was refused before it became one; both names are empty then.
 */
void meter_begin(struct meters *meters, struct request_meter *request, const char *model,
                 const char *version);
/* How a request ended, for the books and for its line in the log. All strings are borrowed. */
struct meter_end {
    int status;        /* that the client saw */
    int finish_reason; /* of the first choice, as on the wire; 0: not known */
    const char *reason;
    const char *request_id, *caller, *model, *version;
    uint32_t n_resumes;
};
/* The request ended. `request` as in meter_begin; NULL: of `end` only the status counts. */
void meter_end(struct meters *meters, struct request_meter *request, const struct meter_end *end);
/* A request that was refused before it ran: its line in the log. */
void meter_log_refused(const char *caller, const char *request_id,
                       const struct trace_context *trace, const struct error *why);

/* Under the owner's lock: a worker has the request; its prompt is known (it left the queue); n
 * tokens of a choice came, with their text. */
void meter_placed(struct request_meter *request, const char *replica_id);
void meter_started(struct request_meter *request, uint64_t n_prompt_tokens,
                   uint64_t n_cached_tokens);
void meter_tokens(struct request_meter *request, uint32_t choice, uint64_t n);

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
