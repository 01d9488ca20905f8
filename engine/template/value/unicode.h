/* unicode.h: what Python's str knows about characters. Private to engine/template. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* str.isspace, which is also what strip(), split() and \s go by. */
bool unicode_is_space(uint32_t cp);
/* str.isprintable: what repr() shows as it is. */
bool unicode_is_printable(uint32_t cp);
bool unicode_is_alphabetic(uint32_t cp);
bool unicode_is_numeric(uint32_t cp);
bool unicode_is_upper(uint32_t cp);
bool unicode_is_lower(uint32_t cp);
bool unicode_is_cased(uint32_t cp);
/* A line boundary of str.splitlines (a CR LF pair is the caller's matter). */
bool unicode_is_line_end(uint32_t cp);

enum unicode_case { UNICODE_UPPER, UNICODE_LOWER, UNICODE_TITLE };
/* Writes 1 to 3 code points (the German sharp s and the dotted I grow), returns how many. */
size_t unicode_convert(uint32_t cp, enum unicode_case to, uint32_t out[3]);
/* Code points in valid UTF-8. */
size_t unicode_count(const char *text, size_t n_bytes);
