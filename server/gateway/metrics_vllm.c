#include "server/gateway/metrics_vllm.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/metrics/metrics.h"
#include "server/gateway/base/meter.h"

enum {
    FAMILY_RUNNING,
    FAMILY_WAITING,
    FAMILY_KV,
    FAMILY_KV_OLD,
    FAMILY_KV_BLOCKS,
    FAMILY_SUCCESS,
    /* Aliases of other families. */
    FAMILY_FIRST_TOKEN,
    FAMILY_INTER_TOKEN,
    FAMILY_INTER_TOKEN_OLD,
    FAMILY_E2E,
    FAMILY_QUEUE,
    FAMILY_PROMPT_TOKENS,
    FAMILY_GENERATION_TOKENS,
    FAMILY_PREEMPTIONS,
    FAMILY_PREFIX_QUERIES,
    FAMILY_PREFIX_HITS,
    N_FAMILIES
};

#define BY_MODEL .labels = {"model_name", "version"}

static const struct metric_spec specs[N_FAMILIES] = {
    [FAMILY_RUNNING] = {.name = "vllm:num_requests_running",
                        .help = "Sum of sluice_replica_requests{state=\"running\"}.",
                        .type = METRIC_GAUGE,
                        BY_MODEL},
    [FAMILY_WAITING] = {.name = "vllm:num_requests_waiting",
                        .help = "Sum of sluice_replica_requests{state=\"queued\"} and "
                                "sluice_requests_waiting_for_replica.",
                        .type = METRIC_GAUGE,
                        BY_MODEL},
    [FAMILY_KV] = {.name = "vllm:kv_cache_usage_perc",
                   .help = "Share of the KV cache in use, 0 to 1.",
                   .type = METRIC_GAUGE,
                   BY_MODEL},
    [FAMILY_KV_OLD] = {.name = "vllm:gpu_cache_usage_perc",
                       .help = "Older name of vllm:kv_cache_usage_perc.",
                       .type = METRIC_GAUGE,
                       BY_MODEL,
                       .alias_of = "vllm:kv_cache_usage_perc"},
    [FAMILY_KV_BLOCKS] = {.name = "vllm:cache_config_info",
                          .help = "1, with the tokens of a KV block and the blocks of all replicas "
                                  "as labels.",
                          .type = METRIC_GAUGE,
                          .labels = {"model_name", "version", "block_size", "num_gpu_blocks"}},
    [FAMILY_SUCCESS] = {.name = "vllm:request_success_total",
                        .help = "Ended requests: stop, length, and abort for cancelled requests.",
                        .type = METRIC_COUNTER,
                        .labels = {"model_name", "version", "finished_reason"}},
    [FAMILY_FIRST_TOKEN] = {.name = "vllm:time_to_first_token_seconds",
                            .help = "As sluice_time_to_first_token_seconds.",
                            .type = METRIC_HISTOGRAM,
                            BY_MODEL,
                            .alias_of = "sluice_time_to_first_token_seconds"},
    [FAMILY_INTER_TOKEN] = {.name = "vllm:inter_token_latency_seconds",
                            .help = "As sluice_inter_token_seconds.",
                            .type = METRIC_HISTOGRAM,
                            BY_MODEL,
                            .alias_of = "sluice_inter_token_seconds"},
    [FAMILY_INTER_TOKEN_OLD] = {.name = "vllm:time_per_output_token_seconds",
                                .help = "Older name of vllm:inter_token_latency_seconds.",
                                .type = METRIC_HISTOGRAM,
                                BY_MODEL,
                                .alias_of = "sluice_inter_token_seconds"},
    [FAMILY_E2E] = {.name = "vllm:e2e_request_latency_seconds",
                    .help = "As sluice_request_seconds.",
                    .type = METRIC_HISTOGRAM,
                    BY_MODEL,
                    .alias_of = "sluice_request_seconds"},
    [FAMILY_QUEUE] = {.name = "vllm:request_queue_time_seconds",
                      .help = "As sluice_request_queue_seconds.",
                      .type = METRIC_HISTOGRAM,
                      BY_MODEL,
                      .alias_of = "sluice_request_queue_seconds"},
    [FAMILY_PROMPT_TOKENS] = {.name = "vllm:prompt_tokens_total",
                              .help = "As sluice_prompt_tokens_total.",
                              .type = METRIC_COUNTER,
                              BY_MODEL,
                              .alias_of = "sluice_prompt_tokens_total"},
    [FAMILY_GENERATION_TOKENS] = {.name = "vllm:generation_tokens_total",
                                  .help = "As sluice_generated_tokens_total.",
                                  .type = METRIC_COUNTER,
                                  BY_MODEL,
                                  .alias_of = "sluice_generated_tokens_total"},
    [FAMILY_PREEMPTIONS] = {.name = "vllm:num_preemptions_total",
                            .help = "As sluice_preemptions_total.",
                            .type = METRIC_COUNTER,
                            BY_MODEL,
                            .alias_of = "sluice_preemptions_total"},
    [FAMILY_PREFIX_QUERIES] = {.name = "vllm:prefix_cache_queries_total",
                               .help = "As sluice_prefix_query_tokens_total.",
                               .type = METRIC_COUNTER,
                               BY_MODEL,
                               .alias_of = "sluice_prefix_query_tokens_total"},
    [FAMILY_PREFIX_HITS] = {.name = "vllm:prefix_cache_hits_total",
                            .help = "As sluice_prefix_hit_tokens_total.",
                            .type = METRIC_COUNTER,
                            BY_MODEL,
                            .alias_of = "sluice_prefix_hit_tokens_total"},
};

