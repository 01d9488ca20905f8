/* Tests that every field of a descriptor counts. A change of any single field must change the load
 * (another refusal, or none) or the logits. Runs at tp 1 and 2, on golden checkpoints and on made
 * checkpoints with what those lack (biases, scalings, fixed keys). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/model/arch/arch.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_model.h"
#include "tests/unit/engine/support/support_tiny.h"

enum { MAX_VOCAB = 512, N_IDS = 24, MAX_ROWS = 32 };
static const double BOUND = 2e-5;

/* Result for one checkpoint: a refusal's text, or the logits of its last token. */
struct observation {
    char error[ERROR_MESSAGE_BYTES];
    float logits[MAX_VOCAB];
    uint32_t vocab;
};

struct scenario {
    const char *golden; /* file below tests/golden/tiny; NULL: `spec` */
    struct tiny_spec spec;
    uint32_t tp;
};

static void run_logits(struct executor *ex, uint32_t context, struct observation *seen)
{
    struct step_limits limits = {N_IDS, 1, (context + 15) / 16, 0, false};
    struct step_batch *b;
    struct error err = {0};
    assert_int_equal(step_batch_create(&limits, &b, &err), 0);
    for (uint32_t i = 0; i < N_IDS; i++) {
        b->token_ids[i] = (i * 37 + 5) % seen->vocab;
        b->positions[i] = b->kv_slots[i] = i;
        b->seq_of_row[i] = 0;
    }
    b->block_tables[1] = 1;
    b->n_rows = b->seq_start[1] = N_IDS;
    b->n_seqs = b->n_sample_rows = 1;
    step_batch_use_slot(b, 0, 0, true);
    b->sample_rows[0] = N_IDS - 1;
    if (executor_step(ex, b, &err) != 0)
        snprintf(seen->error, sizeof(seen->error), "%s", err.message);
    else
        memcpy(seen->logits, executor_logits(ex, 0), seen->vocab * sizeof(float));
    step_batch_destroy(b);
}

static void observe(const struct arch *arch, const struct scenario *sc, struct observation *seen)
{
    struct error err = {0};
    struct checkpoint *ckpt = NULL;
    struct executor *ex = NULL;
    char path[512];
    struct executor_config cfg = model_run_config("f32");
    memset(seen, 0, sizeof(*seen));
    if (sc->golden) {
        snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", SLUICE_SOURCE_DIR, sc->golden);
        assert_int_equal(checkpoint_open(path, &ckpt, &err), 0);
    } else {
        ckpt = tiny_open(&sc->spec);
    }
    cfg.tp = sc->tp;
    cfg.n_threads = 1;
    cfg.max_rows = MAX_ROWS;
    cfg.max_seqs = 1;
    cfg.kv_tokens = 64;
    if (executor_open_arch(ckpt, arch, &cfg, NULL, NULL, NULL, &ex, &err) != 0) {
        snprintf(seen->error, sizeof(seen->error), "%s", err.message);
    } else {
        seen->vocab = executor_model_info(ex)->vocab_size;
        assert_true(seen->vocab <= MAX_VOCAB);
        run_logits(ex, executor_actual(ex)->context_tokens, seen);
    }
    executor_close(ex);
    checkpoint_close(ckpt);
}

static bool same(const struct observation *a, const struct observation *b)
{
    if (strcmp(a->error, b->error) != 0 || a->vocab != b->vocab)
        return false;
    return a->error[0] || model_relative_error(a->logits, b->logits, a->vocab) <= BOUND;
}

/* --- the scenarios --- */

