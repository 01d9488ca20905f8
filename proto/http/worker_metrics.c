#include "proto/http/worker_metrics.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/metrics/metrics.h"

enum {
    FAMILY_STATE,
    FAMILY_REQUESTS,
    FAMILY_KV,
    FAMILY_WINDOW_KV,
    FAMILY_QUEUED_PROMPT_TOKENS,
    FAMILY_STEP_SECONDS,
    FAMILY_LAYERS,
    FAMILY_STEPS,
    FAMILY_DECODE_STEPS,
    FAMILY_DECODE_ROWS,
    FAMILY_MIXED_STEPS,
    FAMILY_PATH_ROWS,
    FAMILY_PREFILL_ROWS,
    FAMILY_PROMPT_TOKENS,
    FAMILY_CACHED_TOKENS,
    FAMILY_GENERATED_TOKENS,
    FAMILY_DRAFTED_TOKENS,
    FAMILY_VERIFIED_TOKENS,
    FAMILY_ACCEPTED,
    FAMILY_FINISHED,
    FAMILY_REFUSED,
    FAMILY_PREEMPTIONS,
    FAMILY_ROPE_CROSSINGS,
    FAMILY_PREFIX_QUERIES,
    FAMILY_PREFIX_HITS,
    FAMILY_STATE_SLOTS,
    FAMILY_STATE_SLOTS_USED,
    FAMILY_SNAPSHOTS,
    FAMILY_SNAPSHOT_BYTES,
    FAMILY_SNAPSHOT_HITS,
    FAMILY_SNAPSHOT_EVICTIONS,
    FAMILY_MOVED_STATES,
    FAMILY_MEMORY,
    FAMILY_LOAD_SECONDS,
    FAMILY_QUEUE_TIME,
    FAMILY_PREFILL_TIME,
    FAMILY_DECODE_TIME,
    FAMILY_REQUEST_PROMPT,
    FAMILY_REQUEST_GENERATED,
    N_FAMILIES
};

#define BY_REPLICA .labels = {"model", "version", "replica"}
#define COUNTER    .type = METRIC_COUNTER, BY_REPLICA
#define GAUGE      .type = METRIC_GAUGE, BY_REPLICA
#define HISTOGRAM  .type = METRIC_HISTOGRAM, BY_REPLICA
#define BY(label)  .labels = {"model", "version", "replica", label}

