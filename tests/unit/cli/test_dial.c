#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "clients/cli/shell/cli.h"
#include "tests/unit/base/support_cmocka.h"

static void test_a_wildcard_is_dialled_on_the_loopback(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"0.0.0.0:8001", "127.0.0.1:8001"},
                                           {"[::]:8001", "[::1]:8001"},
                                           {"10.0.0.1:8001", "10.0.0.1:8001"},
                                           {"127.0.0.1:0", ""},
                                           {"nothing", ""}};
    for (size_t i = 0; i < CLI_N(cases); i++) {
        char out[64];
        cli_dial_address(cases[i][0], out, sizeof(out));
        assert_string_equal(out, cases[i][1]);
    }
}

static void test_a_managers_port_is_told_from_its_socket(void **state)
{
    (void)state;
    static const char *const ports[] = {"localhost:8003", "127.0.0.1:8003", "[::1]:8003", "h:1"};
    static const char *const sockets[] = {"/run/m.sock", "m.sock", "./m:8003", "unix:m:8003",
                                          "m:",          "m:80x",  ""};
    for (size_t i = 0; i < CLI_N(ports); i++)
        assert_true(cli_dial_is_port(ports[i]));
    for (size_t i = 0; i < CLI_N(sockets); i++)
        assert_false(cli_dial_is_port(sockets[i]));
}

static void test_a_directory_is_told_from_the_root(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"state", "/here/state"},
                                           {"./state", "/here/state"},
                                           {"state//", "/here/state"},
                                           {"../state", "/here/../state"},
                                           {".", "/here"},
                                           {"./", "/here"}};
    for (size_t i = 0; i < CLI_N(cases); i++) {
        char out[64];
        cli_join_path("/here", cases[i][0], out, sizeof(out));
        assert_string_equal(out, cases[i][1]);
    }
}

/* Commands with MODEL and --version split "NAME:VERSION". A path is not split. A command that takes
 * only files does not split a file name either. */
static void test_a_version_is_split_off(void **state)
{
    (void)state;
    static const struct {
        const struct cli_command *command;
        const char *word, *version, *model, *split;
    } cases[] = {
        {&cmd_unload, "smol:2", "", "smol", "2"}, {&cmd_unload, "smol", "", "smol", ""},
        {&cmd_unload, "smol", "3", "smol", "3"},  {&cmd_unload, "smol:2", "3", NULL, NULL},
        {&cmd_unload, ":2", "", NULL, NULL},      {&cmd_unload, "smol:", "", NULL, NULL},
        {&cmd_show, "smol:2", "", NULL, NULL},    {&cmd_register, "a:2", "", "a:2", ""},
        {&cmd_unload, "./a:b", "", "./a:b", ""},  {&cmd_bench_engine, "a:b", "", "a:b", ""},
    };
    for (size_t i = 0; i < CLI_N(cases); i++) {
        const struct cli_command *command = cases[i].command;
        struct cli cli = {.command = command, .specs = command->specs, .n_specs = command->n_specs};
        char program[] = "x", word[16];
        char *argv[] = {program, word};
        struct error err;
        snprintf(word, sizeof(word), "%s", cases[i].word);
        assert_int_equal(options_parse("cli", command->specs, command->n_specs, 2, argv,
                                       &cli.settings, &cli.options, &err),
                         0);
        cli.settings.version = cases[i].version;
        int rc = cli_split_version(&cli, &err);
        assert_int_equal(rc != 0, cases[i].model == NULL);
        if (!rc) {
            assert_string_equal(cli_word(&cli, 0), cases[i].model);
            assert_string_equal(cli.settings.version, cases[i].split);
        }
        options_destroy(cli.options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wildcard_is_dialled_on_the_loopback),
        cmocka_unit_test(test_a_managers_port_is_told_from_its_socket),
        cmocka_unit_test(test_a_directory_is_told_from_the_root),
        cmocka_unit_test(test_a_version_is_split_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