static const struct tiny_key yarn_all[] = {
    {"llama.rope.scaling.type", GGUF_STRING, 0, 0, "yarn"},
    {"llama.rope.scaling.factor", GGUF_F32, 0, 4, NULL},
    {"llama.rope.scaling.original_context_length", GGUF_U32, 32, 0, NULL},
    {"llama.rope.scaling.attn_factor", GGUF_F32, 0, 1.25F, NULL},
    {"llama.rope.scaling.yarn_ext_factor", GGUF_F32, 0, 0.5F, NULL},
    {"llama.rope.scaling.yarn_beta_fast", GGUF_F32, 0, 4, NULL},
    {"llama.rope.scaling.yarn_beta_slow", GGUF_F32, 0, 0.5F, NULL},
};
static const struct tiny_key yarn_bare[] = {
    {"llama.rope.scaling.type", GGUF_STRING, 0, 0, "yarn"},
    {"llama.rope.scaling.factor", GGUF_F32, 0, 4, NULL},
};
static const struct tiny_key fixed_good[] = {
    {"llama.rope.scaling.finetuned", GGUF_BOOL, 1, 0, NULL},
    {"llama.tensor_data_layout", GGUF_STRING, 0, 0, "Meta AI original pth"},
    {"llama.expert_count", GGUF_U32, 0, 0, NULL},
    {"llama.expert_used_count", GGUF_U32, 0, 0, NULL},
    {"llama.attention.causal", GGUF_BOOL, 1, 0, NULL},
};
/* A factor without a type of scaling. */
static const struct tiny_key bare_factor = {"llama.rope.scaling.factor", GGUF_F32, 0, 4, NULL};
/* Parts for images and sound, as in files of Ollama. */
static const struct tiny_key other_parts[] = {
    {"llama.vision.block_count", GGUF_U32, 2, 0, NULL},
    {"llama.audio.block_count", GGUF_U32, 2, 0, NULL},
    {"llama.mm.tokens_per_image", GGUF_U32, 4, 0, NULL},
};
static const struct tiny_key windowed = {"llama.attention.sliding_window", GGUF_U32, 9, 0, NULL};
static const struct tiny_key gpt2_causal[] = {{"gpt2.attention.causal", GGUF_BOOL, 1, 0, NULL}};
static const struct tiny_key gpt2_blind[] = {{"gpt2.attention.causal", GGUF_BOOL, 0, 0, NULL}};
static const struct tiny_key bloom_causal[] = {{"bloom.attention.causal", GGUF_BOOL, 1, 0, NULL}};
static const struct tiny_key bloom_blind[] = {{"bloom.attention.causal", GGUF_BOOL, 0, 0, NULL}};
static const struct tiny_key bloom_bias[] = {
    {"bloom.attention.max_alibi_bias", GGUF_F32, 0, 4, NULL}};
static const struct tiny_key finetuned = {"llama.rope.scaling.finetuned", GGUF_BOOL, 1, 0, NULL};
static const struct tiny_key layout = {"llama.tensor_data_layout", GGUF_STRING, 0, 0, "x"};
static const struct tiny_key experts = {"llama.expert_count", GGUF_U32, 8, 0, NULL};
static const struct tiny_key used = {"llama.expert_used_count", GGUF_U32, 2, 0, NULL};
static const struct tiny_key causal = {"llama.attention.causal", GGUF_BOOL, 0, 0, NULL};

enum { MAX_SCENARIOS = 24 };
static struct scenario scenarios[MAX_SCENARIOS];
static struct observation expected[MAX_SCENARIOS];
static uint32_t n_scenarios, n_refused; /* the last n_refused are refused */
static const struct arch *base;         /* the architecture under test */
static enum tiny_form form;

/* All dimensions differ, so that none can replace another. With a KV head for every query head,
 * their dimensions are equal. */
static struct tiny_spec plain_spec(void)
{
    struct tiny_spec spec = tiny_spec_default();
    spec.form = form;
    spec.ffn = 192;
    if (form != TINY_LLAMA) {
        spec.n_kv_heads = spec.n_heads;
        spec.context = 160;
    }
    return spec;
}

static void add_keys(const struct tiny_key *keys, uint32_t n_keys)
{
    struct scenario *sc = &scenarios[n_scenarios++];
    *sc = (struct scenario){.spec = plain_spec(), .tp = 1};
    sc->spec.keys = keys;
    sc->spec.n_keys = n_keys;
}

static void begin(const struct arch *arch, enum tiny_form its_form)
{
    n_scenarios = 0;
    base = arch;
    form = its_form;
}

static void see_all(uint32_t refused)
{
    n_refused = refused;
    for (uint32_t i = 0; i < n_scenarios; i++)
        observe(base, &scenarios[i], &expected[i]);
}

static int make_gpt2(void **state)
{
    (void)state;
    begin(&arch_gpt2, TINY_GPT2);
    scenarios[n_scenarios++] = (struct scenario){.golden = "gpt2_f16.gguf", .tp = 2};
    scenarios[n_scenarios++] = (struct scenario){.golden = "gpt2_f32.gguf", .tp = 1};
    scenarios[n_scenarios++] = (struct scenario){.spec = plain_spec(), .tp = 2};
    scenarios[n_scenarios - 1].spec.untied = true;
    add_keys(gpt2_causal, 1);
    add_keys(gpt2_blind, 1);
    see_all(1);
    return 0;
}

