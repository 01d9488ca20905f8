/* The same logits, to the bit, however a sequence is cut into steps, threads, ranks and batches;
 * and the executor's refusals. On small made checkpoints; test_logits.c compares values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_model.h"
#include "tests/unit/engine/support/support_tiny.h"

enum { N_TOKENS = 45, MAX_TOKENS = 256 };

static uint32_t ids[MODEL_RUN_MAX_SEQS][MAX_TOKENS];

static int make_ids(void **state)
{
    uint32_t x = 7;
    (void)state;
    for (uint32_t s = 0; s < MODEL_RUN_MAX_SEQS; s++)
        for (uint32_t i = 0; i < MAX_TOKENS; i++) {
            x = x * 1664525U + 1013904223U;
            ids[s][i] = (x >> 10) % 300;
        }
    return 0;
}

static float *run_alone(const struct tiny_spec *spec, const struct executor_config *cfg,
                        uint32_t i_seq, uint32_t n, uint32_t chunk)
{
    struct model_run run;
    float *out = malloc((size_t)n * spec->vocab * sizeof(float));
    assert_non_null(out);
    model_run_open_ckpt(&run, tiny_open(spec), cfg);
    model_run_all(&run, ids[i_seq], n, chunk, false, out);
    model_run_close(&run);
    return out;
}

static void assert_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s: logit %zu is %.9g, expected %.9g", what, i, (double)a[i], (double)b[i]);
}

struct variant {
    const char *name;
    uint32_t tp, n_threads, chunk, block_size;
};

static const struct variant variants[] = {
    {"1 thread", 1, 1, 16, 16},   {"chunks of 7", 1, 2, 7, 16},    {"token by token", 1, 1, 1, 16},
    {"blocks of 4", 1, 2, 16, 4}, {"blocks of 128", 1, 2, 5, 128}, {"tp 2", 2, 2, 16, 16},
    {"tp 2, chunks", 2, 3, 3, 8}, {"tp 4", 4, 4, 16, 16},          {"tp 8", 8, 2, 9, 32},
};

/* Returns the spec of `form`; GPT-2 and BLOOM have no KV heads that several query heads share. */
static struct tiny_spec spec_of(enum tiny_form form)
{
    struct tiny_spec spec = tiny_spec_default();
    spec.form = form;
    if (form != TINY_LLAMA)
        spec.n_kv_heads = spec.n_heads;
    return spec;
}

static void check_variants(const char *kernels, enum tiny_form form, uint32_t matrix_type,
                           bool biases)
{
    struct tiny_spec spec = spec_of(form);
    spec.matrix_type = matrix_type;
    spec.biases = biases;
    spec.rope_freqs = biases;
    struct executor_config cfg = model_run_config(kernels);
    float *expected = run_alone(&spec, &cfg, 0, N_TOKENS, 16);
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        const struct variant *v = &variants[i];
        char what[96];
        cfg.tp = v->tp;
        cfg.n_threads = v->n_threads;
        cfg.kv_block_size = v->block_size;
        float *got = run_alone(&spec, &cfg, 0, N_TOKENS, v->chunk);
        snprintf(what, sizeof(what), "%s, %s kernels, matrices of type %u, %s", tiny_prefix(form),
                 kernels, matrix_type, v->name);
        assert_same_bits(got, expected, (size_t)N_TOKENS * spec.vocab, what);
        free(got);
    }
    free(expected);
}

static const char *const kernel_sets[] = {"f32", "ref", "auto"};

static void test_logits_any_cut_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(kernel_sets) / sizeof(kernel_sets[0]); i++) {
        check_variants(kernel_sets[i], TINY_LLAMA, GGML_Q4_1, false);
        check_variants(kernel_sets[i], TINY_LLAMA, GGML_Q8_0, true);
        check_variants(kernel_sets[i], TINY_LLAMA, GGML_F32, false);
        check_variants(kernel_sets[i], TINY_GPT2, GGML_Q4_1, false);
        check_variants(kernel_sets[i], TINY_GPT2, GGML_F32, false);
        check_variants(kernel_sets[i], TINY_BLOOM, GGML_Q8_0, false);
        check_variants(kernel_sets[i], TINY_BLOOM, GGML_F32, false);
    }
}

