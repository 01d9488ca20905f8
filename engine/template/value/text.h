/* text.h: the strings of a template: immutable UTF-8. Private to engine/template; one thread per
 * interp. */
#pragma once

#include "engine/template/value/value.h"

/* Text that may still grow at its end: `a ~ b` where a ends at `used` appends in place, so building
 * a prompt piece by piece is linear. */
struct text_room {
    char *data;
    size_t used, capacity;
};

/* Valid UTF-8; n_chars code points. */
struct text {
    const char *data;
    size_t n_bytes, n_chars;
    struct text_room *room; /* NULL: cannot grow */
};

/* Text over data[n_bytes], which lives as long as the render's arena and is not copied. */
struct value text_wrap(struct interp *in, const char *data, size_t n_bytes, struct text_room *room);
/* A copy of bytes that are valid UTF-8, a C string, one code point, or a part of other text
 * (by byte range at code point boundaries, shared and not copied). */
struct value text_new(struct interp *in, const char *data, size_t n_bytes);
struct value text_from_str(struct interp *in, const char *str);
struct value text_part(struct interp *in, const struct text *whole, size_t begin, size_t end);
struct value text_concat(struct interp *in, const struct text *a, const struct text *b);
bool text_equal(const struct text *a, const struct text *b);
bool text_equal_str(const struct text *a, const char *str);
/* Byte offset of code point i_char (n_bytes where i_char ≥ n_chars). */
size_t text_offset(const struct text *text, size_t i_char);

/* markupsafe.escape: markup as it is; the text of anything else with & < > ' " as entities, as
 * markup. */
struct value text_escape(struct interp *in, struct value v);
