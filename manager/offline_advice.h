/* offline_advice.h: what to do about a state database that is not good, in commands to be copied.
 * For the commands of offline.h, under the lock of the state directory. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

struct paths;

/* Looks through the newest copies in STATE_DIR/backup, until one is good, says which are, newest
 * first, and the command that restores the newest that is; without one, where `nothing_else`, how
 * to start with nothing. What a restore has set aside is no backup, nor is `but` (NULL: none). */
void offline_advise(const struct paths *paths, const char *but, bool nothing_else, FILE *out);
