/* Tests of layers with a state, on a made-up architecture. Every first of two layers has a gated
 * delta net or Mamba-2, the others have attention. The bits of a row depend neither on the pieces
 * of the prompt, nor on other rows, nor on ranks. A state can be copied, saved and loaded. Golden
 * files of real families check the arithmetic against transformers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/arch/arch.h"
#include "tests/unit/engine/support/support_gguf.h"
#include "tests/unit/engine/support/support_model.h"

/* Every dimension that ranks divide has four units of 32. */
enum { HIDDEN = 128, FFN = 104, VOCAB = 128, N_LAYERS = 4, HEADS = 8, KEYS = 2, KEY_DIM = 12 };
enum { HEAD_DIM = 16, VALUES = HEADS * HEAD_DIM, WIDTH = 4, N_IDS = 50, SPLIT_AT = 23 };

#define NUMBER(id, value)                                                                          \
    {                                                                                              \
        ARCH_PARAM_STATE_##id, NULL, ARCH_ABSENT_FALLBACK, value, 0                                \
    }
#define TENSOR(slot, required, stem)                                                               \
    {                                                                                              \
        ARCH_STATE_##slot, required, "blk.%u." stem, ARCH_TRANSFORM_NONE                           \
    }

static const struct arch_param params[] = {
    NUMBER(WIDTH, WIDTH),    NUMBER(KEY_DIM, KEY_DIM), NUMBER(HEAD_DIM, HEAD_DIM),
    NUMBER(KEY_HEADS, KEYS), NUMBER(HEADS, HEADS),     NUMBER(TILED, 0),
};
static const struct arch_param tiled_params[] = {
    NUMBER(WIDTH, WIDTH),    NUMBER(KEY_DIM, KEY_DIM), NUMBER(HEAD_DIM, HEAD_DIM),
    NUMBER(KEY_HEADS, KEYS), NUMBER(HEADS, HEADS),     NUMBER(TILED, 1),
};
/* A single group, which two ranks cannot divide. */
static const struct arch_param one_group_params[] = {
    NUMBER(WIDTH, WIDTH), NUMBER(KEY_DIM, KEY_DIM), NUMBER(HEAD_DIM, HEAD_DIM),
    NUMBER(KEY_HEADS, 1), NUMBER(HEADS, HEADS),     NUMBER(TILED, 0),
};
static const struct arch_param conv_params[] = {NUMBER(WIDTH, WIDTH)};
static const struct arch_tensor conv_tensors[] = {
    TENSOR(V, true, "v"),
    TENSOR(CONV_V, true, "conv_v"),
    TENSOR(CONV_V_BIAS, false, "conv_v_bias"),
    TENSOR(OUT, true, "out"),
    {ARCH_CONV_GATE_IN, true, "blk.%u.gate_in", ARCH_TRANSFORM_NONE},
    {ARCH_CONV_GATE_OUT, true, "blk.%u.gate_out", ARCH_TRANSFORM_NONE},
};
static const struct arch_tensor tensors[] = {
    TENSOR(Q, true, "q"),
    TENSOR(K, true, "k"),
    TENSOR(V, true, "v"),
    TENSOR(GATE, true, "gate"),
    TENSOR(DT, true, "dt"),
    TENSOR(BETA, false, "beta"),
    TENSOR(CONV_Q, true, "conv_q"),
    TENSOR(CONV_K, true, "conv_k"),
    TENSOR(CONV_V, true, "conv_v"),
    TENSOR(CONV_Q_BIAS, false, "conv_q_bias"),
    TENSOR(CONV_V_BIAS, false, "conv_v_bias"),
    TENSOR(DT_BIAS, true, "dt_bias"),
    {ARCH_STATE_A, true, "blk.%u.a_log", ARCH_TRANSFORM_MINUS_EXP},
    TENSOR(D, false, "d"),
    TENSOR(NORM, true, "norm"),
    TENSOR(OUT, true, "out"),
};
static const struct arch_pattern patterns[] = {
    {.part = ARCH_PART_MIXER, .form = ARCH_PATTERN_LAST_OF, .n = 2, .kind = 1},
};