static int make_bloom(void **state)
{
    (void)state;
    begin(&arch_bloom, TINY_BLOOM);
    scenarios[n_scenarios++] = (struct scenario){.golden = "bloom_bf16.gguf", .tp = 2};
    scenarios[n_scenarios++] = (struct scenario){.golden = "bloom_f32.gguf", .tp = 1};
    scenarios[n_scenarios++] = (struct scenario){.spec = plain_spec(), .tp = 2};
    scenarios[n_scenarios - 1].spec.untied = true;
    add_keys(bloom_bias, 1);
    add_keys(bloom_causal, 1);
    add_keys(bloom_blind, 1);
    see_all(1);
    return 0;
}

static int make_llama(void **state)
{
    (void)state;
    begin(&arch_llama, TINY_LLAMA);
    scenarios[n_scenarios++] = (struct scenario){.golden = "f16.gguf", .tp = 1};
    scenarios[n_scenarios++] = (struct scenario){.golden = "bf16.gguf", .tp = 2};
    struct scenario full = {.spec = plain_spec(), .tp = 2};
    scenarios[n_scenarios++] = full;
    full.spec.biases = full.spec.rope_freqs = full.spec.untied = true;
    scenarios[n_scenarios++] = full;
    full.spec = plain_spec();
    full.spec.skip = "llama.rope.freq_base";
    scenarios[n_scenarios++] = full;
    add_keys(yarn_all, 7);
    add_keys(yarn_bare, 2);
    add_keys(&bare_factor, 1);
    add_keys(&windowed, 1);
    add_keys(other_parts, 3);
    add_keys(fixed_good, 5);
    add_keys(&finetuned, 1);
    add_keys(&layout, 1);
    add_keys(&experts, 1);
    add_keys(&used, 1);
    add_keys(&causal, 1);
    see_all(3);
    return 0;
}

/* --- a descriptor of our own to change --- */

enum { MAX_FIXED_KEYS = 32 };

struct copy {
    struct arch arch;
    struct arch_source source;
    struct arch_param params[N_ARCH_PARAMS];
    struct arch_fixed_key fixed_keys[MAX_FIXED_KEYS];
    struct arch_tensor tensors[N_ARCH_SLOTS];
};

static void copy_base(struct copy *c)
{
    struct arch_source merged, *from = &merged;
    assert_true(arch_source_init(&merged, arch_find_source(base, "gguf", base->name)));
    assert_true(from->n_params <= N_ARCH_PARAMS && from->n_fixed_keys <= MAX_FIXED_KEYS);
    c->arch = *base;
    c->source = *from;
    memcpy(c->params, from->params, from->n_params * sizeof(c->params[0]));
    memcpy(c->fixed_keys, from->fixed_keys, from->n_fixed_keys * sizeof(c->fixed_keys[0]));
    memcpy(c->tensors, from->tensors, from->n_tensors * sizeof(c->tensors[0]));
    c->arch.sources = &c->source;
    c->arch.n_sources = 1;
    c->source.params = c->params;
    c->source.fixed_keys = c->fixed_keys;
    c->source.tensors = c->tensors;
    c->source.patterns = NULL;
    arch_source_fini(&merged);
}

static uint32_t n_mutations;

/* Fails where the changed descriptor behaves like the true one everywhere. `without`: a key or
 * tensor that a further checkpoint lacks (NULL: none). */
static void expect_difference(const struct copy *c, const char *without, const char *what)
{
    struct observation now, before;
    n_mutations++;
    for (uint32_t i = 0; i < n_scenarios; i++) {
        observe(&c->arch, &scenarios[i], &now);
        if (!same(&now, &expected[i]))
            return;
    }
    if (without) {
        struct scenario sc = {.spec = plain_spec(), .tp = 1};
        sc.spec.skip = without;
        observe(base, &sc, &before);
        observe(&c->arch, &sc, &now);
        if (!same(&now, &before))
            return;
    }
    fail_msg("%s, %s: nothing noticed", base->name, what);
}

