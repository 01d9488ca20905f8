/* check_config.h: the commands `sluice-manager check-config | show-config`, which check and
 * print the settings. Neither command starts anything. Single-threaded. */
#pragma once

#include <stdbool.h>

struct options;
struct settings;

/* Runs the command that the first positional names; *out_status is the exit status. False: the
 * first positional is neither of the two commands. */
bool check_config_word(const struct options *options, struct settings *settings, int *out_status);
