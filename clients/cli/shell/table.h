/* table.h: the table of commands: search, options of a command, arguments in its synopsis.
 * Single-threaded. */
#pragma once

#include "clients/cli/shell/cli.h"

enum { CLI_MAX_SPECS = 64, CLI_MAX_WORDS = 64 };

/* The rows, in the order of the help. */
size_t table_n_commands(void);
const struct cli_command *table_command(size_t i);

/* Finds the command by its first one or two words. The first word of a two-word name alone means
 * its "list". NULL if there is no match. *out_n_words: words that form the command's name. */
const struct cli_command *table_find(size_t n_words, char *const words[], size_t *out_n_words);
/* True if `word` is the first word of a two-word command. */
bool table_is_family(const char *word);
/* Returns the first word of a command near to a mistyped `word`. `family` not NULL: returns the
 * second word of a command of that family. Borrowed from `out`. NULL if no word is near. */
const char *table_nearest(const char *family, const char *word, char out[64]);

/* Collects all options of a command: its own, its groups', and the common ones. Returns the count.
 */
size_t table_specs(const struct cli_command *command, struct option_spec out[CLI_MAX_SPECS]);

/* Counts the arguments in the synopsis; at most CLI_MAX_WORDS. */
void table_word_counts(const struct cli_command *command, size_t *out_min, size_t *out_max);
/* Writes the kind of the argument with this index ("MODEL", "bash|zsh|fish"), without brackets and
 * dots. Empty beyond the last argument. Returns out. */
const char *table_word_kind(const struct cli_command *command, size_t index, char out[64]);

/* Source of --help and of the man page, with storage for its strings. */
struct table_manual {
    struct manual manual;
    struct option_spec specs[CLI_MAX_SPECS];
    char program[64], page[64], synopsis[128], see_also[128];
    struct manual_exit exits[8];
    struct manual_item *items; /* owned */
};
void table_manual(const struct cli_command *command, struct table_manual *out);
/* The page of `sluice` as a whole. */
void table_overview(struct table_manual *out);
void table_manual_fini(struct table_manual *manual);
