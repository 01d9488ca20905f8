/* config_file.h: settings in ini files: one file, then what lies beside it in conf.d/, in the order
 * of the names, so that a package, an operator and a machine can each have a file of their own. One
 * thread. */
#pragma once

struct error;

enum { CONFIG_FILE_MAX_BYTES = 1 << 20 };

/* One key. `place` ("FILE:LINE") is borrowed for the call. A negative status (with err) ends the
 * reading; the place is put before its message. */
typedef int config_file_fn(void *user, const char *section, const char *key, const char *value,
                           const char *place, struct error *err);

/* Reads `path` and conf.d/ *.conf of its folder (hidden files left out; no such folder is none).
 * NOT_FOUND where one cannot be read, INVALID_ARGUMENT where one is no regular file or too large,
 * and with FILE:LINE where a line is none. Waits for nobody. */
int config_file_read(const char *path, config_file_fn *take, void *user, struct error *err);
