#include "engine/template/value/interp.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

/* Captures may be larger than the final text, because templates trim, replace or discard them. */
enum { BUFFERS = 4 };

void interp_init(struct interp *in, const struct chat_template_limits *limits, struct error *err)
{
    *in = (struct interp){.limits = *limits, .construct = "", .err = err};
    if (!in->limits.max_steps)
        in->limits.max_steps = CHAT_TEMPLATE_MAX_STEPS;
    if (!in->limits.max_output_bytes)
        in->limits.max_output_bytes = CHAT_TEMPLATE_MAX_OUTPUT_BYTES;
    in->steps_left = in->limits.max_steps;
    arena_init(&in->arena, 64 * 1024, CHAT_TEMPLATE_MAX_MEMORY_BYTES);
    strbuf_init(&in->out, BUFFERS * in->limits.max_output_bytes);
}

void interp_fini(struct interp *in)
{
    arena_fini(&in->arena);
    strbuf_fini(&in->out);
}

/* Records the first failure. Sets the error reason TEMPLATE_LIMIT if a limit is exceeded, but not
 * if system memory is exhausted. */
__attribute__((format(printf, 3, 0))) static void fail_va(struct interp *in, int status,
                                                          const char *format, va_list args)
{
    if (in->failed)
        return;
    in->failed = true;
    char text[ERROR_MESSAGE_BYTES];
    vsnprintf(text, sizeof(text), format, args);
    if (in->line)
        error_set(in->err, status, "chat template, line %u: %s%s%s", in->line, in->construct,
                  *in->construct ? ": " : "", text);
    else
        error_set(in->err, status, "chat template: %s", text);
    if (status == STATUS_RESOURCE_EXHAUSTED && !in->out_of_memory)
        error_reason(in->err, REASON_TEMPLATE_LIMIT);
}

struct value interp_fail(struct interp *in, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_va(in, STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    return value_of_type(VALUE_UNSET);
}

struct value interp_fail_status(struct interp *in, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_va(in, status, format, args);
    va_end(args);
    return value_of_type(VALUE_UNSET);
}

struct value interp_out_of_memory(struct interp *in)
{
    in->out_of_memory |= !in->failed;
    return interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "out of memory");
}

bool interp_step(struct interp *in, uint64_t n)
{
    if (in->failed)
        return false;
    if (n > in->steps_left) {
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "takes more than %llu steps",
                           (unsigned long long)in->limits.max_steps);
        return false;
    }
    in->steps_left -= n;
    return true;
}

void *interp_alloc(struct interp *in, size_t n, size_t size)
{
    if (in->failed)
        return NULL;
    void *memory = arena_calloc(&in->arena, n, size);
    if (!memory && !arena_has_room(&in->arena, n, size))
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "values take more than %d MiB",
                           CHAT_TEMPLATE_MAX_MEMORY_BYTES / (1024 * 1024));
    else if (!memory)
        interp_out_of_memory(in);
    return memory;
}

void interp_write(struct interp *in, const char *bytes, size_t n_bytes)
{
    if (!n_bytes || !interp_step(in, n_bytes / 64))
        return;
    size_t total = in->out.n_bytes + n_bytes;
    if (!in->n_captures && total > in->limits.max_output_bytes)
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "output is over %llu bytes",
                           (unsigned long long)in->limits.max_output_bytes);
    else if (total > in->out.limit)
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "text is over %llu bytes",
                           BUFFERS * (unsigned long long)in->limits.max_output_bytes);
    else if (!strbuf_add(&in->out, bytes, n_bytes))
        interp_out_of_memory(in);
}

void interp_write_str(struct interp *in, const char *str)
{
    interp_write(in, str, strlen(str));
}

void interp_write_char(struct interp *in, uint32_t code_point)
{
    char bytes[4];
    interp_write(in, bytes, utf8_encode(code_point, bytes));
}

size_t interp_capture_begin(struct interp *in)
{
    in->n_captures++;
    return in->out.n_bytes;
}

struct value interp_capture_end(struct interp *in, size_t mark)
{
    struct value text = value_of_type(VALUE_UNSET);
    if (!in->failed)
        text = text_new(in, strbuf_str(&in->out) + mark, in->out.n_bytes - mark);
    in->out.n_bytes = mark;
    if (in->out.data)
        in->out.data[mark] = '\0';
    in->n_captures--;
    return text;
}

struct value interp_fail_undefined(struct interp *in, struct value v)
{
    const struct text *name = v.type == VALUE_UNDEFINED ? v.u.text : NULL;
    int n = name ? (int)(name->n_bytes > 80 ? 80 : name->n_bytes) : 0;
    if (!name)
        return interp_fail(in, "value is undefined");
    if (!v.aux)
        return interp_fail(in, "'%.*s' is undefined", n, name->data);
    const char *owner = value_type_name(value_of_type((enum value_type)v.aux));
    return interp_fail(in, "'%s' object has no attribute '%.*s'", owner, n, name->data);
}
