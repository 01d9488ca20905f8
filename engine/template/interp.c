#include "engine/template/interp.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/chat_template.h"

/* Captures may hold more than the final text may: they are trimmed, replaced in and thrown away. */
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

/* A limit is a reason of its own; memory that the system does not give is none. */
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
        error_reason(in->err, "TEMPLATE_LIMIT");
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

size_t capture_begin(struct interp *in)
{
    in->n_captures++;
    return in->out.n_bytes;
}

struct value capture_end(struct interp *in, size_t mark)
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

/* The length of the first name in a comma-separated list. */
static size_t name_length(const char *params)
{
    return strcspn(params, ",");
}

static bool bind_keyword(struct interp *in, const struct builtin *builtin,
                         const struct keyword *keyword, struct value *argv)
{
    const char *param = builtin->params;
    for (size_t i = 0; *param; i++) {
        size_t n = name_length(param);
        if (keyword->name->n_bytes == n && !memcmp(keyword->name->data, param, n)) {
            if (argv[i].type != VALUE_UNSET)
                interp_fail(in, "got multiple values for argument '%.*s'", (int)n, param);
            argv[i] = keyword->value;
            return interp_ok(in);
        }
        param += n + (param[n] == ',');
    }
    interp_fail(in, "got an unexpected keyword argument '%.*s'",
                (int)(keyword->name->n_bytes > 40 ? 40 : keyword->name->n_bytes),
                keyword->name->data);
    return false;
}

enum { MAX_BUILTIN_PARAMS = 8 };

static struct value call_bound(struct interp *in, const struct builtin *builtin, struct value self,
                               const struct args *args)
{
    struct value argv[MAX_BUILTIN_PARAMS] = {{0}};
    size_t n_params = 0;
    for (const char *param = builtin->params; *param; n_params++) {
        size_t n = name_length(param);
        param += n + (param[n] == ',');
    }
    if (args->n_positional > n_params)
        return interp_fail(in, "takes at most %zu arguments, got %zu", n_params,
                           args->n_positional);
    for (size_t i = 0; i < args->n_positional; i++)
        argv[i] = args->positional[i];
    for (size_t i = 0; i < args->n_keywords; i++)
        if (!bind_keyword(in, builtin, &args->keywords[i], argv))
            return value_of_type(VALUE_UNSET);
    for (size_t i = 0; i < builtin->n_required; i++)
        if (argv[i].type == VALUE_UNSET)
            return interp_fail(in, "needs %u arguments", builtin->n_required);
    return builtin->fn(in, self, argv, args);
}

struct value builtin_call(struct interp *in, const struct builtin *builtin, const char *kind,
                          struct value self, const struct args *args)
{
    if (!interp_step(in, 1))
        return value_of_type(VALUE_UNSET);
    if (in->eval_depth >= MAX_EVAL_DEPTH) /* map('map', 'map', ...) nests without any node */
        return interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED,
                                  "evaluation is nested deeper than %d levels", MAX_EVAL_DEPTH);
    in->eval_depth++;
    snprintf(in->construct_text, sizeof(in->construct_text), "%s '%.40s'", kind, builtin->name);
    in->construct = in->construct_text;
    struct value result =
        builtin->params ? call_bound(in, builtin, self, args) : builtin->fn(in, self, NULL, args);
    in->construct = "";
    in->eval_depth--;
    return in->failed ? value_of_type(VALUE_UNSET) : result;
}
