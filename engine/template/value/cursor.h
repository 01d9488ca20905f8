/* cursor.h: iteration over values. Private to engine/template; one thread per interp. */
#pragma once

#include "engine/template/value/value.h"

/* Iteration without copying: item i of any iterable, or the count. The caller owns the cursor. */
struct cursor {
    struct value source;
    size_t i;      /* next item */
    size_t offset; /* strings: byte offset of the next character */
};
/* False with a failure where v cannot be iterated. */
bool cursor_open(struct interp *in, struct value v, struct cursor *out_cursor);
bool cursor_next(struct interp *in, struct cursor *cursor, struct value *out_item);
