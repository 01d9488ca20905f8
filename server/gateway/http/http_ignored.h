/* http_ignored.h: the names of a request's fields without effect, which the header X-Sluice-Ignored
 * has. Plain functions; any thread. */
#pragma once

#include <stddef.h>

struct strbuf;

/* Bytes that http_ignored_header needs. */
enum { HTTP_IGNORED_HEADER_BYTES = 448 };

/* Adds a name to a list between commas, unless the list has the name. The name becomes printable
 * ASCII without commas. A list that would be too long ends with "...". */
void http_ignored_add(struct strbuf *names, const char *name);
/* Writes the header line with its CRLF; an empty text without names. */
void http_ignored_header(const struct strbuf *names, char *out_line, size_t n_line);
