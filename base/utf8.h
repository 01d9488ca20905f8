/* utf8.h: validation, decoding and encoding of UTF-8 (RFC 3629: no overlongs, no surrogates, at
 * most U+10FFFF). Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True for well-formed UTF-8. On false *out_offset (may be NULL) is the byte where the first bad
 * sequence starts. */
bool utf8_valid(const char *text, size_t n_bytes, size_t *out_offset);

/* Decodes the code point at text[0..n_bytes). Returns its length in bytes 1–4, or 0 if the sequence
 * is malformed or incomplete. */
size_t utf8_decode(const char *text, size_t n_bytes, uint32_t *out_code_point);

/* Writes a code point, returns 1–4 (0 for surrogates and numbers over U+10FFFF). */
size_t utf8_encode(uint32_t code_point, char out[4]);

/* Returns the number of trailing bytes (0–3) that begin a sequence which later bytes could
 * complete. */
size_t utf8_incomplete_tail(const char *text, size_t n_bytes);
