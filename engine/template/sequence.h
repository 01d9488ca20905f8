/* sequence.h: what filters on sequences share with tests and methods. Private to
 * engine/template. */
#pragma once

#include "engine/template/interp.h"

/* item.a.b for the path "a.b" (parts of digits are indices); the item itself where path is not
 * given. */
struct value attribute_get(struct interp *in, struct value item, struct value path);
/* len(v), or a failure. */
struct value value_length(struct interp *in, struct value v);
