/* table.h: the table of commands: look-up, the options of a row, and what its synopsis says of its
 * words. One thread. */
#pragma once

#include "clients/cli/shell/cli.h"

enum { CLI_MAX_SPECS = 64, CLI_MAX_WORDS = 64 };

/* The rows in the order of the help. */
size_t table_n_commands(void);
const struct cli_command *table_command(size_t i);

/* The row that the words name, one or two of them; the first word alone of a pair means its "list".
 * NULL where there is none. *out_n_words: how many of the words are its name. */
const struct cli_command *table_find(size_t n_words, char *const words[], size_t *out_n_words);
/* Whether a pair of words begins so. */
bool table_is_family(const char *word);

/* Every option of a row: its own, its groups', and every command's. Returns how many. */
size_t table_specs(const struct cli_command *command, struct option_spec out[CLI_MAX_SPECS]);

/* How many words the synopsis asks for; at most CLI_MAX_WORDS. */
void table_word_counts(const struct cli_command *command, size_t *out_min, size_t *out_max);
/* What stands for the word of this index ("MODEL", "bash|zsh|fish"), without brackets and dots;
 * empty beyond the end. Returns out. */
const char *table_word_kind(const struct cli_command *command, size_t index, char out[64]);

/* What --help and the man page are rendered from. *out_storage keeps the strings. */
struct table_manual {
    struct manual manual;
    struct option_spec specs[CLI_MAX_SPECS];
    char program[64], page[64], synopsis[128], see_also[128];
    struct manual_exit exits[8];
    struct manual_item *items; /* owned */
};
void table_manual(const struct cli_command *command, struct table_manual *out);
/* The page of `sluice` itself. */
void table_overview(struct table_manual *out);
void table_manual_fini(struct table_manual *manual);
