/* test_settings.c: tests which settings each mode of the worker reads from its command line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/settings/options.h"
#include "server/worker/base/settings.h"
#include "tests/support/names.h"

enum { MAX_WORDS = 12 };

/* The words up to NULL, the mode's name first. */
static int parse(enum settings_mode mode, const char *const words[], struct settings *settings,
                 struct error *err)
{
    struct options *options = NULL;
    char texts[MAX_WORDS][32], *argv[MAX_WORDS];
    int argc = 0;
    for (; words[argc]; argc++) {
        snprintf(texts[argc], sizeof(texts[argc]), "%s", words[argc]);
        argv[argc] = texts[argc];
    }
    int rc = settings_parse(mode, argc, argv, settings, &options, err);
    if (!rc)
        settings_free(settings, options);
    return rc;
}

/* Each mode accepts its least arguments. A mode has no fields for flags that it lacks, so its parse
 * must not read any. */
static void test_each_mode_takes_no_more_than_it_must_have(void **state)
{
    (void)state;
    static const char *const least[N_MODES][MAX_WORDS] = {
        [MODE_SERVE] = {"serve", "m.gguf", "--socket", "s"},
        [MODE_GENERATE] = {"generate", "m.gguf", "Why?"},
        [MODE_INSPECT] = {"inspect", "m.gguf"},
        [MODE_PLAN] = {"plan", "m.gguf"},
        [MODE_PROBE] = {"probe"},
        [MODE_BENCH] = {"bench", "m.gguf"},
        [MODE_QUANTIZE] = {"quantize"},
    };
    for (size_t mode = 0; mode < N_MODES; mode++) {
        struct error err = {0};
        struct settings settings;
        if (parse((enum settings_mode)mode, least[mode], &settings, &err) != 0)
            fail_msg("%s: %s", least[mode][0], err.message);
    }
}

static void test_memory_for_packed_weights_is_one_per_rank(void **state)
{
    (void)state;
    static const struct {
        const char *words[MAX_WORDS];
        const char *refusal; /* NULL: taken */
    } cases[] = {
        {{"serve", "m", "--socket", "s", "--packed-fds", "2", "--tp", "2"}, NULL},
        {{"serve", "m", "--socket", "s", "--packed-fds", "1", "--tp", "2"}, "1|2"},
        {{"serve", "m", "--socket", "s", "--packed-fds", "3", "--tp", "2"}, "3|2"},
        /* Weights that lay on a GPU, and layers on the CPU. */
        {{"serve", "m", "--socket", "s", "--packed-fds", "1", "--devices", "cuda:0"}, NULL},
        {{"serve", "m", "--socket", "s", "--packed-fds", "2", "--devices", "cuda:0"}, NULL},
        {{"serve", "m", "--socket", "s", "--parked"}, "--packed-fds"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = {0};
        struct settings settings;
        int rc = parse(MODE_SERVE, cases[i].words, &settings, &err);
        assert_int_equal(rc == 0, cases[i].refusal == NULL);
        if (cases[i].refusal && !names_all(err.message, cases[i].refusal))
            fail_msg("%zu: %s", i, err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_mode_takes_no_more_than_it_must_have),
        cmocka_unit_test(test_memory_for_packed_weights_is_one_per_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