/* A model of the test: the kind of its layers, and its numbers. */
struct hybrid {
    const char *name;
    enum arch_mixing mixing;
    uint32_t n_keys;
    bool norm_before_gate;
    const struct arch_param *params;
    bool always; /* also in a shortened run on an emulated GPU */
};

static const struct hybrid hybrids[] = {
    {"delta net", ARCH_MIXING_DELTA, KEYS, false, params, false},
    {"tiled delta net", ARCH_MIXING_DELTA, KEYS, false, tiled_params, true},
    {"mamba-2", ARCH_MIXING_MAMBA2, KEYS, false, params, false},
    {"mamba-2, one group", ARCH_MIXING_MAMBA2, 1, false, one_group_params, true},
    {"mamba-2, norm first", ARCH_MIXING_MAMBA2, KEYS, true, params, false},
    {"attention and mamba-2", ARCH_MIXING_ATTENTION_MAMBA2, KEYS, false, params, true},
    {"short convolution", ARCH_MIXING_CONV, 0, false, conv_params, true},
};

enum { N_HYBRIDS = sizeof(hybrids) / sizeof(hybrids[0]) };

static struct arch_source source;

static struct arch arch_of(const struct hybrid *h)
{
    bool attends = h->mixing == ARCH_MIXING_ATTENTION_MAMBA2;
    bool is_conv = h->mixing == ARCH_MIXING_CONV;
    source = (struct arch_source){
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "hybrid",
        .rope_style = ROPE_HALF,
        .params = h->params,
        .tensors = is_conv ? conv_tensors : tensors,
        .patterns = patterns,
        .n_params = is_conv ? ARCH_N_OF(conv_params) : ARCH_N_OF(params),
        .n_tensors = is_conv ? ARCH_N_OF(conv_tensors) : ARCH_N_OF(tensors),
        .n_patterns = ARCH_N_OF(patterns),
    };
    return (struct arch){
        .name = "hybrid",
        .output = ARCH_OUTPUT_TIED_IF_ABSENT,
        .mixers = {{.name = "state",
                    .mixing = h->mixing,
                    .rope = attends ? 0 : ARCH_NO_ROPE,
                    .norm_before_gate = h->norm_before_gate},
                   {.name = "full_attention", .rope = 0}},
        .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
        .n_mixers = 2,
        .n_ffns = 1,
        .sources = &source,
        .n_sources = 1,
    };
}

/* --- the file --- */

struct row {
    const char *stem; /* after "blk.N."; or the whole name */
    uint32_t cols, rows;
    float center, spread;
};

struct file {
    struct gguf_writer w;
    uint64_t offset;
    uint32_t random;
    bool writes; /* second pass: the values */
};

static void put_tensor(struct file *f, const char *name, const struct row *row)
{
    uint64_t dims[2] = {row->cols, row->rows};
    uint32_t n = row->cols * row->rows;
    if (!f->writes) {
        gguf_tensor(&f->w, name, GGML_F32, row->rows == 1 ? 1 : 2, dims, f->offset);
        f->offset += ((uint64_t)n * sizeof(float) + 31) / 32 * 32;
        return;
    }
    while (f->w.bytes.n_bytes % 32)
        gguf_u8(&f->w, 0);
    for (uint32_t i = 0; i < n; i++) {
        f->random = f->random * 1664525U + 1013904223U;
        float value = row->center + row->spread * ((float)(f->random >> 8) / 8388608.0F - 1.0F);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        gguf_u32(&f->w, bits);
    }
}

