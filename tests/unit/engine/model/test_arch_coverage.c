/* Tests that tables use every value of the descriptor's enums, every slot and every parameter. A
 * golden checkpoint (tests/golden/tiny, made by transformers) must reach each of them. A value that
 * nothing reaches is code that no family needs, or that no foreign answer has checked. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"

enum set {
    SET_NORM,
    SET_RESIDUAL,
    SET_OUTPUT,
    SET_TIED, /* true without an output matrix in the file */
    SET_MIXING,
    SET_REACH,
    SET_HEAD_NORM,
    SET_SCOPE,
    SET_HEAD_NORMS,
    SET_AFTER_ROPE,
    SET_VALUE_NORM,
    SET_TEMPERATURE,
    SET_GATE_ORDER,
    SET_BODY,
    SET_FORM,
    SET_ACTIVATION,
    SET_SCORE,
    SET_GROUP_SCORE,
    SET_WEIGHT,
    SET_SLOT,
    SET_TRANSFORM,
    SET_PARAM,
    SET_ABSENT,
    SET_PATTERN,
    SET_ROPE_STYLE,
    SET_SCALING,
    N_SETS,
};

static const struct {
    const char *name;
    int n;
} sets[N_SETS] = {
    [SET_NORM] = {"arch_norm", ARCH_NORM_LAYER + 1},
    [SET_RESIDUAL] = {"arch_residual", ARCH_RESIDUAL_PARALLEL + 1},
    [SET_OUTPUT] = {"arch_output", ARCH_OUTPUT_TIED_IF_ABSENT + 1},
    [SET_TIED] = {"tied_output", 2},
    [SET_MIXING] = {"arch_mixing", N_ARCH_MIXINGS},
    [SET_REACH] = {"arch_reach", ARCH_REACH_CHUNK + 1},
    [SET_HEAD_NORM] = {"arch_mixer.head_norm", ARCH_NORM_LAYER + 1},
    [SET_SCOPE] = {"arch_scope", ARCH_SCOPE_WHOLE + 1},
    [SET_HEAD_NORMS] = {"arch_head_norms", ARCH_HEAD_NORMS_BARE + 1},
    [SET_AFTER_ROPE] = {"arch_mixer.norm_after_rope", 2},
    [SET_VALUE_NORM] = {"arch_mixer.bare_value_norm", 2},
    [SET_TEMPERATURE] = {"arch_mixer.has_temperature", 2},
    [SET_GATE_ORDER] = {"arch_mixer.norm_before_gate", 2},
    [SET_BODY] = {"arch_ffn_body", ARCH_FFN_BOTH + 1},
    [SET_FORM] = {"arch_ffn_form", ARCH_FFN_PLAIN + 1},
    [SET_ACTIVATION] = {"activation", N_ACTIVATIONS},
    [SET_SCORE] = {"router_score", ROUTER_SQRT_SOFTPLUS + 1},
    [SET_GROUP_SCORE] = {"router_group_score", ROUTER_GROUP_TOP_TWO + 1},
    [SET_WEIGHT] = {"arch_expert_weight", ARCH_EXPERT_WEIGHT_INPUT + 1},
    [SET_SLOT] = {"arch_slot", N_ARCH_SLOTS},
    [SET_TRANSFORM] = {"arch_transform", N_ARCH_TRANSFORMS},
    [SET_PARAM] = {"arch_param_id", N_ARCH_PARAMS},
    [SET_ABSENT] = {"arch_absent", ARCH_ABSENT_MIXER_0 + 1},
    [SET_PATTERN] = {"arch_pattern_form", N_ARCH_PATTERN_FORMS},
    [SET_ROPE_STYLE] = {"rope_style", ROPE_HALF + 1},
    [SET_SCALING] = {"rope_scaling", ROPE_SCALING_PROPORTIONAL + 1},
};

