/* bench_model.c: tokens/s of an 8B-Llama shape with random weights, and what determinism costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/bench_run.h"
#include "engine/forward/decoder_private.h"
#include "engine/forward/executor_private.h"
#include "engine/model/step.h"
#include "tests/gpu/bench/bench_gpu.h"
#include "tests/gpu/bench/big_model.h"

/* An 8B Llama: matrices of all layers. The embedding's share of its 8.03 G weights is left out,
 * because no token reads that share. */
#define LAYER_WEIGHTS_8B   6.98e9
#define EMBEDDING_SHARE_8B (0.525 / 8.03)

static const struct executor_config base_config = {
    .device = "cuda:0",
    .gpu_layers = EXECUTOR_GPU_LAYERS_AUTO,
    .kernels = "auto",
    .tp = 1,
    .kv_dtype = DTYPE_BF16,
    .kv_block_size = 32,
};

static double median_of(int64_t *ns, uint32_t n)
{
    double values[256];
    for (uint32_t i = 0; i < n; i++)
        values[i] = (double)ns[i];
    qsort(values, n, sizeof(values[0]), bench_by_value);
    return values[n / 2];
}

/* Runs a step of n_decoding sequences that continue and a piece of a prompt, at the run's depth. */
static void mixed_step(struct executor *ex, uint32_t n_decoding, uint32_t n_prompt, uint32_t depth,
                       uint32_t seq_blocks, struct step_batch *batch)
{
    struct error err = {0};
    step_batch_clear(batch);
    for (uint32_t s = 0; s <= n_decoding; s++) {
        bool prompt = s == n_decoding;
        batch->seq_start[s] = batch->n_rows;
        for (uint32_t i = 0; i < (prompt ? n_prompt : 1); i++) {
            uint32_t row = batch->n_rows++, position = prompt ? i : depth;
            batch->token_ids[row] = row % 1000;
            batch->positions[row] = position;
            batch->kv_slots[row] = s * seq_blocks * base_config.kv_block_size + position;
            batch->seq_of_row[row] = s;
            batch->is_generated[row] = !prompt;
        }
        for (uint32_t i = 0; i < seq_blocks; i++)
            batch->block_tables[(size_t)s * batch->limits.max_blocks_per_seq + i] =
                s * seq_blocks + i;
        batch->n_seqs++;
        batch->seq_start[s + 1] = batch->n_rows;
    }
    if (executor_step(ex, batch, &err) != 0)
        bench_die(&err);
}

/* Measures the cost of separate paths in mixed steps: a step with both kinds of rows, separate and
 * as one. */
static void bench_determinism(struct bench *b, struct executor *ex, uint32_t n_decoding,
                              uint32_t n_prompt, uint32_t depth, uint32_t seq_blocks)
{
    const struct step_sizes *steps = &ex->plans[head_rank(ex)].steps;
    struct step_limits limits = {steps->max_rows, steps->max_seqs, steps->max_blocks_per_seq, 0};
    struct step_batch *batch = NULL;
    struct decoder *dec = ex->decoders[head_rank(ex)];
    struct error err = {0};
    double ms[2];
    if (step_batch_create(&limits, &batch, &err) != 0)
        bench_die(&err);
    for (int mixed = 0; mixed < 2; mixed++) {
        int64_t ns[9];
        dec->cfg.mix_roles = mixed;
        for (int i = 0; i < (b->small ? 1 : 9); i++) {
            int64_t begin = clock_now_ns();
            mixed_step(ex, n_decoding, n_prompt, depth, seq_blocks, batch);
            ns[b->small ? 4 : i] = clock_now_ns() - begin;
        }
        ms[mixed] = b->small ? (double)ns[4] * 1e-6 : median_of(ns, 9) * 1e-6;
    }
    dec->cfg.mix_roles = false;
    snprintf(
        b->determinism, sizeof(b->determinism),
        "A step of %u generated and %u prompt tokens, bf16: %.2f ms with the paths apart, %.2f "
        "as one (--no-deterministic): determinism costs %.0f %%.\n\n",
        n_decoding, n_prompt, ms[0], ms[1], (ms[0] / ms[1] - 1) * 100);
    step_batch_destroy(batch);
}

