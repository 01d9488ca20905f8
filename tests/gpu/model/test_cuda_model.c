/* Tests of whole models on the GPU. Logits are compared with transformers and the CPU. Any cut of
 * the rows into steps gives the same bits. Layers can stay on the CPU, and memory is planned, taken
 * and returned. Runs made checkpoints and those of tests/golden/tiny. Needs a GPU, or tests/simt.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "tests/gpu/support/gpu_model.h"
#include "tests/gpu/support/support_seed.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_match.h"

static const char *gpu_name = "cuda:0";

/* --- against transformers --- */

static void test_logits_near_transformers(void **state)
{
    static const struct {
        const char *name;
        /* The bounds of quantized files are those of test_logits.c and only show wrong wiring.
         * Prompts in 16 bit are nearer than the CPU's integers. */
        double bound;
    } files[] = {
        {"f32", 1e-4},      {"f16", 2e-2},       {"bf16", 2e-1},       {"q8_0", 0.6},
        {"q4_0", 0.6},      {"q4_1", 0.6},       {"q5_0", 0.6},        {"q5_1", 0.6},
        {"q4_k", 0.6},      {"gpt2_f32", 1e-4},  {"gpt2_f16", 2e-2},   {"gpt2_q8_0", 0.6},
        {"gpt2_q4_0", 0.6}, {"bloom_f32", 1e-4}, {"bloom_bf16", 2e-1}, {"bloom_q4_1", 0.6}};
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct executor_config cfg = gpu_config();
        double error = match_golden(files[i].name, ".gguf", &cfg, 16).error;
        print_message("%-5s worst %.2e\n", files[i].name, error);
        if (!(error <= files[i].bound))
            fail_msg("tiny/%s: relative error %.3g exceeds %.3g", files[i].name, error,
                     files[i].bound);
    }
}

static void check_golden(const char *name, const char *suffix, double bound)
{
    struct executor_config cfg = gpu_config();
    double error = match_golden(name, suffix, &cfg, 16).error;
    print_message("%-24s %-5s worst %.2e\n", name, suffix, error);
    if (!(error <= bound))
        fail_msg("tiny/%s%s: relative error %.3g", name, suffix, error);
}

/* A checkpoint of each family, with its norms, windows, scales and kinds of rope. The layers of the
 * folders are read by other rules than those of GGUF. A shortened grid has every third folder of
 * those that have a GGUF twin. */
