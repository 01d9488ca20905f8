/* Tests of find_literal() against memmem(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text/find.h"

/* Texts of two letters have many places where a literal begins and does not go on. */
static void test_places_are_those_of_memmem(void **state)
{
    (void)state;
    srand(1);
    for (int i = 0; i < 20000; i++) {
        size_t n = (size_t)rand() % 24, n_what = (size_t)rand() % 6;
        char *text = malloc(n + 1), *what = malloc(n_what + 1); /* exact, so that a read past the
                                                                 * end is seen */
        assert_true(text && what);
        for (size_t k = 0; k < n; k++)
            text[k] = (char)('a' + rand() % 2);
        for (size_t k = 0; k < n_what; k++)
            what[k] = (char)('a' + rand() % 2);
        assert_ptr_equal(find_literal(text, n, what, n_what), memmem(text, n, what, n_what));
        free(text);
        free(what);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places_are_those_of_memmem)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
