/* offline.h: `sluice-manager check | backup | restore`: commands on the state database while no
 * manager runs, under the manager's lock. Single-threaded; each command is a whole run of the
 * program. */
#pragma once

#include <stdbool.h>

/* True where the word after the program's name is one of these commands. */
bool offline_is_command(const char *word);
/* Runs the command argv[0]. Returns the exit status: 0; 1 failed; 2 wrong usage; 65 the database
 * or backup is not good; 75 a manager has the state directory. */
int offline_main(int argc, char *const argv[]);
