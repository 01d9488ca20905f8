/* executor.h: one loaded model on one device group, ready to run steps. Owns the ranks (one thread
 * each above the first), their packed weights, KV pools and workspaces. Engine thread only, except
 * where said. Knows nothing of requests or sampling policy. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/sample.h"

struct checkpoint;
struct cpus;
struct error;
struct executor;
struct step_batch;
struct step_limits;

struct executor_config {
    const char *kernels;         /* "auto", "f32", "ref", "avx2", "avx512", "avx512_bf16", "amx" */
    uint32_t n_threads;          /* over all ranks; 0 = one per CPU */
    uint32_t tp;                 /* 1, 2, 4 or 8 */
    enum dtype kv_dtype;         /* F32, F16, BF16 or I8 */
    uint32_t kv_block_size;      /* tokens per block, power of two ≤ 128 */
    uint64_t kv_tokens;          /* pool capacity in tokens, rounded up to blocks */
    uint32_t max_context_tokens; /* per sequence; 0 = the model's */
    uint32_t max_rows, max_seqs; /* per step */
    uint32_t n_score_rows;       /* as in step_limits */
    /* Where compute threads may run, [n_threads], those of a rank in a row; NULL: wherever the
     * process may. Borrowed for the call. */
    const struct cpus *thread_cpus;
    const uint16_t *rank_nodes; /* [tp] whose memory holds a rank's weights; NULL: not said */
    const int *packed_fds;      /* [tp] memory to share packed weights in, borrowed; or NULL */
    struct executor *beside;    /* open and closed later: its device and the threads of its first
                                   rank serve this one too, in turns (tp 1, equal kernels); or NULL */
    uint64_t other_bytes;       /* of memory that will be taken besides; what is free must do */
    uint32_t n_sampled;         /* tokens that may be drawn: the first so many; 0: all */
};

/* Bytes and shapes a load would take; nothing is allocated. */
struct executor_plan {
    uint64_t weights_bytes, kv_bytes, workspace_bytes; /* all ranks together */
    uint64_t kv_tokens;
    uint32_t n_blocks, context_tokens;
    uint64_t huge_page_bytes; /* of the weights; known after a load only */
    uint64_t shared_bytes;    /* of the weights: in memory already, packed by another process */
    uint64_t draft_bytes;     /* of the weights: a draft model's (engine.h), shared with none */
};

/* Where the packed weights lie. */
struct executor_packed {
    uint32_t n_ranks;
    int fds[8]; /* by rank; borrowed from the executor, sealed */
    uint64_t n_bytes[8];
    bool mapped;     /* another process packed them */
    const char *why; /* why memory that was given is not used, or empty */
};

/* Facts of the loaded model that callers need. Strings are borrowed from the executor. */
struct model_info {
    const char *architecture; /* "llama" */
    const char *name;         /* general.name or empty */
    const char *quantization; /* dtype that holds most bytes, "Q4_1" */
    uint32_t vocab_size, n_layers, hidden_dim, n_heads, n_kv_heads, head_dim, ffn_dim;
    uint32_t context_tokens; /* the model's own limit */
    uint64_t n_params, file_bytes;
};

/* Called during open from loader threads, serialised: bytes of weights packed so far by `rank` and
 * in all. */
typedef void executor_progress_fn(void *ctx, uint32_t rank, uint64_t bytes_done,
                                  uint64_t bytes_total);

/* What the config would take for this checkpoint. UNIMPLEMENTED names an unknown architecture or
 * tensor type; INVALID_ARGUMENT (reason MODEL_FILE_INVALID) a missing tensor or a shape that
 * contradicts the metadata, or (with a field) a bad config. */
int executor_plan(struct checkpoint *ckpt, const struct executor_config *cfg,
                  struct executor_plan *out_plan, struct error *err);

/* Loads and packs. `ckpt` is borrowed for the call only. `cancel` (may be NULL) is polled: true
 * ends the load with CANCELLED and everything given back. *out_executor is owned. */
int executor_open(struct checkpoint *ckpt, const struct executor_config *cfg,
                  executor_progress_fn *progress, void *ctx, const atomic_bool *cancel,
                  struct executor **out_executor, struct error *err);
void executor_close(struct executor *ex);

const struct model_info *executor_model_info(const struct executor *ex);
const struct executor_plan *
executor_actual(const struct executor *ex); /* as a plan, but what was really taken */
void executor_get_packed(const struct executor *ex, struct executor_packed *out_packed);
/* "cpu/avx512/…/bf16/<build>": equal ids promise equal bits. Borrowed. */
const char *executor_numerics_id(const struct executor *ex);

/* The calling thread is to make the steps: confines it as the config says of the first thread. */
int executor_enter(const struct executor *ex, struct error *err);

/* Runs one step: embeds the rows, writes K and V, and leaves logits of batch->sample_rows as f32
 * [n_sample_rows, vocab_size], valid until the next step. Layers finished are counted in
 * executor_progress_counter() for stall detection (any thread). No allocation. An error is a device
 * failure: the executor must be closed. */
int executor_step(struct executor *ex, const struct step_batch *batch, struct error *err);
const float *executor_logits(const struct executor *ex, uint32_t i_sample_row);
uint64_t executor_progress_counter(const struct executor *ex);

/* Samples n rows of the last step's logits by sample.h, on the device's threads: those from the
 * sample row `first` on. */
int executor_sample(struct executor *ex, uint32_t first, uint32_t n,
                    const struct sample_params *params, struct sample_result *results,
                    struct error *err);

/* Copies KV block `from` to `to` in every layer and rank (copy on write of a shared partial block).
 */
int executor_copy_block(struct executor *ex, uint32_t from, uint32_t to, struct error *err);
