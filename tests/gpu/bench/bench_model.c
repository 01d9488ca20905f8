/* bench_model.c: tokens/s of an 8B-Llama shape with random weights, and the cost of determinism. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/decoder/decoder_private.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/bench_run.h"
#include "engine/forward/executor_private.h"
#include "engine/model/step.h"
#include "tests/gpu/bench/bench_gpu.h"
#include "tests/gpu/bench/big_model.h"

/* Weights of the matrices of all layers. */
static double layer_weights(const struct big_spec *spec)
{
    double q = (double)spec->n_heads * spec->head_dim,
           kv = (double)spec->n_kv_heads * spec->head_dim;
    return spec->n_layers * (double)spec->hidden * (2 * q + 2 * kv + 3.0 * spec->ffn);
}

/* Returns the embedding's share of the weights. No step reads the whole embedding. */
static double embedding_share(const struct big_spec *spec)
{
    double embedding = (double)spec->vocab * spec->hidden;
    return embedding / (2 * embedding + layer_weights(spec));
}

static const struct executor_config base_config = {
    .device = "cuda:0",
    .gpu_layers = EXECUTOR_GPU_LAYERS_AUTO,
    .kernels = "auto",
    .tp = 1,
    .kv_dtype = DTYPE_BF16,
    .kv_block_size = 32,
};

static struct bench_time time_of_ns(const int64_t *ns, uint32_t n)
{
    double seconds[256];
    for (uint32_t i = 0; i < n; i++)
        seconds[i] = (double)ns[i] * 1e-9;
    return bench_time_of(seconds, n);
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
        step_batch_use_slot(batch, s, s, prompt);
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
    struct step_limits limits = {steps->max_rows, steps->max_seqs, steps->max_blocks_per_seq, 0,
                                 false};
    struct step_batch *batch = NULL;
    struct decoder *dec = ex->decoders[head_rank(ex)];
    struct error err = {0};
    enum { STEPS = 12, WARM_UPS = 3 };
    double ms[2];
    if (step_batch_create(&limits, &batch, &err) != 0)
        bench_die(&err);
    for (int mixed = 0; mixed < 2; mixed++) {
        int64_t ns[STEPS];
        uint32_t n = b->small ? 1 : STEPS;
        for (uint32_t i = 0; i < (b->small ? 0 : WARM_UPS); i++)
            mixed_step(ex, n_decoding, n_prompt, depth, seq_blocks, batch);
        for (uint32_t i = 0; i < n; i++) {
            int64_t begin = clock_now_ns();
            mixed_step(ex, n_decoding, n_prompt, depth, seq_blocks, batch);
            ns[i] = clock_now_ns() - begin;
        }
        struct bench_time time = time_of_ns(ns, n);
        bench_record(b, mixed ? "mixed step, one path" : "mixed step, paths apart", time);
        ms[mixed] = time.median * 1e3;
    }
    dec->cfg.mix_roles = false;
    snprintf(
        b->determinism, sizeof(b->determinism),
        "A step of %u generated and %u prompt tokens, bf16: %.2f ms with the paths apart, %.2f "
        "as one (--no-deterministic): determinism costs %.0f %%.\n\n",
        n_decoding, n_prompt, ms[0], ms[1], (ms[0] / ms[1] - 1) * 100);
    step_batch_destroy(batch);
}

enum { STEPS = 64, DEPTH = 512 };

/* A model of random weights, and the objects that run it. */
struct big_run {
    struct big_spec spec;
    const char *name;
    struct checkpoint *ckpt;
    struct executor *ex;
    struct bench_run *prefill, *decode;
    struct engine_bench_config prefill_cfg, decode_cfg;
};