static const struct metric_spec specs[N_FAMILIES] = {
    [FAMILY_STATE] = {.name = "sluice_worker_state",
                      .help = "Always 1; the label has the worker's state.",
                      .type = METRIC_GAUGE,
                      BY("state")},
    [FAMILY_REQUESTS] = {.name = "sluice_worker_requests",
                         .help = "Requests in the engine by state: running, queued, paused.",
                         .type = METRIC_GAUGE,
                         BY("state")},
    [FAMILY_KV] = {.name = "sluice_worker_kv_tokens",
                   .help =
                       "KV cache in tokens by state: used, cached (a prefix that no request uses "
                       "now), free.",
                   .type = METRIC_GAUGE,
                   BY("state")},
    [FAMILY_WINDOW_KV] = {.name = "sluice_worker_window_kv_tokens",
                          .help = "KV cache of layers with a window in tokens, by the same states; "
                                  "absent where these layers have no cache of their own.",
                          .type = METRIC_GAUGE,
                          BY("state")},
    [FAMILY_QUEUED_PROMPT_TOKENS] = {.name = "sluice_worker_queued_prompt_tokens",
                                     .help = "Prompt tokens that wait for prefill.",
                                     GAUGE},
    [FAMILY_STEP_SECONDS] = {.name = "sluice_worker_last_step_seconds",
                             .help = "Duration of the engine's last step.",
                             GAUGE},
    [FAMILY_LAYERS] =
        {.name = "sluice_worker_layers_total",
         .help = "Finished layers. A value that does not grow while requests wait is a stall.",
         COUNTER},
    [FAMILY_STEPS] = {.name = "sluice_worker_steps_total", .help = "Engine steps.", COUNTER},
    [FAMILY_DECODE_STEPS] = {.name = "sluice_worker_decode_steps_total",
                             .help = "Steps that generated tokens.",
                             COUNTER},
    [FAMILY_DECODE_ROWS] =
        {.name = "sluice_worker_decode_rows_total",
         .help = "Sequences in steps that generated tokens; per step: the mean batch.",
         COUNTER},
    [FAMILY_MIXED_STEPS] = {.name = "sluice_worker_mixed_steps_total",
                            .help = "Steps that generated tokens and also computed prompts.",
                            COUNTER},
    [FAMILY_PATH_ROWS] = {.name = "sluice_worker_path_rows_total",
                          .help = "Rows of steps by arithmetic: path d (generated "
                                  "tokens) or path p (prompts).",
                          .type = METRIC_COUNTER,
                          BY("path")},
    [FAMILY_PREFILL_ROWS] =
        {.name = "sluice_worker_prefill_tokens_total",
         .help = "Computed prompt tokens, including those computed again after a preemption.",
         COUNTER},
    [FAMILY_PROMPT_TOKENS] = {.name = "sluice_worker_prompt_tokens_total",
                              .help = "Prompt tokens of requests that the engine accepted.",
                              COUNTER},
    [FAMILY_CACHED_TOKENS] = {.name = "sluice_worker_cached_prompt_tokens_total",
                              .help = "Prompt tokens of ended requests that the prefix cache held.",
                              COUNTER},
    [FAMILY_GENERATED_TOKENS] = {.name = "sluice_worker_generated_tokens_total",
                                 .help = "Generated tokens.",
                                 COUNTER},
    [FAMILY_DRAFTED_TOKENS] = {.name = "sluice_worker_drafted_tokens_total",
                               .help = "Tokens drafted for decoding sequences.",
                               COUNTER},
    [FAMILY_VERIFIED_TOKENS] =
        {.name = "sluice_worker_accepted_draft_tokens_total",
         .help = "Drafted tokens that were right: they were generated in another "
                 "token's step.",
         COUNTER},
    [FAMILY_ACCEPTED] = {.name = "sluice_worker_requests_accepted_total",
                         .help = "Requests that the engine accepted.",
                         COUNTER},
    [FAMILY_FINISHED] = {.name = "sluice_worker_requests_finished_total",
                         .help =
                             "Requests that the engine ended, by outcome: ok, failed, cancelled, "
                             "expired.",
                         .type = METRIC_COUNTER,
                         BY("outcome")},
    [FAMILY_REFUSED] = {.name = "sluice_worker_requests_refused_total",
                        .help = "Requests that never reached the engine.",
                        COUNTER},
    [FAMILY_PREEMPTIONS] = {.name = "sluice_worker_preemptions_total",
                            .help = "Sequences that lost their KV blocks to other sequences and "
                                    "were computed again.",
                            COUNTER},
    [FAMILY_ROPE_CROSSINGS] = {.name = "sluice_worker_rope_crossings_total",
                               .help = "Sequences that outgrew the original context of a longrope "
                                       "and were computed again.",
                               COUNTER},
    [FAMILY_PREFIX_QUERIES] = {.name = "sluice_worker_prefix_query_tokens_total",
                               .help = "Tokens that were looked up in the prefix cache.",
                               COUNTER},
    [FAMILY_PREFIX_HITS] = {.name = "sluice_worker_prefix_hit_tokens_total",
                            .help = "Tokens that were found in the prefix cache.",
                            COUNTER},
    [FAMILY_STATE_SLOTS] = {.name = "sluice_worker_state_slots",
                            .help = "Slots for states of recurrent layers; absent for models "
                                    "without such layers.",
                            GAUGE},
    [FAMILY_STATE_SLOTS_USED] = {.name = "sluice_worker_state_slots_used",
                                 .help = "State slots that sequences hold.",
                                 GAUGE},
    [FAMILY_SNAPSHOTS] = {.name = "sluice_worker_state_snapshots",
                          .help = "State slots with a snapshot, from which a prefix hit can "
                                  "continue.",
                          GAUGE},
    [FAMILY_SNAPSHOT_BYTES] = {.name = "sluice_worker_state_snapshot_bytes",
                               .help = "Memory of the state slots with a snapshot.",
                               GAUGE},
    [FAMILY_SNAPSHOT_HITS] = {.name = "sluice_worker_state_snapshot_hits_total",
                              .help = "Sequences that continued from a snapshot.",
                              COUNTER},
    [FAMILY_SNAPSHOT_EVICTIONS] = {.name = "sluice_worker_state_snapshot_evictions_total",
                                   .help = "Snapshots that gave their slot to another state.",
                                   COUNTER},
    [FAMILY_MOVED_STATES] = {.name = "sluice_worker_state_moves_total",
                             .help = "States that moved to host memory instead of being computed "
                                     "again.",
                             COUNTER},
    [FAMILY_MEMORY] = {.name = "sluice_worker_memory_bytes",
                       .help = "Memory by kind: resident (anonymous and shared), and the parts "
                               "planned for weights, kv, states and workspace.",
                       .type = METRIC_GAUGE,
                       BY("kind")},
    [FAMILY_LOAD_SECONDS] = {.name = "sluice_worker_load_seconds",
                             .help = "Duration of the stages of the start: load, warm.",
                             .type = METRIC_GAUGE,
                             BY("stage")},
    [FAMILY_QUEUE_TIME] = {.name = "sluice_worker_request_queue_seconds",
                           .help = "Time from a request's arrival at the engine to its first step.",
                           HISTOGRAM},
    [FAMILY_PREFILL_TIME] = {.name = "sluice_worker_request_prefill_seconds",
                             .help = "Time from a request's first step to its first token.",
                             HISTOGRAM},
    [FAMILY_DECODE_TIME] = {.name = "sluice_worker_request_decode_seconds",
                            .help = "Time from a request's first token to its last.",
                            HISTOGRAM},
    [FAMILY_REQUEST_PROMPT] = {.name = "sluice_worker_request_prompt_tokens",
                               .help = "Prompt tokens of a request.",
                               HISTOGRAM},
    [FAMILY_REQUEST_GENERATED] = {.name = "sluice_worker_request_generated_tokens",
                                  .help = "Generated tokens of a request, over all choices.",
                                  HISTOGRAM},
};

