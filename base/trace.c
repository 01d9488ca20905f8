#include "base/trace.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"

/* version "-" trace-id "-" parent-id "-" flags */
enum { AT_TRACE = 3, AT_PARENT = 36, AT_FLAGS = 53, FLAG_SAMPLED = 1 };

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool all_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (hex_digit(text[i]) < 0)
            return false;
    return true;
}

static bool all_zero(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != '0')
            return false;
    return true;
}

bool trace_parse(const char *text, size_t n_bytes, struct trace_context *out_context)
{
    if (!text || n_bytes < TRACE_PARENT_CHARS || text[2] != '-' || text[AT_PARENT - 1] != '-' ||
        text[AT_FLAGS - 1] != '-')
        return false;
    if (!all_hex(text, 2) || !all_hex(text + AT_TRACE, TRACE_ID_CHARS) ||
        !all_hex(text + AT_PARENT, TRACE_SPAN_CHARS) || !all_hex(text + AT_FLAGS, 2))
        return false;
    if (all_zero(text + AT_TRACE, TRACE_ID_CHARS) || all_zero(text + AT_PARENT, TRACE_SPAN_CHARS))
        return false;
    bool first = text[0] == '0' && text[1] == '0';
    bool never = text[0] == 'f' && text[1] == 'f';
    /* A later version may have more fields after another dash; version 00 ends here. */
    if (never || (n_bytes > TRACE_PARENT_CHARS && (first || text[TRACE_PARENT_CHARS] != '-')))
        return false;
    memset(out_context, 0, sizeof(*out_context));
    memcpy(out_context->trace_id, text + AT_TRACE, TRACE_ID_CHARS);
    memcpy(out_context->parent_span, text + AT_PARENT, TRACE_SPAN_CHARS);
    out_context->sampled = hex_digit(text[AT_FLAGS + 1]) & FLAG_SAMPLED;
    return true;
}

/* Draws a random id; an id of all zeros is invalid. */
static uint64_t random_id(void)
{
    uint64_t n;
    do
        n = rng_u64();
    while (!n);
    return n;
}

void trace_accept(const char *text, size_t n_bytes, struct trace_context *out_context)
{
    if (!trace_parse(text, n_bytes, out_context)) {
        memset(out_context, 0, sizeof(*out_context));
        snprintf(out_context->trace_id, sizeof(out_context->trace_id), "%016" PRIx64 "%016" PRIx64,
                 random_id(), random_id());
    }
    snprintf(out_context->span, sizeof(out_context->span), "%016" PRIx64, random_id());
}

void trace_format(const struct trace_context *context, char out[TRACE_PARENT_CHARS + 1])
{
    snprintf(out, TRACE_PARENT_CHARS + 1, "00-%s-%s-%02x", context->trace_id, context->span,
             context->sampled ? FLAG_SAMPLED : 0);
}
