/* Methods of strings. */
#include <ctype.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/builtin/methods.h"
#include "engine/template/builtin/text_ops.h"
#include "engine/template/operators.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

typedef const struct args *args_in;

/* The result of an operation on `self`: markup if `self` is markup. */
static struct value mark_like(struct value v, struct value self)
{
    return value_marked(v, value_is_markup(self));
}

/* An argument that becomes part of `self`: escaped if `self` is markup. */
static struct value escape_for(struct interp *in, struct value v, struct value self)
{
    return value_is_markup(self) && v.type == VALUE_STRING ? text_escape(in, v) : v;
}

static struct value marked_list(struct list *list, enum value_type type, struct value self)
{
    for (size_t i = 0; i < list->n; i++)
        list->items[i] = mark_like(list->items[i], self);
    return value_list(type, list);
}

#define METHOD(name)                                                                               \
    static struct value str_##name(struct interp *in, struct value self, const struct value *argv, \
                                   args_in args)

static struct value strip(struct interp *in, struct value self, struct value chars,
                          enum strip_side side)
{
    const struct text *set = chars.type == VALUE_NONE ? NULL : builtin_arg_text(in, chars, "chars");
    return in->failed ? self : mark_like(text_strip(in, self.u.text, set, side), self);
}

METHOD(strip)
{
    (void)args;
    return strip(in, self, argv[0], STRIP_BOTH);
}

METHOD(lstrip)
{
    (void)args;
    return strip(in, self, argv[0], STRIP_LEFT);
}

METHOD(rstrip)
{
    (void)args;
    return strip(in, self, argv[0], STRIP_RIGHT);
}

METHOD(upper)
{
    (void)argv, (void)args;
    return mark_like(text_case(in, self.u.text, UNICODE_UPPER), self);
}

METHOD(lower)
{
    (void)argv, (void)args;
    return mark_like(text_case(in, self.u.text, UNICODE_LOWER), self);
}

METHOD(title)
{
    (void)argv, (void)args;
    return mark_like(text_title(in, self.u.text), self);
}

METHOD(capitalize)
{
    (void)argv, (void)args;
    return mark_like(text_capitalize(in, self.u.text), self);
}

METHOD(replace)
{
    (void)args;
    const struct text *from = builtin_arg_text(in, argv[0], "old"),
                      *to = builtin_arg_text(in, escape_for(in, argv[1], self), "new");
    int64_t n_max = builtin_arg_integer(in, argv[2], -1, "count");
    return in->failed ? self : mark_like(text_replace(in, self.u.text, from, to, n_max), self);
}

/* True if the text has this prefix or suffix; `edge` may be a tuple of several. */
static struct value edge_is(struct interp *in, struct value self, struct value edge, bool at_end)
{
    const struct text *text = self.u.text;
    size_t n = edge.type == VALUE_TUPLE ? edge.u.list->n : 1;
    for (size_t i = 0; i < n && interp_ok(in); i++) {
        struct value one = edge.type == VALUE_TUPLE ? edge.u.list->items[i] : edge;
        if (value_is_undefined(one))
            return interp_fail_undefined(in, one);
        const struct text *part = builtin_arg_text(in, one, at_end ? "suffix" : "prefix");
        if (part && part->n_bytes <= text->n_bytes && interp_step(in, part->n_bytes / 256) &&
            !memcmp(text->data + (at_end ? text->n_bytes - part->n_bytes : 0), part->data,
                    part->n_bytes))
            return value_bool(true);
    }
    return value_bool(false);
}

METHOD(startswith)
{
    (void)args;
    return edge_is(in, self, argv[0], false);
}

METHOD(endswith)
{
    (void)args;
    return edge_is(in, self, argv[0], true);
}

METHOD(removeprefix)
{
    (void)args;
    const struct text *part = builtin_arg_text(in, argv[0], "prefix"), *text = self.u.text;
    if (in->failed || !value_truth(edge_is(in, self, argv[0], false)))
        return self;
    return mark_like(text_part(in, text, part->n_bytes, text->n_bytes), self);
}

