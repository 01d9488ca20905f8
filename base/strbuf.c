#include "base/strbuf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_init(struct strbuf *buf, size_t limit_bytes)
{
    *buf = (struct strbuf){.limit = limit_bytes};
}

void strbuf_fini(struct strbuf *buf)
{
    free(buf->data);
    *buf = (struct strbuf){0};
}

void strbuf_clear(struct strbuf *buf)
{
    buf->n_bytes = 0;
    buf->failed = false;
    if (buf->data)
        buf->data[0] = '\0';
}

static bool grow(struct strbuf *buf, size_t extra)
{
    if (buf->failed || extra > SIZE_MAX / 4 || (buf->limit && buf->n_bytes + extra > buf->limit)) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->n_bytes + extra + 1;
    if (need <= buf->capacity)
        return true;
    size_t capacity = buf->capacity ? buf->capacity * 2 : 64;
    if (capacity < need)
        capacity = need;
    if (buf->limit && capacity > buf->limit)
        capacity = buf->limit + 1;
    char *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

bool strbuf_add(struct strbuf *buf, const void *bytes, size_t n_bytes)
{
    bool fits = !buf->failed && n_bytes < buf->capacity - buf->n_bytes;
    if (!fits && !grow(buf, n_bytes))
        return false;
    if (n_bytes)
        memcpy(buf->data + buf->n_bytes, bytes, n_bytes);
    buf->n_bytes += n_bytes;
    buf->data[buf->n_bytes] = '\0';
    return true;
}

bool strbuf_add_number(struct strbuf *buf, uint64_t number)
{
    char digits[20];
    size_t at = sizeof(digits);
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    return strbuf_add(buf, digits + at, sizeof(digits) - at);
}

bool strbuf_vprintf(struct strbuf *buf, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    size_t room = buf->failed || !buf->data ? 0 : buf->capacity - buf->n_bytes;
    int n = vsnprintf(room ? buf->data + buf->n_bytes : NULL, room, format, args);
    bool fits = n >= 0 && (size_t)n < room; /* most texts: they are formatted once */
    bool ok = n >= 0 && grow(buf, (size_t)n);
    if (ok && !fits)
        vsnprintf(buf->data + buf->n_bytes, (size_t)n + 1, format, again);
    if (ok)
        buf->n_bytes += (size_t)n;
    else if (room)
        buf->data[buf->n_bytes] = '\0';
    va_end(again);
    return ok;
}

bool strbuf_printf(struct strbuf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool ok = strbuf_vprintf(buf, format, args);
    va_end(args);
    return ok;
}

void strbuf_consume(struct strbuf *buf, size_t n_bytes)
{
    if (n_bytes > buf->n_bytes)
        n_bytes = buf->n_bytes;
    if (!n_bytes)
        return;
    memmove(buf->data, buf->data + n_bytes, buf->n_bytes - n_bytes + 1);
    buf->n_bytes -= n_bytes;
}

const char *strbuf_str(const struct strbuf *buf)
{
    return buf->data ? buf->data : "";
}

char *strbuf_take(struct strbuf *buf)
{
    char *data = NULL;
    if (!buf->failed && grow(buf, 0)) {
        data = buf->data;
        data[buf->n_bytes] = '\0';
        buf->data = NULL;
    }
    strbuf_fini(buf);
    return data;
}

bool strbuf_failed(const struct strbuf *buf)
{
    return buf->failed;
}
