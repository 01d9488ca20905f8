/* Global functions. */
#include <string.h>
#include <time.h>

#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

typedef const struct args *args_in;

static struct value fn_range(struct interp *in, struct value self, const struct value *argv,
                             args_in args)
{
    (void)self, (void)args;
    bool one = argv[1].type == VALUE_UNSET;
    int64_t first = builtin_arg_integer(in, argv[0], 0, "start");
    int64_t start = one ? 0 : first,
            stop = one ? first : builtin_arg_integer(in, argv[1], 0, "stop");
    int64_t step = builtin_arg_integer(in, argv[2], 1, "step");
    struct range *range = interp_alloc(in, 1, sizeof(*range));
    if (!range)
        return self;
    if (!step || step == INT64_MIN)
        return interp_fail(in, "step must not be %lld", (long long)step);
    uint64_t span = 0;
    if (step > 0 && stop > start)
        span = (uint64_t)stop - (uint64_t)start;
    if (step < 0 && stop < start)
        span = (uint64_t)start - (uint64_t)stop;
    uint64_t size = (uint64_t)(step > 0 ? step : -step);
    *range = (struct range){start, stop, step, span ? (span - 1) / size + 1 : 0};
    if (range->n > INT64_MAX)
        return interp_fail(in, "has too many items");
    return (struct value){.type = VALUE_RANGE, .u.range = range};
}

/* dict(...) and namespace(...) take a mapping or pairs, then keywords. */
static struct dict *dict_from_args(struct interp *in, args_in args)
{
    struct dict *dict = dict_new(in);
    if (args->n_positional > 1) {
        interp_fail(in, "takes at most 1 positional argument");
        return NULL;
    }
    struct value from = args->n_positional ? args->positional[0] : value_undefined(NULL, 0);
    struct cursor cursor;
    struct value item;
    for (size_t i = 0; from.type == VALUE_DICT && i < from.u.dict->n; i++)
        if (!dict_set(in, dict, from.u.dict->entries[i].key, from.u.dict->entries[i].value))
            return NULL;
    if (from.type != VALUE_DICT && cursor_open(in, from, &cursor))
        while (cursor_next(in, &cursor, &item)) {
            struct list *pair = value_to_list(in, item);
            if (!pair)
                return NULL;
            if (pair->n != 2)
                interp_fail(in, "needs pairs");
            if (in->failed || !dict_set(in, dict, pair->items[0], pair->items[1]))
                return NULL;
        }
    for (size_t i = 0; i < args->n_keywords && interp_ok(in); i++)
        dict_set(in, dict, value_text(args->keywords[i].name), args->keywords[i].value);
    return interp_ok(in) ? dict : NULL;
}

static struct value fn_dict(struct interp *in, struct value self, const struct value *argv,
                            args_in args)
{
    (void)argv;
    struct dict *dict = dict_from_args(in, args);
    return dict ? value_dict(dict) : self;
}

static struct value fn_namespace(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)argv;
    struct dict *dict = dict_from_args(in, args);
    for (size_t i = 0; dict && i < dict->n; i++) {
        struct value key = dict->entries[i].key;
        if (value_is_text(key) && key.u.text->n_bytes && key.u.text->data[0] == '_')
            return interp_fail(in, "takes no attribute whose name begins with '_'");
    }
    return dict ? (struct value){.type = VALUE_NAMESPACE, .u.dict = dict} : self;
}

static struct value fn_cycler(struct interp *in, struct value self, const struct value *argv,
                              args_in args)
{
    (void)argv;
    struct list *list = list_new(in, args->n_positional);
    if (!args->n_positional)
        return interp_fail(in, "needs at least one item");
    for (size_t i = 0; i < args->n_positional; i++)
        list_add(in, list, args->positional[i]);
    return in->failed ? self : value_list(VALUE_CYCLER, list);
}

static struct value fn_joiner(struct interp *in, struct value self, const struct value *argv,
                              args_in args)
{
    (void)args;
    struct joiner *joiner = interp_alloc(in, 1, sizeof(*joiner));
    if (!joiner)
        return self;
    joiner->separator = argv[0].type == VALUE_UNSET ? text_new(in, ", ", 2) : argv[0];
    return (struct value){.type = VALUE_JOINER, .u.joiner = joiner};
}

static struct value fn_raise_exception(struct interp *in, struct value self,
                                       const struct value *argv, args_in args)
{
    (void)self, (void)args;
    const struct text *text = value_to_text(in, argv[0]);
    if (in->failed)
        return self;
    in->construct = "raise_exception";
    char words[400];
    size_t n = text->n_bytes < sizeof(words) ? text->n_bytes : sizeof(words);
    /* messages cannot contain NUL: U+001A instead, as in generated text */
    for (size_t i = 0; i < n; i++)
        words[i] = text->data[i] ? text->data[i] : 0x1A;
    interp_fail(in, "%.*s", (int)n, words);
    error_reason(in->err, REASON_TEMPLATE_REFUSED);
    return self;
}

static struct value format_time(struct interp *in, const struct text *format)
{
    enum { MAX_TIME_TEXT = 4096 };
    char pattern[512], out[MAX_TIME_TEXT];
    size_t n = 0;
    for (size_t i = 0; i < format->n_bytes; i++) {
        char ch = format->data[i], next = i + 1 < format->n_bytes ? format->data[i + 1] : 0;
        if (n + 8 >= sizeof(pattern) || !ch)
            return interp_fail(in, "format is over 500 bytes or holds a NUL");
        if (ch != '%') {
            pattern[n++] = ch;
        } else if (next == 'f') { /* microseconds, unknown to C's strftime */
            memcpy(pattern + n, "000000", 6);
            n += 6;
            i++;
        } else if (next == 'z' ||
                   next == 'Z') { /* datetime.now() has no zone: nothing is printed */
            i++;
        } else if (next && strchr("aAwdbBmyYHIMSpjUWcxXGuVDFTRhenrtCgs%-", next)) {
            pattern[n++] = ch;
            pattern[n++] = next;
            i++;
        } else {
            return interp_fail(in, "unknown conversion in the format");
        }
    }
    pattern[n] = '\0';
    time_t now = (time_t)in->now_unix_s;
    struct tm utc;
    if (!gmtime_r(&now, &utc))
        return interp_fail(in, "time is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n_bytes = n ? strftime(out, sizeof(out), pattern, &utc) : 0;
#pragma GCC diagnostic pop
    return text_new(in, out, n_bytes);
}

static struct value fn_strftime_now(struct interp *in, struct value self, const struct value *argv,
                                    args_in args)
{
    (void)args;
    const struct text *format = builtin_arg_text(in, argv[0], "format");
    return in->failed ? self : format_time(in, format);
}

static const struct builtin globals[] = {
    {"range", fn_range, "start,stop,step", 1},
    {"dict", fn_dict, NULL, 0},
    {"namespace", fn_namespace, NULL, 0},
    {"cycler", fn_cycler, NULL, 0},
    {"joiner", fn_joiner, "sep", 0},
    {"raise_exception", fn_raise_exception, "message", 1},
    {"strftime_now", fn_strftime_now, "format", 1},
};

const struct builtin *builtin_global(const struct text *name)
{
    for (size_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++)
        if (text_equal_str(name, globals[i].name))
            return &globals[i];
    return NULL;
}