METHOD(removesuffix)
{
    (void)args;
    const struct text *part = builtin_arg_text(in, argv[0], "suffix"), *text = self.u.text;
    if (in->failed || !value_truth(edge_is(in, self, argv[0], true)))
        return self;
    return mark_like(text_part(in, text, 0, text->n_bytes - part->n_bytes), self);
}

static struct list *split_space(struct interp *in, const struct text *text, int64_t n_max)
{
    struct list *parts = list_new(in, 0);
    size_t i = 0, n;
    uint32_t cp;
    while (interp_step(in, 1)) {
        while (i < text->n_bytes && interp_step(in, 1) &&
               (n = utf8_decode(text->data + i, text->n_bytes - i, &cp)) && unicode_is_space(cp))
            i += n;
        if (i >= text->n_bytes)
            break;
        size_t begin = i;
        if (n_max >= 0 && parts && (int64_t)parts->n >= n_max) {
            list_add(in, parts, text_part(in, text, begin, text->n_bytes));
            break;
        }
        while (i < text->n_bytes && interp_step(in, 1) &&
               (n = utf8_decode(text->data + i, text->n_bytes - i, &cp)) && !unicode_is_space(cp))
            i += n;
        if (!list_add(in, parts, text_part(in, text, begin, i)))
            break;
    }
    return parts;
}

static struct list *split_on(struct interp *in, const struct text *text, const struct text *on,
                             int64_t n_max)
{
    struct list *parts = list_new(in, 0);
    size_t begin = 0;
    const char *found;
    if (!interp_step(in, text->n_bytes / 64))
        return NULL;
    while (parts && (n_max < 0 || (int64_t)parts->n < n_max) &&
           (found = memmem(text->data + begin, text->n_bytes - begin, on->data, on->n_bytes))) {
        size_t at = (size_t)(found - text->data);
        if (!list_add(in, parts, text_part(in, text, begin, at)))
            return NULL;
        begin = at + on->n_bytes;
    }
    list_add(in, parts, text_part(in, text, begin, text->n_bytes));
    return parts;
}

METHOD(split)
{
    (void)args;
    int64_t n_max = builtin_arg_integer(in, argv[1], -1, "maxsplit");
    const struct text *on =
        argv[0].type == VALUE_NONE ? NULL : builtin_arg_text(in, argv[0], "sep");
    if (in->failed)
        return self;
    if (on && !on->n_bytes)
        return interp_fail(in, "empty separator");
    struct list *parts =
        on ? split_on(in, self.u.text, on, n_max) : split_space(in, self.u.text, n_max);
    return in->failed ? self : marked_list(parts, VALUE_LIST, self);
}

/* Tries every position. The charged steps cover the worst case. */
static const char *find_last(struct interp *in, const char *data, size_t n_bytes,
                             const struct text *what)
{
    if (!interp_step(in, n_bytes / 16 * (what->n_bytes / 64 + 1)))
        return NULL;
    for (size_t i = n_bytes + 1; i-- > 0;)
        if (n_bytes - i >= what->n_bytes && !memcmp(data + i, what->data, what->n_bytes))
            return data + i;
    return NULL;
}

METHOD(rsplit)
{
    (void)args;
    int64_t n_max = builtin_arg_integer(in, argv[1], -1, "maxsplit");
    const struct text *on =
        argv[0].type == VALUE_NONE ? NULL : builtin_arg_text(in, argv[0], "sep");
    if (in->failed || n_max < 0)
        return in->failed ? self : str_split(in, self, argv, args);
    if (!on)
        return interp_fail(in, "with maxsplit needs a separator");
    if (!on->n_bytes)
        return interp_fail(in, "empty separator");
    struct list *reversed = list_new(in, 0), *parts = list_new(in, 0);
    size_t end = self.u.text->n_bytes;
    const char *found;
    while (reversed && (int64_t)reversed->n < n_max && interp_step(in, end / 64) &&
           (found = find_last(in, self.u.text->data, end, on))) {
        size_t at = (size_t)(found - self.u.text->data);
        if (!list_add(in, reversed, text_part(in, self.u.text, at + on->n_bytes, end)))
            return self;
        end = at;
    }
    list_add(in, reversed, text_part(in, self.u.text, 0, end));
    for (size_t i = reversed ? reversed->n : 0; i-- > 0;)
        list_add(in, parts, reversed->items[i]);
    return in->failed ? self : marked_list(parts, VALUE_LIST, self);
}

