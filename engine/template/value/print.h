/* print.h: writes values as text: str(), repr() and JSON. Private to engine/template; each interp
 * belongs to one thread. */
#pragma once

#include "engine/template/value/text.h"

/* Appends str(v) or repr(v) to the interp's output. */
void value_write(struct interp *in, struct value v);
void value_write_repr(struct interp *in, struct value v);
/* str(v): a text as it is; other values as value_write() writes them. */
const struct text *value_to_text(struct interp *in, struct value v);
struct json_style {
    int indent;                     /* spaces per level; < 0: all on one line */
    const struct text *indent_text; /* text per level in place of spaces; NULL: none */
    struct text item_separator, key_separator;
    bool ensure_ascii, sort_keys;
};
void value_write_json(struct interp *in, struct value v, const struct json_style *style);
enum { FLOAT_REPR_BYTES = 40 };
/* Python's repr() of a float. */
void print_float(double x, char out[FLOAT_REPR_BYTES]);
