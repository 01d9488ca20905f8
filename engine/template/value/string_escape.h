/* string_escape.h: Python's escapes in string literals. Private to engine/template. Any thread. */
#pragma once

#include <stddef.h>

/* Decodes n_bytes of a string literal, without its quotes. `out` holds at least n_bytes, because no
 * escape is shorter than its character. Returns NULL, or a description of the fault. */
const char *string_unescape(const char *literal, size_t n_bytes, char *out, size_t *out_bytes);
