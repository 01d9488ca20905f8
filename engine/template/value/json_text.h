/* json_text.h: JSON text to template values, as Python's json.loads takes it: integers of any size,
 * NUL bytes in strings and keys, NaN and the infinities. Refused beyond Python: half a surrogate
 * pair, which UTF-8 cannot hold. Private to engine/template; one thread per interp. */
#pragma once

#include <stdbool.h>

#include "engine/template/value/value.h"

enum { JSON_MAX_INTEGER_DIGITS = 4300 }; /* Python's own limit for reading an integer */

/* The value of the text json[n_bytes], which is followed by a NUL. `unique`: an object with the
 * same key twice is refused; otherwise the last one counts. A failure names `field`. */
struct value json_text_value(struct interp *in, const char *field, const char *json, size_t n_bytes,
                             bool unique);
