/* escape.h: turns bytes of a file into text for messages. Printable UTF-8 stays. Quotes,
 * backslashes, control characters and invalid bytes become \xNN. Long texts are cut with "...". Any
 * thread. */
#pragma once

#include <stddef.h>

enum { ESCAPE_MAX_BYTES = 96 };

/* Writes at most ESCAPE_MAX_BYTES - 1 bytes and a terminator. Returns `out`. */
const char *escape_text(const char *bytes, size_t n_bytes, char out[ESCAPE_MAX_BYTES]);
