#include "engine/template/builtin/text_ops.h"

#include <string.h>

#include "base/utf8.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

static bool is_stripped(const struct text *chars, const char *at, size_t n, uint32_t cp)
{
    if (!chars)
        return unicode_is_space(cp);
    return memmem(chars->data, chars->n_bytes, at, n) != NULL;
}

struct value text_strip(struct interp *in, const struct text *text, const struct text *chars,
                        enum strip_side side)
{
    size_t begin = 0, end = text->n_bytes, n;
    uint32_t cp;
    uint64_t cost = chars ? chars->n_bytes / 64 + 1 : 1;
    while (side & STRIP_LEFT && begin < end && interp_step(in, cost / 8 + 1) &&
           (n = utf8_decode(text->data + begin, end - begin, &cp)) &&
           is_stripped(chars, text->data + begin, n, cp))
        begin += n;
    while (side & STRIP_RIGHT && end > begin && interp_step(in, cost / 8 + 1)) {
        size_t start = end - 1;
        while (start > begin && ((unsigned char)text->data[start] & 0xC0) == 0x80)
            start--;
        n = utf8_decode(text->data + start, end - start, &cp);
        if (!n || !is_stripped(chars, text->data + start, n, cp))
            break;
        end = start;
    }
    return text_part(in, text, begin, end);
}

/* Replaces an empty pattern, as Python does. Inserts `to` before every character and at the end, at
 * most n_max times (negative: no limit). */
static struct value replace_empty(struct interp *in, const struct text *text, const struct text *to,
                                  int64_t n_max)
{
    size_t mark = interp_capture_begin(in);
    int64_t n_done = 0;
    for (size_t i = 0; i <= text->n_bytes && interp_step(in, 1); n_done++) {
        if (n_max < 0 || n_done < n_max)
            interp_write(in, to->data, to->n_bytes);
        size_t next = i + 1;
        while (next < text->n_bytes && ((unsigned char)text->data[next] & 0xC0) == 0x80)
            next++;
        if (i < text->n_bytes)
            interp_write(in, text->data + i, next - i);
        i = next;
    }
    return interp_capture_end(in, mark);
}

struct value text_replace(struct interp *in, const struct text *text, const struct text *from,
                          const struct text *to, int64_t n_max)
{
    if (!from->n_bytes)
        return replace_empty(in, text, to, n_max);
    const char *found = memmem(text->data, text->n_bytes, from->data, from->n_bytes);
    if (!found || !n_max)
        return interp_step(in, text->n_bytes / 64) ? value_text(text) : value_of_type(VALUE_UNSET);
    size_t mark = interp_capture_begin(in), i = 0;
    for (int64_t n_done = 0; found && (n_max < 0 || n_done < n_max) && interp_step(in, 1);
         n_done++) {
        size_t at = (size_t)(found - text->data);
        interp_write(in, text->data + i, at - i);
        interp_write(in, to->data, to->n_bytes);
        i = at + from->n_bytes;
        found = memmem(text->data + i, text->n_bytes - i, from->data, from->n_bytes);
    }
    interp_write(in, text->data + i, text->n_bytes - i);
    return interp_capture_end(in, mark);
}

int64_t text_count(struct interp *in, const struct text *text, const struct text *what)
{
    int64_t n = 0;
    size_t i = 0;
    if (!what->n_bytes)
        return (int64_t)text->n_chars + 1;
    const char *found;
    while ((found = memmem(text->data + i, text->n_bytes - i, what->data, what->n_bytes)) &&
           interp_step(in, 1)) {
        n++;
        i = (size_t)(found - text->data) + what->n_bytes;
    }
    return interp_step(in, text->n_bytes / 64) ? n : 0;
}

static void write_code_point(struct interp *in, uint32_t cp, enum unicode_case to)
{
    uint32_t converted[3];
    size_t n = unicode_convert(cp, to, converted);
    for (size_t i = 0; i < n; i++)
        interp_write_char(in, converted[i]);
}

/* True if the capital sigma at byte i ends a word: its lower case is then the final form. */
static bool is_final_sigma(const struct text *text, size_t i)
{
    uint32_t before = 0, after = 0;
    size_t start = i;
    while (start > 0 && ((unsigned char)text->data[--start] & 0xC0) == 0x80)
        ;
    if (start < i)
        utf8_decode(text->data + start, i - start, &before);
    if (i + 2 < text->n_bytes)
        utf8_decode(text->data + i + 2, text->n_bytes - i - 2, &after);
    return before && unicode_is_cased(before) && !(after && unicode_is_cased(after));
}

void text_write_case(struct interp *in, const struct text *text, size_t begin, size_t end,
                     enum unicode_case to)
{
    uint32_t cp;
    size_t n;
    if (!interp_step(in, (end - begin) / 8))
        return;
    for (size_t i = begin;
         i < end && interp_ok(in) && (n = utf8_decode(text->data + i, text->n_bytes - i, &cp));
         i += n) {
        if (cp == 0x3A3 && to == UNICODE_LOWER && is_final_sigma(text, i))
            cp = 0x3C2;
        write_code_point(in, cp, to);
    }
}

struct value text_case(struct interp *in, const struct text *text, enum unicode_case to)
{
    size_t mark = interp_capture_begin(in);
    text_write_case(in, text, 0, text->n_bytes, to);
    return interp_capture_end(in, mark);
}

struct value text_capitalize(struct interp *in, const struct text *text)
{
    size_t mark = interp_capture_begin(in), first = text_offset(text, 1);
    text_write_case(in, text, 0, first, UNICODE_TITLE);
    text_write_case(in, text, first, text->n_bytes, UNICODE_LOWER);
    return interp_capture_end(in, mark);
}

struct value text_title(struct interp *in, const struct text *text)
{
    size_t mark = interp_capture_begin(in), n;
    bool in_word = false;
    uint32_t cp;
    for (size_t i = 0; i < text->n_bytes && interp_step(in, 1) &&
                       (n = utf8_decode(text->data + i, text->n_bytes - i, &cp));
         i += n) {
        write_code_point(in, cp, in_word ? UNICODE_LOWER : UNICODE_TITLE);
        in_word = unicode_is_cased(cp);
    }
    return interp_capture_end(in, mark);
}

struct list *text_lines(struct interp *in, const struct text *text, bool keep_ends)
{
    struct list *lines = list_new(in, 0);
    size_t begin = 0, n;
    uint32_t cp;
    if (!interp_step(in, text->n_bytes / 16))
        return NULL;
    for (size_t i = 0; lines && i < text->n_bytes && interp_ok(in) &&
                       (n = utf8_decode(text->data + i, text->n_bytes - i, &cp));
         i += n) {
        if (!unicode_is_line_end(cp))
            continue;
        size_t end = i + n;
        if (cp == '\r' && end < text->n_bytes && text->data[end] == '\n')
            end++;
        if (!list_add(in, lines, text_part(in, text, begin, keep_ends ? end : i)))
            return NULL;
        begin = end;
        n = end - i;
    }
    if (lines && begin < text->n_bytes)
        list_add(in, lines, text_part(in, text, begin, text->n_bytes));
    return interp_ok(in) ? lines : NULL;
}
