/* serve_settings.h: what `sluice serve` is told that is its programs' to know, and what those come
 * to by themselves. A program is given as a flag only what was said to serve alone (a flag, a key
 * of [cli]): the environment and the file it reads itself. One thread. */
#pragma once

#include <stddef.h>

#include "base/options.h"

struct cli;
struct child;
struct error;

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
/* After a SIGHUP: of what they read again only the grace is of use to serve. Errors: as
 * options_parse, and nothing has changed. */
int serve_settings_reload(struct cli *cli, struct serve_settings *settings,
                          const struct child *server, struct error *err);
void serve_settings_fini(struct serve_settings *settings);
