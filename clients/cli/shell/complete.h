/* complete.h: what could come next on a command line: commands, options, and values by the kind of
 * word the table names (MODEL, REPLICA, FILE). The shells' scripts call it as `sluice __complete
 * WORD... CURRENT`. One thread. */
#pragma once

#include <stddef.h>

/* Prints one candidate a line: the word, and after a tab what it is; a last line ":files" or
 * ":directories" asks the shell for its own. Candidates begin with the last word. Returns the exit
 * code; never complains. */
int complete_words(size_t n_words, char *const words[]);
