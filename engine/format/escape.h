/* escape.h: bytes from a file as text in a message: printable UTF-8 stays, quotes, backslashes,
 * control characters and bad bytes become \xNN, long texts are cut with "...". Any thread. */
#pragma once

#include <stddef.h>

enum { ESCAPE_MAX_BYTES = 96 };

/* Writes at most ESCAPE_MAX_BYTES - 1 bytes and a terminator. Returns `out`. */
const char *escape_text(const char *bytes, size_t n_bytes, char out[ESCAPE_MAX_BYTES]);
