/* Filters on text and numbers. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/builtin/filters.h"
#include "engine/template/builtin/text_ops.h"
#include "engine/template/operators.h"
#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/percent.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

enum { MAX_DOUBLE_DIGITS = 320 };

typedef const struct args *args_in;

static struct value filter_trim(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    (void)args;
    bool given = argv[0].type != VALUE_UNSET && argv[0].type != VALUE_NONE;
    const struct text *chars = given ? builtin_arg_text(in, argv[0], "chars") : NULL;
    const struct text *text = value_to_text(in, self);
    return in->failed
               ? self
               : value_marked(text_strip(in, text, chars, STRIP_BOTH), value_is_markup(self));
}

static struct value filter_upper(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)argv, (void)args;
    return value_marked(text_case(in, value_to_text(in, self), UNICODE_UPPER),
                        value_is_markup(self));
}

static struct value filter_lower(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)argv, (void)args;
    return value_marked(text_case(in, value_to_text(in, self), UNICODE_LOWER),
                        value_is_markup(self));
}

static struct value filter_capitalize(struct interp *in, struct value self,
                                      const struct value *argv, args_in args)
{
    (void)argv, (void)args;
    return value_marked(text_capitalize(in, value_to_text(in, self)), value_is_markup(self));
}

/* Jinja's rule: words begin after - ( { [ < and whitespace. */
static struct value filter_title(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)argv, (void)args;
    const struct text *text = value_to_text(in, self);
    size_t mark = interp_capture_begin(in), n;
    bool in_word = false;
    uint32_t cp;
    for (size_t i = 0; i < text->n_bytes && interp_step(in, 1) &&
                       (n = utf8_decode(text->data + i, text->n_bytes - i, &cp));
         i += n) {
        text_write_case(in, text, i, i + n, in_word ? UNICODE_LOWER : UNICODE_UPPER);
        in_word = !unicode_is_space(cp) && !(cp && cp < 0x80 && strchr("-({[<", (int)cp));
    }
    return interp_capture_end(in, mark);
}

static struct value filter_replace(struct interp *in, struct value self, const struct value *argv,
                                   args_in args)
{
    (void)args;
    int64_t n_max = argv[2].type == VALUE_NONE ? -1 : builtin_arg_integer(in, argv[2], -1, "count");
    const struct text *text = value_to_text(in, self), *from = value_to_text(in, argv[0]);
    const struct text *to = value_to_text(in, argv[1]);
    return in->failed ? self : text_replace(in, text, from, to, n_max);
}

static struct value filter_string(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    (void)argv, (void)args;
    return value_marked(value_text(value_to_text(in, self)), value_is_markup(self));
}

static struct value filter_safe(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    return value_marked(filter_string(in, self, argv, args), true);
}

static struct value filter_escape(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    (void)argv, (void)args;
    return text_escape(in, self);
}

/* Escapes markup as well. */
static struct value filter_forceescape(struct interp *in, struct value self,
                                       const struct value *argv, args_in args)
{
    (void)argv, (void)args;
    return text_escape(in, value_text(value_to_text(in, self)));
}

/* Input of a filter that accepts only strings. NULL after a failure. */
static const struct text *own_text(struct interp *in, struct value self)
{
    if (value_is_undefined(self))
        interp_fail_undefined(in, self);
    return builtin_arg_text(in, self, "input");
}

static struct value filter_indent(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    (void)args;
    const struct text *text = own_text(in, self);
    const struct text *pad = argv[0].type == VALUE_STRING ? argv[0].u.text : NULL;
    int64_t width = pad ? 0 : builtin_arg_integer(in, argv[0], 4, "width");
    bool first = value_truth(argv[1]), blank = value_truth(argv[2]);
    struct value spaces = pad ? value_text(pad) : text_new(in, " ", 1);
    if (!pad && interp_ok(in))
        spaces = operator_binary(in, OP_MUL, spaces, value_int(width));
    struct value newline = text_new(in, "\n", 1);
    if (in->failed)
        return self;
    struct value whole = text_concat(in, text, newline.u.text);
    struct list *lines = in->failed ? NULL : text_lines(in, whole.u.text, false);
    size_t mark = interp_capture_begin(in);
    for (size_t i = 0; lines && i < lines->n && interp_step(in, 1); i++) {
        const struct text *line = lines->items[i].u.text;
        bool indents = i ? blank || line->n_bytes : first;
        if (i)
            interp_write(in, "\n", 1);
        if (indents)
            interp_write(in, spaces.u.text->data, spaces.u.text->n_bytes);
        interp_write(in, line->data, line->n_bytes);
    }
    return value_marked(interp_capture_end(in, mark), value_is_markup(self));
}

