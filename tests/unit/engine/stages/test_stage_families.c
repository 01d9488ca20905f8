/* Every golden checkpoint (tests/golden/tiny) gives the same bits in pipeline stages as on one
 * rank. Models whose layers cannot be parted are refused, and the error names the layers' tensor.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/forward/stages.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

enum { MAX_NAMES = 256, NAME_BYTES = 64, CHUNK = 64, N_SPLITS = 6 };

static char names[MAX_NAMES][NAME_BYTES];
static size_t n_names;

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Lists the files NAME.bin that stand beside NAME/ or NAME.gguf. */
static void list_goldens(void)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny", golden_source_dir());
    DIR *folder = opendir(path);
    assert_non_null(folder);
    n_names = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        size_t n = strlen(entry->d_name);
        if (n < 5 || n >= NAME_BYTES || strcmp(entry->d_name + n - 4, ".bin") != 0 ||
            strstr(entry->d_name, "_answers"))
            continue;
        assert_true(n_names < MAX_NAMES);
        snprintf(names[n_names++], NAME_BYTES, "%.*s", (int)(n - 4), entry->d_name);
    }
    closedir(folder);
    qsort(names, n_names, NAME_BYTES, by_name);
}

/* "" for a folder, else ".gguf". */
static const char *suffix_of(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%.64s/config.json", golden_source_dir(),
             name);
    FILE *file = fopen(path, "rb");
    if (file)
        fclose(file);
    return file ? "" : ".gguf";
}

static struct executor_config config(uint32_t tp, uint32_t pp)
{
    struct executor_config cfg = model_run_config("auto");
    cfg.max_seqs = CHUNK; /* a step returns the logits of this many rows */
    cfg.tp = tp;
    cfg.pp = pp;
    return cfg;
}

static int plan(const char *name, const struct executor_config *cfg, struct executor_plan *out,
                struct error *err)
{
    char path[512];
    struct checkpoint *ckpt = NULL;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%.64s%s", golden_source_dir(), name,
             suffix_of(name));
    int rc = checkpoint_open(path, &ckpt, err);
    if (!rc)
        rc = executor_plan(ckpt, cfg, out, err);
    checkpoint_close(ckpt);
    return rc;
}

/* Returns 1 if the split runs, else 0. */
static uint32_t check_split(const char *name, uint64_t whole, uint32_t tp, uint32_t pp)
{
    struct executor_config ranks = config(tp, 1), cfg = config(tp, pp);
    struct executor_plan sizes;
    struct error err;
    if (plan(name, &ranks, &sizes, &err) != 0)
        return 0; /* the shapes do not allow so many ranks */
    uint32_t n_all = sizes.devices[0].n_layers, n_layers = 0;
    if (plan(name, &cfg, &sizes, &err) != 0) {
        assert_string_equal(err.field, "pp");
        if (n_all >= pp && strcmp(name, "gemma4") != 0)
            fail_msg("%s: %u layers, pp %u refused: %s", name, n_all, pp, err.message);
        return 0;
    }
    assert_int_equal(sizes.n_stages, pp);
    assert_int_equal(sizes.n_ranks, tp * pp);
    for (uint32_t r = 0; r < sizes.n_ranks; r += tp) {
        assert_int_equal(sizes.ranks[r].layer_begin, n_layers);
        n_layers += sizes.ranks[r].n_layers;
    }
    assert_int_equal(n_layers, n_all);
    assert_int_equal(n_layers, sizes.devices[0].n_layers);
    if (match_golden(name, suffix_of(name), &cfg, CHUNK).hash != whole)
        fail_msg("%s: tp %u, pp %u give other bits", name, tp, pp);
    return 1;
}

static void test_goldens_give_the_same_bits_in_stages(void **state)
{
    static const uint32_t splits[N_SPLITS][2] = {{1, 2}, {2, 2}, {1, 4}, {4, 2}, {2, 4}, {8, 2}};
    uint32_t n_run[N_SPLITS] = {0};
    (void)state;
    list_goldens();
    for (size_t i = 0; i < n_names; i++) {
        struct executor_config cfg = config(1, 1);
        uint64_t whole = match_golden(names[i], suffix_of(names[i]), &cfg, CHUNK).hash;
        for (size_t k = 0; k < N_SPLITS; k++)
            n_run[k] += check_split(names[i], whole, splits[k][0], splits[k][1]);
    }
    for (size_t k = 0; k < N_SPLITS; k++)
        print_message("tp %u, pp %u: %u of %zu goldens\n", splits[k][0], splits[k][1], n_run[k],
                      n_names);
    /* The others have a single layer, or fewer than four. */
    assert_true(n_run[0] > 90 && n_run[1] > 80 && n_run[2] > 5 && n_run[3] > 25 && n_run[4] > 4);
}

static void test_stages_refused_where_layers_belong_together(void **state)
{
    struct executor_config cfg = config(1, 2);
    struct executor_plan sizes;
    struct error err;
    (void)state;
    assert_int_equal(plan("gemma4", &cfg, &sizes, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "pp");
    assert_non_null(strstr(err.message, "hidden_size_per_layer_input"));
    assert_non_null(strstr(err.message, "embed_tokens_per_layer.weight"));
    cfg = config(1, STAGES_MAX);
    assert_int_equal(plan("llama3", &cfg, &sizes, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "pp");
    cfg = config(1, STAGES_MAX + 1);
    assert_int_equal(plan("llama3", &cfg, &sizes, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "pp");
    cfg = config(8, 8);
    assert_int_equal(plan("llama3", &cfg, &sizes, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "pp");
}

/* Each rank reads its own layers. The embedding is read by the first stage, and by the last where
 * it is the output matrix too. */
static void test_stages_hold_their_own_layers(void **state)
{
    struct executor_plan whole, split;
    struct error err;
    (void)state;
    struct executor_config cfg = config(1, 1);
    assert_int_equal(plan("q4_1", &cfg, &whole, &err), 0);
    cfg = config(1, 2);
    assert_int_equal(plan("q4_1", &cfg, &split, &err), 0);
    assert_int_equal(split.ranks[0].stage, 0);
    assert_int_equal(split.ranks[1].stage, 1);
    assert_int_equal(split.kv_bytes, whole.kv_bytes);
    for (uint32_t r = 0; r < 2; r++) {
        assert_true(split.ranks[r].weights_bytes < whole.weights_bytes);
        assert_true(split.ranks[r].kv_bytes < whole.kv_bytes);
    }
    assert_int_equal(split.ranks[0].weights_bytes + split.ranks[1].weights_bytes,
                     split.weights_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens_give_the_same_bits_in_stages),
        cmocka_unit_test(test_stages_refused_where_layers_belong_together),
        cmocka_unit_test(test_stages_hold_their_own_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
