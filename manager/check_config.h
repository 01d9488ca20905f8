/* check_config.h: the commands `sluice-manager check-config | show-config`, which check and
 * print the settings. Neither command starts anything. Single-threaded. */
#pragma once

#include <stdbool.h>

struct options;
struct settings;

/* False: the first positional is neither command. *out_status is the exit status. */
bool check_config_word(const struct options *options, struct settings *settings, int *out_status);
