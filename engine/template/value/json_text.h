/* json_text.h: parses JSON text into template values, like Python's json.loads. Integers may have
 * any size; strings and keys may contain NUL bytes; NaN and the infinities are accepted. Unlike
 * Python, refuses a single surrogate, which UTF-8 cannot represent. Private to engine/template;
 * each interp belongs to one thread. */
#pragma once

#include <stdbool.h>

#include "engine/template/value/value.h"

enum { JSON_MAX_INTEGER_DIGITS = 4300 }; /* Python's limit for parsing an integer */

/* Parses json[n_bytes], which a NUL follows. `unique`: duplicate keys in an object are refused;
 * otherwise the last one wins. A failure names `field`. */
struct value json_text_value(struct interp *in, const char *field, const char *json, size_t n_bytes,
                             bool unique);
