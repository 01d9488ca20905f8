/* settings.h: the manager's flags. One thread, at start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "manager/manager.h"

struct error;
struct option_spec;
struct options;
struct reload;
struct strbuf;

/* Strings in `out_settings` are borrowed from *out_options (owned). */
int settings_parse(int argc, char *const argv[], struct settings *out_settings,
                   struct options **out_options, struct error *err);
/* The same for check, backup and restore, which take a file besides: at most one positional. */
int settings_parse_offline(int argc, char *const argv[], struct settings *out_settings,
                           struct options **out_options, struct error *err);
/* The settings that matter to them, for their help. */
const struct option_spec *settings_offline_specs(size_t *out_n);
/* Reads them again (SIGHUP) in the way they were read: those that a running manager takes up are
 * set in `settings`, the log follows, others are named in the log. An error leaves all as it was.
 */
struct reload *settings_watch(int argc, char *const argv[], const struct settings *settings);
void settings_reload(struct reload *reload, struct settings *settings);
/* check-config and show-config: whether there was such a word, and then the exit status. */
bool settings_word(const struct options *options, struct settings *settings, int *out_status);
/* What --help prints, or the man page. */
void settings_manual(bool roff, struct strbuf *out);