/* Five sequences of different lengths, stepping together in pieces of different sizes. */
static void check_mixed(const char *kernels, enum tiny_form form, uint32_t tp)
{
    static const uint32_t lengths[] = {40, 3, 17, 33, 1}, pieces[] = {6, 1, 5, 11, 1};
    enum { N = 5 };
    struct tiny_spec spec = spec_of(form);
    struct executor_config cfg = model_run_config(kernels);
    struct model_run run;
    float *expected[N];
    uint32_t done[N] = {0};
    spec.matrix_type = GGML_Q8_0;
    cfg.tp = tp;
    for (uint32_t s = 0; s < N; s++)
        expected[s] = run_alone(&spec, &cfg, s, lengths[s], 16);
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    for (uint32_t s = 0; s < N; s++)
        model_run_add(&run, ids[s], lengths[s]);
    for (bool more = true; more;) {
        uint32_t stepped[N], n_stepped = 0;
        more = false;
        for (uint32_t s = 0; s < N; s++) {
            uint32_t left = lengths[s] - done[s], n = left < pieces[s] ? left : pieces[s];
            if (!n)
                continue;
            model_run_push(&run, s, n, 1);
            done[s] += n;
            stepped[n_stepped++] = s;
            more = true;
        }
        if (!more)
            break;
        model_run_step(&run);
        for (uint32_t i = 0; i < n_stepped; i++) {
            char what[96];
            uint32_t s = stepped[i];
            snprintf(what, sizeof(what), "%s, %s, tp %u, sequence %u at %u", tiny_prefix(form),
                     kernels, tp, s, done[s]);
            assert_same_bits(executor_logits(run.ex, i),
                             expected[s] + (size_t)(done[s] - 1) * spec.vocab, spec.vocab, what);
        }
    }
    model_run_close(&run);
    for (uint32_t s = 0; s < N; s++)
        free(expected[s]);
}

static void test_logits_in_company_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(kernel_sets) / sizeof(kernel_sets[0]); i++) {
        check_mixed(kernel_sets[i], TINY_LLAMA, 1);
        check_mixed(kernel_sets[i], TINY_LLAMA, 2);
        check_mixed(kernel_sets[i], TINY_GPT2, 2);
        check_mixed(kernel_sets[i], TINY_BLOOM, 2);
    }
}

/* A sequence whose last, partly filled block is copied continues like the original. */
static void test_copy_block_continues_same_bits(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct error err = {0};
    (void)state;
    for (uint32_t tp = 1; tp <= 2; tp++) {
        struct executor_config cfg = model_run_config("f32");
        struct model_run run;
        cfg.tp = tp;
        model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
        uint32_t a = model_run_add(&run, ids[0], N_TOKENS);
        model_run_push(&run, a, 20, 0);
        model_run_step(&run);
        uint32_t b = model_run_add(&run, ids[0], N_TOKENS);
        struct model_run_seq *from = &run.seqs[a], *to = &run.seqs[b];
        to->table[0] = from->table[0];
        to->table[1] = 40; /* a free block: model_run takes even blocks first, up to 2 here */
        to->n_blocks = 2;
        to->n_done = 20;
        assert_int_equal(executor_copy_block(run.ex, from->table[1], 40, &err), 0);
        model_run_push(&run, a, 5, 1);
        model_run_push(&run, b, 5, 1);
        model_run_step(&run);
        assert_same_bits(executor_logits(run.ex, 1), executor_logits(run.ex, 0), spec.vocab,
                         "copy");
        assert_int_equal(executor_copy_block(run.ex, 0, 1 << 20, &err), STATUS_INTERNAL);
        model_run_close(&run);
    }
}

static void test_open_bad_config_names_field(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct checkpoint *ckpt = tiny_open(&spec);
    const struct executor_config good = model_run_config("f32");
    struct executor_config bad[9];
    static const char *const expected[9] = {
        "tp|3|1|2|4|8",
        "kv_block_size|24|1..128",
        "kv_block_size|256|1..128",
        "kv_tokens|0",
        "max_context_tokens|257|256",
        "max_rows|0|1..65536",
        "max_seqs|0|1..16384",
        "kv_dtype|Q8_0|F32|F16|BF16|I8|f32",
        "kv_dtype|F8_E4M3|F32|F16|BF16|I8|f32",
    };
    (void)state;
    for (int i = 0; i < 9; i++)
        bad[i] = good;
    bad[0].tp = 3;
    bad[1].kv_block_size = 24;
    bad[2].kv_block_size = 256;
    bad[3].kv_tokens = 0;
    bad[4].max_context_tokens = 257;
    bad[5].max_rows = 0;
    bad[6].max_seqs = 0;
    bad[7].kv_dtype = DTYPE_Q8_0;
    bad[8].kv_dtype = DTYPE_F8_E4M3;
    for (int i = 0; i < 9; i++) {
        struct error err = {0};
        struct executor_plan plan;
        struct executor *ex = NULL;
        assert_int_equal(executor_plan(ckpt, &bad[i], &plan, &err), STATUS_INVALID_ARGUMENT);
        assert_int_equal(executor_open(ckpt, &bad[i], NULL, NULL, NULL, &ex, &err),
                         STATUS_INVALID_ARGUMENT);
        assert_null(ex);
        if (!names_all(err.message, expected[i]))
            fail_msg("got \"%s\", expected \"%s\"", err.message, expected[i]);
        assert_int_equal(strncmp(err.message, err.field, strlen(err.field)), 0);
    }
    checkpoint_close(ckpt);
}