/* Tries every other value below n of an enum or bool field. */
#define EACH_OTHER(c, field, n, without, ...)                                                      \
    for (int value_ = 0; value_ < (n); value_++) {                                                 \
        char what_[160];                                                                           \
        int good_ = (int)(field);                                                                  \
        if (value_ == good_)                                                                       \
            continue;                                                                              \
        (field) = value_;                                                                          \
        snprintf(what_, sizeof(what_), __VA_ARGS__);                                               \
        snprintf(what_ + strlen(what_), sizeof(what_) - strlen(what_), " = %d", value_);           \
        expect_difference((c), (without), what_);                                                  \
        (field) = good_;                                                                           \
    }

static void test_unchanged_copy_gives_golden_logits(void **state)
{
    struct copy c;
    struct observation now;
    (void)state;
    copy_base(&c);
    for (uint32_t i = 0; i < n_scenarios; i++) {
        observe(&c.arch, &scenarios[i], &now);
        if (!same(&now, &expected[i]))
            fail_msg("scenario %u differs: %s", i, now.error);
    }
    /* All but the refused ones load. test_logits.c pins the golden files' values. */
    for (uint32_t i = 0; i < n_scenarios; i++)
        assert_int_equal(expected[i].error[0] != 0, i >= n_scenarios - n_refused);
}

static void test_arch_fields_all_count(void **state)
{
    struct copy c;
    (void)state;
    copy_base(&c);
    EACH_OTHER(&c, c.arch.norm, 2, NULL, "norm");
    EACH_OTHER(&c, c.arch.residual, 2, NULL, "residual");
    EACH_OTHER(&c, c.arch.output, 2, NULL, "output");
    EACH_OTHER(&c, c.arch.n_mixers, ARCH_MAX_MIXERS + 2, NULL, "n_mixers");
    EACH_OTHER(&c, c.arch.n_ffns, ARCH_MAX_FFNS + 2, NULL, "n_ffns");
    c.arch.n_sources = 0;
    expect_difference(&c, NULL, "n_sources");
    c.arch.n_sources = 1;
    c.source.format = "ggml";
    expect_difference(&c, NULL, "format");
    c.source.format = "gguf";
    EACH_OTHER(&c, c.source.rope_style, 3, NULL, "rope_style");
    c.source.n_params--;
    expect_difference(&c, NULL, "n_params");
    c.source.n_params++;
    c.source.n_fixed_keys--;
    expect_difference(&c, NULL, "n_fixed_keys");
    c.source.n_fixed_keys++;
    c.source.n_tensors--;
    expect_difference(&c, NULL, "n_tensors");
}

static void test_mixer_fields_all_count(void **state)
{
    struct copy c;
    (void)state;
    copy_base(&c);
    for (uint32_t i = 0; i < c.arch.n_mixers; i++) {
        struct arch_mixer *m = &c.arch.mixers[i];
        EACH_OTHER(&c, m->mixing, 2, NULL, "%s: mixing", m->name);
        EACH_OTHER(&c, m->reach, 3, NULL, "%s: reach", m->name);
        EACH_OTHER(&c, m->rope, ARCH_NO_ROPE + 1, NULL, "%s: rope", m->name);
        EACH_OTHER(&c, m->head_norm, 2, NULL, "%s: head_norm", m->name);
        EACH_OTHER(&c, m->head_norm_scope, 3, NULL, "%s: head_norm_scope", m->name);
        EACH_OTHER(&c, m->head_norms, 2, NULL, "%s: head_norms", m->name);
        EACH_OTHER(&c, m->norm_after_rope, 2, NULL, "%s: norm_after_rope", m->name);
        EACH_OTHER(&c, m->bare_value_norm, 2, NULL, "%s: bare_value_norm", m->name);
        EACH_OTHER(&c, m->has_temperature, 2, NULL, "%s: has_temperature", m->name);
    }
}

static void test_ffn_fields_all_count(void **state)
{
    struct copy c;
    (void)state;
    copy_base(&c);
    for (uint32_t i = 0; i < c.arch.n_ffns; i++) {
        struct arch_ffn *f = &c.arch.ffns[i];
        EACH_OTHER(&c, f->body, 3, NULL, "%s: body", f->name);
        EACH_OTHER(&c, f->form, 2, NULL, "%s: form", f->name);
        EACH_OTHER(&c, f->activation, N_ACTIVATIONS, NULL, "%s: activation", f->name);
        EACH_OTHER(&c, f->router.score, 4, NULL, "%s: score", f->name);
        EACH_OTHER(&c, f->router.group_score, 2, NULL, "%s: group_score", f->name);
        EACH_OTHER(&c, f->router.weight, 2, NULL, "%s: weight", f->name);
    }
}

