/* string_escape.h: Python's escapes in string literals. Private to engine/template. Any thread. */
#pragma once

#include <stddef.h>

/* Decodes n_bytes of literal (between the quotes) into out, which holds at least n_bytes: no escape
 * is shorter than what it stands for. Returns NULL, or what is wrong. */
const char *string_unescape(const char *literal, size_t n_bytes, char *out, size_t *out_bytes);