static struct value filter_center(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    (void)args;
    const struct text *text = value_to_text(in, self);
    int64_t width = builtin_arg_integer(in, argv[0], 80, "width"), n = (int64_t)text->n_chars;
    int64_t pad = width > n ? width - n : 0, left = pad / 2 + (pad & width & 1);
    size_t mark = interp_capture_begin(in);
    for (int64_t i = 0; i < left && interp_step(in, 1); i++)
        interp_write(in, " ", 1);
    interp_write(in, text->data, text->n_bytes);
    for (int64_t i = left; i < pad && interp_step(in, 1); i++)
        interp_write(in, " ", 1);
    return value_marked(interp_capture_end(in, mark), value_is_markup(self));
}

static struct value filter_format(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    (void)argv;
    struct dict *mapping = args->n_keywords ? dict_new(in) : NULL;
    if (args->n_keywords && args->n_positional)
        return interp_fail(in, "takes positional or keyword arguments, not both");
    for (size_t i = 0; i < args->n_keywords && interp_ok(in); i++)
        dict_set(in, mapping, value_text(args->keywords[i].name), args->keywords[i].value);
    struct value format = value_marked(value_text(value_to_text(in, self)), value_is_markup(self));
    return in->failed ? self
                      : percent_format(in, format, args->positional, args->n_positional, mapping);
}

static struct value filter_truncate(struct interp *in, struct value self, const struct value *argv,
                                    args_in args)
{
    (void)args;
    if (value_is_undefined(self))
        return self;
    const struct text *text = own_text(in, self);
    int64_t length = builtin_arg_integer(in, argv[0], 255, "length");
    struct value end = argv[2].type == VALUE_UNSET ? text_new(in, "...", 3) : argv[2];
    const struct text *tail = builtin_arg_text(in, end, "end");
    int64_t leeway = argv[3].type == VALUE_NONE ? 5 : builtin_arg_integer(in, argv[3], 5, "leeway");
    if (in->failed)
        return self;
    if (length < (int64_t)tail->n_chars || leeway < 0)
        return interp_fail(in, "length must be at least the end's, leeway not negative");
    if ((int64_t)text->n_chars <= length || (int64_t)text->n_chars - length <= leeway)
        return self;
    if (!interp_step(in, text->n_bytes / 64))
        return self;
    size_t cut = text_offset(text, (size_t)length - tail->n_chars);
    if (!value_truth(argv[1])) {
        const char *space = memrchr(text->data, ' ', cut);
        cut = space ? (size_t)(space - text->data) : cut;
    }
    struct value part = text_part(in, text, 0, cut);
    return in->failed ? self
                      : operator_binary(in, OP_ADD, value_marked(part, value_is_markup(self)), end);
}

static struct value filter_wordcount(struct interp *in, struct value self, const struct value *argv,
                                     args_in args)
{
    (void)argv, (void)args;
    const struct text *text = value_to_text(in, self);
    int64_t n_words = 0;
    bool in_word = false;
    uint32_t cp;
    size_t n;
    for (size_t i = 0; i < text->n_bytes && interp_step(in, 1) &&
                       (n = utf8_decode(text->data + i, text->n_bytes - i, &cp));
         i += n) {
        bool word = cp == '_' || unicode_is_alphabetic(cp) || unicode_is_numeric(cp);
        n_words += word && !in_word;
        in_word = word;
    }
    return value_int(n_words);
}

