/* strbuf.h: a growing byte string, always NUL-terminated. Single-threaded. A failed append is
 * remembered: check strbuf_failed() once at the end. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct strbuf {
    char *data;      /* owned; NULL before the first append, see strbuf_str() */
    size_t n_bytes;  /* without the terminator */
    size_t capacity; /* bytes allocated; within the limit and its terminator */
    size_t limit;    /* refuse to grow past this many bytes; 0 = no limit */
    bool failed;     /* an append was dropped: out of memory or over the limit */
};

/* A zeroed struct is a valid empty buffer without limit. */
void strbuf_init(struct strbuf *buf, size_t limit_bytes);
void strbuf_fini(struct strbuf *buf);
void strbuf_clear(struct strbuf *buf); /* keeps the memory; clears `failed` */

bool strbuf_add(struct strbuf *buf, const void *bytes, size_t n_bytes);
/* Inline, so that the length of a literal is a constant. */
static inline bool strbuf_add_str(struct strbuf *buf, const char *text)
{
    return strbuf_add(buf, text, strlen(text));
}
static inline bool strbuf_add_char(struct strbuf *buf, char c)
{
    return strbuf_add(buf, &c, 1);
}
/* The number in decimal digits: several times faster than strbuf_printf. */
bool strbuf_add_number(struct strbuf *buf, uint64_t number);
bool strbuf_printf(struct strbuf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool strbuf_vprintf(struct strbuf *buf, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Removes the first n_bytes, or all bytes if there are fewer. */
void strbuf_consume(struct strbuf *buf, size_t n_bytes);

/* The text, never NULL. Borrowed until the next change. */
const char *strbuf_str(const struct strbuf *buf);
/* Hands the memory to the caller (free()) and leaves the buffer empty. NULL if an append failed. */
char *strbuf_take(struct strbuf *buf);
bool strbuf_failed(const struct strbuf *buf);