METHOD(splitlines)
{
    (void)args;
    struct list *lines = text_lines(in, self.u.text, value_truth(argv[0]));
    return lines ? marked_list(lines, VALUE_LIST, self) : self;
}

static struct value partition(struct interp *in, struct value self, struct value on, bool last)
{
    const struct text *what = builtin_arg_text(in, on, "sep"), *text = self.u.text;
    if (in->failed)
        return self;
    if (!what->n_bytes)
        return interp_fail(in, "empty separator");
    if (!interp_step(in, text->n_bytes / 64))
        return self;
    const char *found = last ? find_last(in, text->data, text->n_bytes, what)
                             : memmem(text->data, text->n_bytes, what->data, what->n_bytes);
    struct list *parts = list_new(in, 3);
    struct value empty = text_new(in, "", 0);
    size_t at = found ? (size_t)(found - text->data) : 0;
    if (!found && last)
        list_add(in, parts, empty);
    if (!found && last)
        list_add(in, parts, empty);
    list_add(in, parts, found ? text_part(in, text, 0, at) : self);
    if (found || !last) {
        list_add(in, parts, found ? on : empty);
        list_add(in, parts, found ? text_part(in, text, at + what->n_bytes, text->n_bytes) : empty);
    }
    return in->failed ? self : marked_list(parts, VALUE_TUPLE, self);
}

METHOD(partition)
{
    (void)args;
    return partition(in, self, argv[0], false);
}

METHOD(rpartition)
{
    (void)args;
    return partition(in, self, argv[0], true);
}

METHOD(join)
{
    (void)args;
    struct cursor cursor;
    struct value item;
    if (!cursor_open(in, argv[0], &cursor))
        return self;
    size_t mark = interp_capture_begin(in), n = 0;
    while (cursor_next(in, &cursor, &item)) {
        if (value_is_markup(self))
            item = text_escape(in, item);
        if (item.type != VALUE_STRING)
            interp_fail(in, "item %zu is '%s', not a string", n, value_type_name(item));
        if (n++)
            interp_write(in, self.u.text->data, self.u.text->n_bytes);
        value_write(in, item);
    }
    return mark_like(interp_capture_end(in, mark), self);
}

/* Code point index of the part `sub`, or -1. */
static int64_t find(struct interp *in, struct value self, const struct value *argv, bool last)
{
    const struct text *what = builtin_arg_text(in, argv[0], "sub"), *text = self.u.text;
    if (in->failed)
        return -1;
    struct value start = argv[1].type == VALUE_UNSET ? value_none() : argv[1];
    struct value stop = argv[2].type == VALUE_UNSET ? value_none() : argv[2];
    struct value part = operator_slice(in, self, start, stop, value_none());
    if (in->failed || part.type != VALUE_STRING || !interp_step(in, text->n_bytes / 64))
        return -1;
    if (value_is_integral(start) && value_integer(start) > (int64_t)text->n_chars)
        return -1;
    const struct text *in_text = part.u.text;
    const char *found = last ? find_last(in, in_text->data, in_text->n_bytes, what)
                             : memmem(in_text->data, in_text->n_bytes, what->data, what->n_bytes);
    if (!found)
        return -1;
    int64_t offset = value_is_integral(start) ? value_integer(start) : 0;
    if (offset < 0)
        offset = offset < -(int64_t)text->n_chars ? 0 : offset + (int64_t)text->n_chars;
    return offset + (int64_t)unicode_count(in_text->data, (size_t)(found - in_text->data));
}

