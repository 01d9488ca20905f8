/* options_help.c: properties of rows, and the table of options as text. */
#include <stdio.h>
#include <string.h>

#include "base/settings/options.h"

const struct option_spec option_config = {"config",
                                          0,
                                          OPTION_STRING,
                                          0,
                                          "",
                                          "FILE",
                                          "read settings from FILE and conf.d/*.conf beside it",
                                          0,
                                          0};

const char options_sources[] =
    "Each option is also an environment variable (--log-level: SLUICE_LOG_LEVEL) and a key of the "
    "file "
    "(log_level).\nA flag overrides the environment, and the environment overrides the file.";

bool option_is_command(const struct option_spec *spec)
{
    static const char *const names[] = {"help", "man", "version", "origin"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (spec->type == OPTION_BOOL && strcmp(spec->name, names[i]) == 0)
            return true;
    return false;
}

bool option_shows_default(const struct option_spec *spec)
{
    return spec->default_text && spec->default_text[0] && spec->type != OPTION_BOOL;
}

static void help_row(const struct option_spec *s, struct strbuf *out)
{
    char flag[96], letter[8] = "    ";
    const char *value = s->type == OPTION_BOOL ? "" : s->value_name ? s->value_name : "VALUE";
    if (s->letter)
        snprintf(letter, sizeof(letter), "-%c, ", s->letter);
    snprintf(flag, sizeof(flag), "%s--%s%s%s", letter, s->name, value[0] ? " " : "", value);
    strbuf_printf(out, "  %-34s %s", flag, s->help);
    if (option_shows_default(s))
        strbuf_printf(out, " [%s]", s->default_text);
    strbuf_add_char(out, '\n');
}

void options_help(const struct option_spec *specs, size_t n_specs, struct strbuf *out)
{
    for (size_t i = 0; i < n_specs; i++)
        help_row(&specs[i], out);
    help_row(&option_config, out);
    strbuf_printf(out, "\n%s\n", options_sources);
}
