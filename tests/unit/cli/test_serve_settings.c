/* The settings that `sluice serve` passes on to its server. */
#include <string.h>

#include "base/error.h"
#include "base/settings/options.h"
#include "clients/cli/serve/child.h"
#include "clients/cli/serve/serve_settings.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/table.h"
#include "tests/unit/base/support_cmocka.h"

static bool has_word(const struct child *child, const char *word)
{
    for (size_t i = 0; child->argv[i]; i++)
        if (strcmp(child->argv[i], word) == 0)
            return true;
    return false;
}

/* `--http-open-metrics` was an option of sluice-server alone, and `sluice serve` refused it. */
static void test_switches_of_http_reach_the_server(void **state)
{
    static const char *const words[] = {"--http-open-metrics", "--http-strict",
                                        "--allow-plaintext-keys", "--http-open-metrics=false",
                                        "--http-strict=false"};
    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct option_spec specs[CLI_MAX_SPECS];
        char *argv[] = {(char *)(uintptr_t) "serve", (char *)(uintptr_t)words[i], NULL};
        struct child manager = {.argv = {"manager"}}, server = {.argv = {"server"}};
        struct serve_settings settings = {0};
        struct cli cli = {.command = &cmd_serve, .argc = 2, .argv = argv, .specs = specs};
        struct error err;
        cli.n_specs = table_specs(&cmd_serve, specs);
        int rc =
            options_parse("cli", specs, cli.n_specs, 2, argv, &cli.settings, &cli.options, &err);
        if (!rc)
            rc = serve_settings_hand_on(&cli, &manager, &server, &settings, &err);
        if (rc)
            fail_msg("%s: %s", words[i], err.message);
        assert_true(has_word(&server, words[i]));
        assert_false(has_word(&manager, words[i]));
        serve_settings_fini(&settings);
        options_destroy(cli.options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_switches_of_http_reach_the_server)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
