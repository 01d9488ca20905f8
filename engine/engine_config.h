/* engine_config.h: settings. The model file, device, sizes and limits of an engine; sampling,
 * stopping and drafting of a request. Also the plan of a load: the bytes that a config takes. Plain
 * data; functions here may run on any thread. The header checkpoint.h, which opens the model file,
 * is part of this contract. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/format/checkpoint.h"
#include "kernels/dtype.h"
#include "kernels/weight.h"

struct cpus;
struct error;
struct executor;
struct executor_plan;
struct sample_bias;
struct tokenizer;

#define EXECUTOR_GPU_LAYERS_AUTO UINT32_MAX
#define ENGINE_TARGET_ITL_AUTO   UINT32_MAX

/* Tenths of a GPU's free memory that are used without a limit. The rest is for the driver's own
 * allocations. */
enum { EXECUTOR_GPU_TENTHS = 9 };

/* Called during a load by loader threads, one call at a time. Arguments: bytes of weights that
 * `rank` has packed so far, and all its bytes. */
typedef void executor_progress_fn(void *ctx, uint32_t rank, uint64_t bytes_done,
                                  uint64_t bytes_total);

/* Arithmetic of prompts in linears of quantized weights on a GPU (docs/house/numerics.md). The CPU
 * and generated tokens always have integers. */
enum prompt_arithmetic {
    PROMPT_ARITHMETIC_DEFAULT, /* EXECUTOR_PROMPT_ARITHMETIC */
    PROMPT_ARITHMETIC_EXACT,   /* integers, the CPU's bits */
    PROMPT_ARITHMETIC_F16,     /* weights widened to f16, f32 sums */
};
/* The default of a load on a GPU without --prompt-arithmetic. At 2048 rows an H200 took a fifth of
 * the time of exact products. */
#define EXECUTOR_PROMPT_ARITHMETIC PROMPT_ARITHMETIC_F16

/* The device group and the memory of one loaded model. */
struct executor_config {
    const char *device; /* NULL or "cpu…": the CPU; "cuda:N": that GPU (tp 1 only) */
    /* Layers on the GPU: the last layers and the head. The layers before them run on the CPU in the
     * same process. 0 or EXECUTOR_GPU_LAYERS_AUTO: as many as leave room for the KV cache. */
    uint32_t gpu_layers;
    uint64_t gpu_memory_bytes; /* limit on the GPU's memory; 0: 9/10 of the free memory */
    /* GPU memory that is promised to other processes, and the part of the promise that they hold
     * already. The rest of the promise does not count as free. */
    uint64_t gpu_promised_bytes, gpu_held_bytes;
    enum weight_store store; /* format of dense linears on a GPU */
    /* On a GPU: a step with prompts multiplies all its rows by path P. The bits of a generated
     * token then depend on the other rows of its steps. */
    bool mix_roles;
    enum prompt_arithmetic prompt_arithmetic;
    /* CPU kernels: "auto", "f32", "ref", "avx2", "avx512", "avx512_bf16", "amx" */
    const char *kernels;
    uint32_t n_threads; /* over all ranks; 0: one per CPU */
    uint32_t tp;        /* tensor parallel ranks: 1, 2, 4 or 8 */
    /* Pipeline stages, tp ranks each; 0: 1. Stages divide the layers; at most STAGES_MAX, and tp ·
     * pp at most ENGINE_MAX_RANKS. CPU only. */
    uint32_t pp;
    enum dtype kv_dtype;    /* a type in the kernels' kv_dtypes */
    uint32_t kv_block_size; /* tokens per block, power of two ≤ 128 */
    uint64_t kv_tokens;     /* pool capacity in tokens, rounded up to blocks */
    /* Layers with a window have blocks of their own, and steps name them (step.h). Engines set this
     * themselves. */
    bool splits_windows;
    /* Slots for states of recurrent layers; 0: one per sequence, and those of the snapshots. Models
     * without such layers have none. */
    uint32_t state_slots;
    /* Bytes of the slots that running sequences leave to snapshots and drafts. A remainder smaller
     * than a slot is not used. 0: a fifth of the slots. */
    uint64_t snapshot_bytes;
    uint32_t max_context_tokens; /* per sequence; 0: the model's */
    uint32_t max_rows, max_seqs; /* most rows and sequences per step */
    uint32_t n_score_rows;       /* as in step_limits (step.h) */
    /* [n_threads] CPUs that compute threads may use; the threads of a rank are adjacent. NULL: all
     * CPUs of the process. Borrowed for the call. */
    const struct cpus *thread_cpus;
    const uint16_t *rank_nodes; /* [tp · pp] memory node of each rank's weights; NULL: any */
    /* memfds for sharing packed weights, one per CPU rank; or NULL. A park copy of a GPU's weights
     * (engine_keep()) may follow. Borrowed for the call. */
    const int *packed_fds;
    uint32_t n_packed_fds;
    /* Executor of the target model, whose device and threads a draft model's executor shares (tp 1,
     * equal kernels); or NULL. The target's executor is opened earlier and closed later. */
    struct executor *beside;
    /* Further memory that the caller will need, which must be free too; and the part of it for
     * captured steps. */
    uint64_t other_bytes, other_graph_bytes;
    uint32_t n_sampled; /* only the first n_sampled token ids may be drawn; 0: all */
};