static void put_layer(struct file *f, const struct hybrid *h, uint32_t layer)
{
    const uint32_t keys = h->n_keys * KEY_DIM;
    const bool is_delta = h->mixing == ARCH_MIXING_DELTA, is_conv = h->mixing == ARCH_MIXING_CONV;
    const bool has_conv = layer % 2 == 0 && is_conv, has_state = layer % 2 == 0 && !is_conv;
    const bool attends = layer % 2 != 0 || h->mixing == ARCH_MIXING_ATTENTION_MAMBA2;
    const struct row all[] = {
        {"attn_norm.weight", HIDDEN, 1, 1, 0.4F},  {"ffn_norm.weight", HIDDEN, 1, 1, 0.4F},
        {"ffn_gate.weight", HIDDEN, FFN, 0, 0.2F}, {"ffn_up.weight", HIDDEN, FFN, 0, 0.2F},
        {"ffn_down.weight", FFN, HIDDEN, 0, 0.1F},
    };
    const struct row attention[] = {
        {"attn_q.weight", HIDDEN, HIDDEN, 0, 0.9F},
        {"attn_k.weight", HIDDEN, HIDDEN, 0, 0.9F},
        {"attn_v.weight", HIDDEN, HIDDEN, 0, 0.2F},
        {"attn_output.weight", HIDDEN, HIDDEN, 0, 0.1F},
    };
    const struct row state[] = {
        {"q", HIDDEN, keys, 0, 0.5F},
        {"k", HIDDEN, keys, 0, 0.5F},
        {"v", HIDDEN, VALUES, 0, 0.5F},
        {"gate", HIDDEN, VALUES, 0, 0.5F},
        {"dt", HIDDEN, HEADS, 0, 0.2F},
        {"conv_q", WIDTH, keys, 0.2F, 0.6F},
        {"conv_k", WIDTH, keys, 0.2F, 0.6F},
        {"conv_v", WIDTH, VALUES, 0.2F, 0.6F},
        {"dt_bias", HEADS, 1, -1, 0.5F},
        {"a_log", HEADS, 1, -1.5F, 0.7F},
        {"norm", is_delta ? HEAD_DIM : VALUES, 1, 1, 0.4F},
        {"out", VALUES, HIDDEN, 0, 0.2F},
    };
    const struct row conv[] = {
        {"v", HIDDEN, HIDDEN, 0, 0.5F},        {"conv_v", WIDTH, HIDDEN, 0.2F, 0.6F},
        {"conv_v_bias", HIDDEN, 1, 0, 0.3F},   {"gate_in", HIDDEN, HIDDEN, 0, 0.5F},
        {"gate_out", HIDDEN, HIDDEN, 0, 0.5F}, {"out", HIDDEN, HIDDEN, 0, 0.2F},
    };
    const struct row delta[] = {{"beta", HIDDEN, HEADS, 0, 0.5F}};
    const struct row mamba[] = {{"d", HEADS, 1, 0.5F, 0.5F},
                                {"conv_q_bias", keys, 1, 0, 0.3F},
                                {"conv_v_bias", VALUES, 1, 0, 0.3F}};
    const struct {
        const struct row *rows;
        size_t n;
        bool has;
    } groups[] = {
        {all, ARCH_N_OF(all), true},
        {attention, ARCH_N_OF(attention), attends},
        {state, ARCH_N_OF(state), has_state},
        {delta, 1, has_state && is_delta},
        {mamba, ARCH_N_OF(mamba), has_state && !is_delta},
        {conv, ARCH_N_OF(conv), has_conv},
    };
    for (size_t g = 0; g < ARCH_N_OF(groups); g++)
        for (size_t i = 0; groups[g].has && i < groups[g].n; i++) {
            char name[64];
            snprintf(name, sizeof(name), "blk.%u.%s", layer, groups[g].rows[i].stem);
            put_tensor(f, name, &groups[g].rows[i]);
        }
}

static void put_tensors(struct file *f, const struct hybrid *h)
{
    const struct row embd = {"token_embd.weight", HIDDEN, VOCAB, 0, 1};
    const struct row norm = {"output_norm.weight", HIDDEN, 1, 1, 0.4F};
    put_tensor(f, embd.stem, &embd);
    put_tensor(f, norm.stem, &norm);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        put_layer(f, h, layer);
}

