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
#include "kernels/weight.h"

struct checkpoint;
struct cpus;
struct error;
struct executor;
struct step_batch;
struct step_limits;

#define EXECUTOR_GPU_LAYERS_AUTO UINT32_MAX

struct executor_config {
    const char *device; /* NULL or "cpu…": the CPU; "cuda:N": that GPU, where tp is 1 */
    /* Layers on the GPU, the last ones and the head; those before them run on the CPU in the same
     * process. 0 or EXECUTOR_GPU_LAYERS_AUTO: as many as fit beside the KV cache that is wanted. */
    uint32_t gpu_layers;
    uint64_t gpu_memory_bytes; /* what of the GPU's memory may be taken; 0: 9/10 of what is free */
    /* Of the GPU's memory what is others' by promise, and of that what they have taken already and
     * is not free any more. Nothing of the rest is counted as free. */
    uint64_t gpu_promised_bytes, gpu_held_bytes;
    enum weight_store store; /* of dense linears on a GPU */
    /* On a GPU: a step with prompts in it multiplies all its rows by path P, so that a generated
     * token's bits may depend on what else runs. */
    bool mix_roles;
    const char
        *kernels; /* of the CPU: "auto", "f32", "ref", "avx2", "avx512", "avx512_bf16", "amx" */
    uint32_t n_threads;          /* over all ranks; 0 = one per CPU */
    uint32_t tp;                 /* 1, 2, 4 or 8 */
    enum dtype kv_dtype;         /* one of the kernels' kv_dtypes */
    uint32_t kv_block_size;      /* tokens per block, power of two ≤ 128 */
    uint64_t kv_tokens;          /* pool capacity in tokens, rounded up to blocks */
    uint32_t max_context_tokens; /* per sequence; 0 = the model's */
    uint32_t max_rows, max_seqs; /* per step */
    uint32_t n_score_rows;       /* as in step_limits */
    /* Where compute threads may run, [n_threads], those of a rank in a row; NULL: wherever the
     * process may. Borrowed for the call. */
    const struct cpus *thread_cpus;
    const uint16_t *rank_nodes; /* [tp] whose memory holds a rank's weights; NULL: not said */
    /* Memory to share packed weights in, one per CPU rank, borrowed; or NULL. After them, where the
     * weights of a GPU were kept (executor_keep), their image. */
    const int *packed_fds;
    uint32_t n_packed_fds;
    struct executor *beside; /* open and closed later: its device and the threads of its first
                                rank serve this one too, in turns (tp 1, equal kernels); or NULL */
    /* Of memory that will be taken besides; what is free must do. And of those for captured steps.
     */
    uint64_t other_bytes, other_graph_bytes;
    uint32_t n_sampled; /* tokens that may be drawn: the first so many; 0: all */
};

/* A device's part of a plan. */
struct executor_device {
    char name[16]; /* "cpu", "cuda:0" */
    uint32_t layer_begin, n_layers;
    bool is_gpu;
    uint64_t weights_bytes, kv_bytes, workspace_bytes;
    uint64_t graph_bytes; /* of the workspace: for captured steps, which the driver takes in time */
    /* A GPU's; 0 of the CPU's, which is not asked. */
    uint64_t free_bytes;     /* as it told, less what is promised */
    uint64_t promised_bytes; /* of what it told: others' that they have not taken */
    uint64_t budget_bytes;   /* what sizes are chosen for, for all three */
    uint64_t limit_bytes; /* what they may not pass: gpu_memory_bytes, else what is free, which may
                             have changed a little since they were chosen */
};

enum { EXECUTOR_MAX_DEVICES = 2 };

