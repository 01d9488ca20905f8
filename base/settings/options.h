/* options.h: one table per program describes every setting; from it come flag parsing, environment,
 * config file, defaults and --help. Precedence: flags > environment > config file and conf.d >
 * defaults. One thread, at start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

struct error;

enum option_type {
    OPTION_STRING, /* const char ** (owned by the options object) */
    OPTION_WORD,   /* the same ; one of those of value_name */
    OPTION_BOOL,   /* bool * ; --name or --name=true|false */
    OPTION_U64,    /* uint64_t * ; decimal, with K M G (×1024) suffixes */
    OPTION_F64,    /* double * ; finite */
    OPTION_MS,     /* uint64_t * milliseconds ; "250ms", "10s", "2m", plain number = seconds */
};

struct option_spec {
    const char *name; /* long flag without dashes: "max-batch"; env SLUICE_MAX_BATCH; config key
                         max_batch */
    char letter;      /* short flag or 0 */
    enum option_type type;
    size_t offset;             /* offsetof() in the settings struct */
    const char *default_text;  /* parsed like a flag's value; NULL leaves the field as it is */
    const char *value_name;    /* "PATH", "N": for --help; of a WORD "kv|json" */
    const char *help;          /* one line */
    uint64_t min_u64, max_u64; /* for U64 and MS; max 0 = no bound */
};

struct options; /* keeps the strings alive */

/* Parses argv[1..] into `settings` by `specs` (n_specs rows). Non-flag words are collected as
 * positionals ("--" ends flags).
 * "--config FILE" and SLUICE_CONFIG name an ini file (section ignored or named after `section`);
 * conf.d/ *.conf beside it are read after it (config_file.h), the last one to name a key wins. A
 * key that the table has not is refused with what was probably meant, save before any section,
 * where it may be another program's, and in [cli], where it may be another command's. Flags that
 * are no settings (--help, --man, --version, --origin) are no keys, nor variables.
 * Twice in one file is INVALID_ARGUMENT with both lines, save once before any section and once in
 * it. Flags that are unknown, lack a value or are out of range: INVALID_ARGUMENT naming the flag,
 * the value and the range. *out_options is owned; strings in `settings` and the positionals are
 * borrowed from it. */
int options_parse(const char *section, const struct option_spec *specs, size_t n_specs, int argc,
                  char *const argv[], void *settings, struct options **out_options,
                  struct error *err);
/* The same for a table that has only some of the rows of the program of that name: what its section
 * says of others is left to that program. */
int options_parse_some(const char *section, const struct option_spec *specs, size_t n_specs,
                       int argc, char *const argv[], void *settings, struct options **out_options,
                       struct error *err);
void options_destroy(struct options *options);

/* Sets every field that has a default to it; strings are the table's own. What flags, environment
 * or a file say is not looked at. */
int options_defaults(const struct option_spec *specs, size_t n_specs, void *settings,
                     struct error *err);

/* The file that was read, as it was named (by argv or the environment); empty: none. */
const char *options_config(const struct options *options);
size_t options_n_positionals(const struct options *options);
const char *options_positional(const struct options *options, size_t i);
/* Where a setting came from: "flag", "environment", "file", "default". */
const char *options_origin(const struct options *options, size_t i_spec);
/* Whether a flag said it, or the program's own section of the file: to this program alone. */
bool options_is_own(const struct options *options, size_t i_spec);
/* A setting as it was written; empty: nothing was said. */
const char *options_text(const struct options *options, size_t i_spec);
/* What the program's own section of the file says of it, also where a flag or the environment goes
 * before that; NULL: nothing. */
const char *options_own_text(const struct options *options, size_t i_spec);
/* Appends every setting as a line of a config file, with where it came from as a comment if that is
 * wanted: the flag, the variable, FILE:LINE or "default". */
void options_show(const struct options *options, bool with_origin, struct strbuf *out);

/* Sets one more option after the parse, as a flag would. INVALID_ARGUMENT as options_parse. */
int options_set(struct options *options, void *settings, const char *name, const char *text,
                struct error *err);

/* What every program takes besides its table, and how settings are given but by flag. */
extern const struct option_spec option_config;
extern const char options_sources[];
/* Whether a row does something and is no setting: only the command line has it. (`version` is also
 * the name of a setting, which has a value.) */
bool option_is_command(const struct option_spec *spec);
/* Whether a help should tell the row's default. */
bool option_shows_default(const struct option_spec *spec);

/* Appends the aligned table of flags with defaults, and how else they can be given. */
void options_help(const struct option_spec *specs, size_t n_specs, struct strbuf *out);