static struct checkpoint *open_file(const struct hybrid *h)
{
    struct file f = {.random = 12345};
    struct checkpoint *ckpt = NULL;
    struct error err = {0};
    uint32_t eps;
    const float value = 1e-5F;
    memcpy(&eps, &value, sizeof(eps));
    gguf_begin(&f.w);
    gguf_kv_string(&f.w, "general.architecture", "hybrid");
    gguf_kv_u32(&f.w, "hybrid.block_count", N_LAYERS);
    gguf_kv_u32(&f.w, "hybrid.context_length", 128);
    gguf_kv_u32(&f.w, "hybrid.embedding_length", HIDDEN);
    gguf_kv_u32(&f.w, "hybrid.feed_forward_length", FFN);
    gguf_kv_u32(&f.w, "hybrid.attention.head_count", 8);
    gguf_kv(&f.w, "hybrid.attention.layer_norm_rms_epsilon", GGUF_F32);
    gguf_u32(&f.w, eps);
    put_tensors(&f, h);
    gguf_finish(&f.w);
    f.writes = true;
    put_tensors(&f, h);
    if (gguf_open(&f.w, &ckpt, &err) != 0)
        fail_msg("%s: %s", h->name, err.message);
    gguf_writer_fini(&f.w);
    return ckpt;
}

/* --- runs --- */

/* tests/gpu sets cuda:0, real or emulated. A GPU has one set of kernels, and runs a single rank. */
static const char *test_device(void)
{
    return getenv("SLUICE_TEST_DEVICE");
}

/* A shortened run (SLUICE_TEST_STEP) on a GPU has one hybrid for each kernel. */
static bool runs(const struct hybrid *h)
{
    const char *step = getenv("SLUICE_TEST_STEP");
    return h->always || !test_device() || !step || atoi(step) < 2;
}

static void open_run(struct model_run *run, const struct hybrid *h, struct arch *arch,
                     const char *kernels, uint32_t tp)
{
    struct executor_config cfg = model_run_config(kernels);
    if (test_device())
        cfg.device = test_device();
    cfg.tp = tp;
    cfg.max_seqs = 64; /* a step may return the logits of this many rows */
    *arch = arch_of(h);
    model_run_open_arch(run, open_file(h), arch, &cfg);
}

static bool same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof(*a)) == 0;
}

static uint32_t id_at(uint32_t seq, uint32_t i)
{
    return (seq * 31 + i * 37 + i * i * 5) % VOCAB;
}

static void fill_ids(uint32_t seq, uint32_t ids[N_IDS])
{
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = id_at(seq, i);
}

static void run_in(const struct hybrid *h, const char *kernels, uint32_t tp, uint32_t chunk,
                   uint32_t seq, bool generated, float *out)
{
    struct model_run run;
    struct arch arch;
    uint32_t ids[N_IDS];
    fill_ids(seq, ids);
    open_run(&run, h, &arch, kernels, tp);
    run.generated = generated;
    model_run_all(&run, ids, N_IDS, chunk, false, out);
    model_run_close(&run);
}

static void run_whole(const struct hybrid *h, const char *kernels, uint32_t tp, uint32_t chunk,
                      uint32_t seq, float *out)
{
    run_in(h, kernels, tp, chunk, seq, false, out);
}

static void test_pieces_and_ranks_do_not_change_a_bit(void **state)
{
    static const char *const sets[] = {"f32", "ref", "auto"};
    static float whole[N_IDS * VOCAB], other[N_IDS * VOCAB];
    static const struct {
        uint32_t tp, chunk;
    } variants[] = {{1, 1}, {1, 7}, {1, 32}, {2, N_IDS}, {2, 7}, {4, N_IDS}, {4, 9}};
    (void)state;
    for (size_t i = 0; i < 3 * (size_t)N_HYBRIDS; i += test_device() ? 3 : 1) {
        const struct hybrid *h = &hybrids[i / 3];
        if (!runs(h))
            continue;
        run_whole(h, sets[i % 3], 1, N_IDS, 0, whole);
        for (size_t v = 0; v < ARCH_N_OF(variants); v++) {
            if (variants[v].tp > 1 && test_device())
                continue;
            run_whole(h, sets[i % 3], variants[v].tp, variants[v].chunk, 0, other);
            if (!same_bits(whole, other, (size_t)N_IDS * VOCAB))
                fail_msg("%s, kernels %s: %u ranks in pieces of %u have other bits", h->name,
                         sets[i % 3], variants[v].tp, variants[v].chunk);
        }
    }
}

/* Generated rows, of which a GPU captures the steps and replays them with other slots. Steps of 7
 * rows take the captured step of 8, with a row of padding. */