static void open_model(struct bench *b, struct big_run *m, const struct bench_format *format,
                       const char *path)
{
    struct executor_config cfg = base_config;
    struct error err = {0};
    *m = (struct big_run){.name = format->name};
    m->spec = b->small ? big_spec_small(format->type) : big_spec_8b(format->type);
    if (!b->small)
        m->spec.n_layers = b->n_layers;
    /* A long sequence, or all sequences at the depth of the decode: both have the same cache. */
    m->prefill_cfg = (struct engine_bench_config){.block_size = 32,
                                                  .max_rows = b->small ? 128 : 8192,
                                                  .chunk = b->small ? 64 : 2048,
                                                  .max_seqs = 1,
                                                  .max_positions = b->small ? 256 : 8192 + 64};
    m->decode_cfg = m->prefill_cfg;
    m->decode_cfg.max_seqs = b->small ? 4 : 128;
    m->decode_cfg.max_positions = b->small ? 64 : DEPTH + 128;
    cfg.store = format->store;
    cfg.prompt_arithmetic = b->prompts_f16 ? PROMPT_ARITHMETIC_F16 : PROMPT_ARITHMETIC_EXACT;
    cfg.max_rows = m->prefill_cfg.max_rows;
    cfg.max_seqs = m->decode_cfg.max_seqs;
    cfg.max_context_tokens = m->prefill_cfg.max_positions;
    cfg.kv_tokens = bench_run_kv_tokens(&m->decode_cfg);
    if (cfg.kv_tokens < bench_run_kv_tokens(&m->prefill_cfg))
        cfg.kv_tokens = bench_run_kv_tokens(&m->prefill_cfg);
    if (big_write(&m->spec, path, false, &err) != 0 || checkpoint_open(path, &m->ckpt, &err) != 0 ||
        executor_open(m->ckpt, &cfg, NULL, NULL, NULL, &m->ex, &err) != 0)
        bench_die(&err);
    if (executor_actual(m->ex)->n_devices != 1) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "%s: not all layers fit the GPU", format->name);
        bench_die(&err);
    }
    if (big_fill(m->ex, b->outliers, &err) != 0 ||
        bench_run_create(m->ex, &m->prefill_cfg, &m->prefill, &err) != 0 ||
        bench_run_create(m->ex, &m->decode_cfg, &m->decode, &err) != 0)
        bench_die(&err);
}

static void close_model(struct big_run *m, const char *path)
{
    bench_run_destroy(m->decode);
    bench_run_destroy(m->prefill);
    executor_close(m->ex);
    checkpoint_close(m->ckpt);
    unlink(path);
}

static void print_rate(struct bench *b, const char *key, double n, struct bench_time time,
                       double share)
{
    printf(" %.0f", n / time.median);
    if (share >= 0.0)
        printf(" (%.0f %%)", share * 100);
    printf(" |");
    fflush(stdout);
    bench_record(b, key, time);
}

/* Runs prompts until the card, idle during the load, has its clocks again. */
static void warm_up(struct bench *b, struct big_run *m)
{
    struct error err = {0};
    for (int64_t total = 0, ns = 0; !b->small && !b->once && total < NS_PER_S / 2; total += ns)
        if (bench_run_prefill(m->prefill, 1, 2048, &ns, &err) != 0)
            bench_die(&err);
}

static void measure_prefill(struct bench *b, struct big_run *m)
{
    static const uint32_t prompts[] = {512, 2048, 8192};
    struct error err = {0};
    char key[64];
    for (size_t i = 0; i < sizeof(prompts) / sizeof(prompts[0]); i++) {
        uint32_t n = b->small ? 64 : prompts[i], n_done = 0;
        int64_t ns[BENCH_REPEATS], total = 0;
        if (bench_run_prefill(m->prefill, 1, n, &ns[0], &err) != 0)
            bench_die(&err); /* a warm-up */
        while (bench_more_repeats(b, n_done, (double)total * 1e-9)) {
            if (bench_run_prefill(m->prefill, 1, n, &ns[n_done], &err) != 0)
                bench_die(&err);
            total += ns[n_done++];
        }
        struct bench_time time = time_of_ns(ns, n_done);
        snprintf(key, sizeof(key), "8B %s, prefill %u", m->name, prompts[i]);
        print_rate(b, key, n, time,
                   bench_share(2.0 * n * layer_weights(&m->spec) / time.median, b->bf16_flops));
    }
}

