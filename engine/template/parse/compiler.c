#include "engine/template/parse/compiler.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"

bool compiler_fail(struct compiler *c, int status, uint32_t line, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    va_list args;
    if (c->failed)
        return false;
    c->failed = true;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    error_set(c->err, status, "chat template, line %u: %s", line, text);
    return false;
}

static void out_of_memory(struct compiler *c, uint32_t line)
{
    c->out_of_memory = true;
    compiler_fail(c, STATUS_RESOURCE_EXHAUSTED, line, "out of memory");
}

void *compiler_alloc(struct compiler *c, size_t n, size_t size, uint32_t line)
{
    if (c->failed)
        return NULL;
    void *memory = arena_calloc(c->arena, n, size);
    if (!memory && !arena_has_room(c->arena, n, size))
        compiler_fail(c, STATUS_RESOURCE_EXHAUSTED, line, "template takes more than %d MiB",
                      COMPILER_MAX_BYTES / (1024 * 1024));
    else if (!memory)
        out_of_memory(c, line);
    return memory;
}

const struct text *compiler_text(struct compiler *c, const char *data, size_t n_bytes,
                                 uint32_t line)
{
    char *copy = compiler_alloc(c, n_bytes + 1, 1, line);
    struct text *text = compiler_alloc(c, 1, sizeof(*text), line);
    if (!copy || !text)
        return NULL;
    memcpy(copy, data, n_bytes);
    *text = (struct text){copy, n_bytes, unicode_count(copy, n_bytes), NULL};
    return text;
}

const struct text *compiler_intern(struct compiler *c, const char *data, size_t n_bytes,
                                   uint32_t line)
{
    const struct text *known = hash_map_get(&c->names, data, n_bytes);
    if (known || c->failed)
        return known;
    const struct text *text = compiler_text(c, data, n_bytes, line);
    if (text && !hash_map_put(&c->names, data, n_bytes, (void *)(uintptr_t)text)) {
        out_of_memory(c, line);
        return NULL;
    }
    return text;
}