static void test_families_near_transformers(void **state)
{
    static const char *const names[] = {"llama3",
                                        "llama_linear",
                                        "qwen3",
                                        "qwen2",
                                        "smollm3",
                                        "gemma2",
                                        "gemma3",
                                        "phi3",
                                        "phi3_long",
                                        "granite",
                                        "olmo2",
                                        "olmo3",
                                        "cohere",
                                        "cohere_norms",
                                        "cohere2",
                                        "glm4",
                                        "starcoder2",
                                        "gptneox",
                                        "gptneox_sequential",
                                        "phi2",
                                        "nemotron",
                                        "ernie4_5",
                                        "hunyuan",
                                        "exaone4",
                                        "exaone4_small",
                                        "seed_oss",
                                        "ministral3",
                                        "gpt2",
                                        "bloom",
                                        "falcon",
                                        "stablelm",
                                        "qwen3vl",
                                        "phi2_joined",
                                        "falcon_40b",
                                        "mpt",
                                        "falcon_one_norm",
                                        "stablelm_norms",
                                        "qwen3moe",
                                        "mixtral",
                                        "gpt_oss",
                                        "qwen2moe",
                                        "granitemoe",
                                        "granitemoe_shared",
                                        "glm4moe",
                                        "ernie4_5_moe",
                                        "minimax_m2",
                                        "mimo2",
                                        "llama_dynamic"};
    static const char *const folders[] = {"mistral",          "qwen2_window",   "gemma2_scale",
                                          "gemma3_images",    "gptj",           "opt",
                                          "falcon_rw",        "phi3_long",      "starcoder2_window",
                                          "qwen3moe_fused",   "gpt_oss_mxfp4",  "qwen2moe_dense",
                                          "ernie4_5_moe_end", "mistral3_images"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        check_golden(names[i], ".gguf", 5e-2);
        if (grid_is_whole() || i % 3 == 0)
            check_golden(names[i], "", 5e-2);
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        check_golden(folders[i], "", 5e-2);
}

/* Families with recurrent layers. Mamba-2 comes to 4.3e-2 on the emulated GPU, whose tensor cores
 * round better than real ones. */
static void test_recurrent_families_near_transformers(void **state)
{
    static const char *const names[] = {
        "qwen35",        "qwen35moe",         "qwen3next",  "lfm2",           "lfm2moe",  "mamba2",
        "granitehybrid", "granitehybrid_moe", "nemotron_h", "nemotron_h_moe", "falcon_h1"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        check_golden(names[i], "", 8e-2);
        check_golden(names[i], ".gguf", 8e-2);
    }
}

/* Families with latent attention (test_latent_families.c), with every type of cache. That of F32
 * has the plain kernel. The rounding of 8-bit caches may change a row's experts, so their bound is
 * that of the mean over rows. */
static void test_latent_families_near_transformers(void **state)
{
    static const char *const names[] = {"deepseek_v2_lite", "deepseek_v3", "glm4_moe_lite",
                                        "deepseek_v2_wide"};
    static const struct {
        enum dtype type;
        bool by_mean;
        double bound;
    } caches[] = {{DTYPE_F32, false, 5e-2},
                  {DTYPE_BF16, false, 5e-2},
                  {DTYPE_F16, false, 5e-2},
                  {DTYPE_I8, true, 5e-2},
                  {DTYPE_F8_E4M3, true, 0.15}};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (size_t c = 0; c < sizeof(caches) / sizeof(caches[0]); c++) {
            struct executor_config cfg = gpu_config();
            if (!grid_is_whole() && c > 1 && c % 3 != i % 3)
                continue;
            cfg.kv_dtype = caches[c].type;
            struct match match = match_golden(names[i], "", &cfg, 16);
            double mean = match.sum / match.n_rows, error = caches[c].by_mean ? mean : match.error;
            print_message("%-24s KV %-7s worst %.2e, mean %.2e\n", names[i],
                          dtype_name(caches[c].type), match.error, mean);
            if (!(error <= caches[c].bound))
                fail_msg("tiny/%s, KV %s: relative error %.3g", names[i],
                         dtype_name(caches[c].type), error);
        }
    check_golden("deepseek_v2_lite", ".gguf", 5e-2);
    check_golden("deepseek_v3", ".gguf", 5e-2);
}

/* Any pieces of a latent model's prompts give the same bits, with every type of cache. */
static void test_latent_bits_do_not_depend_on_cuts(void **state)
{
    static const enum dtype caches[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I8};
    (void)state;
    for (size_t c = 0; c < sizeof(caches) / sizeof(caches[0]); c++) {
        const char *name = c % 2 ? "deepseek_v3" : "deepseek_v2_lite";
        struct executor_config cfg = gpu_config();
        cfg.kv_dtype = caches[c];
        uint64_t whole = match_golden(name, "", &cfg, 1000).hash;
        for (uint32_t chunk = 1; chunk <= 49; chunk *= 7)
            if (match_golden(name, "", &cfg, chunk).hash != whole)
                fail_msg("%s, KV %s: pieces of %u tokens differ", name, dtype_name(caches[c]),
                         chunk);
    }
}

static void test_newer_families_near_transformers(void **state)
{
    (void)state;
    check_golden("gemma4", "", 5e-2);
    check_golden("gemma4", ".gguf", 5e-2);
    check_golden("gemma4_moe", "", 5e-2);
    check_golden("gemma4_moe", ".gguf", 5e-2);
    check_golden("llama4", "", 5e-2);
}

/* Quantized files of the families, with the bound of test_quantized_families.c. */
static void test_quantized_families_near_transformers(void **state)
{
    static const char *const names[] = {"llama3_q8_0", "stablelm_iq4_nl", "gpt2_iq4_nl",
                                        "gemma2_q8_0", "qwen3moe_iq4_nl", "gpt_oss_gguf_mxfp4"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (grid_is_whole() || i % 2 == 0)
            check_golden(names[i], ".gguf", 0.1);
}

/* Quantized linears have the CPU's bits; attention sums in another order. */
static void test_logits_near_the_cpu(void **state)
{
    static const uint32_t types[] = {GGML_F32, GGML_Q8_0, GGML_Q4_1};
    (void)state;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (int biases = 0; biases < 2; biases++) {
            struct tiny_spec spec = tiny_spec_default();
            spec.matrix_type = types[t];
            spec.biases = spec.rope_freqs = spec.untied = biases;
            struct executor_config cfg = gpu_config(), cpu = model_run_config("ref");
            cfg.prompt_arithmetic = PROMPT_ARITHMETIC_EXACT;
            float *got = run_alone(&spec, &cfg, 0, 16, false);
            float *expected = run_alone(&spec, &cpu, 0, 16, false);
            double error = model_relative_error(got, expected, N_TOKENS * VOCAB);
            print_message("type %u%s: %.2e of the CPU's\n", types[t], biases ? ", biases" : "",
                          error);
            assert_true(error < (types[t] == GGML_F32 ? 1e-4 : 0.2));
            free(got);
            free(expected);
        }
}

/* --- the contract --- */

/* Any cut of a role's rows into steps gives the same bits. A shortened grid has each chunk size and
 * each block size. */
static void check_cuts(uint32_t type, enum dtype kv, bool generated)
{
    static const uint32_t chunks[] = {1, 3, 16, 128}, blocks[] = {16, 4, 128};
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = gpu_config();
    spec.matrix_type = type;
    cfg.kv_dtype = kv;
    float *expected = run_alone(&spec, &cfg, 0, 16, generated);
    for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++)
        for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); b++) {
            char what[96];
            if (!grid_is_whole() && c % 3 != b)
                continue;
            cfg.kv_block_size = blocks[b];
            snprintf(what, sizeof(what), "type %u, KV %s, path %s, chunks of %u, blocks of %u",
                     type, dtype_name(kv), generated ? "D" : "P", chunks[c], blocks[b]);
            float *got = run_alone(&spec, &cfg, 0, chunks[c], generated);
            assert_same(got, expected, (size_t)N_TOKENS * VOCAB, what);
            free(got);
        }
    free(expected);
}

