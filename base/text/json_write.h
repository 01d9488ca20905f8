/* json_write.h: writes JSON texts (RFC 8259). Plain functions; any thread. */
#pragma once

#include <stddef.h>

struct strbuf;

/* Appends the bytes as a quoted JSON text. Each byte that belongs to no UTF-8 becomes U+FFFD. */
void json_write_text(struct strbuf *out, const char *bytes, size_t n_bytes);
/* Appends a number with the digits of a float. JSON has no NaN and no infinity: NaN becomes null,
 * and an infinity becomes the lowest float. So a token that cannot be drawn has a log-probability.
 */
void json_write_float(struct strbuf *out, double value);
