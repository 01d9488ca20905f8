/* Tests of quoted words for commands that users paste: a real shell must read back the same words.
 */
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "base/system/shell_word.h"
#include "tests/unit/base/support_cmocka.h"

static void test_plain_words_stay_as_they_are(void **state)
{
    (void)state;
    static const char *const words[] = {"/var/lib/sluice", "a-b_c.d", "127.0.0.1:8001",
                                        "x=1,y@z%+"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct strbuf text = {0};
        shell_word_add(&text, words[i]);
        assert_string_equal(strbuf_str(&text), words[i]);
        strbuf_fini(&text);
    }
}

static void test_a_shell_reads_back_every_word(void **state)
{
    (void)state;
    static const char *const words[] = {
        "",  "a b", "it's",    "''",    "$HOME", "`id`",     "a\\b",
        "~", "*",   "a;b|c&d", "\"q\"", "#",     "\xc3\xa9", "-n",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct strbuf command = {0};
        char back[64] = "";
        strbuf_add_str(&command, "printf '%s' ");
        shell_word_add(&command, words[i]);
        FILE *shell = popen(strbuf_str(&command), "r");
        assert_non_null(shell);
        size_t n = fread(back, 1, sizeof(back) - 1, shell);
        assert_int_equal(pclose(shell), 0);
        assert_int_equal(n, strlen(words[i]));
        assert_string_equal(back, words[i]);
        strbuf_fini(&command);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_words_stay_as_they_are),
        cmocka_unit_test(test_a_shell_reads_back_every_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
