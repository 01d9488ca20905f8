/* Tests of the keys of longrope in config.json. Longer sequences than the border use the long
 * table. Keys that do not describe two tables are refused. The folder is golden, with a change in
 * config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/arch/arch.h"
#include "engine/model/model.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_folder.h"

enum { BAD = STATUS_INVALID_ARGUMENT, UNBUILT = STATUS_UNIMPLEMENTED };

#define LONG_FACTOR                                                                                \
    "    \"long_factor\": [\n      1.0,\n      1.5,\n      2.0,\n      3.0,\n      5.0,\n"         \
    "      8.0\n    ],\n"
#define INNER_ORIGINAL "    \"original_max_position_embeddings\": 32,\n"
#define CONTEXT        "\"max_position_embeddings\": 256"
#define CONTEXT_32     "\"max_position_embeddings\": 32"
#define OUTER_ORIGINAL "  \"original_max_position_embeddings\": 32,\n  \"pad"

struct copy {
    struct test_folder folder;
    struct checkpoint *ckpt;
    struct model model;
    struct error err;
};

/* With the table `arch`; NULL: the file's own. */
static int open_copy_as(struct copy *c, const struct arch *arch, const char *old, const char *now)
{
    memset(c, 0, sizeof(*c));
    folder_create(&c->folder);
    folder_copy_golden(&c->folder, "phi3_long", "model.safetensors", "", "");
    folder_copy_golden(&c->folder, "phi3_long", "config.json", old, now);
    int rc = checkpoint_open(c->folder.path, &c->ckpt, &c->err);
    return rc ? rc : model_init(&c->model, c->ckpt, arch, &c->err);
}

static int open_copy(struct copy *c, const char *old, const char *now)
{
    return open_copy_as(c, NULL, old, now);
}

static void close_copy(struct copy *c)
{
    model_fini(&c->model);
    checkpoint_close(c->ckpt);
    folder_remove(&c->folder);
}

static void test_longrope_without_two_tables_is_refused_by_key(void **state)
{
    static const struct {
        const char *old, *now;
        int status;
        const char *named;
    } rows[] = {
        {LONG_FACTOR, "", UNBUILT, "rope_parameters.rope_type"},
        {"      8.0\n    ]", "      8.0,\n      9.0\n    ]", BAD,
         "rope_parameters.long_factor|7|6"},
        {"      8.0\n    ]", "      0.0\n    ]", BAD, "rope_parameters.long_factor"},
        /* transformers' class does not read the key, and other classes do */
        {INNER_ORIGINAL, INNER_ORIGINAL "    \"long_mscale\": 1.2,\n", UNBUILT,
         "rope_parameters.long_mscale"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct copy copy;
        int rc = open_copy(&copy, rows[i].old, rows[i].now);
        if (rc != rows[i].status || !names_all(copy.err.message, rows[i].named))
            fail_msg("row %zu: %s \"%s\"", i, status_name(rc), copy.err.message);
        close_copy(&copy);
    }
}

static void test_the_border_is_the_original_context(void **state)
{
    static const struct {
        const char *old, *now;
        uint32_t border;
        double factor;
    } rows[] = {
        {"", "", 32, 8},
        {INNER_ORIGINAL, "", 32, 8},
        {OUTER_ORIGINAL, "  \"pad", 32, 8},
        {INNER_ORIGINAL, INNER_ORIGINAL "    \"factor\": 2.0,\n", 32, 2},
        {CONTEXT, CONTEXT_32, 0, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct copy copy;
        if (open_copy(&copy, rows[i].old, rows[i].now) != 0)
            fail_msg("row %zu: %s", i, copy.err.message);
        const struct model_shape *shape = &copy.model.shape;
        assert_int_equal(shape->long_rope_after, rows[i].border);
        assert_int_equal(copy.model.info.long_rope_after, rows[i].border);
        assert_true(shape->ropes[0].factor == rows[i].factor);
        assert_int_equal(shape->context_tokens, i == 4 ? 32 : 256);
        close_copy(&copy);
    }
}

/* A table of the test's own: that of Phi-3 with a second longrope, which the last layer uses. */
struct two_ropes {
    struct arch arch;
    struct arch_source source;
    struct arch_param params[6];
    struct arch_pattern last;
};

static void make_two_ropes(struct two_ropes *t, uint32_t second_original)
{
    const struct arch *phi3 = arch_find_named("phi3");
    const struct arch_source *base = arch_find_source(phi3, "hf", "phi3");
    *t = (struct two_ropes){
        .arch = *phi3,
        .params = {{ARCH_PARAM_ROPE_BASE, NULL, ARCH_ABSENT_FALLBACK, 700, 1},
                   {ARCH_PARAM_ROT_SHARE, NULL, ARCH_ABSENT_FALLBACK, 0.75, 1},
                   {ARCH_PARAM_ROPE_SCALING, NULL, ARCH_ABSENT_FALLBACK, ROPE_SCALING_LONGROPE, 1},
                   {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT, NULL, ARCH_ABSENT_FALLBACK, second_original,
                    1},
                   {ARCH_PARAM_ROPE_SHORT_FACTORS, "rope_parameters.short_factor",
                    ARCH_ABSENT_DERIVE, 0, 1},
                   {ARCH_PARAM_ROPE_LONG_FACTORS, "rope_parameters.long_factor", ARCH_ABSENT_DERIVE,
                    0, 1}},
        .last = {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, NULL, 2, 1, 0},
    };
    t->source = (struct arch_source){.base = base,
                                     .format = base->format,
                                     .aliases = base->aliases,
                                     .rope_style = base->rope_style,
                                     .params = t->params,
                                     .n_params = ARCH_N_OF(t->params),
                                     .patterns = &t->last,
                                     .n_patterns = 1};
    t->arch.mixers[1] = t->arch.mixers[0];
    t->arch.mixers[1].name = "second";
    t->arch.mixers[1].rope = 1;
    t->arch.n_mixers = 2;
    t->arch.sources = &t->source;
    t->arch.n_sources = 1;
}

/* Symptom: a set whose original context was not below the model's context was not compared. The
 * set then used its long table after the other set's border. */
static void test_sets_with_two_borders_are_refused(void **state)
{
    static const struct {
        const char *context;
        uint32_t second_original; /* the first set's is 32 */
        int status;
        uint32_t border;
    } rows[] = {
        {CONTEXT, 32, 0, 32},        {CONTEXT, 64, UNBUILT, 0},    {CONTEXT, 256, UNBUILT, 0},
        {CONTEXT, 4096, UNBUILT, 0}, {CONTEXT_32, 16, UNBUILT, 0}, {CONTEXT_32, 32, 0, 0},
        {CONTEXT_32, 4096, 0, 0}, /* no sequence is long enough for a long table */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct two_ropes table;
        struct copy copy;
        make_two_ropes(&table, rows[i].second_original);
        int rc = open_copy_as(&copy, &table.arch, CONTEXT, rows[i].context);
        if (rc != rows[i].status)
            fail_msg("row %zu: %s \"%s\"", i, status_name(rc), copy.err.message);
        if (!rc)
            assert_int_equal(copy.model.shape.long_rope_after, rows[i].border);
        close_copy(&copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longrope_without_two_tables_is_refused_by_key),
        cmocka_unit_test(test_the_border_is_the_original_context),
        cmocka_unit_test(test_sets_with_two_borders_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
