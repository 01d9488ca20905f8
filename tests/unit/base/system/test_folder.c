/* Tests of base/system/folder.h: the rules by which a path names a model. Folders of files are
 * tested with the readers of models (tests/unit/engine/format). */
#include <string.h>

#include "base/system/folder.h"
#include "tests/unit/base/support_cmocka.h"

static void test_model_name_of_a_hub_cache_is_that_of_its_repository(void **state)
{
    static const struct {
        const char *path, *name;
        bool is_hub;
    } cases[] = {
        {"a/b.gguf", "b.gguf", false},
        {"b", "b", false},
        {"/models/Qwen3//", "Qwen3", false},
        {"hub/models--Org--Name/snapshots/0a1b", "Org--Name", true},
        {"models--Org--Name/snapshots/0a1b/", "Org--Name", true},
        {"models--gpt2//snapshots//0a1b", "gpt2", true},
        {"models--/snapshots/0a1b", "0a1b", false},
        {"models--Org--Name/refs/0a1b", "0a1b", false},
        {"models--Org--Name", "models--Org--Name", false},
        {"snapshots/0a1b", "0a1b", false},
        {"/", "", false},
        {"", "", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = 99;
        bool is_hub = !cases[i].is_hub;
        const char *name = folder_model_name(cases[i].path, &n, &is_hub);
        assert_int_equal(n, strlen(cases[i].name));
        assert_memory_equal(name, cases[i].name, n);
        assert_int_equal(is_hub, cases[i].is_hub);
    }
}

static void test_part_suffix_is_found_only_whole(void **state)
{
    static const struct {
        const char *name;
        size_t n_suffix;
        unsigned part;
    } cases[] = {
        {"m-00001-of-00003.gguf", 20, 1},
        {"m-00002-of-00003.gguf", 20, 2},
        {"m-12345-of-99999.gguf", 20, 12345},
        {"-00001-of-00003.gguf", 0, 0},
        {"m-0001-of-00003.gguf", 0, 0},
        {"m-00001-of-0000x.gguf", 0, 0},
        {"m-00001-of-00003.GGUF", 0, 0},
        {"m.gguf", 0, 0},
        {"", 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned part = 0;
        size_t n = strlen(cases[i].name);
        assert_int_equal(folder_part_suffix(cases[i].name, n, &part), cases[i].n_suffix);
        assert_int_equal(part, cases[i].part);
        assert_int_equal(folder_part_suffix(cases[i].name, n, NULL), cases[i].n_suffix);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_name_of_a_hub_cache_is_that_of_its_repository),
        cmocka_unit_test(test_part_suffix_is_found_only_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
