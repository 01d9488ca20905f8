/* settings_record.h: lays a launch record (proto/launch/launch_record.h) over the settings. Each
 * field sets the option of its name, with the checks of the flag. Single-threaded, at start and
 * under the worker's lock. */
#pragma once

#include <stddef.h>

#include "base/settings/options.h"
#include "proto/launch/launch_record.h"

struct error;
struct settings;

/* Lays every field but `config` over the options, which options_parse() has filled by `specs`. A
 * field of 0 or "" sets the option to its default, whatever the environment gives.
 * INVALID_ARGUMENT with the field in err->field:
 *
 * - a value is out of range
 * - the mode has no option of the field's name
 * - a flag gives another value
 * - a descriptor is not open */
int settings_record_lay(const launch_record *record, const struct option_spec *specs,
                        size_t n_specs, struct options *options, struct settings *settings,
                        struct error *err);

/* Lays the record's config over settings->config; texts stay borrowed from the record.
 * INVALID_ARGUMENT with "config" or its field in err->field: a number above its range, or a flag
 * of a load beside the record. */
int settings_record_lay_config(const launch_record *record, const struct option_spec *specs,
                               size_t n_specs, const struct options *options,
                               struct settings *settings, struct error *err);