static void test_parameter_fields_all_count(void **state)
{
    struct copy c;
    (void)state;
    copy_base(&c);
    for (uint32_t i = 0; i < c.source.n_params; i++) {
        struct arch_param *p = &c.params[i];
        const struct arch_param good = *p;
        char what[160], key[128];
        snprintf(key, sizeof(key), "%s.%s", base->name, good.key);
        snprintf(what, sizeof(what), "parameter %s: id", key);
        p->id = (good.id + 1) % N_ARCH_PARAMS;
        expect_difference(&c, key, what);
        *p = good;
        snprintf(what, sizeof(what), "parameter %s: key", key);
        p->key = "attention.other";
        expect_difference(&c, key, what);
        *p = good;
        snprintf(what, sizeof(what), "parameter %s: fallback", key);
        p->fallback = good.fallback == 0 ? 1 : good.fallback * 0.5;
        expect_difference(&c, key, what);
        *p = good;
        EACH_OTHER(&c, p->absent, 3, key, "parameter %s: absent", key);
        EACH_OTHER(&c, p->of, ARCH_MAX_ROPES + 1, key, "parameter %s: of", key);
    }
}

static void test_fixed_key_fields_all_count(void **state)
{
    struct copy c;
    (void)state;
    copy_base(&c);
    for (uint32_t i = 0; i < c.source.n_fixed_keys; i++) {
        struct arch_fixed_key *k = &c.fixed_keys[i];
        const struct arch_fixed_key good = *k;
        char what[160];
        snprintf(what, sizeof(what), "fixed key %s: key", good.key);
        k->key = "other";
        expect_difference(&c, NULL, what);
        *k = good;
        snprintf(what, sizeof(what), "fixed key %s: value", good.key);
        k->value = good.value + 1;
        expect_difference(&c, NULL, what);
        *k = good;
        snprintf(what, sizeof(what), "fixed key %s: rule", good.key);
        k->rule = good.rule == ARCH_KEY_ANY ? ARCH_KEY_NUMBER : ARCH_KEY_ANY;
        k->value = 0;
        expect_difference(&c, NULL, what);
        *k = good;
        snprintf(what, sizeof(what), "fixed key %s: text", good.key);
        k->rule = ARCH_KEY_TEXT;
        k->text = "other";
        k->value = 0;
        expect_difference(&c, NULL, what);
        *k = good;
    }
}

static void test_tensor_fields_all_count(void **state)
{
    struct copy c;
    (void)state;
    copy_base(&c);
    for (uint32_t i = 0; i < c.source.n_tensors; i++) {
        struct arch_tensor *t = &c.tensors[i];
        const struct arch_tensor good = *t;
        char what[160], name[96];
        assert_true(arch_name_at(t->name, 0, 1, 0, name, sizeof(name)));
        EACH_OTHER(&c, t->slot, N_ARCH_SLOTS, NULL, "%s: slot", name);
        EACH_OTHER(&c, t->transform, ARCH_TRANSFORM_BY_ROW + 1, NULL, "%s: transform", name);
        EACH_OTHER(&c, t->required, 2, name, "%s: required", name);
        snprintf(what, sizeof(what), "%s: name", name);
        t->name = "blk.%u.other";
        expect_difference(&c, NULL, what);
        *t = good;
    }
    print_message("%s: %u mutations, every one noticed\n", base->name, n_mutations);
    assert_true(n_mutations > 500);
    n_mutations = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unchanged_copy_gives_golden_logits),
        cmocka_unit_test(test_arch_fields_all_count),
        cmocka_unit_test(test_mixer_fields_all_count),
        cmocka_unit_test(test_ffn_fields_all_count),
        cmocka_unit_test(test_parameter_fields_all_count),
        cmocka_unit_test(test_fixed_key_fields_all_count),
        cmocka_unit_test(test_tensor_fields_all_count),
    };
    int rc = cmocka_run_group_tests_name("llama", tests, make_llama, NULL);
    rc += cmocka_run_group_tests_name("gpt2", tests, make_gpt2, NULL);
    return rc + cmocka_run_group_tests_name("bloom", tests, make_bloom, NULL);
}
