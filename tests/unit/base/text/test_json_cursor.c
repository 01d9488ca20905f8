/* The JSON cursor accepts what jansson accepts, and names the place of a fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/text/json_cursor.h"
#include "tests/support/names.h"

static int skip_all(const char *text, size_t n, struct error *err)
{
    struct json_cursor c;
    int rc = json_cursor_init(&c, text, n, "file", 0, err);
    if (!rc)
        rc = json_cursor_skip(&c, err);
    return rc ? rc : json_cursor_end(&c, err);
}

/* jansson reads every number as a real one, so that large integers are no fault. */
static bool jansson_accepts(const char *text, size_t n)
{
    json_t *json =
        json_loadb(text, n, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    json_decref(json);
    return json != NULL;
}

static void compare(const char *text, size_t n)
{
    struct error err = {0};
    bool own = skip_all(text, n, &err) == 0;
    if (own != jansson_accepts(text, n))
        fail_msg("%.*s: cursor %s", (int)n, text, own ? "accepts" : err.message);
    if (!own)
        assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
}

static const char *const texts[] = {
    "{\"a\": [1, -2.5e+10, 0, true, false, null, \"x\\u00e9\\n\\ud83d\\ude00\\\"\\\\\"], \"b\": "
    "{}}",
    "[[], {}, [{}], {\"k\": [0.1, 1e5, 1E-5, -0]}]",
    "\"\\/\\b\\f\\r\\t\\u0041\"",
    " 12 ",
    "18446744073709551616",
    "{\"a\":1,\"a\":2}",
    "\xC3\xA9",
    "[\"\xE2\x82\xAC\"]",
    "[1,]",
    "{\"a\":1,}",
    "{,}",
    "[,1]",
    "{\"a\"}",
    "{\"a\":}",
    "{1:2}",
    "01",
    "-",
    "-01",
    "1.",
    ".5",
    "1e",
    "1e400",
    "+1",
    "tru",
    "nulll",
    "\"\\x\"",
    "\"\\u12\"",
    "\"\\ud800\"",
    "\"\\udc00\"",
    "\"\\ud800\\u0041\"",
    "\"a\nb\"",
    "\"a",
    "\"a\\",
    "[1 2]",
    "{\"a\" 1}",
    "[",
    "]",
    "{]",
    "[}",
    "1 2",
    "",
    " ",
    "NaN",
    "[Infinity]",
};

static void test_texts_are_judged_as_jansson_judges_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        compare(texts[i], strlen(texts[i]));
}

static void test_cut_texts_are_judged_as_jansson_judges_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        for (size_t n = 0; n < strlen(texts[i]); n++)
            compare(texts[i], n);
}

/* Changes a byte or two at random places. The sequence is the same in every run. */
static void test_changed_texts_are_judged_as_jansson_judges_them(void **state)
{
    static const char bytes[] = "{}[],:\"\\/0123456789-+.eEtrufalsn \n\t\x01\x7F\xC3\xA9";
    uint32_t seed = 1;
    (void)state;
    for (int round = 0; round < 60000; round++) {
        char text[256];
        const char *source = texts[(size_t)round % (sizeof(texts) / sizeof(texts[0]))];
        size_t n = strlen(source);
        memcpy(text, source, n);
        for (int i = 0; n && i < 1 + round % 2; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[(seed >> 8) % n] = bytes[(seed >> 20) % (sizeof(bytes) - 1)];
        }
        compare(text, n);
    }
}

static void test_faults_have_an_offset(void **state)
{
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"[1, x]", "offset 4"},         {"[1, \"\\q\"]", "offset 5"}, {"{\"a\": 01}", "offset 6"},
        {"[\"a\", \xFF]", "offset 6"},  {"[1] 2", "offset 4"},        {"[\"abc", "offset 1"},
        {"{\"a\": [1, 2", "offset 11"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = {0};
        assert_int_equal(skip_all(cases[i].text, strlen(cases[i].text), &err),
                         STATUS_INVALID_ARGUMENT);
        if (!names_all(err.message, cases[i].named))
            fail_msg("%s: %s", cases[i].named, err.message);
    }
}

