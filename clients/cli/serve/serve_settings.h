/* serve_settings.h: what `sluice serve` is told that is its programs' to know, and what those come
 * to by themselves. A program is given as a flag only what was said to serve alone (a flag, a key
 * of [cli]): the environment and the file it reads itself. One thread. */
#pragma once

#include <stddef.h>

#include "base/settings/options.h"

struct cli;
struct cli_settings;
struct child;
struct error;
struct strbuf;

enum { SERVE_MAX_ROWS = 16 };

struct serve_rows {
    struct option_spec specs[SERVE_MAX_ROWS];
    size_t n;
    size_t n_words;          /* of the program's words, those before its settings */
    struct options *options; /* keep the strings alive; NULL: not read */
};

struct serve_settings {
    struct serve_rows manager, server;
};

/* Adds to both programs' words, and sets in cli->settings what they will have: addresses, TLS and
 * keys, the grace, the server's lock file. Errors: as options_parse. */
int serve_settings_hand_on(struct cli *cli, struct child *manager, struct child *server,
                           struct serve_settings *out, struct error *err);
/* Of two programs on one address the one that came second would say that it is in use.
 * INVALID_ARGUMENT with both names. */
int serve_settings_check(const struct cli_settings *settings, struct error *err);
/* At a SIGHUP, before it is passed on: reads all again by the rules of a start, and has both
 * programs look at what they are about to read. What any of the three refuses none shall take: the
 * error is that one's, with file and line, and nothing has changed. Else the grace is taken up, of
 * what the programs have of use to serve. Appends the names of serve's own settings that wait for
 * its restart. Waits for the programs, some seconds at most. */
int serve_settings_reload(struct cli *cli, struct serve_settings *settings,
                          const struct child *manager, const struct child *server,
                          struct strbuf *out_waiting, struct error *err);
void serve_settings_fini(struct serve_settings *settings);
