/* engine_stats.h: figures of an engine: facts about its model, its memory, its counters, and timed
 * steps for benchmarks. Plain data; strings are borrowed until engine_close(). */
#pragma once

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine_cost.h"

struct checkpoint;
struct engine;
struct error;
struct executor_config;

/* Facts of a model. Strings are borrowed from the engine, or from the checkpoint. */
struct model_info {
    const char *architecture; /* "llama" */
    const char *name;         /* general.name, or empty */
    const char *quantization; /* type of most bytes of weights, such as "Q4_1" */
    uint32_t vocab_size, n_layers, hidden_dim, n_heads, n_kv_heads, head_dim, ffn_dim;
    uint64_t kv_elements; /* keys and values of a token, in the caches of all layers */
    /* The part of kv_elements in layers that see at most window_tokens. 0: all see the context. */
    uint64_t window_elements;
    uint32_t window_tokens;
    uint64_t state_elements; /* floats of a sequence's states, in all layers; 0: no such layers */
    uint32_t context_tokens; /* longest sequence that this engine serves */
    uint32_t trained_tokens; /* the context that the file names */
    /* longrope: a longer sequence uses the other table of frequencies (shape.h) at all positions;
     * 0: there is one table */
    uint32_t long_rope_after;
    uint64_t n_params, file_bytes;
};

/* Borrowed until close. Any thread. */
const struct model_info *engine_model_info(const struct engine *engine);
/* Reads the same facts from a file alone. *out_info's strings are borrowed from `ckpt`.
 * UNIMPLEMENTED names an unknown architecture, key or tensor. INVALID_ARGUMENT
 * (MODEL_FILE_INVALID): the file contradicts itself. */
int engine_read_model_info(const struct checkpoint *ckpt, struct model_info *out_info,
                           struct error *err);

/* --- memory --- */

/* The part of a plan on one device. */
struct executor_device {
    char name[16];    /* "cpu", "cuda:0" */
    char product[96]; /* a GPU's: "NVIDIA H100 80GB HBM3", or empty */
    uint32_t layer_begin, n_layers;
    bool is_gpu;
    uint64_t weights_bytes, kv_bytes, workspace_bytes;
    /* Parts of kv_bytes. The first is for a block of layers with a window that have blocks of their
     * own. The other is for a block of all other layers. */
    uint64_t window_block_bytes, kv_block_bytes;
    uint64_t state_bytes; /* slots of the states of recurrent layers, the draft model's included */
    uint64_t draft_state_bytes; /* the draft model's part of state_bytes */
    /* Part of workspace_bytes for captured steps; the driver allocates it as steps are captured. */
    uint64_t graph_bytes;
    /* Memory of a GPU; 0 on the CPU, where memory is not queried. */
    uint64_t free_bytes;     /* the driver's figure less promised_bytes */
    uint64_t promised_bytes; /* promised to other processes, not allocated by them yet */
    uint64_t budget_bytes;   /* limit on weights, KV cache and workspace when sizes are chosen */
    uint64_t limit_bytes; /* limit when a load is checked: gpu_memory_bytes, else the free memory */
};

enum { EXECUTOR_MAX_DEVICES = 2, ENGINE_MAX_RANKS = 32 };

/* The part of a plan on one rank of the CPU. Memory that ranks share is in no part. */
struct executor_rank {
    uint32_t stage, layer_begin, n_layers;
    uint64_t weights_bytes, kv_bytes, state_bytes, workspace_bytes;
};