static void measure_decode(struct bench *b, struct big_run *m)
{
    static const uint32_t batches[] = {1, 8, 32, 128};
    const struct big_spec *spec = &m->spec;
    uint32_t depth = b->small ? 16 : DEPTH, steps = b->small ? 3 : STEPS;
    double weights = (double)executor_actual(m->ex)->weights_bytes;
    struct error err = {0};
    char key[64];
    if (bench_run_deepen(m->decode, depth, &err) != 0)
        bench_die(&err);
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        uint32_t n = batches[i] < m->decode_cfg.max_seqs ? batches[i] : m->decode_cfg.max_seqs;
        int64_t ns[STEPS];
        if (bench_run_decode(m->decode, n, 4, ns, &err) != 0 ||
            bench_run_decode(m->decode, n, steps, ns, &err) != 0)
            bench_die(&err);
        struct bench_time time = time_of_ns(ns, steps);
        /* Bytes of the weights without the embedding, and of the cache of n sequences. */
        double kv = 2.0 * spec->n_layers * spec->n_kv_heads * spec->head_dim * 2 * n * (depth + 32);
        double bytes = weights * (1 - embedding_share(spec)) + kv;
        snprintf(key, sizeof(key), "8B %s, batch %u", m->name, batches[i]);
        print_rate(b, key, n, time, bench_share(bytes / time.median, b->read_bytes_per_s));
    }
}

static void run_model(struct bench *b, const struct bench_format *format, const char *path,
                      bool prefill, bool decode)
{
    struct big_run m;
    open_model(b, &m, format, path);
    printf("| %s | %.2f |", format->name, (double)executor_actual(m.ex)->weights_bytes * 1e-9);
    warm_up(b, &m);
    if (prefill)
        measure_prefill(b, &m);
    if (decode)
        measure_decode(b, &m);
    printf("\n");
    if (decode && format->type == DTYPE_BF16 && format->store == WEIGHT_STORE_SOURCE)
        bench_determinism(b, m.ex, b->small ? 2 : 32, b->small ? 16 : 256, b->small ? 16 : DEPTH,
                          executor_actual(m.ex)->n_blocks / m.decode_cfg.max_seqs);
    close_model(&m, path);
}

static void print_models_head(const struct bench *b, bool prefill, bool decode)
{
    char planted[64] = "";
    if (b->outliers > 0)
        snprintf(planted, sizeof(planted), ", outliers in %.0f %% of the norms' 64-column chunks",
                 b->outliers * 100);
    printf(
        "%s, %u layers, random weights%s, KV bf16 (%s): tokens/s. Prefill: %% of the bf16 "
        "product's rate; decode from depth 512: %% of the read rate for the bytes of weights and "
        "cache.\n\n| weights | GB |%s%s\n| --- | --- |%s%s\n",
        b->small ? "A small Llama" : "Llama 8B shape", b->small ? 2 : b->n_layers, planted,
        b->module.op_table->numerics, prefill ? " prefill 512 | 2048 | 8192 |" : "",
        decode ? " batch 1 | 8 | 32 | 128 |" : "", prefill ? " --- | --- | --- |" : "",
        decode ? " --- | --- | --- | --- |" : "");
}

void bench_models(struct bench *b, bool prefill, bool decode)
{
    static const struct bench_format formats[] = {{"bf16", DTYPE_BF16, WEIGHT_STORE_SOURCE},
                                                  {"q8_0", DTYPE_Q8_0, WEIGHT_STORE_SOURCE},
                                                  {"q4_k", DTYPE_Q4_K, WEIGHT_STORE_SOURCE},
                                                  {"fp8", DTYPE_BF16, WEIGHT_STORE_F8}};
    char path[512];
    snprintf(path, sizeof(path), "%s/bench_cuda.%ld.gguf", b->directory, (long)getpid());
    print_models_head(b, prefill, decode);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (bench_lists(b->models, formats[i].name))
            run_model(b, &formats[i], path, prefill, decode);
    printf("\n%s", b->determinism);
}
