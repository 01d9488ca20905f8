/* model_config.h: makes a sluice.manager.v1.ModelConfig from flags, and checks and merges messages.
 * Uses the rows of base/settings/load_settings.h. Finds fields by name, so a new row needs no code
 * here. No state: any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/settings/load_settings.h"
#include "sluice/manager/v1/types.pb-c.h"

struct error;

typedef Sluice__Manager__V1__ModelConfig model_config;

/* Writes the value of row i, as options_parse() left it, to the row's field. A value that equals
 * the flag's default leaves the field absent, but a LOAD_ZERO row writes 0 too. A text stays
 * borrowed from `value`. */
void model_config_set(model_config *config, size_t i, const union load_value *value);

/* True if row i's field is set. */
bool model_config_has(const model_config *config, size_t i);

/* Checks ranges, words and lengths, and fields that exclude or need each other. INVALID_ARGUMENT,
 * or UNIMPLEMENTED for a setting that is not implemented; err names `name`.FIELD. */
int model_config_check(const char *name, const model_config *config, struct error *err);
/* Checks only that no number is above its range, for settings that an older manager has stored.
 * INVALID_ARGUMENT; err names `name`.FIELD. */
int model_config_check_max(const char *name, const model_config *config, struct error *err);
/* Returns the first row whose value works on a GPU only, or NULL. */
const struct load_setting *model_config_gpu_row(const model_config *config);
/* True if both have the same settings. NULL equals a message without settings. False also if
 * memory is exhausted. */
bool model_config_equal(const model_config *a, const model_config *b);
/* Copies the fields that are set in `over` to *config. Texts stay borrowed from `over`. */
void model_config_lay(model_config *config, const model_config *over);