static void test_bits_do_not_depend_on_cuts(void **state)
{
    (void)state;
    for (int generated = 0; generated < 2; generated++) { /* shortened: of each type one path */
        if (grid_is_whole() || !generated)
            check_cuts(GGML_Q4_1, DTYPE_BF16, generated);
        if (grid_is_whole() || generated)
            check_cuts(GGML_F32, DTYPE_F32, generated);
        if (grid_is_whole() || !generated)
            check_cuts(GGML_Q8_0, DTYPE_I8, generated);
    }
}

/* Sequences in both roles run side by side. Each has the bits that it has alone. */
static void test_bits_do_not_depend_on_neighbours(void **state)
{
    enum { N = 6, PROMPT = 20 };
    static const uint32_t pieces[N] = {7, 1, 20, 3, 11, 2};
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = gpu_config();
    struct model_run run, alone;
    float *expected[N];
    uint32_t done[N] = {0};
    (void)state;
    cfg.kv_dtype = DTYPE_BF16;
    spec.matrix_type = GGML_F32;
    for (uint32_t s = 0; s < N; s++) { /* the prompt by path P, then token by token by path D */
        expected[s] = calloc((size_t)N_TOKENS * VOCAB, sizeof(float));
        model_run_open_ckpt(&alone, tiny_open(&spec), &cfg);
        model_run_add(&alone, ids[s], N_TOKENS);
        for (uint32_t at = 0; at < N_TOKENS;) {
            uint32_t n = at < PROMPT ? PROMPT : 1;
            alone.generated = at >= PROMPT;
            model_run_push(&alone, 0, n, 1);
            model_run_step(&alone);
            at += n;
            memcpy(expected[s] + (size_t)(at - 1) * VOCAB, executor_logits(alone.ex, 0),
                   VOCAB * sizeof(float));
        }
        model_run_close(&alone);
    }
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    for (uint32_t s = 0; s < N; s++)
        model_run_add(&run, ids[s], N_TOKENS);
    for (bool more = true; more;) {
        uint32_t stepped[N], n_stepped = 0;
        more = false;
        for (uint32_t s = 0; s < N; s++) {
            uint32_t left = done[s] < PROMPT ? PROMPT - done[s] : N_TOKENS - done[s];
            uint32_t most = done[s] < PROMPT ? pieces[s] : 1;
            uint32_t n = left < most ? left : most;
            if (!n)
                continue;
            run.generated = done[s] >= PROMPT;
            model_run_push(&run, s, n, 1);
            done[s] += n;
            stepped[n_stepped++] = s;
            more = true;
        }
        if (!more)
            break;
        model_run_step(&run);
        for (uint32_t i = 0; i < n_stepped; i++) {
            char what[64];
            uint32_t s = stepped[i];
            if (done[s] < PROMPT)
                continue;
            snprintf(what, sizeof(what), "sequence %u at %u", s, done[s]);
            assert_same(executor_logits(run.ex, i), expected[s] + (size_t)(done[s] - 1) * VOCAB,
                        VOCAB, what);
        }
    }
    model_run_close(&run);
    for (uint32_t s = 0; s < N; s++)
        free(expected[s]);
}

