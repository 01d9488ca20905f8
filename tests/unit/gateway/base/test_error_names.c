/* Tests of error_names.h: the name of a field in an error, and at the begin of its text. */
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "server/gateway/base/error_names.h"
#include "tests/unit/base/support_cmocka.h"

static const struct error_name names[] = {{"group.special", "own"},
                                          {"prompt", "inputs"},
                                          {"group.", "parameters."},
                                          {"flat.", ""},
                                          {NULL, NULL}};

static void test_the_first_row_that_fits_renames_field_and_text(void **state)
{
    (void)state;
    static const struct {
        const char *field, *name; /* NULL: no row fits */
    } rows[] = {
        {"prompt", "inputs"},
        {"prompt[3]", "inputs[3]"},
        {"prompt.text", "inputs.text"},
        {"prompts", NULL},
        {"group.special", "own"},
        {"group.special_too", "parameters.special_too"},
        {"group.stop[1]", "parameters.stop[1]"},
        {"flat.seed", "seed"},
        {"flat", NULL},
        {"other", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *expected = rows[i].name ? rows[i].name : rows[i].field;
        struct error err;
        error_field(&err, rows[i].field, "needs prompt");
        assert_int_equal(error_names_apply(&err, names), rows[i].name != NULL);
        assert_string_equal(err.field, expected);
        assert_int_equal(strncmp(err.message, expected, strlen(expected)), 0);
        assert_string_equal(err.message + strlen(expected), ": needs prompt");
    }
}

static void test_a_text_that_does_not_begin_with_the_field_stays(void **state)
{
    (void)state;
    struct error err;
    error_field(&err, "prompt", "is bad");
    error_prefix(&err, "part 2");
    assert_true(error_names_apply(&err, names));
    assert_string_equal(err.field, "inputs");
    assert_string_equal(err.message, "part 2: prompt: is bad");
}

/* Texts of errors go into proto3 strings, which are valid UTF-8. */
static void test_a_text_that_grows_is_cut_between_code_points(void **state)
{
    (void)state;
    for (size_t n_before = 0; n_before < 3; n_before++) {
        struct error err;
        error_field(&err, "group.x", "%.*s", (int)n_before, "ab");
        while (strlen(err.message) + 3 < sizeof(err.message))
            memcpy(err.message + strlen(err.message), "\xe2\x82\xac", 4);
        assert_true(error_names_apply(&err, names));
        assert_string_equal(err.field, "parameters.x");
        assert_true(strlen(err.message) >= sizeof(err.message) - 4);
        assert_true(utf8_valid(err.message, strlen(err.message), NULL));
    }
}

static void test_a_long_name_is_cut(void **state)
{
    (void)state;
    struct error err;
    char name[2 * ERROR_FIELD_BYTES];
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    error_field(&err, "prompt", "is bad");
    error_names_set(&err, name);
    assert_int_equal(strlen(err.field), ERROR_FIELD_BYTES - 1);
    assert_int_equal(strncmp(err.message, err.field, strlen(err.field)), 0);
    assert_string_equal(err.message + strlen(err.field), ": is bad");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_row_that_fits_renames_field_and_text),
        cmocka_unit_test(test_a_text_that_does_not_begin_with_the_field_stays),
        cmocka_unit_test(test_a_text_that_grows_is_cut_between_code_points),
        cmocka_unit_test(test_a_long_name_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
