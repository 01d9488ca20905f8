/* unicode.h: properties of characters, as in Python's str. Private to engine/template. Any
 * thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* str.isspace; strip(), split() and \s use the same characters. */
bool unicode_is_space(uint32_t cp);
/* str.isprintable: characters that repr() does not escape. */
bool unicode_is_printable(uint32_t cp);
bool unicode_is_alphabetic(uint32_t cp);
bool unicode_is_numeric(uint32_t cp);
bool unicode_is_upper(uint32_t cp);
bool unicode_is_lower(uint32_t cp);
bool unicode_is_cased(uint32_t cp);
/* A line boundary of str.splitlines. (The caller handles CR LF pairs.) */
bool unicode_is_line_end(uint32_t cp);

enum unicode_case { UNICODE_UPPER, UNICODE_LOWER, UNICODE_TITLE };
/* Writes 1 to 3 code points and returns their number. (For example, the German sharp s becomes
 * two.) */
size_t unicode_convert(uint32_t cp, enum unicode_case to, uint32_t out[3]);
/* Number of code points in valid UTF-8. */
size_t unicode_count(const char *text, size_t n_bytes);