/* --- layers on the CPU --- */

static void test_first_layers_on_the_cpu(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config whole = gpu_config(), split = gpu_config();
    struct executor_plan plan;
    struct error err = {0};
    (void)state;
    spec.n_layers = 4;
    spec.matrix_type = GGML_Q8_0;
    split.kernels = "ref";
    float *expected = run_alone(&spec, &whole, 0, 16, false);
    for (uint32_t n = 1; n < 4; n++) {
        struct checkpoint *ckpt = tiny_open(&spec);
        split.gpu_layers = n;
        assert_int_equal(executor_plan(ckpt, &split, &plan, &err), 0);
        checkpoint_close(ckpt);
        assert_int_equal(plan.n_devices, 2);
        assert_string_equal(plan.devices[0].name, "cpu");
        assert_int_equal(plan.devices[0].n_layers, 4 - n);
        assert_string_equal(plan.devices[1].name, gpu_name);
        assert_int_equal(plan.devices[1].layer_begin, 4 - n);
        float *got = run_alone(&spec, &split, 0, 16, false);
        float *again = run_alone(&spec, &split, 0, 3, false);
        double error = model_relative_error(got, expected, N_TOKENS * VOCAB);
        print_message("%u of 4 layers on the GPU: %.2e\n", n, error);
        assert_true(error < 0.2);
        assert_same(again, got, (size_t)N_TOKENS * VOCAB, "cut in another way");
        free(got);
        free(again);
    }
    free(expected);
}

static void test_layers_are_left_to_the_cpu_where_memory_is_short(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = gpu_config();
    struct executor_plan whole, plan;
    struct error err = {0};
    (void)state;
    spec.n_layers = 6;
    spec.hidden = 256;
    spec.ffn = 1024;
    struct checkpoint *ckpt = tiny_open(&spec);
    cfg.gpu_layers = EXECUTOR_GPU_LAYERS_AUTO;
    assert_int_equal(executor_plan(ckpt, &cfg, &whole, &err), 0);
    assert_int_equal(whole.n_devices, 1);
    uint64_t needed = whole.weights_bytes + whole.kv_bytes + whole.workspace_bytes;
    cfg.gpu_memory_bytes = needed;
    assert_int_equal(executor_plan(ckpt, &cfg, &plan, &err), 0);
    assert_int_equal(plan.n_devices, 1);
    uint64_t per_layer = (whole.weights_bytes + whole.kv_bytes) / 7;
    cfg.gpu_memory_bytes = needed - 2 * per_layer;
    assert_int_equal(executor_plan(ckpt, &cfg, &plan, &err), 0);
    assert_int_equal(plan.n_devices, 2);
    assert_in_range(plan.devices[1].n_layers, 2, 5);
    assert_true(plan.devices[1].weights_bytes + plan.devices[1].kv_bytes +
                    plan.devices[1].workspace_bytes <=
                cfg.gpu_memory_bytes);
    checkpoint_close(ckpt);
}

