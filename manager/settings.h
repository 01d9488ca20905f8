/* settings.h: the manager's flags. One thread, at start. */
#pragma once

#include <stdbool.h>

#include "manager/manager.h"

struct error;
struct options;
struct strbuf;

/* Strings in `out_settings` are borrowed from *out_options (owned). */
int settings_parse(int argc, char *const argv[], struct settings *out_settings,
                   struct options **out_options, struct error *err);
/* What --help prints, or the man page. */
void settings_manual(bool roff, struct strbuf *out);
