/* reload.h: settings read again while a program runs (SIGHUP), in the way they were read at its
 * start. What cannot be read leaves everything as it is; of what can, the rows that the program
 * says it takes up are set, and the others are named, for they wait for a restart. One thread. */
#pragma once

#include <stddef.h>

#include "base/settings/options.h"

struct error;
struct reload;

struct reload_config {
    const char *section;
    const struct option_spec *specs; /* borrowed until destroy, as argv and `live` */
    size_t n_specs;
    int argc;
    char *const *argv;
    const void *settings; /* as they were parsed, before anything was filled in; read by create */
    size_t settings_bytes;
    /* Optional: what else must be true of settings that were parsed. */
    int (*check)(const void *settings, struct error *err);
    const char *const *live; /* names of the rows that are taken up; the last is NULL */
};

/* NULL: no memory. */
struct reload *reload_create(const struct reload_config *config);
void reload_destroy(struct reload *reload);

/* Reads again, and on success sets what has changed of the live rows in `settings`; strings are
 * borrowed until the next reload but one. Appends the names of the rows that were set, and of those
 * that want a restart, separated by spaces: for as long as the program runs with other values than
 * the sources give. Errors: as options_parse, and nothing has changed. */
int reload_read(struct reload *reload, void *settings, struct strbuf *out_set,
                struct strbuf *out_restart, struct error *err);