/* --- memory --- */

static uint64_t free_bytes(void)
{
    struct backend_module module;
    struct device *device = NULL;
    struct device_memory memory;
    struct error err = {0};
    if (backend_cuda(&module, &err) != 0 || module.device_ops->open(0, &device, &err) != 0 ||
        module.device_ops->memory(device, &memory, &err) != 0)
        fail_msg("%s", err.message);
    module.device_ops->close(device);
    static bool is_told;
    if (!is_told) /* memory of the driver's context, and of other processes */
        print_message("%" PRIu64 " bytes are taken with a context and nothing else\n",
                      memory.total_bytes - memory.free_bytes);
    is_told = true;
    return memory.free_bytes;
}

static void test_memory_is_planned_and_comes_back(void **state)
{
    const char *step = getenv("SLUICE_TEST_STEP");
    const int n_cycles = 100 / (step && atoi(step) > 1 ? atoi(step) : 1);
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = gpu_config();
    uint64_t before = 0;
    (void)state;
    spec.hidden = 128;
    cfg.kv_tokens = 1 << 15;
    for (int i = 0; i < n_cycles; i++) {
        struct model_run run;
        struct executor_plan plan;
        struct error err = {0};
        struct checkpoint *ckpt = tiny_open(&spec);
        cfg.prompt_arithmetic = i % 2 ? PROMPT_ARITHMETIC_F16 : PROMPT_ARITHMETIC_EXACT;
        assert_int_equal(executor_plan(ckpt, &cfg, &plan, &err), 0);
        if (i == 1)
            before = free_bytes(); /* from now on the driver's permanent memory is already taken */
        uint64_t at_start = free_bytes();
        model_run_open_ckpt(&run, ckpt, &cfg);
        const struct executor_plan *taken = executor_actual(run.ex);
        uint64_t planned = plan.weights_bytes + plan.kv_bytes + plan.workspace_bytes;
        uint64_t actual = taken->weights_bytes + taken->kv_bytes + taken->workspace_bytes;
        assert_true(fabs((double)planned - (double)actual) <= 0.02 * (double)planned);
        if (i > 0) { /* the driver counts in pieces of 2 MiB */
            double device = (double)at_start - (double)free_bytes();
            double at_once = (double)(planned - plan.devices[0].graph_bytes);
            assert_true(fabs(device - at_once) <= 0.02 * (double)planned + (4 << 20));
        }
        model_run_add(&run, ids[0], N_TOKENS);
        model_run_push(&run, 0, 5, 1);
        model_run_step(&run);
        assert_true(isfinite(executor_logits(run.ex, 0)[0]));
        model_run_close(&run);
        if (i > 0)
            assert_true(test_memory_is_back(before, free_bytes()));
    }
}

/* Runs steps of generated tokens of n_rows sequences, often enough for a capture. */
static void capture_rows(struct model_run *run, uint32_t n_rows)
{
    for (int i = 0; i < 2; i++) {
        for (uint32_t s = 0; s < n_rows; s++)
            model_run_push(run, s, 1, 1);
        model_run_step(run);
    }
}

/* Captures steps of 1, 2, 4, 8 and 16 rows in one context. Compares the planned memory with the
 * memory that the device lost. */
