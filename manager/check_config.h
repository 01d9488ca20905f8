/* check_config.h: `sluice-manager check-config | show-config`: whether a start would take the
 * settings, and what they are. Neither command starts anything. One thread. */
#pragma once

#include <stdbool.h>

struct options;
struct settings;

/* False: the first positional is neither command. *out_status is the exit status. */
bool check_config_word(const struct options *options, struct settings *settings, int *out_status);