/* A zeroed pointer field is a default. Strings and arrays are borrowed for engine_open(). */
struct engine_config {
    const char *model_path; /* checkpoint file */
    /* The same file, already open; borrowed for the call. NULL: engine_open() opens model_path. */
    struct checkpoint *checkpoint;
    /* The file's tokenizer, or NULL. engine_open() takes ownership, even if it fails. */
    struct tokenizer *tokenizer;
    struct executor_config executor; /* kv_tokens 0: engine_choose_sizes() */
    uint32_t max_concurrent;   /* sequences that run at once (each choice counts), default 256 */
    uint32_t max_queued;       /* waiting requests, default 512 */
    uint32_t max_batch_tokens; /* rows per step, 2 and more, default 512 */
    uint32_t prefill_chunk_tokens; /* longest prompt piece per step, default 256 */
    /* Longest step with both prompts and decoding sequences. 0: no limit. Default
     * ENGINE_TARGET_ITL_AUTO: 7/4 of a step in which all requests decode. */
    uint32_t target_itl_ms;
    uint32_t max_input_tokens; /* most tokens of a prompt; default 0: the context */
    uint32_t max_total_tokens; /* most tokens of prompt and answer; default 0: the context */
    bool prefix_cache;         /* reuse KV blocks of equal prefixes; default on */
    /* No request draws the ids that the model's files suppress (default_sampling.h); default on. */
    bool suppresses_tokens;
    /* Recurrent layers: KV blocks between two snapshots of a sequence's state. Default 0: those of
     * ENGINE_SNAPSHOT_TOKENS. */
    uint32_t snapshot_blocks;
    /* Most drafted tokens of a sequence per step, for requests that name no number. 0 (default):
     * none, or ENGINE_DEFAULT_DRAFT_TOKENS with a draft model. */
    uint32_t draft_tokens;
    /* Checkpoint file of the draft model. Requests that name no drafter use the draft model; with
     * NULL they use prompt lookup. */
    const char *draft_path;
    bool draft_always; /* benchmarks: draft even where drafting does not pay */
    /* Decode the text of a step while the next step runs. Always on for asynchronous devices; for
     * others only tests set it. */
    bool defer_text;
    /* Most steps in flight; 0 (default): as many as CPU stages. Lower for comparisons only. */
    uint32_t max_flights;
    executor_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
    const atomic_bool *cancel_load; /* true ends the load with CANCELLED; may be NULL */
    void (*notify)(void *ctx);      /* engine thread, after a step with events; may be NULL */
    void *notify_ctx;
};

/* Fills *cfg with the defaults. */
void engine_config_init(struct engine_config *cfg);

bool engine_is_on_gpu(const struct engine_config *cfg);

/* The bytes and shapes of a load with this config, draft model included. cfg->executor holds rows,
 * sequences and KV tokens. Nothing is allocated. Errors as engine_open(). */
int engine_plan(const struct engine_config *cfg, struct checkpoint *ckpt,
                struct executor_plan *out_plan, struct error *err);

/* How many KV tokens of this load fit into `room` bytes; at most `most`. Tokens beyond the windows
 * of all sequences take no memory in layers with a window. */
uint64_t engine_kv_tokens(const struct executor_plan *plan, uint64_t room, uint64_t most);

