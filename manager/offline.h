/* offline.h: `sluice-manager check | backup | restore`: the state database while no manager runs,
 * under the lock that a manager has. One thread; a program's whole run. */
#pragma once

#include <stdbool.h>

/* Whether the word after the program's name is one of these commands. */
bool offline_is_command(const char *word);
/* Runs it: argv[0] is the command. Returns the exit status: 0; 1 failed; 2 wrong usage; 65 the
 * database or backup is not good; 75 a manager holds the state directory. */
int offline_main(int argc, char *const argv[]);
