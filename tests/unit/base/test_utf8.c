#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tests/unit/base/support_cmocka.h"

static void test_utf8_valid_table(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        bool valid;
        size_t offset;
    } cases[] = {
        {"", 0, true, 0},
        {"abc", 3, true, 0},
        {"\xC3\xA9", 2, true, 0},
        {"\xE2\x82\xAC", 3, true, 0},
        {"\xF4\x8F\xBF\xBF", 4, true, 0},
        {"a\x80", 2, false, 1},
        {"\xC0\x80", 2, false, 0},         /* overlong NUL */
        {"\xE0\x80\x80", 3, false, 0},     /* overlong */
        {"\xF0\x80\x80\x80", 4, false, 0}, /* overlong */
        {"\xED\xA0\x80", 3, false, 0},     /* surrogate */
        {"\xF4\x90\x80\x80", 4, false, 0}, /* beyond U+10FFFF */
        {"ab\xE2\x82", 4, false, 2},       /* cut */
        {"\xFF", 1, false, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t offset = 99;
        assert_int_equal(utf8_valid(cases[i].bytes, cases[i].n, &offset), cases[i].valid);
        if (!cases[i].valid)
            assert_int_equal(offset, cases[i].offset);
    }
}

/* A bad byte is found at every position of texts of every length. (The check reads eight bytes at a
 * time.) */
static void test_a_wrong_byte_is_found_wherever_it_is(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 40; n++) {
        char *text = malloc(n); /* exact size: the sanitizer reports a read past the end */
        assert_non_null(text);
        for (size_t wrong = 0; wrong < n; wrong++) {
            size_t offset = 99;
            memset(text, 'a', n);
            assert_true(utf8_valid(text, n, &offset));
            text[wrong] = '\x80';
            assert_false(utf8_valid(text, n, &offset));
            assert_int_equal(offset, wrong);
            if (wrong + 1 == n)
                continue;
            text[wrong] = '\xC4';
            text[wrong + 1] = '\xA0';
            assert_true(utf8_valid(text, n, &offset));
            if (wrong + 2 == n)
                continue;
            text[n - 1] = '\xC4'; /* cut short */
            assert_false(utf8_valid(text, n, &offset));
            assert_int_equal(offset, n - 1);
        }
        free(text);
    }
}

static void test_every_code_point_survives_encode_and_decode(void **state)
{
    (void)state;
    for (uint32_t point = 0; point <= 0x110000; point++) {
        char bytes[4];
        uint32_t back = 0;
        size_t n = utf8_encode(point, bytes);
        bool legal = point <= 0x10FFFF && !(point >= 0xD800 && point <= 0xDFFF);
        assert_int_equal(n != 0, legal);
        if (!legal)
            continue;
        assert_int_equal(utf8_decode(bytes, n, &back), n);
        assert_int_equal(back, point);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_decode(bytes, cut, &back), 0);
            assert_int_equal(utf8_incomplete_tail(bytes, cut), cut);
        }
        assert_int_equal(utf8_incomplete_tail(bytes, n), 0);
    }
}

static void test_incomplete_tail_of_what_cannot_become_legal_is_zero(void **state)
{
    (void)state;
    assert_int_equal(utf8_incomplete_tail("\xED\xA0", 2), 0);
    assert_int_equal(utf8_incomplete_tail("\xE0\x80", 2), 0);
    assert_int_equal(utf8_incomplete_tail("\xF4\x90", 2), 0);
    assert_int_equal(utf8_incomplete_tail("\xC0", 1), 0);
    assert_int_equal(utf8_incomplete_tail("\x80\x80", 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_valid_table),
        cmocka_unit_test(test_a_wrong_byte_is_found_wherever_it_is),
        cmocka_unit_test(test_every_code_point_survives_encode_and_decode),
        cmocka_unit_test(test_incomplete_tail_of_what_cannot_become_legal_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
