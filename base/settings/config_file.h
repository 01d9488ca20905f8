/* config_file.h: reads settings from an ini file, then from the files in conf.d/ beside it, in the
 * order of their names. So a package, an operator and a machine can each have their own file.
 * Single-threaded. */
#pragma once

struct error;

enum { CONFIG_FILE_MAX_BYTES = 1 << 20 };

/* Receives each key. `place` ("FILE:LINE") is borrowed for the call. A negative status (with err)
 * stops the reading; the place is put before the error message. */
typedef int config_file_fn(void *user, const char *section, const char *key, const char *value,
                           const char *place, struct error *err);

/* Reads `path` and the files conf.d/ *.conf in its folder. Hidden files are skipped; a missing
 * conf.d/ is not an error. NOT_FOUND if a file cannot be read; INVALID_ARGUMENT if a file is no
 * regular file or too large. INVALID_ARGUMENT with FILE:LINE for a line that is not ini syntax.
 * Never blocks. */
int config_file_read(const char *path, config_file_fn *take, void *user, struct error *err);
