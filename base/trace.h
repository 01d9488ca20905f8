/* trace.h: W3C trace context (Recommendation of 2021-11-23, level 1): the `traceparent` of a
 * request, read strictly, and handed on. A header that is not valid counts as absent: the request
 * then begins a trace of its own, not sampled. Plain data, any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { TRACE_ID_CHARS = 32, TRACE_SPAN_CHARS = 16, TRACE_PARENT_CHARS = 55 };

struct trace_context {
    char trace_id[TRACE_ID_CHARS + 1];      /* lower-case hex, as the two others */
    char parent_span[TRACE_SPAN_CHARS + 1]; /* the caller's span; empty: the trace begins here */
    char span[TRACE_SPAN_CHARS + 1];        /* this request's own */
    bool sampled;
};

/* False, output untouched, unless the n_bytes at `text` are a valid traceparent. span is left
 * empty. */
bool trace_parse(const char *text, size_t n_bytes, struct trace_context *out_context);

/* The context of a request that came with `text` (NULL: without): goes on with its trace in a new
 * span, or begins one. */
void trace_accept(const char *text, size_t n_bytes, struct trace_context *out_context);

/* What is sent to whoever works for this request: its trace, with its span as the parent. */
void trace_format(const struct trace_context *context, char out[TRACE_PARENT_CHARS + 1]);
