/* setting_names.h: the names of all programs' settings, for a file that serves them all: a program
 * knows only its own rows, and a key before any section may be another's. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether the program of `section` ("server", "manager", "worker", "cli"; NULL: any) has it. In a
 * key '_' and '-' are the same. */
bool setting_is_known(const char *key, const char *section);
/* The one of them that was probably meant by a key that none has; NULL: none is near. */
const char *setting_nearest(const char *key, const char *section);
bool setting_same_name(const char *key, const char *name);
