/* executor.h: one loaded model on one device group, ready to run steps. Owns the ranks (one thread
 * each above the first), their packed weights, KV pools and workspaces. Engine thread only, except
 * where said. Knows nothing of requests or sampling policy. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine_config.h"
#include "engine/engine_stats.h"
#include "kernels/sample.h"

struct arch;
struct checkpoint;
struct error;
struct executor;
struct step_batch;
struct step_limits;

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
/* For tests of descriptors: with `arch` (borrowed until close) in place of the architecture that
 * the file names. NULL: as executor_open(). */
int executor_open_arch(struct checkpoint *ckpt, const struct arch *arch,
                       const struct executor_config *cfg, executor_progress_fn *progress, void *ctx,
                       const atomic_bool *cancel, struct executor **out_executor,
                       struct error *err);
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