/* Chooses the slots of recurrent states if cfg->executor.state_slots is 0: one for each sequence,
 * and those of the snapshots. They take at most half of a device's memory beside weights and
 * workspace, but one slot at least. `host_bytes` is that memory of the CPU.
 *
 * Then lowers max_concurrent and max_seqs to the sequences that find a slot. The plan must be one
 * of this config; it gets the slots and their bytes. Without recurrent layers nothing changes.
 * RESOURCE_EXHAUSTED (DEVICE_MEMORY) if no slot fits. */
int engine_choose_states(struct engine_config *cfg, struct executor_plan *plan, uint64_t host_bytes,
                         struct error *err);

/* Chooses the open sizes in cfg->executor by the free memory: kv_tokens 0, slots of recurrent
 * states, and automatic gpu_layers on a GPU. Rows and sequences must be set. A GPU's KV cache gets
 * the rest of the budget, up to full contexts for all sequences. A CPU's KV cache gets at most half
 * of the rest. RESOURCE_EXHAUSTED (DEVICE_MEMORY) if no memory is left for the KV cache. */
int engine_choose_sizes(struct engine_config *cfg, struct checkpoint *ckpt, struct error *err);

/* --- settings of a request (engine.h); arrays are borrowed for engine_submit() --- */

enum {
    ENGINE_MAX_STOP_STRINGS = 4,
    ENGINE_MAX_STOP_BYTES = 256,
    ENGINE_MAX_CHOICES = 8,
    ENGINE_MAX_BAD_WORDS = 2048, /* token sequences: two per text of the request */
    ENGINE_MAX_BAD_WORD_IDS = 1024,
    ENGINE_SNAPSHOT_TOKENS = 512,    /* between two snapshots of a recurrent state */
    ENGINE_HOST_STATES = 2,          /* states of waiting sequences in host memory, at most */
    ENGINE_SCORE_ROWS = 32,          /* prompt rows per step that give log-probabilities */
    ENGINE_DRAFT_ROWS = 32,          /* drafted tokens per step, over all sequences */
    ENGINE_MAX_DRAFT_TOKENS = 16,    /* drafted tokens per step of one sequence */
    ENGINE_DEFAULT_DRAFT_TOKENS = 4, /* default of requests and configs */
};

/* The last id is banned while a choice's generated tokens end with all ids before it. */
struct engine_bad_word {
    const uint32_t *ids;
    uint32_t n_ids;  /* at least 1 */
    uint32_t i_text; /* index of its text in sampling.bad_words, for error messages */
};

struct engine_sampling {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: no top-k filter */
    float top_p, min_p, typical_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed; /* must be resolved before submit */
    const struct sample_bias *logit_bias;
    uint32_t n_logit_bias;
    const uint32_t *allowed_ids; /* n_allowed_ids 0: all; repeats are allowed */
    uint32_t n_allowed_ids;
    const struct engine_bad_word *bad_words;
    uint32_t n_bad_words;
    bool watermark; /* see sample.h */
    uint32_t n;     /* choices, 1..ENGINE_MAX_CHOICES */
};

struct engine_stopping {
    uint32_t max_tokens; /* ≥ 1; cut to the room in the context */
    uint32_t min_tokens; /* before so many tokens, end tokens are masked and stops ignored */
    const char *const *stop;
    uint32_t n_stop;
    const uint32_t *stop_token_ids;
    uint32_t n_stop_token_ids;
    bool include_stop, ignore_eos;
};

/* The drafter proposes tokens that the model verifies, several per step. Answers never change. */
enum engine_drafter {
    ENGINE_DRAFTER_DEFAULT, /* the drafter of the engine's config */
    ENGINE_DRAFTER_NONE,
    /* prompt lookup: the tokens that followed an earlier occurrence of the last tokens */
    ENGINE_DRAFTER_NGRAM,
    ENGINE_DRAFTER_MODEL, /* the draft model of the config */
};

/* How a model's reasoning is separated from its content (engine/request/reasoning.h). */
enum engine_reasoning {
    ENGINE_REASONING_OFF,     /* all text is content, markers included */
    ENGINE_REASONING_SPLIT,   /* the thought may be open at the end of the prompt */
    ENGINE_REASONING_THINKS,  /* the prompt ends within a thought */
    ENGINE_REASONING_ANSWERS, /* the prompt ends within an answer */
};

struct engine_speculate {
    enum engine_drafter drafter;
    /* most drafted tokens of a sequence per step; 0: the engine's number */
    uint32_t max_draft_tokens;
};
