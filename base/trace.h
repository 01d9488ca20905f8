/* trace.h: W3C trace context (Recommendation of 2021-11-23, level 1). Parses the `traceparent` of a
 * request strictly and formats it for the next process. An invalid header counts as absent: the
 * request then starts its own trace, not sampled. Plain data, any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { TRACE_ID_CHARS = 32, TRACE_SPAN_CHARS = 16, TRACE_PARENT_CHARS = 55 };

struct trace_context {
    char trace_id[TRACE_ID_CHARS + 1];      /* lower-case hex, like parent_span and span */
    char parent_span[TRACE_SPAN_CHARS + 1]; /* the caller's span; empty if the trace starts here */
    char span[TRACE_SPAN_CHARS + 1];        /* the span of this request */
    bool sampled;
};

/* Returns false, output untouched, unless the n_bytes at `text` are a valid traceparent. Leaves
 * `span` empty. */
bool trace_parse(const char *text, size_t n_bytes, struct trace_context *out_context);

/* Fills the context of a request whose traceparent is `text` (NULL: none). A valid traceparent
 * continues that trace in a new span; otherwise a new trace starts. */
void trace_accept(const char *text, size_t n_bytes, struct trace_context *out_context);

/* Formats the traceparent to send on: trace_id, with `span` as the parent. */
void trace_format(const struct trace_context *context, char out[TRACE_PARENT_CHARS + 1]);
