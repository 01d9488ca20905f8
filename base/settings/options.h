/* options.h: a table per program describes every setting. Flag parsing, environment, config file,
 * defaults and --help follow from the table. Precedence: flags > environment > config file and
 * conf.d > defaults. Single-threaded, at start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

struct error;

enum option_type {
    OPTION_STRING, /* const char ** (owned by the options object) */
    OPTION_WORD,   /* const char ** ; a word of value_name */
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
    const char *value_name;    /* "PATH", "N": for --help; for a WORD the choices "kv|json" */
    const char *help;          /* a single line */
    uint64_t min_u64, max_u64; /* for U64 and MS; max 0 = no bound */
};

struct options; /* keeps the strings alive */

/* Parses argv[1..] into `settings` by `specs` (n_specs rows). Words that are no flags become
 * positionals ("--" ends flags).
 *
 * Config file: "--config FILE" and SLUICE_CONFIG name an ini file. Keys stand before any section,
 * or in the section named `section`; other sections are skipped. The files conf.d/ *.conf beside it
 * are read after it (config_file.h), and the last file that gives a key wins.
 *
 * An unknown key is an error that names the nearest known key. Exceptions: a key before any section
 * may belong to another program, and a key in [cli] to another command. Command flags (--help,
 * --man, --version, --origin) are neither keys nor environment variables. A key given twice in the
 * same part of a file is INVALID_ARGUMENT with both lines.
 *
 * A flag that is unknown, lacks a value or is out of range is INVALID_ARGUMENT. The error names the
 * flag, the nearest known flag, the value and the range. *out_options is owned; strings in
 * `settings` and the positionals are borrowed from it. */
int options_parse(const char *section, const struct option_spec *specs, size_t n_specs, int argc,
                  char *const argv[], void *settings, struct options **out_options,
                  struct error *err);
/* Does the same for a table that has only a part of the program's rows. Other keys in the program's
 * section are ignored. */
int options_parse_some(const char *section, const struct option_spec *specs, size_t n_specs,
                       int argc, char *const argv[], void *settings, struct options **out_options,
                       struct error *err);
void options_destroy(struct options *options);

/* Sets every field that has a default to its default; strings are borrowed from the table. Flags,
 * environment and files are ignored. */
int options_defaults(const struct option_spec *specs, size_t n_specs, void *settings,
                     struct error *err);

/* Returns the path of the config file as argv or the environment gives it; empty if there is
 * none. */
const char *options_config(const struct options *options);
size_t options_n_positionals(const struct options *options);
const char *options_positional(const struct options *options, size_t i);
/* Returns the origin of a setting: "flag", "environment", "file" or "default". */
const char *options_origin(const struct options *options, size_t i_spec);
/* Returns true if the setting is for this program alone: given by a flag or in the program's own
 * section. */
bool options_is_own(const struct options *options, size_t i_spec);
/* Returns the text of a setting as given; empty if none was given. */
const char *options_text(const struct options *options, size_t i_spec);
/* Returns the setting's text in the program's own section of the file, even if a flag or the
 * environment overrides it. NULL if the section does not have the setting. */
const char *options_own_text(const struct options *options, size_t i_spec);
/* Appends every setting as a line of a config file. With with_origin a comment names the origin:
 * the flag, the variable, FILE:LINE or "default". */
void options_show(const struct options *options, bool with_origin, struct strbuf *out);

/* Sets another option after the parse, as a flag would. INVALID_ARGUMENT as options_parse. */
int options_set(struct options *options, void *settings, const char *name, const char *text,
                struct error *err);

/* The option --config that every program takes, and a text on environment variables and files. */
extern const struct option_spec option_config;
extern const char options_sources[];
/* Returns true if a row is a command such as --help, which only the command line accepts.
 * (`version` is also the name of a setting, which has a value.) */
bool option_is_command(const struct option_spec *spec);
/* Returns true if the help shows the row's default. */
bool option_shows_default(const struct option_spec *spec);

/* Appends the aligned table of flags with defaults, then options_sources. */
void options_help(const struct option_spec *specs, size_t n_specs, struct strbuf *out);