static void run_model(struct bench *b, const struct bench_format *format, const char *path)
{
    static const uint32_t batches[] = {1, 8, 32, 128}, prompts[] = {512, 2048, 8192};
    enum { STEPS = 64, DEPTH = 512 };
    struct big_spec spec = b->small ? big_spec_small(format->type) : big_spec_8b(format->type);
    struct executor_config cfg = base_config;
    uint32_t depth = b->small ? 16 : DEPTH, steps = b->small ? 3 : STEPS;
    /* A long sequence, or all sequences at the depth of the decode: both have the same cache. */
    struct engine_bench_config prefill_cfg = {.block_size = 32,
                                              .max_rows = b->small ? 128 : 8192,
                                              .chunk = b->small ? 64 : 2048,
                                              .max_seqs = 1,
                                              .max_positions = b->small ? 256 : 8192 + 64};
    struct engine_bench_config decode_cfg = prefill_cfg;
    decode_cfg.max_seqs = b->small ? 4 : 128;
    decode_cfg.max_positions = b->small ? 64 : DEPTH + 128;
    struct checkpoint *ckpt = NULL;
    struct executor *ex = NULL;
    struct bench_run *prefill = NULL, *decode = NULL;
    struct error err = {0};
    cfg.store = format->store;
    cfg.max_rows = prefill_cfg.max_rows;
    cfg.max_seqs = decode_cfg.max_seqs;
    cfg.max_context_tokens = prefill_cfg.max_positions;
    cfg.kv_tokens = bench_run_kv_tokens(&decode_cfg);
    if (cfg.kv_tokens < bench_run_kv_tokens(&prefill_cfg))
        cfg.kv_tokens = bench_run_kv_tokens(&prefill_cfg);
    if (big_write(&spec, path, false, &err) != 0 || checkpoint_open(path, &ckpt, &err) != 0 ||
        executor_open(ckpt, &cfg, NULL, NULL, NULL, &ex, &err) != 0)
        bench_die(&err);
    if (executor_actual(ex)->n_devices != 1) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "%s: not all layers fit the GPU", format->name);
        bench_die(&err);
    }
    if (big_fill(ex, &err) != 0 || bench_run_create(ex, &prefill_cfg, &prefill, &err) != 0 ||
        bench_run_create(ex, &decode_cfg, &decode, &err) != 0)
        bench_die(&err);
    double weights = (double)executor_actual(ex)->weights_bytes;
    printf("| %s | %.2f |", format->name, weights * 1e-9);
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = b->small ? 64 : prompts[i];
        int64_t ns[5];
        for (int r = 0; r < 5; r++)
            if (bench_run_prefill(prefill, 1, n, &ns[r], &err) != 0)
                bench_die(&err);
        double s = median_of(ns, 5) * 1e-9;
        double flops = 2.0 * n * LAYER_WEIGHTS_8B;
        printf(" %.0f (%.0f %%) |", n / s, b->small ? 0.0 : flops / s / b->bf16_flops * 100);
        fflush(stdout);
    }
    if (bench_run_deepen(decode, depth, &err) != 0)
        bench_die(&err);
    for (size_t i = 0; i < 4; i++) {
        uint32_t n = batches[i] < decode_cfg.max_seqs ? batches[i] : decode_cfg.max_seqs;
        int64_t ns[STEPS];
        if (bench_run_decode(decode, n, 4, ns, &err) != 0 ||
            bench_run_decode(decode, n, steps, ns, &err) != 0)
            bench_die(&err);
        double s = median_of(ns, steps) * 1e-9;
        /* Bytes of the weights without the embedding, and of the cache of n sequences. */
        double kv = 2.0 * spec.n_layers * spec.n_kv_heads * spec.head_dim * 2 * n * (depth + 32);
        double bytes = weights * (1 - EMBEDDING_SHARE_8B) + kv;
        printf(" %.0f (%.0f %%) |", n / s, bytes / s / b->copy_bytes_per_s * 100);
        fflush(stdout);
    }
    printf("\n");
    if (format->type == DTYPE_BF16 && format->store == WEIGHT_STORE_SOURCE)
        bench_determinism(b, ex, b->small ? 2 : 32, b->small ? 16 : 256, depth,
                          executor_actual(ex)->n_blocks / decode_cfg.max_seqs);
    bench_run_destroy(decode);
    bench_run_destroy(prefill);
    executor_close(ex);
    checkpoint_close(ckpt);
    unlink(path);
}

void bench_models(struct bench *b)
{
    static const struct bench_format formats[] = {{"bf16", DTYPE_BF16, WEIGHT_STORE_SOURCE},
                                                  {"q8_0", DTYPE_Q8_0, WEIGHT_STORE_SOURCE},
                                                  {"q4_k", DTYPE_Q4_K, WEIGHT_STORE_SOURCE},
                                                  {"fp8", DTYPE_BF16, WEIGHT_STORE_F8}};
    char path[512];
    snprintf(path, sizeof(path), "%s/bench_cuda.%ld.gguf", b->directory, (long)getpid());
    printf(
        "%s, random weights, KV bf16 (%s): tokens/s. Prefill: %% of the bf16 product's rate; "
        "decode "
        "from depth 512: %% of copy bandwidth for the bytes of weights and cache.\n\n| weights | "
        "GB | prefill 512 | 2048 | 8192 | batch 1 | 8 | 32 | 128 |\n| --- | --- | --- | "
        "--- | --- | --- | --- | --- | --- |\n",
        b->small ? "A small Llama" : "Llama 8B shape", b->module.op_table->numerics);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strstr(b->models, formats[i].name))
            run_model(b, &formats[i], path);
    printf("\n%s", b->determinism);
}