static const char *const state_names[] = {"unspecified", "loading", "warming", "ready",
                                          "draining",    "stopped", "parked",  "failed"};
enum { N_STATES = sizeof(state_names) / sizeof(state_names[0]) };

struct worker_metrics {
    struct metrics_family *families[N_FAMILIES];
};

int worker_metrics_create(struct metrics *metrics, struct worker_metrics **out_metrics,
                          struct error *err)
{
    struct worker_metrics *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    if (metrics_add(metrics, specs, N_FAMILIES, m->families, err) != 0) {
        free(m);
        return err->status;
    }
    *out_metrics = m;
    return 0;
}

void worker_metrics_destroy(struct worker_metrics *metrics)
{
    free(metrics);
}

struct sampling {
    struct worker_metrics *metrics;
    struct metrics_sink *sink;
    const char *values[4];
};

static void put(const struct sampling *s, int family, uint64_t value)
{
    metrics_sample(s->sink, s->metrics->families[family], s->values, (double)value);
}

static void put_by(struct sampling *s, int family, const char *label, uint64_t value)
{
    s->values[3] = label;
    put(s, family, value);
}

static void sample_load(struct sampling *s, const Sluice__Worker__V1__Load *load)
{
    put_by(s, FAMILY_REQUESTS, "running", load->n_running);
    put_by(s, FAMILY_REQUESTS, "queued", load->n_queued);
    put_by(s, FAMILY_REQUESTS, "paused", load->n_paused);
    put_by(s, FAMILY_KV, "used", load->total_kv_tokens - load->free_kv_tokens);
    put_by(s, FAMILY_KV, "cached", load->cached_kv_tokens);
    put_by(s, FAMILY_KV, "free", load->free_kv_tokens - load->cached_kv_tokens);
    if (load->total_window_tokens) {
        put_by(s, FAMILY_WINDOW_KV, "used", load->total_window_tokens - load->free_window_tokens);
        put_by(s, FAMILY_WINDOW_KV, "cached", load->cached_window_tokens);
        put_by(s, FAMILY_WINDOW_KV, "free", load->free_window_tokens - load->cached_window_tokens);
    }
    put(s, FAMILY_QUEUED_PROMPT_TOKENS, load->queued_prompt_tokens);
    put(s, FAMILY_LAYERS, load->progress);
    if (load->n_state_slots) {
        put(s, FAMILY_STATE_SLOTS, load->n_state_slots);
        put(s, FAMILY_STATE_SLOTS_USED, load->n_states_used);
        put(s, FAMILY_SNAPSHOTS, load->n_snapshots);
        put(s, FAMILY_SNAPSHOT_BYTES, load->n_snapshots * load->state_slot_bytes);
    }
    metrics_sample(s->sink, s->metrics->families[FAMILY_STEP_SECONDS], s->values,
                   (double)load->step_ns / 1e9);
}

static void sample_histogram(struct sampling *s, const Sluice__Worker__V1__Histogram *h)
{
    static const int families[] = {
        [SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_QUEUE_SECONDS] = FAMILY_QUEUE_TIME,
        [SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_PREFILL_SECONDS] = FAMILY_PREFILL_TIME,
        [SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_DECODE_SECONDS] = FAMILY_DECODE_TIME,
        [SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_PROMPT_TOKENS] = FAMILY_REQUEST_PROMPT,
        [SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_GENERATED_TOKENS] =
            FAMILY_REQUEST_GENERATED,
    };
    int kind = (int)h->kind, n_kinds = (int)(sizeof(families) / sizeof(families[0]));
    if (kind > 0 && kind < n_kinds && h->n_counts == h->n_bounds + 1)
        metrics_sample_histogram(s->sink, s->metrics->families[families[kind]], s->values,
                                 h->bounds, (uint32_t)h->n_bounds, h->counts, h->sum);
}

