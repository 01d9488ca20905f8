/* program_setting.h: what another program of Sluice's is set to by the same file and environment,
 * for commands that look for what it left. One thread. */
#pragma once

#include <stddef.h>

struct cli;
struct error;

/* One of its settings that are texts, by its name ("run-dir") and its section of the file; empty
 * where nothing is said. Its own command line is not known here. Errors: as options_parse. */
int program_setting(const struct cli *cli, const char *section, const char *name, char *out,
                    size_t n_out, struct error *err);