static void test_depth_has_a_limit(void **state)
{
    static char text[20001];
    struct error err = {0};
    (void)state;
    memset(text, '[', 10000);
    memset(text + 10000, ']', 10000);
    assert_int_equal(skip_all(text, 20000, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "64"));
    assert_int_equal(skip_all(text + 10000 - 64, 128, &err), 0);
    assert_int_equal(skip_all(text + 10000 - 65, 130, &err), STATUS_INVALID_ARGUMENT);
}

static void test_strings_are_unescaped(void **state)
{
    static const char text[] =
        "{\"k\\u00e9y\": \"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u20AC\\ud83d\\ude00\\u0000z\"}";
    struct arena arena;
    struct json_cursor c;
    struct error err;
    const char *key, *value;
    size_t n;
    (void)state;
    arena_init(&arena, 0, 0);
    assert_int_equal(json_cursor_init(&c, text, sizeof(text) - 1, "file", 0, &err), 0);
    assert_int_equal(json_cursor_enter_object(&c, &err), 0);
    assert_int_equal(json_cursor_next_key(&c, &arena, 100, &key, &err), 0);
    assert_string_equal(key, "k\xC3\xA9y");
    assert_int_equal(json_cursor_string(&c, &arena, 100, &value, &n, &err), 0);
    assert_int_equal(n, 18);
    assert_memory_equal(value, "a\"\\/\b\f\n\r\t\xE2\x82\xAC\xF0\x9F\x98\x80\0z", 18);
    assert_int_equal(json_cursor_next_key(&c, &arena, 100, &key, &err), 0);
    assert_null(key);
    assert_int_equal(json_cursor_end(&c, &err), 0);
    arena_fini(&arena);
}

static void test_keys_without_a_name_are_refused(void **state)
{
    static const char *const bad[] = {"{\"\": 1}", "{\"a\\u0001\": 1}", "{\"a\\u007f\": 1}",
                                      "{\"a\\u0000\": 1}", "{\"abcdefghijk\": 1}"};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct arena arena;
        struct json_cursor c;
        struct error err;
        const char *key = NULL;
        arena_init(&arena, 0, 0);
        assert_int_equal(json_cursor_init(&c, bad[i], strlen(bad[i]), "file", 0, &err), 0);
        assert_int_equal(json_cursor_enter_object(&c, &err), 0);
        assert_int_equal(json_cursor_next_key(&c, &arena, 10, &key, &err), STATUS_INVALID_ARGUMENT);
        arena_fini(&arena);
    }
}

static void test_numbers_keep_their_kind(void **state)
{
    static const struct {
        const char *text;
        bool is_integer, is_negative;
        double value;
    } cases[] = {
        {"0", true, false, 0},
        {"-1", true, true, -1},
        {"-0", true, false, 0}, /* symptom: was negative, and no count */
        {"9223372036854775807", true, false, 9223372036854775807.0},
        {"18446744073709551615", true, false, 18446744073709551615.0},
        {"18446744073709551616", false, false, 18446744073709551616.0},
        {"-9223372036854775808", true, true, -9223372036854775808.0},
        {"-9223372036854775809", false, true, -9223372036854775808.0},
        {"1.0", false, false, 1},
        {"1e2", false, false, 100},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct json_cursor c;
        struct json_number number;
        struct error err;
        assert_int_equal(
            json_cursor_init(&c, cases[i].text, strlen(cases[i].text), "file", 0, &err), 0);
        assert_int_equal(json_cursor_number(&c, &number, &err), 0);
        assert_int_equal(number.is_integer, cases[i].is_integer);
        if (number.is_integer)
            assert_int_equal(number.is_negative, cases[i].is_negative);
        assert_true(number.f == cases[i].value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_are_judged_as_jansson_judges_them),
        cmocka_unit_test(test_cut_texts_are_judged_as_jansson_judges_them),
        cmocka_unit_test(test_changed_texts_are_judged_as_jansson_judges_them),
        cmocka_unit_test(test_faults_have_an_offset),
        cmocka_unit_test(test_depth_has_a_limit),
        cmocka_unit_test(test_strings_are_unescaped),
        cmocka_unit_test(test_keys_without_a_name_are_refused),
        cmocka_unit_test(test_numbers_keep_their_kind),
    };
    return cmocka_run_group_tests_name("json_cursor", tests, NULL, NULL);
}