static struct value filter_urlencode(struct interp *in, struct value self, const struct value *argv,
                                     args_in args)
{
    (void)argv, (void)args;
    if (self.type == VALUE_DICT || self.type == VALUE_LIST)
        return interp_fail(in, "an input of type '%s' is not supported", value_type_name(self));
    const struct text *text = value_to_text(in, self);
    size_t mark = interp_capture_begin(in);
    for (size_t i = 0; i < text->n_bytes && interp_step(in, 1); i++) {
        char ch = text->data[i], hex[8];
        bool plain = (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') ||
                     (ch >= 'A' && ch <= 'Z') || (ch && strchr("_.-~/", ch));
        snprintf(hex, sizeof(hex), "%%%02X", (unsigned char)ch);
        if (plain)
            interp_write(in, &ch, 1);
        else
            interp_write_str(in, hex);
    }
    return interp_capture_end(in, mark);
}

/* Parses like Python's int(text, base): whitespace around, underscores between digits, a prefix of
 * the base. */
static bool parse_integer(const struct text *text, int base, int64_t *out)
{
    char buf[80];
    size_t n = 0;
    const char *s = text->data, *end = s + text->n_bytes;
    if (memchr(s, '\0', text->n_bytes))
        return false;
    while (s < end && unicode_is_space((unsigned char)*s) && !(*s & 0x80))
        s++;
    while (end > s && !(end[-1] & 0x80) && unicode_is_space((unsigned char)end[-1]))
        end--;
    for (char last = '_'; s < end; last = *s++) {
        if (*s == '_' && (last == '_' || s + 1 == end))
            return false;
        if (*s != '_' && n + 1 < sizeof(buf))
            buf[n++] = *s;
        else if (*s != '_')
            return false;
    }
    buf[n] = '\0';
    const char *digits = buf + (*buf == '-' || *buf == '+');
    if (base == 10 && strspn(digits, "0123456789") != strlen(digits))
        return false;
    if ((base == 2 || base == 8) && digits[0] == '0' && (digits[1] | 32) == (base == 2 ? 'b' : 'o'))
        memmove(buf + (digits - buf), digits + 2, strlen(digits + 2) + 1);
    if (!*digits || *digits == '-' || *digits == '+' || *digits == ' ')
        return false;
    char *rest;
    errno = 0;
    *out = strtoll(buf, &rest, base);
    return !*rest && errno == 0;
}

static bool parse_real(const struct text *text, double *out)
{
    char buf[512];
    const char *s = text->data, *end = s + text->n_bytes;
    while (s < end && !(*s & 0x80) && unicode_is_space((unsigned char)*s))
        s++;
    while (end > s && !(end[-1] & 0x80) && unicode_is_space((unsigned char)end[-1]))
        end--;
    size_t n = (size_t)(end - s);
    if (!n || n >= sizeof(buf) || memchr(s, '\0', n) || memchr(s, 'x', n) || memchr(s, 'X', n) ||
        memchr(s, '(', n))
        return false;
    memcpy(buf, s, n);
    buf[n] = '\0';
    char *rest;
    *out = strtod(buf, &rest);
    return rest == buf + n;
}

static bool real_to_integer(double x, int64_t *out)
{
    if (!(x > -9.2233720368547e18 && x < 9.2233720368547e18))
        return false;
    *out = (int64_t)x;
    return true;
}

/* The integer value of a double outside 64 bits. */
static struct value whole_number(struct interp *in, double x)
{
    char digits[MAX_DOUBLE_DIGITS];
    int n = snprintf(digits, sizeof(digits), "%.0f", x);
    return value_from_digits(in, digits, (size_t)n);
}

static struct value filter_int(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)args;
    struct value fallback = argv[0].type == VALUE_UNSET ? value_int(0) : argv[0];
    int64_t base = builtin_arg_integer(in, argv[1], 10, "base"), i;
    double x;
    if (base < 2 || base > 36)
        return interp_fail(in, "base must be 2 to 36, not %lld", (long long)base);
    if (value_is_undefined(self))
        return interp_fail_undefined(in, self);
    if (self.type == VALUE_BIG)
        return self;
    if (value_is_integral(self))
        return value_int(value_integer(self));
    if (self.type == VALUE_STRING && !interp_step(in, self.u.text->n_bytes / 16))
        return self;
    if (self.type == VALUE_STRING && parse_integer(self.u.text, (int)base, &i))
        return value_int(i);
    if (self.type == VALUE_FLOAT || (self.type == VALUE_STRING && parse_real(self.u.text, &x))) {
        x = self.type == VALUE_FLOAT ? self.u.real : x;
        if (real_to_integer(x, &i))
            return value_int(i);
        if (isfinite(x))
            return whole_number(in, x);
    }
    return fallback;
}

static struct value filter_float(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)args;
    double x;
    if (value_is_undefined(self))
        return interp_fail_undefined(in, self);
    if (self.type == VALUE_BIG) {
        x = strtod(self.u.text->data, NULL);
        return isfinite(x) ? value_float(x) : interp_fail(in, "int too large to convert to float");
    }
    if (value_is_number(self))
        return value_float(value_real(self));
    if (self.type == VALUE_STRING && !interp_step(in, self.u.text->n_bytes / 16))
        return self;
    if (self.type == VALUE_STRING && parse_real(self.u.text, &x))
        return value_float(x);
    return argv[0].type == VALUE_UNSET ? value_float(0.0) : argv[0];
}

static struct value filter_abs(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)argv, (void)args;
    if (self.type == VALUE_FLOAT)
        return value_float(fabs(self.u.real));
    if (self.type == VALUE_BIG)
        return self.u.text->data[0] == '-' ? operator_negate(in, self) : self;
    if (!value_is_integral(self))
        return value_is_undefined(self)
                   ? interp_fail_undefined(in, self)
                   : interp_fail(in, "needs a number, not '%s'", value_type_name(self));
    return value_integer(self) < 0 ? operator_negate(in, self) : value_int(value_integer(self));
}

