#include <ctype.h>
#include <string.h>

#include "clients/cli/shell/table.h"
#include "tests/unit/base/support_cmocka.h"

/* Every row is complete: help, man page and completion are rendered from the rows. No option
 * appears twice, and the texts have the form that the renderers read. */
static void test_every_row_is_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < table_n_commands(); i++) {
        const struct cli_command *command = table_command(i);
        struct option_spec specs[CLI_MAX_SPECS];
        size_t n = table_specs(command, specs);
        assert_true(command->name[0] && command->summary[0] && command->arguments && command->run);
        assert_true(command->n_examples > 0);
        assert_true(islower((unsigned char)command->summary[0]));
        assert_true(command->summary[strlen(command->summary) - 1] != '.');
        assert_true(n < CLI_MAX_SPECS);
        for (size_t k = 0; k < n; k++) {
            assert_true(specs[k].help && specs[k].help[0]);
            assert_true(specs[k].type == OPTION_BOOL || specs[k].value_name);
            for (size_t j = 0; j < k; j++)
                if (strcmp(specs[j].name, specs[k].name) == 0 ||
                    (specs[j].letter && specs[j].letter == specs[k].letter))
                    fail_msg("sluice %s: --%s and --%s", command->name, specs[j].name,
                             specs[k].name);
        }
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(table_command(k)->name, command->name);
    }
}

static const struct cli_command *find(const char *first, const char *second, size_t *out_n)
{
    char *words[] = {(char *)(uintptr_t)first, (char *)(uintptr_t)second};
    return table_find(second ? 2 : 1, words, out_n);
}

/* Symptom: park, wake, traffic, update and policy refused `--manager HOST:PORT`. The row of a
 * command says that the command calls the manager. The other commands are named here. */
static void test_every_other_command_reaches_a_manager_by_its_port(void **state)
{
    (void)state;
    static const char *const others[] = {"serve",      "stop",         "run",         "chat",
                                         "tokenize",   "bench engine", "bench serve", "man",
                                         "completion", "key",          "key new",     "version"};
    for (size_t i = 0; i < table_n_commands(); i++) {
        const struct cli_command *command = table_command(i);
        bool other = false;
        for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++)
            other = other || strcmp(command->name, others[k]) == 0;
        if (other == ((command->groups & CLI_MANAGE) != 0))
            fail_msg("sluice %s: %s CLI_MANAGE", command->name, other ? "has" : "lacks");
    }
}

static void test_commands_are_found_by_one_word_or_two(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second, *found;
        size_t n_words;
    } cases[] = {
        {"run", NULL, "run", 1},
        {"run", "list", "run", 1},
        {"ops", NULL, "ops list", 1},
        {"ops", "--open", "ops list", 1},
        {"ops", "show", "ops show", 2},
        {"ops", "nothing", NULL, 0},
        {"key", NULL, NULL, 0},
        {"key", "new", "key new", 2},
        {"op", "list", NULL, 0},
        {"", NULL, NULL, 0},
        {"ops list", NULL, "ops list", 1},
    };
    for (size_t i = 0; i < CLI_N(cases); i++) {
        size_t n_words;
        const struct cli_command *found = find(cases[i].first, cases[i].second, &n_words);
        if (!cases[i].found) {
            assert_null(found);
            continue;
        }
        assert_non_null(found);
        assert_string_equal(found->name, cases[i].found);
        assert_int_equal(n_words, cases[i].n_words);
    }
    assert_true(table_is_family("groups"));
    assert_true(table_is_family("key"));
    assert_false(table_is_family("group"));
    assert_false(table_is_family("run"));
}

static void test_a_synopsis_tells_how_many_words_of_which_kind(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        size_t min, max;
        const char *kinds[4];
    } cases[] = {
        {"", 0, 0, {"", "", "", ""}},
        {"MODEL PROMPT", 2, 2, {"MODEL", "PROMPT", "", ""}},
        {"MODEL [TEXT...]", 1, CLI_MAX_WORDS, {"MODEL", "TEXT", "TEXT", "TEXT"}},
        {"[FILE...]", 0, CLI_MAX_WORDS, {"FILE", "FILE", "FILE", "FILE"}},
        {"NAME DEVICE...", 2, CLI_MAX_WORDS, {"NAME", "DEVICE", "DEVICE", "DEVICE"}},
        {"bash|zsh|fish", 1, 1, {"bash|zsh|fish", "", "", ""}},
        {"[COMMAND] [SUBCOMMAND]", 0, 2, {"COMMAND", "SUBCOMMAND", "", ""}},
    };
    for (size_t i = 0; i < CLI_N(cases); i++) {
        struct cli_command command = {.arguments = cases[i].arguments};
        size_t min, max;
        char kind[64];
        table_word_counts(&command, &min, &max);
        assert_int_equal(min, cases[i].min);
        assert_int_equal(max, cases[i].max);
        for (size_t k = 0; k < 4; k++)
            assert_string_equal(table_word_kind(&command, k, kind), cases[i].kinds[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_whole),
        cmocka_unit_test(test_every_other_command_reaches_a_manager_by_its_port),
        cmocka_unit_test(test_commands_are_found_by_one_word_or_two),
        cmocka_unit_test(test_a_synopsis_tells_how_many_words_of_which_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