static void capture_within_plan(uint32_t type, bool biases, bool is_first)
{
    enum { N_BUCKETS = 5 };
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = gpu_config();
    struct model_run run;
    spec.matrix_type = type;
    spec.biases = biases;
    uint64_t at_start = free_bytes();
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    const struct executor_plan *plan = executor_actual(run.ex);
    const struct executor_device *gpu = &plan->devices[plan->n_devices - 1];
    for (uint32_t s = 0; s < MODEL_RUN_MAX_SEQS; s++)
        model_run_add(&run, ids[s], N_TOKENS);
    run.generated = true;
    capture_rows(&run, 1);
    uint64_t of_one = executor_graphs_taken(run.ex);
    assert_true(of_one > 0);
    assert_true(N_BUCKETS * of_one <= gpu->graph_bytes); /* no op is forgotten */
    for (uint32_t n = 2; n <= MODEL_RUN_MAX_SEQS; n *= 2)
        capture_rows(&run, n);
    assert_true(executor_graphs_taken(run.ex) > of_one);
    assert_true(executor_graphs_taken(run.ex) <= gpu->graph_bytes);
    uint64_t planned = plan->weights_bytes + plan->kv_bytes + plan->workspace_bytes;
    int64_t taken = (int64_t)at_start - (int64_t)free_bytes();
    print_message("type %u%s: a graph of %" PRIu64 " ops over %u layers; %" PRIu64
                  " bytes planned for graphs, %" PRIu64 " in all, %" PRId64 " taken\n",
                  type, is_first ? ", kernels not loaded yet" : "", of_one / GRAPH_OP_BYTES,
                  spec.n_layers, gpu->graph_bytes, planned, taken);
    if (!is_first)
        assert_true(taken <= (int64_t)(planned + planned / 50 + (4 << 20)));
    model_run_close(&run);
}

/* Beside allocations, a driver takes memory for captured steps. The plan includes that memory, and
 * the driver keeps within the plan. Memory for the first run of a kernel stays with the driver. */
static void test_captured_steps_are_within_the_plan(void **state)
{
    static const uint32_t types[] = {GGML_F32, GGML_Q4_1, GGML_Q8_0};
    (void)state;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        capture_within_plan(types[t], t == 0, true);
        capture_within_plan(types[t], t == 0, false);
    }
}

/* The same for layers with latent attention and experts, whose heads are one product. */
static void test_captured_steps_of_latent_attention_are_within_the_plan(void **state)
{
    enum { N_BUCKETS = 5, N_SEQS = 4, N = 16 };
    static uint32_t tokens[N_SEQS][N];
    struct executor_config cfg = gpu_config();
    struct model_run run;
    char path[512];
    (void)state;
    cfg.kv_dtype = DTYPE_BF16;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/deepseek_v3", golden_source_dir());
    model_run_open(&run, path, &cfg);
    uint64_t planned = executor_actual(run.ex)->devices[0].graph_bytes;
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t i = 0; i < N; i++)
            tokens[s][i] = (s * 7 + i) % 32;
        model_run_add(&run, tokens[s], N);
    }
    run.generated = true;
    capture_rows(&run, 1);
    uint64_t of_one = executor_graphs_taken(run.ex);
    print_message("a graph of %" PRIu64 " ops; %" PRIu64 " bytes planned for graphs\n",
                  of_one / GRAPH_OP_BYTES, planned);
    assert_true(of_one > 0 && N_BUCKETS * of_one <= planned);
    capture_rows(&run, N_SEQS);
    assert_true(executor_graphs_taken(run.ex) > of_one);
    assert_true(executor_graphs_taken(run.ex) <= planned);
    model_run_close(&run);
}

/* More rows of a sequence at once than the plan has graphs for: the oldest give way, the bits stay.
 */
