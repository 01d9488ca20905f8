#include "proto/http/http_head.h"

#include <string.h>
#include <strings.h>

enum { MAX_LENGTH_DIGITS = 18 };

/* The parser's place in the head. `end` is the byte after the last CRLF. */
struct cursor {
    char *at, *end;
};

static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

enum http_head_end http_head_find_end(const char *bytes, size_t n_bytes, size_t *scanned)
{
    size_t at = *scanned;
    while (at < n_bytes) {
        const char *lf = memchr(bytes + at, '\n', n_bytes - at);
        if (lf == NULL) {
            *scanned = n_bytes;
            return HTTP_HEAD_PART;
        }
        size_t end = (size_t)(lf - bytes) + 1;
        if (end < 2 || bytes[end - 2] != '\r')
            return HTTP_HEAD_BROKEN;
        at = end;
        if (end >= 4 && bytes[end - 3] == '\n') {
            *scanned = end;
            return HTTP_HEAD_WHOLE;
        }
    }
    *scanned = at;
    return HTTP_HEAD_PART;
}

/* Returns the next line, and ends it with a NUL in place of its CRLF. NULL for a CR inside. */
static char *next_line(struct cursor *cursor)
{
    char *line = cursor->at;
    char *cr = memchr(line, '\r', (size_t)(cursor->end - line));
    if (cr == NULL || cr + 1 >= cursor->end || cr[1] != '\n')
        return NULL;
    *cr = '\0';
    cursor->at = cr + 2;
    return line;
}

static unsigned refuse(unsigned status, const char *why, const char **out_why)
{
    *out_why = why;
    return status;
}

/* --- the request line --- */

static enum http_method method_of(const char *name)
{
    static const struct {
        const char *name;
        enum http_method method;
    } rows[] = {
        {"GET", HTTP_GET}, {"HEAD", HTTP_HEAD}, {"POST", HTTP_POST}, {"OPTIONS", HTTP_OPTIONS}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].method;
    return HTTP_OTHER;
}

static bool is_host(const char *value)
{
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p <= 0x20 || strchr("/?#@\\,\"<>", *p) != NULL)
            return false;
    return true;
}

/* True if a path and query have only allowed bytes and whole percent escapes. */
static bool is_target(const char *text)
{
    for (const char *p = text; *p; p++) {
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7F || *p == '#')
            return false;
        if (*p == '%' && (!is_hex(p[1]) || !is_hex(p[2])))
            return false;
    }
    return true;
}

/* Keeps the authority of an absolute form as Host: http_head_header() then finds no received Host
 * (RFC 9112, section 3.2.2). `at` follows the scheme's slashes, so there is a byte before it. */
static unsigned take_authority(char *at, size_t n, struct http_head *head, const char **out_why)
{
    memmove(at - 1, at, n);
    at[n - 1] = '\0';
    head->headers[head->n_headers++] = (struct http_header){"host", at - 1};
    return is_host(at - 1) ? 0 : refuse(400, "the request target is no URL of a host", out_why);
}

/* Splits the target into path and query. */
static unsigned parse_target(char *target, struct http_head *head, const char **out_why)
{
    static const char bad[] = "the request target is not valid: send a path that begins with /";
    if (strcmp(target, "*") == 0 && head->method == HTTP_OPTIONS) {
        head->path = target;
        return 0;
    }
    if (!is_target(target))
        return refuse(400, bad, out_why);
    if (target[0] != '/') {
        char *rest = strncasecmp(target, "http://", 7) == 0    ? target + 7
                     : strncasecmp(target, "https://", 8) == 0 ? target + 8
                                                               : NULL;
        if (rest == NULL || *rest == '/' || *rest == '?' || *rest == '\0')
            return refuse(400, bad, out_why);
        target = rest + strcspn(rest, "/?");
        unsigned status = take_authority(rest, (size_t)(target - rest), head, out_why);
        if (status || *target != '/') { /* the path may be empty */
            head->path = "/";
            head->query = *target ? target + 1 : "";
            return status;
        }
    }
    head->path = target;
    char *query = strchr(target, '?');
    if (query != NULL) {
        *query = '\0';
        head->query = query + 1;
    }
    return 0;
}

static unsigned parse_version(const char *text, struct http_head *head, const char **out_why)
{
    bool has_form = strncmp(text, "HTTP/", 5) == 0 && text[5] >= '0' && text[5] <= '9' &&
                    text[6] == '.' && text[7] >= '0' && text[7] <= '9' && text[8] == '\0';
    if (!has_form)
        return refuse(400, "the request line does not end with HTTP/1.1", out_why);
    if (text[5] != '1' || text[7] > '1')
        return refuse(505, "this server speaks HTTP/1.0 and HTTP/1.1", out_why);
    head->is_1_0 = text[7] == '0';
    head->keeps_open = !head->is_1_0;
    return 0;
}

static unsigned parse_request_line(char *line, struct http_head *head, const char **out_why)
{
    char *space = strchr(line, ' ');
    char *last = space ? strchr(space + 1, ' ') : NULL;
    if (last == NULL || space == line || last == space + 1)
        return refuse(400, "the request line is not METHOD TARGET HTTP/1.1", out_why);
    *space = *last = '\0';
    for (const char *p = line; *p; p++)
        if (!is_token_char((unsigned char)*p))
            return refuse(400, "the method is not a token", out_why);
    head->method = method_of(line);
    unsigned status = parse_version(last + 1, head, out_why);
    return status ? status : parse_target(space + 1, head, out_why);
}

/* --- headers --- */

