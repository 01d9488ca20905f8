/* setting_names.h: the names of all programs' settings. The programs share a config file, and each
 * program knows only its own rows. This table tells a key of another program from a mistake. Any
 * thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns true if the program of `section` ("server", "manager", "worker", "cli"; NULL: any) has a
 * setting `key`. In a key '_' and '-' are equal. */
bool setting_is_known(const char *key, const char *section);
/* Returns the known name nearest to an unknown key; NULL if none is near. */
const char *setting_nearest(const char *key, const char *section);
bool setting_same_name(const char *key, const char *name);
