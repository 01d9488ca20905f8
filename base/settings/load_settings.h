/* load_settings.h: the settings of a load, one row for each field of sluice.manager.v1.ModelConfig.
 * The flags of `sluice load`, `serve`, `inspect`, `bench engine` and of sluice-worker derive from
 * the rows. Variables, file keys, completion and man pages derive from the flags. The checks and
 * the merge of messages derive from the rows too (proto/config/model_config.h). The rows are
 * constant: any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/settings/options.h"

enum load_kind {
    LOAD_NUMBER,
    LOAD_BYTES,    /* as a flag also 20G */
    LOAD_DURATION, /* milliseconds; as a flag also 10s */
    LOAD_WORD,     /* a choice of `words` */
    LOAD_TEXT,
    LOAD_PATH,
    LOAD_BOOL, /* a flag "no-..." sets the field to false */
};

/* Programs with the flag. A field without a flag is set by the RPCs alone. */
enum load_user {
    LOAD_CLI = 1,          /* sluice load, sluice serve */
    LOAD_CLI_BENCH = 2,    /* sluice bench engine */
    LOAD_WORKER = 4,       /* sluice-worker serve, plan, inspect, generate */
    LOAD_WORKER_BENCH = 8, /* sluice-worker bench */
    LOAD_CLI_INSPECT = 16, /* sluice inspect: the fields that change the memory of a load */
};

enum load_trait {
    LOAD_NOT_BUILT = 1, /* declared only: a message with the field is refused */
    LOAD_ZERO = 2,      /* 0 does not mean "absent"; a worker's flag writes "auto" for absent */
};

struct load_setting {
    const char *field; /* its name in ModelConfig */
    enum load_kind kind;
    unsigned traits; /* enum load_trait */
    /* Least and greatest number in a message; `max` also limits the bytes of a text. A flag takes 0
     * for "absent" too. */
    uint64_t min, max;
    const char *words;     /* choices of a LOAD_WORD: "a|b|c" */
    const char *group;     /* a message sets at most one field of a group; a merge replaces all */
    const char *needs;     /* another field, which must be set too; or NULL */
    const char *gpu_value; /* this value works on a GPU only; "": every value; NULL: none */
    const char *flag;      /* without dashes; NULL: none */
    char letter;           /* short flag or 0 */
    unsigned users;        /* bits of enum load_user: the programs that have the flag */
    unsigned letter_users; /* programs in which the flag has the letter; 0: all of `users` */
    const char *metavar;   /* NULL: by the kind */
    const char *default_text; /* default of the flag; NULL: by the kind */
    const char *help;         /* in a single line */
    const char *worker_help;  /* NULL: the same */
};

/* The value of a row's flag; options_parse() writes it. */
union load_value {
    uint64_t number;
    const char *text;
    bool truth;
};

enum { LOAD_SETTINGS_MAX = 48 }; /* room for values, one for each row */

size_t load_settings_count(void);
const struct load_setting *load_setting_at(size_t i);

/* The options of one user, in the order of the rows. Row i writes to offset + i *
 * sizeof(union load_value). Returns how many; n_room bounds it. */
size_t load_settings_specs(enum load_user user, size_t offset, struct option_spec *out,
                           size_t n_room);