/* Bytes and shapes that a load will take, or has taken. */
struct executor_plan {
    uint32_t n_devices;
    struct executor_device devices[EXECUTOR_MAX_DEVICES];
    uint32_t n_ranks, n_stages; /* ranks of the CPU, stage by stage; stages over all devices */
    struct executor_rank ranks[ENGINE_MAX_RANKS];
    uint64_t weights_bytes, kv_bytes, workspace_bytes; /* all ranks together */
    uint64_t state_bytes;                              /* all slots, the draft model's included */
    uint64_t state_slot_bytes;                         /* a slot of the model */
    uint32_t n_state_slots;    /* slots of the model; 0: no recurrent layers */
    uint32_t n_running_states; /* sequences that run at once with these slots */
    uint64_t kv_tokens;        /* in layers without a window */
    uint32_t n_blocks, block_size, context_tokens;
    /* Blocks of layers that see at most window_reach positions; 0: they have n_blocks, too. With
     * enough KV tokens there are most_window_blocks. */
    uint32_t n_window_blocks, window_reach;
    bool windows_are_chunks; /* they see their own chunk of window_reach positions alone */
    uint64_t most_window_blocks;
    uint64_t kv_block_bytes, window_block_bytes; /* as in the devices, all together */
    /* The work of all ranks of all devices. A draft model does not count. */
    struct engine_cost_split cost;
    uint64_t huge_page_bytes; /* bytes of the weights in huge pages; 0 before a load */
    uint64_t shared_bytes;    /* bytes of the weights that another process packed and holds */
    uint64_t draft_bytes; /* bytes of the weights that belong to the draft model; never shared */
    uint64_t draft_state_bytes; /* the draft model's part of state_bytes, */
    uint32_t n_draft_slots;     /* in so many slots */
};

/* Memory of the model and of its draft model. Borrowed until close. Any thread. */
const struct executor_plan *engine_memory(const struct engine *engine);
/* The GPU's memory now; false without a GPU. Any thread. */
bool engine_gpu_memory(const struct engine *engine, uint64_t *out_total_bytes,
                       uint64_t *out_free_bytes);

/* The memfds of the packed weights. */
struct executor_packed {
    uint32_t n_ranks;
    int fds[ENGINE_MAX_RANKS]; /* by rank; sealed */
    uint64_t n_bytes[ENGINE_MAX_RANKS];
    bool mapped;     /* another process packed them */
    const char *why; /* why shared memory is not used, or empty */
};
/* out_packed->fds are borrowed until close. Any thread. */
void engine_get_packed(const struct engine *engine, struct executor_packed *out_packed);

/* Limits on the host memory of engine_keep(). */
struct executor_keep {
    uint32_t n_threads;        /* threads that copy; 0: one per CPU */
    uint64_t promised_bytes;   /* part of the free memory that is promised to other processes */
    uint64_t limit_bytes;      /* limit by a memory budget; 0: none */
    const atomic_bool *cancel; /* may be NULL */
};
/* Makes a park copy: copies the GPU's weights into sealed host memory. CPU ranks' weights are in
 * such memory already. out_kept->fds are owned by the caller. Any thread, one call at a time,
 * before engine_close(). Steps continue meanwhile. RESOURCE_EXHAUSTED (HOST_MEMORY) before memory
 * is taken; FAILED_PRECONDITION (NO_DEVICE_WEIGHTS) without a GPU;
 * CANCELLED. */
int engine_keep(const struct engine *engine, const struct executor_keep *terms,
                struct executor_packed *out_kept, struct error *err);

/* --- counters --- */

