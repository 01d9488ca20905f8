/* executor.h: one loaded model on one device group, ready to run steps. Owns the ranks, their
 * packed weights, KV pools and workspaces. Each rank above the first has a thread; with several CPU
 * stages the first rank has one, too. Engine thread only, except where stated. Knows neither
 * requests nor sampling policy. */
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

/* How many KV tokens fit into the memory that a plan leaves on devices with a limit; `most` without
 * such devices. */
uint64_t executor_kv_room(const struct executor_plan *plan, uint64_t most);

/* How many KV tokens fit into `room` bytes on all devices of a plan, or on one device. At most
 * `most`. Layers with blocks for windows take no more memory beyond most_window_blocks. */
uint64_t executor_kv_tokens(const struct executor_plan *plan, uint64_t room, uint64_t most);
uint64_t executor_device_tokens(const struct executor_plan *plan,
                                const struct executor_device *device, uint64_t room, uint64_t most);

/* Checks tp, pp and the kind of device alone, without opening either. INVALID_ARGUMENT names the
 * field; UNIMPLEMENTED: ranks that no load of this build can have. */
int executor_check_ranks(const struct executor_config *cfg, struct error *err);

/* Computes the plan of a load. UNIMPLEMENTED names an unknown architecture or tensor type.
 * INVALID_ARGUMENT (reason MODEL_FILE_INVALID) names a missing tensor, or a shape that contradicts
 * the metadata; with a field, a bad setting. */
int executor_plan(struct checkpoint *ckpt, const struct executor_config *cfg,
                  struct executor_plan *out_plan, struct error *err);

/* Loads and packs the weights. `ckpt` is borrowed for the call only. `cancel` (may be NULL) is
 * polled: true ends the load with CANCELLED, and everything is freed. *out_executor is owned. */
int executor_open(struct checkpoint *ckpt, const struct executor_config *cfg,
                  executor_progress_fn *progress, void *ctx, const atomic_bool *cancel,
                  struct executor **out_executor, struct error *err);
/* For tests of descriptors: uses `arch` (borrowed until close) instead of the architecture that the
 * file names. NULL: same as executor_open(). */
int executor_open_arch(struct checkpoint *ckpt, const struct arch *arch,
                       const struct executor_config *cfg, executor_progress_fn *progress, void *ctx,
                       const atomic_bool *cancel, struct executor **out_executor,
                       struct error *err);
void executor_close(struct executor *ex);

const struct model_info *executor_model_info(const struct executor *ex);
/* Same form as a plan, with the memory that was really allocated. */
const struct executor_plan *executor_actual(const struct executor *ex);
/* The GPU's memory now; false without a GPU. Any thread. */
bool executor_gpu_memory(const struct executor *ex, uint64_t *out_total_bytes,
                         uint64_t *out_free_bytes);
/* Part of devices[].graph_bytes that captured steps hold now. Engine thread. */
uint64_t executor_graphs_taken(const struct executor *ex);
void executor_get_packed(const struct executor *ex, struct executor_packed *out_packed);

/* Copies the GPU's weights into sealed host memory (a park copy). CPU ranks' weights lie in such
 * memory already. out_kept->fds are owned by the caller. Any thread, one call at a time, also while
 * steps run. RESOURCE_EXHAUSTED (reason HOST_MEMORY), with bytes needed and free, before memory is
 * taken. FAILED_PRECONDITION without a GPU; CANCELLED. */
int executor_keep(const struct executor *ex, const struct executor_keep *terms,
                  struct executor_packed *out_kept, struct error *err);
/* True if executor_step() returns while the step still runs. The caller may use the time until
 * executor_sample(). */
bool executor_is_async(const struct executor *ex);
/* "cpu/avx512/…/bf16/<build>": equal ids promise equal bits. Borrowed. */
const char *executor_numerics_id(const struct executor *ex);
/* True if a step with rows of both roles multiplies all rows by path P. */
bool executor_mixes_roles(const struct executor *ex);

/* Pins the calling thread, which will run the steps, to the CPUs of the config's first thread. */
int executor_enter(const struct executor *ex, struct error *err);

