#include "clients/cli/shell/program_setting.h"

#include <stdio.h>

#include "base/error.h"
#include "base/settings/options.h"
#include "clients/cli/shell/cli.h"

int program_setting(const struct cli *cli, const char *section, const char *name, char *out,
                    size_t n_out, struct error *err)
{
    struct setting {
        const char *text;
    } setting = {""};
    const struct option_spec spec = {
        name, 0, OPTION_STRING, offsetof(struct setting, text), "", "TEXT", "", 0, 0};
    const char *config = options_config(cli->options);
    const char *argv[] = {"sluice", "--config", config, NULL};
    struct options *options = NULL;
    int rc = options_parse_some(section, &spec, 1, config[0] ? 3 : 1,
                                (char *const *)(uintptr_t)argv, &setting, &options, err);
    if (rc)
        return rc;
    snprintf(out, n_out, "%s", setting.text);
    options_destroy(options);
    return 0;
}
