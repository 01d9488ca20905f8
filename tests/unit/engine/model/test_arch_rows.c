/* Tests that each row of parameters and tensors counts. If a table ignores a parameter, lacks a row
 * of tensors or has two names exchanged, a golden is refused or gives other logits. A row that
 * nothing notices is dead, or no foreign answer has checked the row. Rows of a base count if any
 * family notices. Without a row, that of the base counts again, if the base has one. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "engine/model/model_find.h"
#include "tests/unit/engine/support/support_folder.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_observe.h"

enum { MAX_GOLDENS = 256, MAX_SOURCES = 160, MAX_ROWS = 96, MAX_KEYS = 192, MAX_SPELLINGS = 8 };

static struct golden_model {
    char name[256];
    struct checkpoint *ckpt;
    const struct arch *arch;
    const struct arch_source *source;
    struct observation expected;
    bool has_expected, is_edited;
    struct test_folder folder; /* if is_edited */
} goldens[MAX_GOLDENS];
static uint32_t n_goldens, n_mutations;

/* Copies of goldens with other spellings, and with values other than the table's own. */
static const struct {
    const char *golden, *old, *now;
} edits[] = {
    {"ministral3", "\"rope_type\": \"yarn\"",
     "\"rope_type\": \"yarn\", \"max_position_embeddings\": 256"},
    {"gpt_oss", "\"num_experts_per_tok\": 3",
     "\"experts_per_token\": 3, \"initial_context_length\": 32"},
    {"hunyuan", "\"head_dim\"", "\"attention_head_dim\""},
    {"minimax_m2", "\"rope_parameters\": {\n    \"partial_rotary_factor\": 0.5,",
     "\"rotary_dim\": 8, \"rope_parameters\": {"},
    {"mpt", "\"softmax_scale\": null", "\"softmax_scale\": 0.3"},
    {"llama3", "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 0.5"},
    {"llama3", "\"high_freq_factor\": 4.0", "\"high_freq_factor\": 2.0"},
    {"llama3", "\"silu\"", "\"gelu\""},
    {"gpt2", "\"gelu_new\"", "\"relu\""},
    {"gptj", "\"gelu_new\"", "\"relu\""},
    {"opt", "\"relu\"", "\"gelu\""},
    {"falcon", "\"activation\": \"gelu\"", "\"activation\": \"relu\""},
    {"falcon", "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\", \"factor\": 3.0"},
    {"glm4moe", "\"topk_group\": 1", "\"topk_group\": 2"},
    {"nemotron_h", "\"relu2\"", "\"silu\""},
    {"lfm2moe", "\"routed_scaling_factor\": 1.0", "\"routed_scaling_factor\": 1.4"},
};

/* Rows whose values no golden notices. With `arch`: rows that tables alone have whose names begin
 * so. */
static const struct {
    enum arch_param_id id;
    const char *format, *arch;
} elsewhere[] = {
    /* transformers has no such keys; test_arch_mutations.c and test_arch_model.c have files */
    {ARCH_PARAM_ROPE_ATTN_FACTOR, "gguf", NULL},
    {ARCH_PARAM_ROPE_EXT_FACTOR, "gguf", NULL},
    /* models of 46 and 62 layers; test_arch_model.c changes the numbers */
    {ARCH_PARAM_ATTN_SCALE_LAYERS, "gguf", NULL},
    /* test_arch_keys.c has other spellings and values; the golden's keys give the same numbers */
    {ARCH_PARAM_KEY_DIM, "hf", "gemma4"},
    {ARCH_PARAM_KV_HEADS, "hf", "gemma4"},
    {ARCH_PARAM_USE_TEMPERATURE, "hf", "llama4"},
    {ARCH_PARAM_BARE_NORMS, "hf", "llama4"},
    {ARCH_PARAM_ROPE_BASE, "gguf", "gemma4"},
    {ARCH_PARAM_ROT_DIM, "gguf", "gemma4"},
    /* test_newer_model.c checks and changes the numbers */
    {ARCH_PARAM_CHUNK, "gguf", NULL},
    {ARCH_PARAM_TEMPERATURE_LENGTH, "gguf", NULL},
    {ARCH_PARAM_TEMPERATURE_OFFSET, "gguf", NULL},
    {ARCH_PARAM_NO_BARE_NORMS_EXPERTS, "gguf", NULL},
    /* another value is refused: test_arch_model.c, test_arch_keys.c */
    {ARCH_PARAM_VOCAB, "hf", NULL},
    {ARCH_PARAM_TIED, "hf", NULL},
    /* test_latent_model.c: another value is refused; another number of tokens has another score */
    {ARCH_PARAM_LATENT_KEY, "hf", NULL},
    {ARCH_PARAM_EXPERT_METHOD, "hf", NULL},
    {ARCH_PARAM_EXPERT_SIGMOID_VOCAB, "gguf", NULL},
    /* the goldens have the tables' own values; folders have other groups */
    {ARCH_PARAM_EXPERT_SCORE, "gguf", "deepseek2"},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "gguf", "deepseek2"},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "gguf", "glm4moe"},
};