METHOD(find)
{
    (void)args;
    return value_int(find(in, self, argv, false));
}

METHOD(rfind)
{
    (void)args;
    return value_int(find(in, self, argv, true));
}

METHOD(index)
{
    (void)args;
    int64_t i = find(in, self, argv, false);
    return i < 0 && interp_ok(in) ? interp_fail(in, "substring not found") : value_int(i);
}

METHOD(count)
{
    (void)args;
    const struct text *what = builtin_arg_text(in, argv[0], "sub");
    return in->failed ? self : value_int(text_count(in, self.u.text, what));
}

static struct value all_are(struct interp *in, struct value self, bool (*is)(uint32_t))
{
    const struct text *text = self.u.text;
    uint32_t cp;
    size_t n;
    for (size_t i = 0; i < text->n_bytes && interp_step(in, 1) &&
                       (n = utf8_decode(text->data + i, text->n_bytes - i, &cp));
         i += n)
        if (!is(cp))
            return value_bool(false);
    return value_bool(text->n_bytes > 0);
}

static bool is_alphanumeric(uint32_t cp)
{
    return unicode_is_alphabetic(cp) || unicode_is_numeric(cp);
}

METHOD(isdigit)
{
    (void)argv, (void)args;
    return all_are(in, self, unicode_is_numeric);
}

METHOD(isalpha)
{
    (void)argv, (void)args;
    return all_are(in, self, unicode_is_alphabetic);
}

METHOD(isalnum)
{
    (void)argv, (void)args;
    return all_are(in, self, is_alphanumeric);
}

METHOD(isspace)
{
    (void)argv, (void)args;
    return all_are(in, self, unicode_is_space);
}

static struct value call_test(struct interp *in, const char *name, struct value self)
{
    struct text text = {name, strlen(name), strlen(name), NULL};
    return builtin_test(&text)->fn(in, self, NULL, NULL);
}

METHOD(islower)
{
    (void)argv, (void)args;
    return call_test(in, "lower", self);
}

METHOD(isupper)
{
    (void)argv, (void)args;
    return call_test(in, "upper", self);
}

static struct value justify(struct interp *in, struct value self, const struct value *argv,
                            bool left)
{
    int64_t width = builtin_arg_integer(in, argv[0], 0, "width"), n = (int64_t)self.u.text->n_chars;
    const struct text *fill = builtin_arg_text(in, escape_for(in, argv[1], self), "fillchar");
    if (in->failed)
        return self;
    if (fill && fill->n_chars != 1)
        return interp_fail(in, "fillchar must be one character");
    size_t mark = interp_capture_begin(in);
    if (left)
        interp_write(in, self.u.text->data, self.u.text->n_bytes);
    for (int64_t i = n; i < width && interp_step(in, 1); i++)
        interp_write(in, fill ? fill->data : " ", fill ? fill->n_bytes : 1);
    if (!left)
        interp_write(in, self.u.text->data, self.u.text->n_bytes);
    return mark_like(interp_capture_end(in, mark), self);
}

METHOD(ljust)
{
    (void)args;
    return justify(in, self, argv, true);
}

METHOD(rjust)
{
    (void)args;
    return justify(in, self, argv, false);
}

METHOD(zfill)
{
    (void)args;
    int64_t width = builtin_arg_integer(in, argv[0], 0, "width"), n = (int64_t)self.u.text->n_chars;
    const struct text *text = self.u.text;
    size_t sign = text->n_bytes && strchr("+-", text->data[0]) ? 1 : 0;
    size_t mark = interp_capture_begin(in);
    interp_write(in, text->data, sign);
    for (int64_t i = n; i < width && interp_step(in, 1); i++)
        interp_write(in, "0", 1);
    interp_write(in, text->data + sign, text->n_bytes - sign);
    return mark_like(interp_capture_end(in, mark), self);
}

/* Returns the argument for a replacement field: {} takes the next positional argument, {0} the
 * argument with that index, {name} the keyword. `field` is the text between the braces. */