static void test_graphs_beyond_the_plan_give_way(void **state)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 1, 2, 4};
    enum { N = sizeof(rows) / sizeof(rows[0]), ROUNDS = 2 };
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = gpu_config();
    struct model_run run;
    uint64_t most = 0;
    (void)state;
    spec.matrix_type = GGML_Q4_1;
    cfg.max_seqs = 1;
    cfg.n_score_rows = 16;
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    uint64_t planned = executor_actual(run.ex)->devices[0].graph_bytes;
    run.generated = true;
    for (size_t i = 0; i < N; i++) {
        for (int round = 0; round < ROUNDS; round++) {
            if (run.n_seqs)
                free(run.seqs[0].table);
            run.n_seqs = 0; /* starts again with no sequences */
            model_run_add(&run, ids[0], N_TOKENS);
            model_run_push(&run, 0, rows[i], 1);
            model_run_step(&run);
        }
        uint64_t taken = executor_graphs_taken(run.ex);
        most = taken > most ? taken : most;
        assert_true(taken <= planned);
    }
    print_message("%" PRIu64 " of %" PRIu64 " bytes at most\n", most, planned);
    assert_true(most > planned / 2);
    model_run_close(&run);
}

static void test_too_little_memory_is_told(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = gpu_config();
    struct executor *ex = NULL;
    struct error err = {0};
    (void)state;
    cfg.gpu_layers = spec.n_layers;
    cfg.gpu_memory_bytes = 1 << 20;
    uint64_t before = free_bytes();
    struct checkpoint *ckpt = tiny_open(&spec);
    assert_int_equal(executor_open(ckpt, &cfg, NULL, NULL, NULL, &ex, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_DEVICE_MEMORY);
    assert_non_null(strstr(err.message, "cuda:0"));
    assert_non_null(strstr(err.message, "bytes needed"));
    assert_non_null(strstr(err.message, "1048576"));
    checkpoint_close(ckpt);
    assert_true(test_memory_is_back(before, free_bytes()));
}

static void test_what_a_gpu_cannot_do_is_refused(void **state)
{
    static const struct {
        const char *device;
        uint32_t tp;
        int status;
    } bad[] = {{"cuda", 1, STATUS_INVALID_ARGUMENT},   {"cuda:", 1, STATUS_INVALID_ARGUMENT},
               {"cuda:x", 1, STATUS_INVALID_ARGUMENT}, {"cuda:0,1", 1, STATUS_INVALID_ARGUMENT},
               {"cuda:99", 1, STATUS_NOT_FOUND},       {"cuda:0", 2, STATUS_UNIMPLEMENTED}};
    struct tiny_spec spec = tiny_spec_default();
    struct checkpoint *ckpt = tiny_open(&spec);
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct executor_config cfg = gpu_config();
        struct executor_plan plan;
        struct error err = {0};
        cfg.device = bad[i].device;
        cfg.tp = bad[i].tp;
        assert_int_equal(executor_plan(ckpt, &cfg, &plan, &err), bad[i].status);
    }
    checkpoint_close(ckpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_near_transformers),
        cmocka_unit_test(test_families_near_transformers),
        cmocka_unit_test(test_recurrent_families_near_transformers),
        cmocka_unit_test(test_latent_families_near_transformers),
        cmocka_unit_test(test_latent_bits_do_not_depend_on_cuts),
        cmocka_unit_test(test_newer_families_near_transformers),
        cmocka_unit_test(test_quantized_families_near_transformers),
        cmocka_unit_test(test_logits_near_the_cpu),
        cmocka_unit_test(test_bits_do_not_depend_on_cuts),
        cmocka_unit_test(test_bits_do_not_depend_on_neighbours),
        cmocka_unit_test(test_first_layers_on_the_cpu),
        cmocka_unit_test(test_layers_are_left_to_the_cpu_where_memory_is_short),
        cmocka_unit_test(test_memory_is_planned_and_comes_back),
        cmocka_unit_test(test_captured_steps_are_within_the_plan),
        cmocka_unit_test(test_captured_steps_of_latent_attention_are_within_the_plan),
        cmocka_unit_test(test_graphs_beyond_the_plan_give_way),
        cmocka_unit_test(test_too_little_memory_is_told),
        cmocka_unit_test(test_what_a_gpu_cannot_do_is_refused),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, make_ids, NULL);
}