struct metrics_vllm {
    struct meters *meters;
    struct metrics_family *families[N_FAMILIES];
};

struct visit {
    struct metrics_vllm *vllm;
    struct metrics_sink *sink;
};

static void sample_success(void *ctx, const char *model, const char *version,
                           const uint64_t n_finished[3])
{
    static const char *const reasons[3] = {
        [METER_VLLM_STOP] = "stop", [METER_VLLM_LENGTH] = "length", [METER_VLLM_ABORT] = "abort"};
    struct visit *visit = ctx;
    for (int i = 0; i < 3 && *model; i++) {
        const char *const values[] = {model, version, reasons[i]};
        metrics_sample(visit->sink, visit->vllm->families[FAMILY_SUCCESS], values,
                       (double)n_finished[i]);
    }
}

static void collect(void *arg, struct metrics_sink *sink)
{
    struct visit visit = {arg, sink};
    meters_each(visit.vllm->meters, sample_success, &visit);
}

int metrics_vllm_create(struct metrics *metrics, struct meters *meters,
                        struct metrics_vllm **out_vllm, struct error *err)
{
    struct metrics_vllm *vllm = calloc(1, sizeof(*vllm));
    if (!vllm)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    vllm->meters = meters;
    if (metrics_add(metrics, specs, N_FAMILIES, vllm->families, err) != 0 ||
        metrics_add_collector(metrics, collect, vllm, err) != 0) {
        free(vllm);
        return err->status;
    }
    *out_vllm = vllm;
    return 0;
}

void metrics_vllm_destroy(struct metrics_vllm *vllm)
{
    free(vllm);
}

/* Schedulers in front of several servers compute from these labels how many prefixes fit. */
static void sample_blocks(struct metrics_vllm *vllm, struct metrics_sink *sink,
                          const struct metrics_vllm_version *sums)
{
    char block_size[16], n_blocks[32];
    const char *const values[] = {sums->model, sums->version, block_size, n_blocks};
    if (!sums->kv_block_tokens)
        return;
    snprintf(block_size, sizeof(block_size), "%u", (unsigned)sums->kv_block_tokens);
    snprintf(n_blocks, sizeof(n_blocks), "%llu",
             (unsigned long long)(sums->kv_tokens / sums->kv_block_tokens));
    metrics_sample(sink, vllm->families[FAMILY_KV_BLOCKS], values, 1);
}

void metrics_vllm_sample(struct metrics_vllm *vllm, struct metrics_sink *sink,
                         const struct metrics_vllm_version *sums)
{
    if (!vllm)
        return;
    const char *const values[] = {sums->model, sums->version};
    double used = sums->kv_tokens ? (double)sums->kv_tokens_used / (double)sums->kv_tokens : 0;
    metrics_sample(sink, vllm->families[FAMILY_RUNNING], values, (double)sums->n_running);
    metrics_sample(sink, vllm->families[FAMILY_WAITING], values, (double)sums->n_waiting);
    metrics_sample(sink, vllm->families[FAMILY_KV], values, used);
    sample_blocks(vllm, sink, sums);
}