static struct value format_field(struct interp *in, const struct text *field, size_t *next,
                                 const struct args *args)
{
    size_t i = 0;
    bool digits = field->n_bytes > 0 && field->n_bytes < 10;
    for (size_t j = 0; j < field->n_bytes && digits; j++) {
        digits = isdigit((unsigned char)field->data[j]);
        i = i * 10 + (size_t)(field->data[j] - '0');
    }
    if (!field->n_bytes)
        i = (*next)++;
    if (!field->n_bytes || digits)
        return i < args->n_positional ? args->positional[i]
                                      : interp_fail(in, "has no argument %zu", i);
    for (size_t j = 0; j < args->n_keywords; j++)
        if (text_equal(args->keywords[j].name, field))
            return args->keywords[j].value;
    return interp_fail(in,
                       "field '%.*s' is not an argument, or uses a conversion that is not "
                       "supported",
                       (int)(field->n_bytes > 40 ? 40 : field->n_bytes), field->data);
}

METHOD(format)
{
    (void)argv;
    const struct text *text = self.u.text;
    size_t mark = interp_capture_begin(in), next = 0;
    for (size_t i = 0; i < text->n_bytes && interp_step(in, 1);) {
        char ch = text->data[i];
        if (ch != '{' && ch != '}') {
            interp_write(in, &ch, 1);
            i++;
        } else if (i + 1 < text->n_bytes && text->data[i + 1] == ch) {
            interp_write(in, &ch, 1);
            i += 2;
        } else {
            const char *end = memchr(text->data + i, '}', text->n_bytes - i);
            if (ch == '}' || !end) {
                interp_fail(in, "single '%c' in the text", ch);
                break;
            }
            struct value field = text_part(in, text, i + 1, (size_t)(end - text->data));
            struct value part = field.type == VALUE_STRING
                                    ? format_field(in, field.u.text, &next, args)
                                    : value_none();
            if (interp_ok(in))
                value_write(in, value_is_markup(self) ? text_escape(in, part) : part);
            i = (size_t)(end - text->data) + 1;
        }
    }
    return mark_like(interp_capture_end(in, mark), self);
}

const struct builtin text_methods[] = {
    {"strip", str_strip, "chars", 0},
    {"lstrip", str_lstrip, "chars", 0},
    {"rstrip", str_rstrip, "chars", 0},
    {"upper", str_upper, "", 0},
    {"lower", str_lower, "", 0},
    {"casefold", str_lower, "", 0},
    {"title", str_title, "", 0},
    {"capitalize", str_capitalize, "", 0},
    {"replace", str_replace, "old,new,count", 2},
    {"startswith", str_startswith, "prefix", 1},
    {"endswith", str_endswith, "suffix", 1},
    {"removeprefix", str_removeprefix, "prefix", 1},
    {"removesuffix", str_removesuffix, "suffix", 1},
    {"split", str_split, "sep,maxsplit", 0},
    {"rsplit", str_rsplit, "sep,maxsplit", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {"partition", str_partition, "sep", 1},
    {"rpartition", str_rpartition, "sep", 1},
    {"join", str_join, "iterable", 1},
    {"find", str_find, "sub,start,end", 1},
    {"rfind", str_rfind, "sub,start,end", 1},
    {"index", str_index, "sub,start,end", 1},
    {"count", str_count, "sub", 1},
    {"isdigit", str_isdigit, "", 0},
    {"isdecimal", str_isdigit, "", 0},
    {"isnumeric", str_isdigit, "", 0},
    {"isalpha", str_isalpha, "", 0},
    {"isalnum", str_isalnum, "", 0},
    {"isspace", str_isspace, "", 0},
    {"islower", str_islower, "", 0},
    {"isupper", str_isupper, "", 0},
    {"ljust", str_ljust, "width,fillchar", 1},
    {"rjust", str_rjust, "width,fillchar", 1},
    {"zfill", str_zfill, "width", 1},
    {"format", str_format, NULL, 0},
    {NULL, NULL, NULL, 0},
};