/* A table of the test's own to change: the golden's, with the rows of its bases. */
struct copy {
    struct arch arch;
    struct arch_source source, merged;
    struct arch_param params[MAX_ROWS];
    struct arch_tensor tensors[MAX_ROWS];
    struct arch_fixed_key fixed_keys[MAX_KEYS];
    char keys[MAX_SPELLINGS][128];
};

static void copy_table(struct copy *c, const struct golden_model *g)
{
    assert_true(arch_source_init(&c->merged, g->source));
    assert_true(c->merged.n_params <= MAX_ROWS && c->merged.n_tensors <= MAX_ROWS);
    c->arch = *g->arch;
    c->source = c->merged;
    memcpy(c->params, c->merged.params, c->merged.n_params * sizeof(c->params[0]));
    memcpy(c->tensors, c->merged.tensors, c->merged.n_tensors * sizeof(c->tensors[0]));
    assert_true(c->merged.n_fixed_keys + MAX_SPELLINGS <= MAX_KEYS);
    memcpy(c->fixed_keys, c->merged.fixed_keys, c->merged.n_fixed_keys * sizeof(c->fixed_keys[0]));
    c->source.fixed_keys = c->fixed_keys;
    c->source.params = c->params;
    c->source.tensors = c->tensors;
    c->source.dialect_keys = NULL; /* the only source is the plain one */
    c->arch.sources = &c->source;
    c->arch.n_sources = 1;
}

static void free_table(struct copy *c)
{
    arch_source_fini(&c->merged);
}

/* True if the golden is refused with the changed table, or gives other logits. */
static bool is_noticed(struct golden_model *g, const struct arch *arch)
{
    struct model model;
    struct error err = {0};
    struct observation now;
    n_mutations++;
    int rc = model_init(&model, g->ckpt, arch, &err);
    model_fini(&model);
    if (rc)
        return true;
    if (!g->has_expected)
        observe(g->arch, g->ckpt, &g->expected);
    g->has_expected = true;
    observe(arch, g->ckpt, &now);
    return !observe_same(&now, &g->expected);
}

/* --- parameters --- */

static const struct arch_param *param_of(const struct arch_source *source, enum arch_param_id id,
                                         uint32_t of)
{
    const struct arch_param *row = NULL;
    for (; source && !row; source = source->base)
        row = arch_find_param(source, id, of);
    return row;
}