static void test_open_tp_without_heads_refused(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("f32");
    struct error err = {0};
    struct executor *ex = NULL;
    (void)state;
    spec.n_heads = 4;
    spec.n_kv_heads = 2;
    cfg.tp = 8;
    struct checkpoint *ckpt = tiny_open(&spec);
    assert_int_equal(executor_open(ckpt, &cfg, NULL, NULL, NULL, &ex, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "tp 8"));
    checkpoint_close(ckpt);
}

static void test_open_unknown_kernels_refused(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("mmx");
    struct error err = {0};
    struct executor *ex = NULL;
    struct checkpoint *ckpt = tiny_open(&spec);
    (void)state;
    assert_int_equal(executor_open(ckpt, &cfg, NULL, NULL, NULL, &ex, &err), STATUS_NOT_FOUND);
    checkpoint_close(ckpt);
}

/* Wrong numbers in a batch would write out of bounds: each is refused before an op runs. */
static void test_step_bad_batch_refused(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("f32");
    struct model_run run;
    (void)state;
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    struct step_batch *b = run.batch;
    uint32_t seq = model_run_add(&run, ids[0], 20);
    model_run_push(&run, seq, 20, 1);
    struct {
        const char *what;
        uint32_t *at;
        uint32_t bad;
    } rows[] = {
        {"no rows", &b->n_rows, 0},
        {"too many rows", &b->n_rows, 129},
        {"no sequences", &b->n_seqs, 0},
        {"too many sequences", &b->n_seqs, 17},
        {"too many samples", &b->n_sample_rows, 17},
        {"start", &b->seq_start[0], 1},
        {"end", &b->seq_start[1], 19},
        {"token", &b->token_ids[3], 300},
        {"slot", &b->kv_slots[3], 2048},
        {"sequence of row", &b->seq_of_row[3], 1},
        {"gap in positions", &b->positions[3], 5},
        {"position past the context", &b->positions[19], 256},
        {"block", &b->block_tables[1], 128},
        {"sample row", &b->sample_rows[0], 20},
        {"table width", &b->limits.max_blocks_per_seq, 1000},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err = {0};
        uint32_t good = *rows[i].at;
        *rows[i].at = rows[i].bad;
        if (executor_step(run.ex, b, &err) != STATUS_INTERNAL)
            fail_msg("%s: not refused", rows[i].what);
        *rows[i].at = good;
    }
    model_run_step(&run);
    model_run_close(&run);
}

struct progress {
    uint32_t n_calls, n_ranks_seen;
    uint64_t last[8], total[8];
    atomic_bool cancel;
    uint32_t cancel_after;
};

static void on_progress(void *ctx, uint32_t rank, uint64_t done, uint64_t total)
{
    struct progress *p = ctx;
    assert_true(rank < 8 && done >= p->last[rank] && done <= total);
    p->last[rank] = done;
    p->total[rank] = total;
    if (++p->n_calls == p->cancel_after)
        p->cancel = true;
}

static void test_open_progress_reaches_total_per_rank(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("auto");
    struct progress p = {0};
    struct error err = {0};
    struct executor *ex = NULL;
    struct checkpoint *ckpt = tiny_open(&spec);
    (void)state;
    cfg.tp = 2;
    assert_int_equal(executor_open(ckpt, &cfg, on_progress, &p, NULL, &ex, &err), 0);
    assert_true(p.n_calls >= 20);
    for (int r = 0; r < 2; r++) {
        assert_true(p.total[r] > 0);
        assert_true(p.last[r] == p.total[r]);
    }
    executor_close(ex);
    checkpoint_close(ckpt);
}

