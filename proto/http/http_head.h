/* http_head.h: parses the head of an HTTP/1.1 request (RFC 9112), strictly. A proxy in front of
 * this server could read an ambiguous head as another request. Therefore such a head is refused.
 * Examples are a bare CR or LF, a folded header, a space before the colon and a control character.
 * Other examples are two lengths, a length beside chunks, and no Host or two Hosts. Pure functions
 * over the caller's bytes; any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_MAX_HEADERS = 64 };

enum http_method {
    HTTP_GET = 1,
    HTTP_HEAD = 2,
    HTTP_POST = 4,
    HTTP_OPTIONS = 8,
    HTTP_OTHER = 16, /* any other token */
};

struct http_header {
    const char *name; /* lower case */
    const char *value;
};

/* Texts point into the parsed bytes. Percent escapes stay as they were sent, so that a route
 * matches a single spelling. */
struct http_head {
    enum http_method method;
    const char *path;  /* begins with '/'; "*" for OPTIONS * */
    const char *query; /* without '?'; "" without a query */
    bool is_1_0;
    bool keeps_open;       /* the client allows another request after this one */
    bool expects_continue; /* the client waits for 100 before it sends the body */
    bool is_chunked;
    uint64_t n_body; /* Content-Length; 0 without one, and with chunks */
    uint32_t n_headers;
    struct http_header headers[HTTP_MAX_HEADERS];
};

enum http_head_end {
    HTTP_HEAD_PART, /* the empty line has not come yet */
    HTTP_HEAD_WHOLE,
    HTTP_HEAD_BROKEN, /* a line ends without CR */
};

/* Searches the empty line that ends the head. *scanned holds the progress between calls with more
 * bytes; 0 at first. For HTTP_HEAD_WHOLE the head, with the empty line, is the first *scanned
 * bytes. An empty line before the request line belongs to the head (RFC 9112, section 2.2). */
enum http_head_end http_head_find_end(const char *bytes, size_t n_bytes, size_t *scanned);

/* Parses a whole head, and writes NULs and lower case into it. Returns 0, or the status of the
 * refusal (400, 414, 417, 431, 501, 505) with a text in *out_why. */
unsigned http_head_parse(char *bytes, size_t n_bytes, struct http_head *out_head,
                         const char **out_why);

/* Returns the value of a header, by its name in lower case; NULL without one. The first value
 * counts. The host of an absolute form counts in place of the header Host. */
const char *http_head_header(const struct http_head *head, const char *name);

/* True if a comma-separated list has the element, compared without case. */
bool http_head_list_has(const char *list, const char *element);
