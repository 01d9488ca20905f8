/* complete.h: shell completion: commands, options, and values by the kind of argument (MODEL,
 * REPLICA, FILE). The shells' scripts call `sluice __complete WORD... CURRENT`. Single-threaded. */
#pragma once

#include <stddef.h>

/* Prints one candidate a line: the word, a tab, a description. A last line ":files" or
 * ":directories" asks the shell for its own candidates. Candidates begin with the last word.
 * Returns the exit code and prints no errors. */
int complete_words(size_t n_words, char *const words[]);