/* Splits a line into name and value. The name becomes lower case. */
static unsigned parse_header(char *line, struct http_header *header, const char **out_why)
{
    char *p = line;
    for (; is_token_char((unsigned char)*p); p++)
        if (*p >= 'A' && *p <= 'Z')
            *p = (char)(*p - 'A' + 'a');
    if (p == line || *p != ':')
        return refuse(400, "a header is not NAME: VALUE", out_why);
    *p++ = '\0';
    p += strspn(p, " \t");
    char *end = p + strlen(p);
    while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *end = '\0';
    for (const unsigned char *c = (const unsigned char *)p; *c; c++)
        if ((*c < 0x20 && *c != '\t') || *c == 0x7F)
            return refuse(400, "a header has a control character", out_why);
    *header = (struct http_header){line, p};
    return 0;
}

/* The facts about framing that are gathered over all headers. */
struct framing {
    uint32_t n_hosts, n_lengths, n_codings;
};

static unsigned take_length(const char *value, struct http_head *head, const char **out_why)
{
    size_t n = strspn(value, "0123456789");
    if (n == 0 || value[n] != '\0')
        return refuse(400, "Content-Length is not a number of bytes", out_why);
    if (n > MAX_LENGTH_DIGITS)
        return refuse(413, "Content-Length is over the limit", out_why);
    for (const char *p = value; *p; p++)
        head->n_body = head->n_body * 10 + (uint64_t)(*p - '0');
    return 0;
}

static unsigned take_header(const struct http_header *header, struct framing *framing,
                            struct http_head *head, const char **out_why)
{
    const char *name = header->name, *value = header->value;
    if (strcmp(name, "host") == 0) {
        framing->n_hosts++;
        return is_host(value) ? 0 : refuse(400, "Host is not a host", out_why);
    }
    if (strcmp(name, "content-length") == 0) {
        framing->n_lengths++;
        head->n_body = 0;
        return take_length(value, head, out_why);
    }
    if (strcmp(name, "transfer-encoding") == 0) {
        if (framing->n_codings++ > 0)
            return refuse(400, "Transfer-Encoding is given more than once", out_why);
        head->is_chunked = true;
        if (strcasecmp(value, "chunked") == 0)
            return 0;
        /* Nothing may follow the chunks; other codings are not built. */
        return strncasecmp(value, "chunked", 7) == 0
                   ? refuse(400, "Transfer-Encoding goes on after chunked", out_why)
                   : refuse(501, "Transfer-Encoding is not chunked", out_why);
    }
    if (strcmp(name, "connection") == 0) {
        if (http_head_list_has(value, "close"))
            head->keeps_open = false;
        else if (head->is_1_0 && http_head_list_has(value, "keep-alive"))
            head->keeps_open = true;
    }
    if (strcmp(name, "expect") == 0) {
        if (strcasecmp(value, "100-continue") != 0)
            return refuse(417, "Expect is not 100-continue", out_why);
        head->expects_continue = !head->is_1_0;
    }
    return 0;
}

static unsigned check_framing(const struct framing *framing, const struct http_head *head,
                              const char **out_why)
{
    if (framing->n_hosts > 1 || (!head->is_1_0 && framing->n_hosts == 0))
        return refuse(400, "the request needs exactly one Host", out_why);
    if (framing->n_lengths > 1)
        return refuse(400, "Content-Length is given more than once", out_why);
    if (framing->n_codings && framing->n_lengths)
        return refuse(400, "Content-Length and Transfer-Encoding exclude each other", out_why);
    if (framing->n_codings && head->is_1_0)
        return refuse(400, "HTTP/1.0 has no Transfer-Encoding", out_why);
    return 0;
}

unsigned http_head_parse(char *bytes, size_t n_bytes, struct http_head *out_head,
                         const char **out_why)
{
    struct cursor cursor = {bytes, bytes + n_bytes};
    struct framing framing = {0};
    struct http_head *head = out_head;
    *head = (struct http_head){.query = ""};
    if (memchr(bytes, '\0', n_bytes) != NULL)
        return refuse(400, "the head has a NUL", out_why);
    char *line = next_line(&cursor);
    while (line != NULL && *line == '\0' && cursor.at < cursor.end)
        line = next_line(&cursor);
    if (line == NULL)
        return refuse(400, "a line has a CR inside", out_why);
    unsigned status = parse_request_line(line, head, out_why);
    while (!status) {
        line = next_line(&cursor);
        if (line == NULL)
            return refuse(400, "a line has a CR inside", out_why);
        if (*line == '\0')
            break;
        if (*line == ' ' || *line == '\t')
            return refuse(400, "a header is folded over two lines", out_why);
        if (head->n_headers == HTTP_MAX_HEADERS)
            return refuse(431, "the request has too many headers", out_why);
        struct http_header *header = &head->headers[head->n_headers++];
        status = parse_header(line, header, out_why);
        if (!status)
            status = take_header(header, &framing, head, out_why);
    }
    return status ? status : check_framing(&framing, head, out_why);
}

const char *http_head_header(const struct http_head *head, const char *name)
{
    for (uint32_t i = 0; i < head->n_headers; i++)
        if (strcmp(head->headers[i].name, name) == 0)
            return head->headers[i].value;
    return NULL;
}

bool http_head_list_has(const char *list, const char *element)
{
    size_t n_element = strlen(element);
    while (*list) {
        list += strspn(list, " \t,");
        size_t n = strcspn(list, ",");
        size_t n_text = n;
        while (n_text > 0 && (list[n_text - 1] == ' ' || list[n_text - 1] == '\t'))
            n_text--;
        if (n_text == n_element && strncasecmp(list, element, n_text) == 0)
            return true;
        list += n;
    }
    return false;
}
