#include "base/settings/load_settings.h"

#include <assert.h>
#include <limits.h>

#include "base/system/placement.h"

enum {
    BENCH_TOO = LOAD_CLI | LOAD_CLI_BENCH | LOAD_WORKER | LOAD_WORKER_BENCH | LOAD_CLI_INSPECT,
    MOST_CONTEXT = 1 << 24,
    MOST_BATCH = 1 << 16,
    ONE_DAY_MS = 24 * 3600 * 1000,
    KV_BLOCK_TOKENS = 32,
    MOST_STATE_SLOTS = 1 << 20,
};

/* The number of a KV slot has 32 bits, and the cache consists of whole blocks. */
#define MOST_KV_TOKENS (UINT32_MAX / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS)

/* The help texts list the flags in this order. */
static const struct load_setting rows[] = {
    {
        .field = "n_threads",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = PLACEMENT_MAX_THREADS,
        .flag = "threads",
        .letter = 't',
        .users = LOAD_CLI | LOAD_WORKER,
        .help = "compute threads of a replica; 0: one for each core that the replica may use, "
                "fewer where a cgroup allows less CPU time",
    },
    {
        .field = "cpus",
        .kind = LOAD_TEXT,
        .max = 4096,
        .flag = "cpus",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_WORKER_BENCH,
        .metavar = "LIST",
        .help = "CPUs (0-7,16-23 or node:0) to divide among the replicas, each CPU for one replica "
                "while there are enough; empty: any CPU",
        .worker_help = "CPUs (0-7,16-23 or node:0) of this process, which runs on no others; each "
                       "compute thread stays on its CPU; empty: any CPU",
    },
    {
        .field = "context_length",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = MOST_CONTEXT,
        .flag = "context-length",
        .letter = 'c',
        .users = LOAD_CLI | LOAD_WORKER | LOAD_CLI_INSPECT,
        .letter_users = LOAD_CLI,
        .help = "tokens of a sequence; 0: the model's limit",
    },
    {
        .field = "kv_bytes",
        .kind = LOAD_BYTES,
        .min = 1,
        .max = INT64_MAX,
        .group = "KV cache",
        .flag = "kv-bytes",
        .users = LOAD_WORKER,
        .help = "size of the KV cache in place of --kv-tokens; 0: not given",
    },
    {
        .field = "kv_tokens",
        .kind = LOAD_NUMBER,
        .min = KV_BLOCK_TOKENS, /* a prompt and its answer need a block */
        .max = MOST_KV_TOKENS,
        .group = "KV cache",
        .flag = "kv-tokens",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_CLI_INSPECT,
        .help = "tokens in the KV cache, 32 or more; 0: by the free memory",
    },
    {
        .field = "state_slots",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = MOST_STATE_SLOTS,
        .flag = "state-slots",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_CLI_INSPECT,
        .help = "slots for states of recurrent layers; each sequence and each snapshot takes one; "
                "0: by the free memory",
    },
    {
        .field = "snapshot_bytes",
        .kind = LOAD_BYTES,
        .min = 1,
        .max = INT64_MAX,
        .flag = "snapshot-bytes",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_CLI_INSPECT,
        .help = "bytes of state slots that sequences leave to snapshots and drafts; 0: a fifth of "
                "the slots",
    },
    {
        .field = "snapshot_blocks",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = MOST_CONTEXT / KV_BLOCK_TOKENS,
        .flag = "snapshot-blocks",
        .users = LOAD_CLI | LOAD_WORKER,
        .help = "KV blocks (32 tokens) between two snapshots of a recurrent state; 0: 16",
    },
    {
        .field = "placement",
        .kind = LOAD_WORD,
        .words = "auto|spread|pack",
        .flag = "placement",
        .users = LOAD_CLI,
        .help = "the group's device that a replica takes: spread, the device with the fewest "
                "processes; pack, the fullest device with room; empty: the manager's --placement",
    },
    {
        .field = "max_concurrent_requests",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = 4096,
        .flag = "max-concurrent",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_CLI_INSPECT,
        .help = "sequences that a replica runs at once; 0: 256",
    },
    {
        .field = "max_queued_requests",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = 65536,
        .flag = "max-queued",
        .users = LOAD_WORKER,
        .help = "queued requests; 0: 512",
    },
    {
        .field = "max_batch_tokens",
        .kind = LOAD_NUMBER,
        .min = 2, /* a prompt needs a row beside the sequences that decode */
        .max = MOST_BATCH,
        .flag = "max-batch-tokens",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_WORKER_BENCH | LOAD_CLI_INSPECT,
        .help = "tokens of a step; 0: 512",
    },
    {
        .field = "prefill_chunk_tokens",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = MOST_BATCH,
        .flag = "prefill-chunk-tokens",
        .users = LOAD_WORKER | LOAD_WORKER_BENCH,
        .help = "most tokens of a prompt in a step; 0: 256",
    },
    {
        .field = "max_input_tokens",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = MOST_CONTEXT,
        .flag = "max-input-tokens",
        .users = LOAD_CLI | LOAD_WORKER,
        .help = "tokens of a prompt; 0: the context less one",
    },
    {
        .field = "max_total_tokens",
        .kind = LOAD_NUMBER,
        .min = 2, /* a prompt and an answer */
        .max = MOST_CONTEXT,
        .flag = "max-total-tokens",
        .users = LOAD_CLI | LOAD_WORKER,
        .help = "tokens of a prompt and its answer; 0: the context",
    },
    {
        .field = "target_itl_ms",
        .kind = LOAD_NUMBER,
        .traits = LOAD_ZERO,
        .max = 60000,
        .flag = "target-itl-ms",
        .users = LOAD_CLI | LOAD_WORKER,
        .help = "target for the time between tokens while prompts run; 0: no target; default: "
                "7/4 of a step in which all running and queued requests decode",
    },
    {
        .field = "prefix_cache",
        .kind = LOAD_BOOL,
        .flag = "prefix-cache",
        .users = LOAD_WORKER,
        .default_text = "true",
        .help = "share the KV of equal prefixes",
    },
    {
        .field = "max_draft_tokens",
        .kind = LOAD_NUMBER,
        .max = 16,
        .flag = "speculate",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_WORKER_BENCH,
        .help = "tokens drafted per sequence and step, unless a request sets a number: by the "
                "draft model or else by prompt lookup; 0: none, or 4 with a draft model",
    },
    {
        .field = "draft_model",
        .kind = LOAD_PATH,
        .max = PATH_MAX - 1,
        .flag = "draft",
        .users = LOAD_CLI | LOAD_WORKER | LOAD_WORKER_BENCH | LOAD_CLI_INSPECT,
        .help = "draft model: a smaller model file with the same vocabulary",
    },
    {
        .field = "idle_after_ms",
        .kind = LOAD_DURATION,
        .min = 1000, /* workers report once a second whether they are idle */
        .max = ONE_DAY_MS,
        .flag = "idle-after",
        .users = LOAD_CLI,
        .help = "park or unload the version after this time (1s to 24h) without a request; 0: "
                "never",
    },
    {
        .field = "idle_action",
        .kind = LOAD_WORD,
        .words = "park|unload",
        .needs = "idle_after_ms",
        .flag = "idle-action",
        .users = LOAD_CLI,
        .help = "action of --idle-after; empty: park",
    },
    {
        .field = "wake_on_demand",
        .kind = LOAD_BOOL,
        .flag = "wake-on-demand",
        .users = LOAD_CLI,
        .help = "a request for the parked version wakes the version and waits, in place of being "
                "refused",
    },
    {
        .field = "evictable",
        .kind = LOAD_BOOL,
        .flag = "evictable",
        .users = LOAD_CLI,
        .help = "another load with --evict may unload the idle version",
    },
    {
        .field = "kv_dtype",
        .kind = LOAD_WORD,
        .words = "bf16|f16|int8|f32|fp8",
        .gpu_value = "fp8",
        .flag = "kv-dtype",
        .users = BENCH_TOO,
        .help = "format of keys and values in the KV cache; empty: bf16; fp8 on a GPU only",
    },
    {
        .field = "kernels",
        .kind = LOAD_WORD,
        .words = "auto|amx|avx512_bf16|avx512|avx2|ref|f32",
        .flag = "kernels",
        .letter = 'k',
        .users = BENCH_TOO,
        .letter_users = LOAD_WORKER | LOAD_WORKER_BENCH,
        .help = "arithmetic units to use; empty: auto, the best that this CPU has",
    },
    {
        .field = "gpu_layers",
        .kind = LOAD_NUMBER,
        .min = 1,
        .max = 65536,
        .gpu_value = "",
        .flag = "gpu-layers",
        .users = BENCH_TOO,
        .help = "number of last layers on the GPU; earlier layers run on the CPU; 0: all, or as "
                "many as fit",
    },
    {
        .field = "gpu_memory_bytes",
        .kind = LOAD_BYTES,
        .min = 1,
        .max = INT64_MAX,
        .gpu_value = "",
        .flag = "gpu-memory",
        .users = BENCH_TOO,
        .help = "GPU memory of a replica (weights, workspace, KV cache), such as 20G; 0: 9/10 of "
                "the free memory",
    },
    {
        .field = "weight_format",
        .kind = LOAD_WORD,
        .words = "int8|fp8",
        .gpu_value = "",
        .flag = "weight-format",
        .users = BENCH_TOO,
        .help = "format of unquantized matrices on a GPU, a scale per row; empty: as in the file",
    },
    {
        .field = "prompt_arithmetic",
        .kind = LOAD_WORD,
        .words = "exact|f16",
        .gpu_value = "f16",
        .flag = "prompt-arithmetic",
        .users = BENCH_TOO,
        .help = "prompts with quantized weights on a GPU: exact, integers with the CPU's bits; "
                "f16, faster, weights widened to 16 bits; empty: f16 on a GPU",
    },
    {
        .field = "deterministic",
        .kind = LOAD_BOOL,
        .gpu_value = "false",
        .flag = "no-deterministic",
        .users = BENCH_TOO,
        .help = "on a GPU: compute prompts and answers of a step together: faster, but an "
                "answer's bits then depend on the other requests",
    },
    {
        .field = "default_sampling",
        .kind = LOAD_WORD,
        .words = "model|none",
        .flag = "default-sampling",
        .users = LOAD_CLI | LOAD_WORKER,
        .help = "sampling of requests that choose none: model takes the defaults of the model's "
                "files, none ignores them; empty: model",
    },
    {.field = "chat_template", .kind = LOAD_TEXT, .max = 1 << 20},
    {.field = "default_temperature", .kind = LOAD_NUMBER, .traits = LOAD_NOT_BUILT},
    {.field = "default_top_p", .kind = LOAD_NUMBER, .traits = LOAD_NOT_BUILT},
    {.field = "default_top_k", .kind = LOAD_NUMBER, .traits = LOAD_NOT_BUILT},
    {.field = "default_max_tokens", .kind = LOAD_NUMBER, .traits = LOAD_NOT_BUILT},
};

enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };
static_assert(sizeof(rows) / sizeof(rows[0]) <= (size_t)LOAD_SETTINGS_MAX, "raise the room");

size_t load_settings_count(void)
{
    return N_ROWS;
}

const struct load_setting *load_setting_at(size_t i)
{
    return &rows[i];
}

/* The option's type of each kind, and defaults that a row may replace. */
static const struct {
    enum option_type type;
    const char *metavar, *default_text;
} kinds[] = {
    [LOAD_NUMBER] = {OPTION_U64, "N", "0"},     [LOAD_BYTES] = {OPTION_U64, "BYTES", "0"},
    [LOAD_DURATION] = {OPTION_MS, "TIME", "0"}, [LOAD_WORD] = {OPTION_STRING, NULL, ""},
    [LOAD_TEXT] = {OPTION_STRING, "TEXT", ""},  [LOAD_PATH] = {OPTION_STRING, "FILE", ""},
    [LOAD_BOOL] = {OPTION_BOOL, NULL, "false"},
};

static struct option_spec spec_of(const struct load_setting *row, enum load_user user,
                                  size_t offset)
{
    bool of_worker = user == LOAD_WORKER || user == LOAD_WORKER_BENCH;
    bool has_letter = !row->letter_users || (row->letter_users & user);
    struct option_spec spec = {
        .name = row->flag,
        .letter = has_letter ? row->letter : (char)0,
        .type = kinds[row->kind].type,
        .offset = offset,
        .default_text = row->default_text ? row->default_text : kinds[row->kind].default_text,
        .value_name = row->words ? row->words : row->metavar,
        .help = of_worker && row->worker_help ? row->worker_help : row->help,
    };
    if (!spec.value_name)
        spec.value_name = kinds[row->kind].metavar;
    if (row->traits & LOAD_ZERO)
        spec.default_text = of_worker ? "auto" : NULL;
    if (of_worker && (row->traits & LOAD_ZERO))
        spec.type = OPTION_STRING;
    if (spec.type == OPTION_U64 || spec.type == OPTION_MS)
        spec.max_u64 = row->max;
    return spec;
}

size_t load_settings_specs(enum load_user user, size_t offset, struct option_spec *out,
                           size_t n_room)
{
    size_t n = 0;
    for (size_t i = 0; i < N_ROWS && n < n_room; i++)
        if (rows[i].users & user)
            out[n++] = spec_of(&rows[i], user, offset + i * sizeof(union load_value));
    return n;
}
