/* percent.h: Python's printf-style formatting. Private to engine/template; each interp belongs to
 * one thread. */
#pragma once

#include "engine/template/value/value.h"

/* Computes format % items, or format % mapping (NULL: no mapping). `format` is a text. */
struct value percent_format(struct interp *in, struct value format, const struct value *items,
                            size_t n_items, const struct dict *mapping);
