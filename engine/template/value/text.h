/* text.h: the strings of a template: immutable UTF-8. Private to engine/template; each interp
 * belongs to one thread. */
#pragma once

#include "engine/template/value/value.h"

/* Buffer of a text that may grow at its end. In `a ~ b`, if a ends at `used`, b is appended in
 * place. So building a prompt piece by piece takes linear time. */
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

/* A text over data[n_bytes], which is not copied and must live as long as the render's arena. */
struct value text_wrap(struct interp *in, const char *data, size_t n_bytes, struct text_room *room);
/* New texts: a copy of valid UTF-8, a copy of a C string, and a part of another text. A part is a
 * byte range at code point boundaries; its bytes are shared, not copied. */
struct value text_new(struct interp *in, const char *data, size_t n_bytes);
struct value text_from_str(struct interp *in, const char *str);
struct value text_part(struct interp *in, const struct text *whole, size_t begin, size_t end);
struct value text_concat(struct interp *in, const struct text *a, const struct text *b);
bool text_equal(const struct text *a, const struct text *b);
bool text_equal_str(const struct text *a, const char *str);
/* Byte offset of code point i_char; n_bytes if i_char ≥ n_chars. */
size_t text_offset(const struct text *text, size_t i_char);

/* markupsafe.escape: markup stays as it is. Other values become text with & < > ' " as entities, as
 * markup. */
struct value text_escape(struct interp *in, struct value v);