static struct value filter_round(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)args;
    int64_t precision = builtin_arg_integer(in, argv[0], 0, "precision");
    const struct text *method = builtin_arg_text(in, argv[1], "method");
    if (in->failed)
        return self;
    if (self.type == VALUE_BIG && precision >= 0 && (!method || text_equal_str(method, "common")))
        return self;
    if (!value_is_number(self))
        return value_is_undefined(self)
                   ? interp_fail_undefined(in, self)
                   : interp_fail(in, "needs a number, not '%s'", value_type_name(self));
    bool common = !method || text_equal_str(method, "common");
    bool up = method && text_equal_str(method, "ceil");
    if (!common && !up && !text_equal_str(method, "floor"))
        return interp_fail(in, "method must be common, ceil or floor");
    if (precision < -300 || precision > 300)
        return interp_fail(in, "precision must be -300 to 300");
    double x = value_real(self);
    if (common && value_is_integral(self) && precision >= 0)
        return value_int(value_integer(self));
    if (common && precision >= 0 && isfinite(x)) {
        char text[700]; /* exact decimal rounding, ties to even, like Python's round */
        snprintf(text, sizeof(text), "%.*f", (int)precision, x);
        return value_float(strtod(text, NULL));
    }
    double scale = pow(10.0, (double)precision);
    double scaled = x * scale;
    double rounded = (common ? rint(scaled) : up ? ceil(scaled) : floor(scaled)) / scale;
    return common && value_is_integral(self) ? value_int((int64_t)rounded) : value_float(rounded);
}

static struct value filter_tojson(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    /* arguments: ensure_ascii, indent, separators, sort_keys */
    (void)args;
    struct json_style style = {
        .indent = -1, .item_separator = {", ", 2, 2, NULL}, .key_separator = {": ", 2, 2, NULL}};
    style.ensure_ascii = value_truth(argv[0]);
    style.sort_keys = value_truth(argv[3]);
    if (argv[1].type != VALUE_UNSET && argv[1].type != VALUE_NONE) {
        bool is_text = value_is_text(argv[1]);
        int64_t indent = is_text ? 0 : builtin_arg_integer(in, argv[1], 0, "indent");
        style.indent_text = is_text ? argv[1].u.text : NULL;
        style.indent = (int)(indent < 0 ? 0 : indent > 1000 ? 1000 : indent);
        style.item_separator = (struct text){",", 1, 1, NULL};
    }
    if (argv[2].type != VALUE_UNSET && argv[2].type != VALUE_NONE) {
        struct list *pair = value_to_list(in, argv[2]);
        if (!pair || pair->n != 2 || pair->items[0].type != VALUE_STRING ||
            pair->items[1].type != VALUE_STRING)
            return interp_fail(in, "separators must be a pair of strings");
        style.item_separator = *pair->items[0].u.text;
        style.key_separator = *pair->items[1].u.text;
    }
    size_t mark = interp_capture_begin(in);
    value_write_json(in, self, &style);
    return interp_capture_end(in, mark);
}

static struct value filter_default(struct interp *in, struct value self, const struct value *argv,
                                   args_in args)
{
    (void)args;
    if (!value_is_undefined(self) && !(value_truth(argv[1]) && !value_truth(self)))
        return self;
    return argv[0].type == VALUE_UNSET ? text_new(in, "", 0) : argv[0];
}

const struct builtin text_filters[] = {
    {"trim", filter_trim, "chars", 0},
    {"upper", filter_upper, "", 0},
    {"lower", filter_lower, "", 0},
    {"capitalize", filter_capitalize, "", 0},
    {"title", filter_title, "", 0},
    {"replace", filter_replace, "old,new,count", 2},
    {"string", filter_string, "", 0},
    {"safe", filter_safe, "", 0},
    {"escape", filter_escape, "", 0},
    {"e", filter_escape, "", 0},
    {"forceescape", filter_forceescape, "", 0},
    {"indent", filter_indent, "width,first,blank", 0},
    {"center", filter_center, "width", 0},
    {"format", filter_format, NULL, 0},
    {"truncate", filter_truncate, "length,killwords,end,leeway", 0},
    {"wordcount", filter_wordcount, "", 0},
    {"urlencode", filter_urlencode, "", 0},
    {"int", filter_int, "default,base", 0},
    {"float", filter_float, "default", 0},
    {"abs", filter_abs, "", 0},
    {"round", filter_round, "precision,method", 0},
    {"tojson", filter_tojson, "ensure_ascii,indent,separators,sort_keys", 0},
    {"default", filter_default, "default_value,boolean", 0},
    {"d", filter_default, "default_value,boolean", 0},
    {NULL, NULL, NULL, 0},
};
