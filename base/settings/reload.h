/* reload.h: reads settings again while a program runs (SIGHUP), in the same way as at start. An
 * error leaves all settings as they are. Otherwise live rows take their new values; changed rows
 * that are not live need a restart and are reported. Single-threaded. */
#pragma once

#include <stddef.h>

#include "base/settings/options.h"

struct error;
struct reload;

struct reload_config {
    const char *section;
    const struct option_spec *specs; /* borrowed until destroy, like argv and `live` */
    size_t n_specs;
    int argc;
    char *const *argv;
    const void *settings; /* result of options_parse before the program changes any field; copied by
                             reload_create */
    size_t settings_bytes;
    /* Optional: further checks of parsed settings. */
    int (*check)(const void *settings, struct error *err);
    const char *const
        *live; /* names of the rows that take effect without a restart; NULL ends the list */
};

/* Returns NULL if memory is exhausted. */
struct reload *reload_create(const struct reload_config *config);
void reload_destroy(struct reload *reload);

/* Reads again. On success sets the live rows of `settings`. Their strings are borrowed until the
 * second following reload. Appends names of changed rows, separated by spaces: to out_set those
 * that were set, to out_restart those that need a restart. Each later call reports a pending
 * restart again. Errors as options_parse; nothing changes then. */
int reload_read(struct reload *reload, void *settings, struct strbuf *out_set,
                struct strbuf *out_restart, struct error *err);
