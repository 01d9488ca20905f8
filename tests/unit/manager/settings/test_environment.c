/* Tests of the workers' environment. Workers run in another folder. Symptom: a relative path of the
 * CUDA module was opened there, and the load reported only "cannot be opened". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "manager/settings/environment.h"

static void test_paths_of_the_module_are_made_absolute(void **state)
{
    static const struct {
        const char *given, *handed_on; /* NULL: the variable is not passed on */
    } cases[] = {
        {"PATH=/bin", "PATH=/bin"},
        {"EDITOR=vi", NULL},
        {"SLUICE_CONFIG=a.ini", NULL},
        {"SLUICE_API_KEY=secret", NULL},
        {"CUDA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=1"},
        {"SLUICE_CUDA_MODULE=build/x.so", "SLUICE_CUDA_MODULE=/home/me/build/x.so"},
        {"SLUICE_CUDA_MODULE=./x.so", "SLUICE_CUDA_MODULE=/home/me/./x.so"},
        {"SLUICE_CUDA_MODULE=x.so", "SLUICE_CUDA_MODULE=x.so"}, /* dlopen() finds the file */
        {"SLUICE_CUDA_MODULE=/opt/x:y.so", "SLUICE_CUDA_MODULE=/opt/x:y.so"},
        {"SLUICE_CUDA_MODULE=", "SLUICE_CUDA_MODULE="},
        {"SLUICE_CUDA_LIBRARY_PATH=lib:/usr/lib:",
         "SLUICE_CUDA_LIBRARY_PATH=/home/me/lib:/usr/lib:"},
        {"SLUICE_CUDA_LIBRARY_PATH=/a:b/c", "SLUICE_CUDA_LIBRARY_PATH=/a:/home/me/b/c"},
        {"SLUICE_CUDA_PROMPTS=own", "SLUICE_CUDA_PROMPTS=own"},
        {"SLUICE_CUDA_ATTENTION=wgmma", "SLUICE_CUDA_ATTENTION=wgmma"},
        {"SLUICE_CUDA_FP8=wgmma", "SLUICE_CUDA_FP8=wgmma"},
        {"SLUICE_CUDA_FETCH=engine", "SLUICE_CUDA_FETCH=engine"},
        {"SLUICE_CUDA_JOIN=parts", "SLUICE_CUDA_JOIN=parts"},
        {"SLUICE_CUDA_OVERLAP=off", "SLUICE_CUDA_OVERLAP=off"},
    };
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    char *given[N + 1] = {NULL};
    (void)state;
    for (size_t i = 0; i < N; i++)
        given[i] = (char *)(uintptr_t)cases[i].given;
    char **made = environment_create(given, "/home/me");
    char **unknown = environment_create(given, NULL);
    assert_non_null(made);
    assert_non_null(unknown);
    size_t n = 0;
    for (size_t i = 0; i < N; i++) {
        if (!cases[i].handed_on)
            continue;
        assert_string_equal(made[n], cases[i].handed_on);
        assert_string_equal(unknown[n], cases[i].given);
        n++;
    }
    assert_null(made[n]);
    assert_null(unknown[n]);
    free(made);
    free(unknown);
}

static void test_an_empty_environment_is_one(void **state)
{
    char *none[] = {NULL};
    (void)state;
    char **made = environment_create(none, "/home/me");
    assert_non_null(made);
    assert_null(made[0]);
    free(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_of_the_module_are_made_absolute),
        cmocka_unit_test(test_an_empty_environment_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