/* Bytes and shapes a load would take; nothing is allocated. */
struct executor_plan {
    uint32_t n_devices;
    struct executor_device devices[EXECUTOR_MAX_DEVICES];
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

/* How many tokens fit into what a plan leaves of limited devices; `most` where none is. */
uint64_t executor_kv_room(const struct executor_plan *plan, uint64_t most);

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
/* The GPU's memory as it is now; false where none is used. Any thread. */
bool executor_gpu_memory(const struct executor *ex, uint64_t *out_total_bytes,
                         uint64_t *out_free_bytes);
/* Of devices[].graph_bytes what captured steps take now, by count. Engine thread. */
uint64_t executor_graphs_taken(const struct executor *ex);
void executor_get_packed(const struct executor *ex, struct executor_packed *out_packed);

/* On what terms host memory may be taken for weights that a GPU has. */
struct executor_keep {
    uint32_t n_threads;        /* that copy; 0: as many as there are CPUs */
    uint64_t promised_bytes;   /* of what is free, to others */
    uint64_t limit_bytes;      /* of a budget; 0: none */
    const atomic_bool *cancel; /* may be NULL */
};
/* Copies the weights of the GPU into sealed host memory, for whoever serves them later; those of
 * CPU ranks lie in such memory already. out_kept->fds are owned by the caller. Any thread, one at a
 * time, also while steps run. RESOURCE_EXHAUSTED (reason HOST_MEMORY) with the bytes needed and
 * free before any is taken; FAILED_PRECONDITION where there is no GPU; CANCELLED. */
int executor_keep(const struct executor *ex, const struct executor_keep *terms,
                  struct executor_packed *out_kept, struct error *err);
/* True where a step goes on while executor_step() has returned already, until executor_sample():
 * the caller may use the time. */
bool executor_is_async(const struct executor *ex);
/* "cpu/avx512/…/bf16/<build>": equal ids promise equal bits. Borrowed. */
const char *executor_numerics_id(const struct executor *ex);
/* Whether a step of rows of both roles makes the products of all of them by path P. */
bool executor_mixes_roles(const struct executor *ex);

/* The calling thread is to make the steps: confines it as the config says of the first thread. */
int executor_enter(const struct executor *ex, struct error *err);

/* Runs one step: embeds the rows, writes K and V, and leaves what logits of batch->sample_rows are
 * made of, valid until the next step. On the CPU those of 64 rows are kept at a time; who samples,
 * or asks for one of others, has the next ones made in their place. A step that samples nothing has
 * run when this returns, one that does when executor_sample() has. Layers finished are counted in
 * executor_progress_counter() for stall detection (any thread). No allocation. An error is a device
 * failure: the executor must be closed. */
int executor_step(struct executor *ex, const struct step_batch *batch, struct error *err);
/* While a step runs by itself: queues what the next one reads, all but its token ids (which may be
 * anything). The next executor_step() brings the ids alone if its batch says is_ahead: that it is
 * this one but for them. Any other step is as if this had not been called. Does nothing where steps
 * do not run by themselves. */
int executor_step_ahead(struct executor *ex, const struct step_batch *batch, struct error *err);
/* Of the last step; in host memory, until the next call where the device's is not, or more rows
 * were wanted than are kept. For tests and tools. NULL where it cannot be had. */
const float *executor_logits(struct executor *ex, uint32_t i_sample_row);
uint64_t executor_progress_counter(const struct executor *ex);

/* Samples n rows of the last step's logits by sample.h, on the device's threads: those from the
 * sample row `first` on. */
int executor_sample(struct executor *ex, uint32_t first, uint32_t n,
                    const struct sample_params *params, struct sample_result *results,
                    struct error *err);

/* The same without waiting: the results are there after executor_wait(), the parameters are free at
 * once. `results` is memory of executor_alloc_results(), or the call may wait all the same. */
int executor_queue_sample(struct executor *ex, uint32_t first, uint32_t n,
                          const struct sample_params *params, struct sample_result *results,
                          struct error *err);
/* Until what was sampled is there; what was queued behind it may still run. */
int executor_wait(struct executor *ex, struct error *err);
/* Memory for results, zeroed, that a device writes to by itself. *out_results is owned, until the
 * executor is closed at the latest. */
int executor_alloc_results(struct executor *ex, uint32_t n, struct sample_result **out_results,
                           struct error *err);
void executor_free_results(struct executor *ex, struct sample_result *results, uint32_t n);

/* Copies KV block `from` to `to` in every layer and rank (copy on write of a shared partial block).
 */
int executor_copy_block(struct executor *ex, uint32_t from, uint32_t to, struct error *err);