static void test_open_cancelled_returns_nothing(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("auto");
    struct progress p = {.cancel_after = 5};
    struct error err = {0};
    struct executor *ex = NULL;
    struct checkpoint *ckpt = tiny_open(&spec);
    (void)state;
    assert_int_equal(executor_open(ckpt, &cfg, on_progress, &p, &p.cancel, &ex, &err),
                     STATUS_CANCELLED);
    assert_null(ex);
    assert_true(p.n_calls < 10);
    checkpoint_close(ckpt);
}

static void test_plan_equals_actual(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    (void)state;
    for (uint32_t tp = 1; tp <= 4; tp *= 2) {
        struct executor_config cfg = model_run_config("auto");
        struct executor_plan plan;
        struct model_run run;
        struct error err = {0};
        cfg.tp = tp;
        model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
        assert_int_equal(executor_plan(run.ckpt, &cfg, &plan, &err), 0);
        const struct executor_plan *actual = executor_actual(run.ex);
        assert_true(plan.weights_bytes == actual->weights_bytes);
        assert_true(plan.kv_bytes == actual->kv_bytes);
        /* Only the plan rounds sizes up to 256 bytes. */
        assert_true(plan.workspace_bytes >= actual->workspace_bytes);
        assert_true(plan.workspace_bytes < actual->workspace_bytes + 1024);
        /* K and V, 2 layers, 2048 tokens, 4 KV heads of 32, f32: no head is shared here. */
        assert_true(plan.kv_bytes == 2ULL * 2 * 2048 * 4 * 32 * 4);
        assert_int_equal(plan.n_blocks, 128);
        assert_int_equal(plan.context_tokens, 256);
        model_run_close(&run);
    }
}

static void test_info_and_numerics_id(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("f32");
    struct model_run run;
    (void)state;
    spec.matrix_type = GGML_Q8_0;
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    const struct model_info *info = executor_model_info(run.ex);
    assert_string_equal(info->architecture, "llama");
    assert_string_equal(info->name, "tiny");
    assert_string_equal(info->quantization, "Q8_0");
    assert_int_equal(info->vocab_size, 300);
    assert_int_equal(info->n_kv_heads, 4);
    assert_int_equal(info->head_dim, 32);
    assert_true(info->n_params > 80000 && info->n_params < 400000);
    char f32_id[160];
    snprintf(f32_id, sizeof(f32_id), "%s", executor_numerics_id(run.ex));
    assert_non_null(strstr(f32_id, "cpu/"));
    assert_non_null(strstr(f32_id, "/kv-F32/"));
    model_run_close(&run);
    cfg.kernels = "auto";
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    assert_string_not_equal(executor_numerics_id(run.ex), f32_id);
    model_run_close(&run);
}

