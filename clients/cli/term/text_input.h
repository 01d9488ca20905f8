/* text_input.h: text that is read to be sent: complete UTF-8 without NUL, within a message. One
 * thread. */
#pragma once

#include <stddef.h>

#include "base/strbuf.h"

struct error;

enum { TEXT_INPUT_MAX_BYTES = 4 << 20 };

/* All of stdin, less one newline at its end. INVALID_ARGUMENT, naming `what`, where it is empty,
 * too long or no text. */
int text_input_stdin(const char *what, struct strbuf *out, struct error *err);
/* INVALID_ARGUMENT where the bytes are no text. */
int text_input_check(const char *what, const char *text, size_t n_bytes, struct error *err);
