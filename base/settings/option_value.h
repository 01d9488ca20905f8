/* option_value.h: parses the text of one option (options.h). Any thread. */
#pragma once

struct arena;
struct error;
struct option_spec;

/* Parses `text` by the row's type, range and words, and writes the value into the row's field of
 * `settings`. Strings are copied into the arena. INVALID_ARGUMENT names the flag, the text and the
 * accepted form. On failure the field is unchanged. */
int option_value_set(const struct option_spec *spec, const char *text, struct arena *arena,
                     void *settings, struct error *err);
