/* cursor.h: iteration over values. Private to engine/template; each interp belongs to one
 * thread. */
#pragma once

#include "engine/template/value/value.h"

/* Iterates over any iterable without copying. The caller owns the cursor. */
struct cursor {
    struct value source;
    size_t i;      /* next item */
    size_t offset; /* strings: byte offset of the next character */
};
/* Returns false, with a failure, if v is not iterable. */
bool cursor_open(struct interp *in, struct value v, struct cursor *out_cursor);
bool cursor_next(struct interp *in, struct cursor *cursor, struct value *out_item);
