/* base64.h: decodes base64 (RFC 4648, with padding). Private to engine/text. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Writes at most 3 bytes per 4 characters. False if the text is not valid. */
bool base64_decode(const char *text, size_t n_text, char *out, size_t *out_n);
