/* The facts of every golden model: their sums must agree with the files. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/engine_facts.h"
#include "engine/format/checkpoint.h"
#include "tests/unit/engine/support/support_golden.h"

enum { MAX_LAYERS = 256, MOST_BYTES = 1024 };

/* Each layer belongs to one kind, in ascending order. */
static void check_layers(const struct engine_facts *facts)
{
    bool seen[MAX_LAYERS] = {false};
    uint64_t n_state_bytes = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < facts->n_layers; i++) {
        const struct engine_layer_kind *kind = &facts->layers[i];
        assert_true(kind->n_layers > 0);
        bool has_ffn = strcmp(kind->ffn, "none") != 0;
        assert_true(*kind->mixer && *kind->ffn && has_ffn == (*kind->activation != '\0'));
        bool attends = kind->n_heads > 0, bounded = kind->reach_tokens > 0;
        assert_string_equal(bounded || !attends ? "" : "full", bounded ? "" : kind->reach);
        assert_true(!bounded || (attends && *kind->reach));
        n_state_bytes += kind->state_bytes * kind->n_layers;
        for (uint32_t k = 0; k < kind->n_layers; k++, n++) {
            assert_in_range(kind->layers[k], 0, MAX_LAYERS - 1);
            assert_false(seen[kind->layers[k]]);
            assert_true(k == 0 || kind->layers[k] > kind->layers[k - 1]);
            seen[kind->layers[k]] = true;
        }
        bool has_rope = false;
        for (uint32_t k = 0; k < facts->n_ropes; k++)
            has_rope |= (int32_t)facts->ropes[k].rope == kind->rope;
        assert_true(kind->rope < 0 || has_rope);
    }
    assert_int_equal(n, facts->model.n_layers);
    assert_int_equal(n_state_bytes, facts->model.state_elements * sizeof(float));
}

/* Every tensor is loaded or ignored. Norms that have a tensor per head counted as ignored. */
static void check_tensors(const struct checkpoint *ckpt, const struct engine_facts *facts)
{
    uint64_t n_bytes = 0, n_ignored = 0, n_elems = 0, n_all = 0;
    for (uint64_t i = 0; i < checkpoint_n_tensors(ckpt); i++)
        n_all += checkpoint_tensor_at(ckpt, i)->n_elems;
    for (uint32_t i = 0; i < facts->n_ignored; i++) {
        const struct engine_ignored *part = &facts->ignored[i];
        assert_true(*part->rule && *part->why && *part->first && part->n > 0);
        if (part->kind != ENGINE_IGNORED_TENSOR)
            continue;
        n_ignored += part->n;
        n_bytes += part->n_bytes;
        assert_non_null(checkpoint_tensor_find(ckpt, part->first));
    }
    n_elems = n_all - facts->n_loaded;
    assert_true(n_elems <= n_all);
    assert_int_equal(n_elems > 0, n_ignored > 0);
    assert_int_equal(n_bytes > 0, n_ignored > 0);
    assert_true(facts->n_active <= facts->n_loaded);
    assert_int_equal(facts->n_active<facts->n_loaded, facts->experts.n> facts->experts.n_used);
}

static void check_model(const char *path)
{
    struct checkpoint *ckpt = NULL;
    struct engine_facts facts = {.context_limit = ""};
    struct model_info info = {.architecture = ""};
    struct error err = {0};
    if (checkpoint_open(path, &ckpt, &err) != 0 || engine_facts_read(ckpt, &facts, &err) != 0)
        fail_msg("%s: %s", path, err.message);
    assert_int_equal(engine_read_model_info(ckpt, &info, &err), 0);
    assert_string_equal(facts.model.architecture, info.architecture);
    assert_int_equal(facts.model.n_params, info.n_params);
    assert_true(*facts.context_limit);
    check_layers(&facts);
    check_tensors(ckpt, &facts);
    engine_facts_fini(&facts);
    checkpoint_close(ckpt);
}

static void test_facts_of_every_golden_model_add_up(void **state)
{
    char golden[MOST_BYTES / 2], path[MOST_BYTES];
    uint32_t n = 0;
    (void)state;
    snprintf(golden, sizeof(golden), "%s/tests/golden/tiny", golden_source_dir());
    DIR *dir = opendir(golden);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t n_name = strlen(entry->d_name);
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", golden, entry->d_name);
        bool is_file = n_name > 5 && strcmp(entry->d_name + n_name - 5, ".gguf") == 0;
        bool is_folder = entry->d_name[0] != '.' && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
        if (!is_file && !is_folder)
            continue;
        check_model(path);
        n++;
    }
    closedir(dir);
    assert_true(n > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_facts_of_every_golden_model_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
