/* metrics_vllm.h: the server's figures a second time under vLLM's names (--metrics-aliases vllm),
 * for dashboards and autoscalers made for vLLM. The labels are model_name, as in vLLM, and
 * version. */
#pragma once

#include <stdint.h>

struct error;
struct meters;
struct metrics;
struct metrics_sink;
struct metrics_vllm;

/* *out_vllm is owned. */
int metrics_vllm_create(struct metrics *metrics, struct meters *meters,
                        struct metrics_vllm **out_vllm, struct error *err);
void metrics_vllm_destroy(struct metrics_vllm *vllm); /* NULL is accepted */

/* Sums over a version's replicas. */
struct metrics_vllm_version {
    const char *model, *version;
    uint64_t n_running, n_waiting;
    uint64_t kv_tokens, kv_tokens_used;
    uint32_t kv_block_tokens; /* 0: not known */
};
void metrics_vllm_sample(struct metrics_vllm *vllm, struct metrics_sink *sink,
                         const struct metrics_vllm_version *sums); /* NULL: does nothing */
