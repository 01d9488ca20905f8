/* serve_settings.h: settings of `sluice serve` for its manager and server. serve passes flags and
 * keys of [cli] on as arguments. Manager and server read the environment and the file themselves.
 * Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/settings/options.h"

struct cli;
struct cli_settings;
struct child;
struct error;
struct strbuf;

enum { SERVE_MAX_ROWS = 20 };

struct serve_rows {
    struct option_spec specs[SERVE_MAX_ROWS];
    size_t n;
    size_t n_words;          /* arguments of the program that come before its settings */
    struct options *options; /* keep the strings alive; NULL: not read */
};

struct serve_settings {
    struct serve_rows manager, server;
    bool has_default_http; /* no flag, variable or file gives the HTTP address */
};

/* Adds arguments for both programs. Sets in cli->settings the values the programs will use:
 * addresses, TLS and keys, the grace, the server's lock file. Errors: as options_parse. */
int serve_settings_hand_on(struct cli *cli, struct child *manager, struct child *server,
                           struct serve_settings *out, struct error *err);
/* Checks that no two programs share an address. INVALID_ARGUMENT with both option names; without
 * this check the second program would report an address in use. */
int serve_settings_check(const struct cli_settings *settings, struct error *err);
/* Handles a SIGHUP before it is passed on. Reads all settings again by the rules of a start and
 * lets both programs check theirs. If any of the three refuses, nothing changes; the error has file
 * and line. Else takes the new grace. Appends the names of serve's settings that need a restart.
 * Waits for the programs, some seconds at most. */
int serve_settings_reload(struct cli *cli, struct serve_settings *settings,
                          const struct child *manager, const struct child *server,
                          struct strbuf *out_waiting, struct error *err);
void serve_settings_fini(struct serve_settings *settings);
