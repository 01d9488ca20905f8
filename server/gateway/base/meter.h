/* meter.h: measurements of requests by model version, and the log line of each request. Any thread.
 * A version's meter lives while the version is routed, linked or has requests. Its series leave
 * /metrics with the meter.
 *
 * Counting a token takes no lock. The request counts have a lock, innermost of all: accepted = Σ
 * finished + in flight in every scrape. */
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

/* Measurements of a request. Under the owner's lock, except for constant fields. */
struct request_meter {
    struct version_meter *version; /* retained from begin to the request's last release */
    struct trace_context trace;    /* constant */
    char traceparent[TRACE_PARENT_CHARS + 1];
    char replica_id[METER_REPLICA_BYTES]; /* the last replica that worked on the request; empty:
                                           * none yet */
    uint64_t n_prompt_tokens, n_tokens;
    int64_t arrived_ns; /* constant: clock_now_ns() at the arrival */
    int64_t first_token_ns;
    int64_t last_token_ns[METER_MAX_CHOICES];
};

/* Adds its families and its collector to `metrics`, which outlives it. *out_meters is owned. */
int meters_create(struct metrics *metrics, struct meters **out_meters, struct error *err);
void meters_destroy(struct meters *meters); /* all versions must be released; NULL is accepted */

/* Returns the meter of a version, created if there is none; retained. NULL if memory is
 * exhausted: counting on NULL does nothing. Two empty names: requests for which no version was
 * found. */
struct version_meter *meter_hold_version(struct meters *meters, const char *model,
                                         const char *version);
void meter_release_version(struct version_meter *meter); /* NULL is accepted */

/* --- a request --- */

/* Counts the arrival of a request. `request` NULL: the request was refused before it became a
 * relay; both names are empty then. */
void meter_begin(struct meters *meters, struct request_meter *request, const char *model,
                 const char *version);
/* The end of a request, for the counts and for the log line. All strings are borrowed. */
struct meter_end {
    int status;        /* status that the client saw */
    int finish_reason; /* finish reason of the first choice, as on the wire; 0: unknown */
    const char *reason;
    const char *request_id, *caller, *model, *version;
    uint32_t n_resumes;
};
/* Counts and logs the end of a request. `request` as in meter_begin; if NULL, only end->status
 * counts. */
void meter_end(struct meters *meters, struct request_meter *request, const struct meter_end *end);
/* Logs a request that was refused before it ran. */
void meter_log_refused(const char *caller, const char *request_id,
                       const struct trace_context *trace, const struct error *why);

/* Three events of a request, under the owner's lock. Placed: a worker has the request. Started:
 * the request left the queue and its prompt is known. Tokens: n tokens of a choice arrived with
 * their text. */
void meter_placed(struct request_meter *request, const char *replica_id);
void meter_started(struct request_meter *request, uint64_t n_prompt_tokens,
                   uint64_t n_cached_tokens);
void meter_tokens(struct request_meter *request, uint32_t choice, uint64_t n);

/* Totals of a version since its meter was made. */
struct meter_totals {
    uint64_t n_ok, n_failed, n_started;  /* failed: ended with any other status */
    uint64_t ok_ns, failed_ns, queue_ns; /* from arrival to end; from arrival to start */
    int64_t last_end_unix_ns;            /* 0: none has ended */
};
/* False if no meter of that version lives. */
bool meters_get(struct meters *meters, const char *model, const char *version,
                struct meter_totals *out_totals);

/* --- a replica --- */

/* Totals that a worker reports with its load. */
struct load_totals {
    bool known;
    uint64_t n_preemptions, n_prefix_query_tokens, n_prefix_hit_tokens;
    uint64_t n_snapshot_hits, n_snapshot_evictions;
};
/* Adds the growth since *last (nothing if *last is unknown) and stores `now` there. */
void meter_load(struct version_meter *meter, struct load_totals *last,
                const struct load_totals *now);
void meter_replica_lost(struct version_meter *meter);

/* Visits every version with its finished requests by vLLM's reasons. */
typedef void meter_visit_fn(void *ctx, const char *model, const char *version,
                            const uint64_t n_finished[3]);
enum { METER_VLLM_STOP, METER_VLLM_LENGTH, METER_VLLM_ABORT };
void meters_each(struct meters *meters, meter_visit_fn *visit, void *ctx);