static void sample_counters(struct sampling *s, const Sluice__Worker__V1__WorkerCounters *c)
{
    put(s, FAMILY_STEPS, c->n_steps);
    put(s, FAMILY_DECODE_STEPS, c->n_decode_steps);
    put(s, FAMILY_DECODE_ROWS, c->n_decode_rows);
    put(s, FAMILY_MIXED_STEPS, c->n_mixed_steps);
    put_by(s, FAMILY_PATH_ROWS, "d", c->n_path_d_rows);
    put_by(s, FAMILY_PATH_ROWS, "p", c->n_path_p_rows);
    put(s, FAMILY_PREFILL_ROWS, c->n_prefill_tokens);
    put(s, FAMILY_PROMPT_TOKENS, c->n_prompt_tokens);
    put(s, FAMILY_CACHED_TOKENS, c->n_cached_tokens);
    put(s, FAMILY_GENERATED_TOKENS, c->n_generated_tokens);
    put(s, FAMILY_DRAFTED_TOKENS, c->n_drafted_tokens);
    put(s, FAMILY_VERIFIED_TOKENS, c->n_accepted_tokens);
    put(s, FAMILY_ACCEPTED, c->n_accepted_requests);
    put_by(s, FAMILY_FINISHED, "ok", c->n_ok_requests);
    put_by(s, FAMILY_FINISHED, "failed", c->n_failed_requests);
    put_by(s, FAMILY_FINISHED, "cancelled", c->n_cancelled_requests);
    put_by(s, FAMILY_FINISHED, "expired", c->n_expired_requests);
    put(s, FAMILY_REFUSED, c->n_refused_requests);
    put(s, FAMILY_PREEMPTIONS, c->n_preemptions);
    put(s, FAMILY_ROPE_CROSSINGS, c->n_rope_crossings);
    put(s, FAMILY_PREFIX_QUERIES, c->n_prefix_query_tokens);
    put(s, FAMILY_PREFIX_HITS, c->n_prefix_hit_tokens);
    put(s, FAMILY_SNAPSHOT_HITS, c->n_snapshot_hits);
    put(s, FAMILY_SNAPSHOT_EVICTIONS, c->n_snapshot_evictions);
    put(s, FAMILY_MOVED_STATES, c->n_moved_states);
    for (size_t i = 0; i < c->n_histograms; i++)
        sample_histogram(s, c->histograms[i]);
}

static void sample_memory(struct sampling *s, const Sluice__Worker__V1__WorkerStatus *status)
{
    uint64_t resident = 0, weights = 0, kv = 0, states = 0, workspace = 0;
    for (size_t i = 0; i < status->n_memory; i++) {
        resident += status->memory[i]->after_bytes;
        weights += status->memory[i]->weight_bytes;
        kv += status->memory[i]->kv_bytes;
        states += status->memory[i]->state_bytes;
        workspace += status->memory[i]->workspace_bytes;
    }
    put_by(s, FAMILY_MEMORY, "resident", resident);
    put_by(s, FAMILY_MEMORY, "weights", weights);
    put_by(s, FAMILY_MEMORY, "kv", kv);
    put_by(s, FAMILY_MEMORY, "states", states);
    put_by(s, FAMILY_MEMORY, "workspace", workspace);
}

void worker_metrics_sample(struct worker_metrics *metrics, struct metrics_sink *sink,
                           const Sluice__Worker__V1__WorkerStatus *status)
{
    struct sampling s = {metrics, sink, {status->model, status->version, status->replica_id, ""}};
    int state = (int)status->state >= 0 && (int)status->state < N_STATES ? (int)status->state : 0;
    put_by(&s, FAMILY_STATE, state_names[state], 1);
    sample_memory(&s, status);
    s.values[3] = "load";
    metrics_sample(sink, metrics->families[FAMILY_LOAD_SECONDS], s.values,
                   (double)status->load_ms / 1e3);
    s.values[3] = "warm";
    metrics_sample(sink, metrics->families[FAMILY_LOAD_SECONDS], s.values,
                   (double)status->warm_ms / 1e3);
    if (status->load)
        sample_load(&s, status->load);
    if (status->counters)
        sample_counters(&s, status->counters);
}