static void test_sample_greedy_takes_largest_logit(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("auto");
    struct model_run run;
    struct error err = {0};
    (void)state;
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    uint32_t seq = model_run_add(&run, ids[0], 8);
    model_run_push(&run, seq, 8, 2);
    model_run_step(&run);
    struct sample_params params[8];
    struct sample_result results[8];
    for (int i = 0; i < 8; i++)
        params[i] = (struct sample_params){.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    assert_int_equal(executor_sample(run.ex, 0, 9, params, results, &err), STATUS_INTERNAL);
    assert_int_equal(executor_sample(run.ex, 0, 8, params, results, &err), 0);
    for (uint32_t i = 0; i < 8; i++) {
        const float *logits = executor_logits(run.ex, i);
        uint32_t best = 0;
        for (uint32_t v = 1; v < spec.vocab; v++)
            if (logits[v] > logits[best])
                best = v;
        assert_int_equal(results[i].id, best);
    }
    model_run_close(&run);
}

/* A step that needs logits of more rows than are kept at a time. Logits and draws
 * of any rows equal those of steps with few rows. */
static void check_many_rows(const char *kernels, uint32_t tp)
{
    enum { N_A = 70, N_B = 57, N = N_A + N_B };
    static const uint32_t order[] = {0, 63, 64, 126, 65, 3, 90, 10, 126, 127 - 64};
    static const struct {
        uint32_t first, n;
    } runs[] = {{0, N}, {0, 64}, {60, 10}, {126, 1}, {70, 57}, {5, 1}, {63, 2}};
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config(kernels);
    struct sample_params params[N];
    struct sample_result expected[N], results[N];
    struct model_run run;
    struct error err = {0};
    float *of_a, *of_b;
    spec.matrix_type = GGML_Q4_1;
    cfg.tp = tp;
    of_a = run_alone(&spec, &cfg, 0, N_A, 16);
    of_b = run_alone(&spec, &cfg, 1, N_B, 16);
    cfg.n_score_rows = N;
    for (uint32_t i = 0; i < N; i++)
        params[i] = (struct sample_params){.temperature = 1.2F,
                                           .top_p = 1,
                                           .typical_p = 1,
                                           .repetition_penalty = 1,
                                           .seed = i,
                                           .position = i,
                                           .want_logprob = 1};
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    model_run_add(&run, ids[0], N_A);
    model_run_add(&run, ids[1], N_B);
    model_run_push(&run, 0, N_A, 2);
    model_run_push(&run, 1, N_B, 2);
    model_run_step(&run);
    assert_int_equal(executor_sample(run.ex, 0, N, params, expected, &err), 0);
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        uint32_t row = order[i], in_b = row >= N_A ? row - N_A : 0;
        assert_same_bits(executor_logits(run.ex, row),
                         row < N_A ? of_a + (size_t)row * spec.vocab
                                   : of_b + (size_t)in_b * spec.vocab,
                         spec.vocab, kernels);
    }
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        uint32_t first = runs[i].first, n = runs[i].n;
        memset(results, 0, sizeof(results));
        assert_int_equal(executor_sample(run.ex, first, n, params + first, results, &err), 0);
        for (uint32_t k = 0; k < n; k++) {
            assert_int_equal(results[k].id, expected[first + k].id);
            assert_memory_equal(&results[k].logprob, &expected[first + k].logprob, sizeof(float));
        }
    }
    assert_null(executor_logits(run.ex, N));
    assert_int_equal(executor_sample(run.ex, N - 1, 2, params, results, &err), STATUS_INTERNAL);
    model_run_close(&run);
    free(of_a);
    free(of_b);
}

static void test_more_rows_than_logits_same_bits(void **state)
{
    (void)state;
    for (uint32_t tp = 1; tp <= 2; tp++) {
        check_many_rows("auto", tp);
        check_many_rows("f32", tp);
    }
}

/* The memory of logits does not grow with the number of sequences: it has 64 rows. */
static void test_logits_of_many_sequences_take_no_more_memory(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("auto");
    struct checkpoint *ckpt = tiny_open(&spec);
    struct executor_plan few, many;
    struct error err = {0};
    (void)state;
    cfg.max_seqs = 64;
    assert_int_equal(executor_plan(ckpt, &cfg, &few, &err), 0);
    cfg.max_seqs = 1024;
    assert_int_equal(executor_plan(ckpt, &cfg, &many, &err), 0);
    /* Block tables and numbers of sample rows, 17 words each. */
    assert_true(many.workspace_bytes - few.workspace_bytes <= (1024 - 64) * 17 * 4 + 1024);
    checkpoint_close(ckpt);
}

static void test_progress_counter_counts_layers(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("auto");
    struct model_run run;
    (void)state;
    cfg.tp = 2;
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    uint32_t seq = model_run_add(&run, ids[0], 3);
    for (uint32_t i = 1; i <= 3; i++) {
        model_run_push(&run, seq, 1, 0);
        model_run_step(&run);
        assert_int_equal(executor_progress_counter(run.ex), 2 * i);
    }
    model_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_any_cut_same_bits),
        cmocka_unit_test(test_logits_in_company_same_bits),
        cmocka_unit_test(test_copy_block_continues_same_bits),
        cmocka_unit_test(test_open_bad_config_names_field),
        cmocka_unit_test(test_open_tp_without_heads_refused),
        cmocka_unit_test(test_open_unknown_kernels_refused),
        cmocka_unit_test(test_step_bad_batch_refused),
        cmocka_unit_test(test_open_progress_reaches_total_per_rank),
        cmocka_unit_test(test_open_cancelled_returns_nothing),
        cmocka_unit_test(test_plan_equals_actual),
        cmocka_unit_test(test_info_and_numerics_id),
        cmocka_unit_test(test_sample_greedy_takes_largest_logit),
        cmocka_unit_test(test_more_rows_than_logits_same_bits),
        cmocka_unit_test(test_logits_of_many_sequences_take_no_more_memory),
        cmocka_unit_test(test_progress_counter_counts_layers),
    };
    return cmocka_run_group_tests(tests, make_ids, NULL);
}