/* Values whose family is not there yet. The list may only shrink. */
static const struct {
    enum set set;
    int value;
} awaited[] = {
    {SET_PARAM, ARCH_PARAM_ROPE_EXT_FACTOR},
    /* no family yet */
    {SET_SCORE, ROUTER_SQRT_SOFTPLUS},
    {SET_SLOT, ARCH_ATTN_POST_NORM_BIAS},
    {SET_SLOT, ARCH_FFN_POST_NORM_BIAS},
};

enum { MAX_VALUES = 128 };
_Static_assert((int)N_ARCH_PARAMS <= (int)MAX_VALUES && (int)N_ARCH_SLOTS <= (int)MAX_VALUES,
               "room for every value");

static bool reached[N_SETS][MAX_VALUES];

static void reach(enum set set, int value)
{
    assert_in_range(value, 0, MAX_VALUES - 1);
    reached[set][value] = true;
}

static void reach_layer(const struct model *model, const struct model_layer *layer)
{
    const struct arch_mixer *m = layer->mixer;
    const struct arch_ffn *f = layer->ffn;
    bool head_norms = model_tensor(model, ARCH_ATTN_Q_NORM, 0, 0) || m->head_norms;
    reach(SET_MIXING, m->mixing);
    reach(SET_REACH, m->reach);
    if (head_norms) {
        reach(SET_HEAD_NORM, m->head_norm);
        reach(SET_SCOPE, m->head_norm_scope);
        reach(SET_HEAD_NORMS, m->head_norms);
        reach(SET_AFTER_ROPE, m->norm_after_rope);
    }
    reach(SET_VALUE_NORM, m->bare_value_norm);
    reach(SET_TEMPERATURE, m->has_temperature);
    if (m->mixing == ARCH_MIXING_MAMBA2 || m->mixing == ARCH_MIXING_ATTENTION_MAMBA2)
        reach(SET_GATE_ORDER, model->shape.state.norm_first);
    reach(SET_BODY, f->body);
    reach(SET_FORM, f->form);
    reach(SET_ACTIVATION, shape_activation(&model->shape, layer));
    if (f->body == ARCH_FFN_EXPERTS || f->body == ARCH_FFN_BOTH) {
        reach(SET_SCORE, model->shape.experts.score);
        reach(SET_GROUP_SCORE, model->shape.experts.group_score);
        reach(SET_WEIGHT, f->router.weight);
    }
}

/* True if the file has one of a row's keys, or if the row needs none. */
static bool has_key(const struct model *model, const char *keys)
{
    char key[256], name[128];
    const char *prefix = "";
    struct error err = {0};
    if (strcmp(model->source.format, "gguf") == 0)
        assert_int_equal(
            checkpoint_get_string_or(model->ckpt, "general.architecture", "", &prefix, &err), 0);
    for (uint32_t i = 0; keys && arch_name_at(keys, i, 0, 0, name, sizeof(name)); i++) {
        snprintf(key, sizeof(key), "%s%s%s", prefix, *prefix ? "." : "", name);
        if (checkpoint_has(model->ckpt, key))
            return true;
    }
    return !keys;
}

static void reach_source(const struct model *model)
{
    const struct arch_source *s = &model->source;
    reach(SET_ROPE_STYLE, s->rope_style);
    for (uint32_t i = 0; i < s->n_params; i++) {
        if (has_key(model, s->params[i].key))
            reach(SET_PARAM, s->params[i].id);
        reach(SET_ABSENT, s->params[i].absent);
    }
    for (uint32_t i = 0; i < s->n_patterns; i++)
        if (has_key(model, s->patterns[i].key))
            reach(SET_PATTERN, s->patterns[i].form);
    for (uint32_t i = 0; i < s->n_tensors; i++)
        for (uint32_t layer = 0; layer < model->shape.n_layers; layer++) {
            const struct arch_tensor *t = &s->tensors[i];
            bool global = t->slot < ARCH_FIRST_LAYER_SLOT;
            if ((global && layer) || !model_tensor(model, t->slot, layer, 0))
                continue;
            reach(SET_SLOT, t->slot);
            reach(SET_TRANSFORM, t->transform);
        }
}

