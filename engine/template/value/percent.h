/* percent.h: Python's printf-style formatting. Private to engine/template; one thread per interp.
 */
#pragma once

#include "engine/template/value/value.h"

/* format % items, or format % mapping (NULL: none); `format` is text. */
struct value percent_format(struct interp *in, struct value format, const struct value *items,
                            size_t n_items, const struct dict *mapping);