static void test_pieces_of_generated_rows_do_not_change_a_bit(void **state)
{
    static const uint32_t chunks[] = {1, 7};
    static float whole[N_IDS * VOCAB], other[N_IDS * VOCAB];
    (void)state;
    for (size_t i = 0; i < N_HYBRIDS; i++) {
        if (!runs(&hybrids[i]))
            continue;
        run_in(&hybrids[i], "auto", 1, N_IDS, 0, true, whole);
        for (size_t c = 0; c < ARCH_N_OF(chunks); c++) {
            run_in(&hybrids[i], "auto", 1, chunks[c], 0, true, other);
            if (!same_bits(whole, other, (size_t)N_IDS * VOCAB))
                fail_msg("%s: pieces of %u generated rows have other bits", hybrids[i].name,
                         chunks[c]);
        }
    }
}

/* A row's logits depend on tokens far before it, also without attention's layers between. */
static void test_a_state_remembers(void **state)
{
    static float whole[N_IDS * VOCAB];
    (void)state;
    for (size_t i = 0; i < N_HYBRIDS; i++) {
        if (!runs(&hybrids[i]))
            continue;
        struct model_run run;
        struct arch arch;
        uint32_t ids[N_IDS];
        fill_ids(0, ids);
        open_run(&run, &hybrids[i], &arch, "f32", 1);
        model_run_all(&run, ids, N_IDS, N_IDS, false, whole);
        uint32_t seq = model_run_add(&run, ids, N_IDS);
        run.seqs[seq].n_done = 0;
        model_run_push(&run, seq, SPLIT_AT, 0);
        model_run_step(&run);
        model_run_push(&run, seq, 1, 2);
        step_batch_use_slot(run.batch, 0, seq, true); /* the state is lost, K and V are not */
        model_run_step(&run);
        double error = model_relative_error(executor_logits(run.ex, 0),
                                            whole + (size_t)SPLIT_AT * VOCAB, VOCAB);
        if (!(error > 1e-2))
            fail_msg("%s: without its state a row differs by %g", hybrids[i].name, error);
        model_run_close(&run);
    }
}

static void test_rows_have_the_same_bits_beside_others(void **state)
{
    enum { N_SEQS = 3 };
    static float alone[N_SEQS][N_IDS * VOCAB];
    (void)state;
    for (size_t i = 0; i < N_HYBRIDS; i++) {
        if (!runs(&hybrids[i]))
            continue;
        struct model_run run;
        struct arch arch;
        uint32_t ids[N_SEQS][N_IDS], random = 7;
        for (uint32_t s = 0; s < N_SEQS; s++) {
            fill_ids(s, ids[s]);
            run_whole(&hybrids[i], "auto", 1, N_IDS, s, alone[s]);
        }
        open_run(&run, &hybrids[i], &arch, "auto", 1);
        for (uint32_t s = 0; s < N_SEQS; s++)
            model_run_add(&run, ids[s], N_IDS);
        for (uint32_t left = N_SEQS * N_IDS; left > 0;) {
            uint32_t n[N_SEQS], row = 0;
            for (uint32_t s = 0; s < N_SEQS; s++) {
                random = random * 1664525U + 1013904223U;
                n[s] = (random >> 16) % 9;
                n[s] = n[s] < N_IDS - run.seqs[s].n_done ? n[s] : N_IDS - run.seqs[s].n_done;
                if (n[s])
                    model_run_push(&run, s, n[s], 2);
            }
            if (!run.batch->n_rows)
                continue;
            left -= run.batch->n_rows;
            /* model_run_push() numbers the slots by the sequence, as the steps before. */
            model_run_step(&run);
            for (uint32_t s = 0; s < N_SEQS; s++)
                for (uint32_t r = 0; r < n[s]; r++, row++) {
                    uint32_t at = run.seqs[s].n_done - n[s] + r;
                    assert_memory_equal(executor_logits(run.ex, row), alone[s] + at * VOCAB,
                                        VOCAB * sizeof(float));
                }
        }
        model_run_close(&run);
    }
}

