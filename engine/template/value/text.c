#include "engine/template/value/text.h"

#include <string.h>

#include "engine/template/value/interp.h"
#include "engine/template/value/print.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

struct value text_wrap(struct interp *in, const char *data, size_t n_bytes, struct text_room *room)
{
    struct text *text = interp_alloc(in, 1, sizeof(*text));
    if (!text || !interp_step(in, n_bytes / 64))
        return value_of_type(VALUE_UNSET);
    *text = (struct text){data, n_bytes, unicode_count(data, n_bytes), room};
    return value_text(text);
}

struct value text_new(struct interp *in, const char *data, size_t n_bytes)
{
    char *copy = interp_alloc(in, n_bytes ? n_bytes : 1, 1);
    if (!copy)
        return value_of_type(VALUE_UNSET);
    if (n_bytes)
        memcpy(copy, data, n_bytes);
    return text_wrap(in, copy, n_bytes, NULL);
}

struct value text_from_str(struct interp *in, const char *str)
{
    return text_new(in, str, strlen(str));
}

struct value text_part(struct interp *in, const struct text *whole, size_t begin, size_t end)
{
    if (!begin && end == whole->n_bytes)
        return value_text(whole);
    return text_wrap(in, whole->data + begin, end - begin, NULL);
}

struct value text_concat(struct interp *in, const struct text *a, const struct text *b)
{
    if (!b->n_bytes)
        return value_text(a);
    if (!a->n_bytes)
        return value_text(b);
    struct text *text = interp_alloc(in, 1, sizeof(*text));
    if (!text || !interp_step(in, b->n_bytes / 64))
        return value_of_type(VALUE_UNSET);
    struct text_room *room = a->room;
    if (!room || a->data + a->n_bytes != room->data + room->used ||
        room->capacity - room->used < b->n_bytes) {
        size_t total = a->n_bytes + b->n_bytes, capacity = total < 64 ? total : total * 2;
        room = interp_alloc(in, 1, sizeof(*room));
        char *data = room ? interp_alloc(in, capacity, 1) : NULL;
        if (!data || !interp_step(in, a->n_bytes / 64))
            return value_of_type(VALUE_UNSET);
        memcpy(data, a->data, a->n_bytes);
        *room = (struct text_room){data, a->n_bytes, capacity};
    }
    memcpy(room->data + room->used, b->data, b->n_bytes);
    room->used += b->n_bytes;
    *text = (struct text){room->data + room->used - a->n_bytes - b->n_bytes,
                          a->n_bytes + b->n_bytes, a->n_chars + b->n_chars, room};
    return value_text(text);
}

bool text_equal(const struct text *a, const struct text *b)
{
    return a == b || (a->n_bytes == b->n_bytes && !memcmp(a->data, b->data, a->n_bytes));
}

bool text_equal_str(const struct text *a, const char *str)
{
    size_t n_bytes = strlen(str);
    return a->n_bytes == n_bytes && !memcmp(a->data, str, n_bytes);
}

size_t text_offset(const struct text *text, size_t i_char)
{
    if (i_char >= text->n_chars)
        return text->n_bytes;
    if (text->n_chars == text->n_bytes)
        return i_char;
    size_t offset = 0;
    for (; offset < text->n_bytes; offset++)
        if (((unsigned char)text->data[offset] & 0xC0) != 0x80 && !i_char--)
            break;
    return offset;
}

struct value text_escape(struct interp *in, struct value v)
{
    static const char specials[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (value_is_markup(v))
        return v;
    const struct text *text = value_to_text(in, v);
    size_t mark = interp_capture_begin(in), begin = 0;
    for (size_t i = 0; i < text->n_bytes && interp_ok(in); i++) {
        const char *found = text->data[i] ? strchr(specials, text->data[i]) : NULL;
        if (!found)
            continue;
        interp_write(in, text->data + begin, i - begin);
        interp_write_str(in, entities[found - specials]);
        interp_step(in, 1);
        begin = i + 1;
    }
    interp_write(in, text->data + begin, text->n_bytes - begin);
    return value_marked(interp_capture_end(in, mark), true);
}
