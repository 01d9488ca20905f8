#include "manager/check_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/settings/options.h"
#include "base/strbuf.h"
#include "manager/service/access.h"
#include "manager/settings/paths.h"
#include "manager/settings/settings.h"

bool check_config_word(const struct options *options, struct settings *settings, int *out_status)
{
    enum { EXIT_USAGE = 2, EXIT_BAD_SETTINGS = 78 };
    struct error err;
    struct strbuf text;
    const char *word = options_positional(options, 0);
    *out_status = 0;
    if (!word)
        return false;
    if (strcmp(word, "show-config") == 0) {
        strbuf_init(&text, 0);
        options_show(options, settings->origin, &text);
        fputs(strbuf_str(&text), stdout);
        strbuf_fini(&text);
        return true;
    }
    static struct paths paths; /* the settings point into it */
    bool is_new = false;
    if (settings_check(settings, &err) != 0) {
        *out_status = EXIT_USAGE;
    } else if (paths_check(settings, &paths, &is_new, &err) != 0) {
        *out_status = err.reason == REASON_NO_OPENAT2         ? EXIT_BAD_SETTINGS
                      : err.status == STATUS_INVALID_ARGUMENT ? EXIT_USAGE
                                                              : EXIT_FAILURE;
    } else if (access_check_listeners(settings, &err) != 0 ||
               access_check(settings, !is_new, &err) != 0) {
        *out_status = EXIT_BAD_SETTINGS;
    }
    if (*out_status)
        fprintf(stderr, "sluice-manager: %s\n", err.message);
    else
        puts("sluice-manager: the settings are good");
    return true;
}