/* Continues a sequence from its state in another slot. */
static void check_continuation(struct model_run *run, uint32_t slot, const float *whole,
                               const char *what)
{
    run->seqs[0].n_done = SPLIT_AT;
    model_run_push(run, 0, N_IDS - SPLIT_AT, 2);
    step_batch_use_slot(run->batch, 0, slot, false);
    model_run_step(run);
    for (uint32_t at = SPLIT_AT; at < N_IDS; at++)
        if (!same_bits(executor_logits(run->ex, at - SPLIT_AT), whole + (size_t)at * VOCAB, VOCAB))
            fail_msg("%s: position %u has other bits", what, at);
}

static void test_a_state_can_be_copied_saved_and_loaded(void **state)
{
    static float whole[N_IDS * VOCAB];
    struct error err = {0};
    (void)state;
    for (size_t i = 0; i < 2 * (size_t)N_HYBRIDS; i += test_device() ? 2 : 1) {
        const struct hybrid *h = &hybrids[i / 2];
        if (!runs(h))
            continue;
        uint32_t tp = test_device() ? 1 : 1 + i % 2;
        struct model_run run;
        struct arch arch;
        uint32_t ids[N_IDS];
        fill_ids(0, ids);
        run_whole(h, "auto", 1, N_IDS, 0, whole);
        open_run(&run, h, &arch, "auto", tp);
        uint64_t n_bytes = executor_state_bytes(run.ex);
        assert_true(n_bytes >= executor_model_info(run.ex)->state_elements * sizeof(float));
        assert_int_equal(executor_actual(run.ex)->state_bytes,
                         n_bytes * executor_actual(run.ex)->n_state_slots);
        void *saved = malloc(n_bytes);
        assert_non_null(saved);
        model_run_add(&run, ids, N_IDS);
        model_run_push(&run, 0, SPLIT_AT, 0);
        model_run_step(&run);
        assert_int_equal(executor_copy_state(run.ex, 0, 5, &err), 0);
        assert_int_equal(executor_save_state(run.ex, 0, saved, &err), 0);
        check_continuation(&run, 0, whole, "in place");
        check_continuation(&run, 5, whole, "copied");
        assert_int_equal(executor_load_state(run.ex, 9, saved, &err), 0);
        check_continuation(&run, 9, whole, "loaded");
        uint32_t n_slots = executor_actual(run.ex)->n_state_slots;
        assert_int_equal(executor_load_state(run.ex, n_slots, saved, &err), STATUS_INTERNAL);
        free(saved);
        model_run_close(&run);
    }
}

/* A step names slots that the pool has, in the order that step.h states. */
static void test_bad_slots_are_refused(void **state)
{
    struct model_run run;
    struct arch arch;
    struct error err = {0};
    uint32_t ids[N_IDS];
    (void)state;
    fill_ids(0, ids);
    open_run(&run, &hybrids[0], &arch, "f32", 1);
    model_run_add(&run, ids, N_IDS);
    model_run_push(&run, 0, 3, 0);
    struct step_batch *b = run.batch;
    uint32_t n_slots = executor_actual(run.ex)->n_state_slots;
    const struct {
        uint32_t *at, bad;
    } rows[] = {
        {&b->state_reads[0], n_slots},          {&b->state_reads[0], STEP_STATE_PREVIOUS},
        {&b->state_reads[1], STEP_STATE_NONE},  {&b->state_writes[0], n_slots},
        {&b->state_writes[2], STEP_STATE_NONE},
    };
    for (size_t i = 0; i < ARCH_N_OF(rows); i++) {
        uint32_t good = *rows[i].at;
        *rows[i].at = rows[i].bad;
        assert_int_equal(executor_step(run.ex, b, &err), STATUS_INTERNAL);
        *rows[i].at = good;
    }
    assert_int_equal(executor_step(run.ex, b, &err), 0);
    model_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_and_ranks_do_not_change_a_bit),
        cmocka_unit_test(test_pieces_of_generated_rows_do_not_change_a_bit),
        cmocka_unit_test(test_a_state_remembers),
        cmocka_unit_test(test_rows_have_the_same_bits_beside_others),
        cmocka_unit_test(test_a_state_can_be_copied_saved_and_loaded),
        cmocka_unit_test(test_bad_slots_are_refused),
    };
    if (getenv("SLUICE_TEST_FILTER")) /* tests/gpu */
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
