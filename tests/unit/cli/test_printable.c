#include <string.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "clients/cli/term/printable.h"
#include "tests/unit/base/support_cmocka.h"

static void test_control_characters_are_shown_and_text_is_not_changed(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"one\n\ttwo \xC3\xA9\xF0\x9F\x98\x80 \\x1B", "one\n\ttwo \xC3\xA9\xF0\x9F\x98\x80 \\x1B"},
        {"\x1B]0;owned\x07", "\\x1B]0;owned\\x07"},
        {"\xC2\x9B"
         "2J\xC2\xA0",
         "\\u009B2J\xC2\xA0"},
        {"a\rb\r\nc\x7F", "a\\x0Db\r\nc\\x7F"},
        {"\x1B", "\\x1B"},
        {"\xC2", "\xC2"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct strbuf out;
        strbuf_init(&out, 0);
        printable_add(&out, cases[i][0]);
        assert_string_equal(strbuf_str(&out), cases[i][1]);
        strbuf_fini(&out);
    }
}

static void test_what_goes_into_a_file_is_not_changed(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    char text[16] = "";
    assert_non_null(file);
    printable_write(file, "a\x1B[2J");
    rewind(file);
    assert_int_equal(fread(text, 1, sizeof(text), file), 5);
    assert_string_equal(text, "a\x1B[2J");
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_characters_are_shown_and_text_is_not_changed),
        cmocka_unit_test(test_what_goes_into_a_file_is_not_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