static void reach_model(const char *path)
{
    struct checkpoint *ckpt = NULL;
    struct model model = {0};
    struct error err = {0};
    if (checkpoint_open(path, &ckpt, &err) != 0 || model_init(&model, ckpt, NULL, &err) != 0)
        fail_msg("%s: %s", path, err.message);
    assert_non_null(model.arch);
    reach(SET_NORM, model.arch->norm);
    reach(SET_RESIDUAL, model.shape.residual);
    reach(SET_OUTPUT, model.arch->output);
    reach(SET_TIED, model.tied_output);
    reach_source(&model);
    for (uint32_t i = 0; i < model.shape.n_layers; i++)
        reach_layer(&model, &model.shape.layers[i]);
    for (uint32_t i = 0; i < ARCH_MAX_ROPES; i++)
        if (model.shape.ropes[i].n_rot)
            reach(SET_SCALING, model.shape.ropes[i].scaling);
    model_fini(&model);
    checkpoint_close(ckpt);
}

static bool is_awaited(enum set set, int value)
{
    for (size_t i = 0; i < sizeof(awaited) / sizeof(awaited[0]); i++)
        if (awaited[i].set == set && awaited[i].value == value)
            return true;
    return false;
}

static void test_every_value_is_reached_by_a_golden(void **state)
{
    static const char folder[] = SLUICE_SOURCE_DIR "/tests/golden/tiny";
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    uint32_t n_bad = 0;
    (void)state;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char path[512];
        const char *dot = strrchr(entry->d_name, '.');
        if (entry->d_name[0] == '.' || (dot && strcmp(dot, ".gguf") != 0))
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        reach_model(path);
    }
    closedir(dir);
    for (enum set set = 0; set < N_SETS; set++)
        for (int value = 0; value < sets[set].n; value++) {
            bool wait = is_awaited(set, value);
            if (reached[set][value] != wait)
                continue;
            n_bad++;
            print_message("%s %d: %s\n", sets[set].name, value,
                          wait ? "a golden reaches it: take it off the list"
                               : "no golden reaches it");
        }
    assert_int_equal(n_bad, 0);
}

static void test_every_table_is_sound_and_named_once(void **state)
{
    (void)state;
    for (uint32_t a = 0; arch_at(a); a++) {
        const struct arch *arch = arch_at(a);
        for (uint32_t i = 0; i < arch->n_sources; i++) {
            struct arch_source merged;
            char alias[96];
            assert_true(arch_source_init(&merged, &arch->sources[i]));
            if (!arch_source_is_sound(arch, &merged))
                fail_msg("%s: source %u is not sound", arch->name, i);
            for (uint32_t n = 0; arch_name_at(merged.aliases, n, 0, 0, alias, sizeof(alias)); n++)
                if (arch_find(merged.format, alias, NULL) != arch)
                    fail_msg("%s: another table has the alias %s", arch->name, alias);
            arch_source_fini(&merged);
        }
    }
}

/* With a norm over all heads, each rank computes all heads of Q and K. The decoder takes the rank's
 * own behind the norm and before rope. Symptom: with other tables, ranks wrote heads of others. */
static void test_norm_over_all_heads_needs_values_and_stands_before_rope(void **state)
{
    struct arch arch = arch_olmo2;
    struct arch_source source;
    (void)state;
    assert_true(arch_source_init(&source, &arch_olmo2.sources[0]));
    assert_true(arch_source_is_sound(&arch, &source));
    arch.mixers[0].norm_after_rope = true;
    assert_false(arch_source_is_sound(&arch, &source));
    arch.mixers[0].norm_after_rope = false;
    struct arch_tensor *values =
        (struct arch_tensor *)(uintptr_t)arch_find_tensor(&source, ARCH_ATTN_V);
    values->required = false;
    assert_false(arch_source_is_sound(&arch, &source));
    arch_source_fini(&source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_value_is_reached_by_a_golden),
        cmocka_unit_test(test_every_table_is_sound_and_named_once),
        cmocka_unit_test(test_norm_over_all_heads_needs_values_and_stands_before_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