/* Runs one step: embeds the rows and writes K and V. Keeps the rows from which the logits of
 * batch->sample_rows are computed, until the next step. On the CPU at most 64 rows of logits are
 * kept at a time. Sampling other rows, or reading their logits, replaces them. Without sample rows
 * the step is finished on return, else after executor_sample().
 *
 * Finished layers count in executor_progress_counter() for stall detection (any thread). No
 * allocation. An error means that the device failed: the executor must be closed. */
int executor_step(struct executor *ex, const struct step_batch *batch, struct error *err);

/* The same in two calls, so that several CPU stages work on several steps at once. Steps pass each
 * stage in the order in which they were submitted. So a step finds the K, V and states that the
 * steps before it wrote. Copies and moves of blocks and states need that no step is in flight. */
/* Most steps in flight: the number of CPU stages; else 1. */
uint32_t executor_max_flights(const struct executor *ex);
/* Begins a step. `batch` is borrowed until the step is collected. With a single step in flight the
 * call does the work of executor_step(). An error means that nothing was begun. */
int executor_submit(struct executor *ex, const struct step_batch *batch, struct error *err);
/* Waits for the step that was submitted first. Its rows can be sampled until executor_release(). An
 * error is one of this step; the steps behind it must be collected, too. */
int executor_collect(struct executor *ex, struct error *err);
/* The collected step is sampled: the last stage goes on to the next step. The next collect does the
 * same. */
void executor_release(struct executor *ex);
/* On an asynchronous device, while a step runs: queues the inputs of the next step. Its token ids
 * may have any value. If the next step's batch says is_ahead, executor_step() brings only the ids.
 * Otherwise this call has no effect. Does nothing on other devices. */
int executor_step_ahead(struct executor *ex, const struct step_batch *batch, struct error *err);
/* Logits of a sample row of the last step, in host memory; NULL if they cannot be read. Valid until
 * the next call if they lie on a device, or if more rows exist than are kept. For tests and
 * tools. */
const float *executor_logits(struct executor *ex, uint32_t i_sample_row);
uint64_t executor_progress_counter(const struct executor *ex);

/* Samples n rows of the last step's logits (sample.h), from sample row `first` on. Runs on the
 * device's threads. */
int executor_sample(struct executor *ex, uint32_t first, uint32_t n,
                    const struct sample_params *params, struct sample_result *results,
                    struct error *err);

/* Same as executor_sample(), but does not wait: results are valid after executor_wait(). `params`
 * may be reused at once. The call may wait if `results` is not memory of
 * executor_alloc_results(). */
int executor_queue_sample(struct executor *ex, uint32_t first, uint32_t n,
                          const struct sample_params *params, struct sample_result *results,
                          struct error *err);
/* Waits until all queued samples are done. Work queued behind them may still run. */
int executor_wait(struct executor *ex, struct error *err);
/* Allocates zeroed results that a device can write to directly. *out_results is owned and must be
 * freed before the executor is closed. */
int executor_alloc_results(struct executor *ex, uint32_t n, struct sample_result **out_results,
                           struct error *err);
void executor_free_results(struct executor *ex, struct sample_result *results, uint32_t n);

/* Copies KV block `from` to `to` in every layer and rank (copy on write of a shared, partly filled
 * block). Layers with blocks for windows copy such blocks by a call of their own. */
int executor_copy_block(struct executor *ex, uint32_t from, uint32_t to, struct error *err);
int executor_copy_window(struct executor *ex, uint32_t from, uint32_t to, struct error *err);

/* States of recurrent layers, in slots; nothing happens without such layers. A saved state has
 * executor_state_bytes(), all ranks together. Each call returns once the copy is done. */
uint64_t executor_state_bytes(const struct executor *ex);
int executor_copy_state(struct executor *ex, uint32_t from, uint32_t to, struct error *err);
int executor_save_state(struct executor *ex, uint32_t slot, void *host, struct error *err);
int executor_load_state(struct executor *ex, uint32_t slot, const void *host, struct error *err);
