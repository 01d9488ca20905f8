/* new_characters.h: characters that are newer than PCRE2's tables. Private to engine/text.
 * Stateless; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if the valid UTF-8 text has such a character. */
bool new_characters_in(const char *text, size_t n_bytes);
/* Writes the text, n_bytes long, with an older character for each new one. Both have the same
 * general category, length, and script (Han or not). So patterns match at the same offsets. */
void new_characters_replace(const char *text, size_t n_bytes, char *out);