/* A copy of the golden folder whose config.json lacks the keys' last names, on all levels. */
static struct checkpoint *open_without(const struct golden_model *g, const char *keys,
                                       struct test_folder *folder)
{
    struct checkpoint *ckpt = NULL;
    struct error err = {0};
    struct strbuf out;
    char key[128];
    size_t n = 0;
    char *config = folder_read_golden(g->name, "config.json", &n), *rest = NULL;
    strbuf_init(&out, 0);
    for (char *line = strtok_r(config, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *text = line + strspn(line, " ");
        bool is_key = false;
        for (uint32_t i = 0; arch_name_at(keys, i, 0, 0, key, sizeof(key)); i++) {
            const char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key;
            is_key |= *text == '"' && strncmp(text + 1, name, strlen(name)) == 0 &&
                      text[1 + strlen(name)] == '"' && !strpbrk(text, "[{");
        }
        if (is_key)
            continue;
        if (*text == '}' && out.data[out.n_bytes - 1] == ',')
            out.n_bytes--;
        strbuf_add_str(&out, text);
    }
    folder_create(folder);
    folder_copy_golden(folder, g->name, "model.safetensors", "", "");
    folder_write(folder, "config.json", out.data, out.n_bytes);
    if (checkpoint_open(folder->path, &ckpt, &err) != 0)
        fail_msg("%s: %s", g->name, err.message);
    strbuf_fini(&out);
    free(config);
    return ckpt;
}

/* True if the two tables read a folder without the keys in different ways: a default counts. */
static bool differ_without(const struct golden_model *g, const char *keys, const struct arch *arch)
{
    struct observation expected, now;
    struct test_folder folder;
    if (strcmp(checkpoint_format(g->ckpt), "hf") != 0 || !keys || g->is_edited)
        return false;
    struct checkpoint *ckpt = open_without(g, keys, &folder);
    observe(g->arch, ckpt, &expected);
    observe(arch, ckpt, &now);
    checkpoint_close(ckpt);
    folder_remove(&folder);
    return !observe_same(&now, &expected);
}

/* Lets the row's keys have any value, so that the table ignores the parameter. */
static void ignore_keys(struct copy *c, const char *keys)
{
    uint32_t i = 0;
    for (; keys && arch_name_at(keys, i, 0, 0, c->keys[i], sizeof(c->keys[0])); i++) {
        assert_true(i + 1 < MAX_SPELLINGS);
        c->fixed_keys[c->source.n_fixed_keys++] = (struct arch_fixed_key)ARCH_ANY_VALUE(c->keys[i]);
    }
}

/* True if the golden notices that its table ignores the parameter, or that the base's row counts.
 */
static bool notices_param(struct golden_model *g, const struct arch_source *source,
                          const struct arch_param *row)
{
    struct copy c;
    bool noticed = false;
    if (param_of(g->source, row->id, row->of) != row)
        return false;
    copy_table(&c, g);
    const struct arch_param *below = param_of(source->base, row->id, row->of);
    struct arch_param *mine = &c.params[arch_find_param(&c.source, row->id, row->of) - c.params];
    *mine = below ? *below : c.params[--c.source.n_params];
    ignore_keys(&c, below ? NULL : row->key);
    noticed = is_noticed(g, &c.arch) || differ_without(g, row->key, &c.arch);
    free_table(&c);
    return noticed;
}

/* --- tensors --- */

static const struct arch_tensor *tensor_of(const struct arch_source *source, enum arch_slot slot)
{
    const struct arch_tensor *row = NULL;
    for (; source && !row; source = source->base)
        row = arch_find_tensor(source, slot);
    return row;
}

/* Puts `row` in the place of the slot's row, which may be absent. NULL removes the slot's row. */
static void put_tensor(struct copy *c, enum arch_slot slot, const struct arch_tensor *row)
{
    const struct arch_tensor *at = arch_find_tensor(&c->source, slot);
    uint32_t i = at ? (uint32_t)(at - c->tensors) : c->source.n_tensors;
    if (row)
        c->tensors[i] = *row;
    else if (at)
        c->tensors[i] = c->tensors[c->source.n_tensors - 1];
    c->source.n_tensors += (row != NULL) - (at != NULL);
}

static bool notices_tensor(struct golden_model *g, const struct arch_source *source,
                           const struct arch_tensor *row)
{
    struct copy c;
    if (tensor_of(g->source, row->slot) != row)
        return false;
    copy_table(&c, g);
    put_tensor(&c, row->slot, tensor_of(source->base, row->slot));
    bool noticed = is_noticed(g, &c.arch);
    free_table(&c);
    return noticed;
}

/* Exchanges the names of the row and of the row of slot `other`. Rows with one name lie in one
 * tensor, in the table's order: their places are exchanged. *out_possible: the golden's table has
 * both rows. */
static bool notices_exchange(struct golden_model *g, const struct arch_tensor *row,
                             enum arch_slot other, bool *out_possible)
{
    struct copy c;
    const struct arch_tensor *partner = tensor_of(g->source, other);
    if (tensor_of(g->source, row->slot) != row || !partner || !partner->name)
        return false;
    *out_possible = true;
    copy_table(&c, g);
    struct arch_tensor *a = &c.tensors[arch_find_tensor(&c.source, row->slot) - c.tensors];
    struct arch_tensor *b = &c.tensors[arch_find_tensor(&c.source, other) - c.tensors];
    const struct arch_tensor mine = *a;
    if (strcmp(a->name, b->name) == 0) {
        *a = *b;
        *b = mine;
    } else {
        a->name = b->name;
        b->name = mine.name;
    }
    bool noticed = is_noticed(g, &c.arch);
    free_table(&c);
    return noticed;
}

static bool have_same_shape(enum arch_slot a, enum arch_slot b)
{
    const struct arch_slot_facts *x = arch_slot_facts(a), *y = arch_slot_facts(b);
    return a != b && x->rows == y->rows && x->cols == y->cols && x->by_expert == y->by_expert &&
           (a < ARCH_FIRST_LAYER_SLOT) == (b < ARCH_FIRST_LAYER_SLOT);
}

/* --- all tables --- */

static bool is_of(const struct golden_model *g, const struct arch_source *source)
{
    const struct arch_source *s = g->source;
    while (s && s != source)
        s = s->base;
    return s != NULL;
}

/* True if a golden whose table has the source's rows satisfies the condition. */
#define ANY_GOLDEN(source, condition)                                                              \
    for (uint32_t i_golden = 0; !noticed && i_golden < n_goldens; i_golden++) {                    \
        struct golden_model *g = &goldens[i_golden];                                               \
        noticed = is_of(g, (source)) && (condition);                                               \
    }

/* True if only tables whose names begin with `arch` have the source's rows. NULL: any table. */
static bool is_only_of(const struct arch_source *source, const char *arch)
{
    for (uint32_t i = 0; arch && i < n_goldens; i++)
        if (is_of(&goldens[i], source) && strncmp(goldens[i].arch->name, arch, strlen(arch)) != 0)
            return false;
    return true;
}

static bool is_reached_elsewhere(const struct arch_source *source, enum arch_param_id id)
{
    for (uint32_t i = 0; i < ARCH_N_OF(elsewhere); i++)
        if (elsewhere[i].id == id && strcmp(elsewhere[i].format, source->format) == 0 &&
            is_only_of(source, elsewhere[i].arch))
            return true;
    return false;
}

static uint32_t try_params(const struct arch_source *source, const char *name)
{
    uint32_t n_bad = 0;
    for (uint32_t i = 0; i < source->n_params; i++) {
        const struct arch_param *row = &source->params[i];
        bool noticed = is_reached_elsewhere(source, row->id);
        ANY_GOLDEN(source, notices_param(g, source, row));
        n_bad += !noticed;
        if (!noticed)
            print_message("%s %s: no golden notices the parameter %u of %u, key %s\n", name,
                          source->format, row->id, row->of, row->key ? row->key : "(constant)");
    }
    return n_bad;
}

/* Norms of blocks that are either a mixer or an FFN have one name. */
static bool share_norm(const struct arch_source *source, enum arch_slot a, enum arch_slot b)
{
    const struct arch_tensor *x = arch_find_tensor(source, a), *y = arch_find_tensor(source, b);
    return x && y && x->name && y->name && strcmp(x->name, y->name) == 0 &&
           ((a == ARCH_ATTN_NORM && b == ARCH_FFN_NORM) ||
            (b == ARCH_ATTN_NORM && a == ARCH_FFN_NORM));
}

/* In a parallel layer, both biases are added to the same sum. A short convolution multiplies its
 * input by the gate. */
static bool count_alike(const struct arch_source *source, enum arch_slot a, enum arch_slot b)
{
    bool parallel = false;
    if ((a == ARCH_STATE_V && b == ARCH_CONV_GATE_IN) ||
        (b == ARCH_STATE_V && a == ARCH_CONV_GATE_IN))
        return true;
    if (share_norm(source, a, b))
        return true;
    for (uint32_t i = 0; i < n_goldens; i++)
        parallel |=
            goldens[i].source == source && goldens[i].arch->residual == ARCH_RESIDUAL_PARALLEL;
    return parallel && ((a == ARCH_ATTN_OUT_BIAS && b == ARCH_FFN_DOWN_BIAS) ||
                        (b == ARCH_ATTN_OUT_BIAS && a == ARCH_FFN_DOWN_BIAS));
}

static uint32_t try_exchanges(const struct arch_source *source, const struct arch_tensor *row,
                              const char *name)
{
    uint32_t n_bad = 0;
    for (enum arch_slot other = 0; other < N_ARCH_SLOTS; other++) {
        bool noticed = !have_same_shape(row->slot, other) || count_alike(source, row->slot, other);
        bool possible = false;
        ANY_GOLDEN(source, notices_exchange(g, row, other, &possible));
        if (noticed || !possible)
            continue;
        print_message("%s %s: no golden notices the exchange of %s and slot %u\n", name,
                      source->format, row->name, other);
        n_bad++;
    }
    return n_bad;
}

static uint32_t try_tensors(const struct arch_source *source, const char *name)
{
    uint32_t n_bad = 0;
    for (uint32_t i = 0; i < source->n_tensors; i++) {
        const struct arch_tensor *row = &source->tensors[i];
        bool noticed = false;
        ANY_GOLDEN(source, notices_tensor(g, source, row));
        n_bad += !noticed;
        if (!noticed)
            print_message("%s %s: no golden notices slot %u, %s\n", name, source->format, row->slot,
                          row->name ? row->name : "(removed)");
        else if (row->name)
            n_bad += try_exchanges(source, row, name);
    }
    return n_bad;
}

static void add_golden(const char *name, struct checkpoint *ckpt)
{
    struct model model;
    struct error err = {0};
    struct golden_model *g = &goldens[n_goldens];
    assert_true(n_goldens < MAX_GOLDENS);
    if (model_init(&model, ckpt, NULL, &err) != 0)
        fail_msg("%s: %s", name, err.message);
    snprintf(g->name, sizeof(g->name), "%s", name);
    g->ckpt = ckpt;
    g->arch = model.arch;
    char prefix[MODEL_PREFIX_BYTES];
    const struct arch *found = NULL;
    assert_int_equal(model_find_arch(ckpt, &found, &g->source, prefix, &err), 0);
    model_fini(&model);
    n_goldens++;
}

static void open_goldens(void)
{
    char folder[512];
    snprintf(folder, sizeof(folder), "%s/tests/golden/tiny", golden_source_dir());
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');
        if (entry->d_name[0] != '.' && (!dot || strcmp(dot, ".gguf") == 0))
            add_golden(entry->d_name, observe_open(entry->d_name));
    }
    closedir(dir);
    for (uint32_t i = 0; i < ARCH_N_OF(edits); i++) {
        struct golden_model *g = &goldens[n_goldens];
        struct checkpoint *ckpt = NULL;
        struct error err = {0};
        folder_create(&g->folder);
        g->is_edited = true;
        folder_copy_golden(&g->folder, edits[i].golden, "model.safetensors", "", "");
        folder_copy_golden(&g->folder, edits[i].golden, "config.json", edits[i].old, edits[i].now);
        if (checkpoint_open(g->folder.path, &ckpt, &err) != 0)
            fail_msg("%s: %s", edits[i].golden, err.message);
        add_golden(edits[i].golden, ckpt);
    }
}