struct engine_stats {
    uint32_t n_queued, n_running, n_paused;
    /* Requests that could take a step now. If progress_counter then stands still, the engine is
     * stalled. */
    uint32_t n_ready;
    /* Free blocks are unused blocks and cached blocks. */
    uint32_t n_blocks, n_blocks_free, n_blocks_cached;
    /* The same for layers with a window, if they have blocks of their own. */
    uint32_t n_window_blocks, n_window_blocks_free, n_window_blocks_cached;
    uint64_t n_steps, n_decode_steps, n_decode_rows, n_prefill_rows;
    /* Sum over decode steps of the requests that could decode. n_decode_rows over this is the mean
     * fill of a batch. */
    uint64_t n_decode_active;
    uint64_t n_mixed_steps; /* with prompt rows and generated rows */
    /* Rows of all steps by path (docs/house/numerics.md, numerics contract). Path D is for
     * generated rows, path P for prompt rows. Mixed steps of an engine that mixes roles use path P
     * for all rows. */
    uint64_t n_path_d_rows, n_path_p_rows;
    uint64_t n_preemptions, n_prefix_hit_tokens, n_prefix_query_tokens;
    /* Slots of recurrent states, those that sequences hold, and those with a snapshot. */
    uint32_t n_state_slots, n_states_used, n_snapshots;
    uint64_t n_snapshot_hits, n_snapshot_evictions;
    uint64_t n_moved_out;      /* states that went to host memory in place of a recompute */
    uint64_t n_rope_crossings; /* sequences that outgrew longrope's original context */
    /* n_submitted = n_finished + n_cancelled + n_expired + live requests. Refused requests count
     * only in n_refused. */
    uint64_t n_submitted, n_finished, n_cancelled, n_expired, n_refused;
    uint64_t n_generated_tokens;
    uint64_t queued_prompt_tokens; /* prompt tokens that wait for prefill */
    uint64_t n_drafted_tokens, n_accepted_tokens;
    uint64_t n_draft_rows;         /* tokens that the draft model computed */
    uint64_t n_draft_found;        /* tokens whose draft state another sequence had computed */
    int64_t draft_ns;              /* time of the draft model; step times include it */
    int64_t prefill_ns, decode_ns; /* time of steps with and without prompt rows */
    uint64_t n_ahead;              /* steps whose inputs were prepared during the step before */
    /* Asynchronous devices: steps without prompt rows that directly followed another step.
     * between_ns: how long the device was idle between the two. */
    uint64_t n_between;
    int64_t between_ns;
    uint64_t graph_bytes;      /* GPU memory that captured steps hold now */
    uint64_t progress_counter; /* finished layers, the draft model's included */
    int64_t last_step_ns;
};
/* Any thread; never waits for the engine. */
void engine_get_stats(const struct engine *engine, struct engine_stats *out_stats);

/* Figures of one request, once its last choice has finished. */
struct engine_usage {
    uint32_t n_prompt_tokens, n_generated_tokens, n_cached_tokens, n_preemptions;
    uint32_t n_drafted_tokens, n_accepted_tokens; /* accepted tokens are generated tokens too */
    uint32_t n_reasoning_tokens;                  /* generated tokens that are reasoning */
    int64_t queue_ns, prefill_ns, decode_ns;
};

/* --- timed steps ---
 * Prefill and greedy decode at a given context depth, without queue and events. Steps are cut as in
 * an engine. Every sequence has its own KV blocks, filled with real keys and values.
 * Single-threaded. */

struct engine_bench;

struct engine_bench_config {
    uint32_t block_size;    /* tokens, equal to executor_config.kv_block_size */
    uint32_t max_rows;      /* most rows of a step */
    uint32_t chunk;         /* longest piece of a prompt in a step */
    uint32_t max_seqs;      /* sequences at once */
    uint32_t max_positions; /* longest sequence: the largest depth and the tokens behind it */
    /* If not 0, no further step is made and the call ends with CANCELLED. May be NULL. */
    const volatile sig_atomic_t *stop;
};

/* KV tokens that the run needs, for executor_config.kv_tokens. */
uint64_t engine_bench_kv_tokens(const struct engine_bench_config *config);

/* Loads the model; `ckpt` is borrowed for the call. *out_bench is owned. Errors as engine_open().
 */
int engine_bench_open(struct checkpoint *ckpt, const struct executor_config *executor,
                      const struct engine_bench_config *config, struct engine_bench **out_bench,
                      struct error *err);
/* NULL is accepted. */
void engine_bench_close(struct engine_bench *bench);

/* Borrowed until close. */
const struct executor_plan *engine_bench_memory(const struct engine_bench *bench);
const char *engine_bench_numerics_id(const struct engine_bench *bench);

/* Gives every sequence at least `depth` positions: computes one sequence and copies its blocks to
 * the others. */
int engine_bench_deepen(struct engine_bench *bench, uint32_t depth, struct error *err);
/* Computes a prompt of n_tokens behind the depth for each of n_seqs sequences, up to its first
 * token. *out_ns: the time. The depth does not change. */
int engine_bench_prefill(struct engine_bench *bench, uint32_t n_seqs, uint32_t n_tokens,
                         int64_t *out_ns, struct error *err);
/* Runs n_tokens decode steps of n_seqs sequences; each step adds one token to every sequence. Fills
 * out_step_ns[n_tokens]. */
int engine_bench_decode(struct engine_bench *bench, uint32_t n_seqs, uint32_t n_tokens,
                        int64_t *out_step_ns, struct error *err);
