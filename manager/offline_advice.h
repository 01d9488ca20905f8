/* offline_advice.h: advice for a state database that is not good, as commands to copy. For the
 * commands of offline.h, under the lock of the state directory. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

struct paths;

/* Checks the newest backups in STATE_DIR/backup, newest first, until one is good. Prints the
 * result of each, and the command that restores the good one. Without a good one, and with
 * `nothing_else`, prints how to start with an empty state. Leaves out `but` (NULL: none) and
 * databases that a restore has set aside. */
void offline_advise(const struct paths *paths, const char *but, bool nothing_else, FILE *out);