static void close_goldens(void)
{
    for (uint32_t i = 0; i < n_goldens; i++) {
        checkpoint_close(goldens[i].ckpt);
        if (goldens[i].is_edited)
            folder_remove(&goldens[i].folder);
    }
}

static void test_every_row_of_every_table_counts(void **state)
{
    static const struct arch_source *done[MAX_SOURCES];
    uint32_t n_done = 0, n_bad = 0;
    (void)state;
    open_goldens();
    for (uint32_t i = 0; i < n_goldens; i++)
        for (const struct arch_source *s = goldens[i].source; s; s = s->base) {
            uint32_t at = 0;
            while (at < n_done && done[at] != s)
                at++;
            if (at < n_done)
                continue;
            assert_true(n_done < MAX_SOURCES);
            done[n_done++] = s;
            const char *name = s == goldens[i].source ? goldens[i].arch->name : "base";
            n_bad += try_params(s, name) + try_tensors(s, name);
        }
    print_message("%u tables, %u mutations\n", n_done, n_mutations);
    close_goldens();
    assert_int_equal(n_bad, 0);
}

static void test_file_in_ollama_names_gives_the_same_logits(void **state)
{
    struct observation expected, now;
    (void)state;
    struct checkpoint *ckpt = observe_open("gpt_oss.gguf");
    observe(&arch_gpt_oss, ckpt, &expected);
    checkpoint_close(ckpt);
    ckpt = observe_open("gpt_oss_ollama.gguf");
    observe(&arch_gpt_oss, ckpt, &now);
    checkpoint_close(ckpt);
    assert_string_equal(now.error, "");
    assert_true(observe_same(&now, &expected));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_of_every_table_counts),
        cmocka_unit_test(test_file_in_ollama_names_gives_the_same_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
