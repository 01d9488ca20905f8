/* text_ops.h: operations of Python's str for filters and methods. Private to engine/template. */
#pragma once

#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"

enum strip_side { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 };
/* Strips the characters `chars`; NULL: whitespace. */
struct value text_strip(struct interp *in, const struct text *text, const struct text *chars,
                        enum strip_side side);
/* Replaces at most n_max occurrences; n_max < 0: all. */
struct value text_replace(struct interp *in, const struct text *text, const struct text *from,
                          const struct text *to, int64_t n_max);
struct value text_case(struct interp *in, const struct text *text, enum unicode_case to);
/* Converts the first letter to upper case, the rest to lower case. */
struct value text_capitalize(struct interp *in, const struct text *text);
/* str.title: upper case after every character that is not a letter. */
struct value text_title(struct interp *in, const struct text *text);
/* Splits into lines, with or without their line ends. */
struct list *text_lines(struct interp *in, const struct text *text, bool keep_ends);
/* Number of non-overlapping occurrences. */
int64_t text_count(struct interp *in, const struct text *text, const struct text *what);
void text_write_case(struct interp *in, const struct text *text, size_t begin, size_t end,
                     enum unicode_case to);
