#include "clients/cli/http/http_url.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

static int bad(const char *text, const char *rule, struct error *err)
{
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "\"%.120s\": %s; write for example http://127.0.0.1:8000/v1", text, rule);
}

static bool is_plain(const char *text)
{
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7F || strchr("\\\"<>^`{|}", *p))
            return false;
    return true;
}

/* Copies the host of "HOST", "HOST:PORT" or "[IPV6]:PORT", and returns the rest. NULL: no host. */
static const char *read_host(const char *at, const char *end, struct http_url *out)
{
    bool is_six = *at == '[';
    const char *begin = at + is_six;
    const char *stop = memchr(begin, is_six ? ']' : ':', (size_t)(end - begin));
    if (is_six && !stop)
        return NULL;
    if (!stop)
        stop = end;
    size_t n = (size_t)(stop - begin);
    struct in6_addr six;
    if (n == 0 || n >= sizeof(out->host))
        return NULL;
    snprintf(out->host, sizeof(out->host), "%.*s", (int)n, begin);
    if (is_six && inet_pton(AF_INET6, out->host, &six) != 1)
        return NULL;
    return stop + is_six;
}

static bool read_port(const char *at, const char *end, struct http_url *out)
{
    snprintf(out->port, sizeof(out->port), "%s", out->is_tls ? "443" : "80");
    if (at == end)
        return true;
    size_t n = (size_t)(end - at) - 1;
    if (*at != ':' || n == 0 || n > 5 || strspn(at + 1, "0123456789") < n)
        return false;
    snprintf(out->port, sizeof(out->port), "%.*s", (int)n, at + 1);
    unsigned long port = strtoul(out->port, NULL, 10);
    return port >= 1 && port <= 65535;
}

int http_url_parse(const char *text, struct http_url *out, struct error *err)
{
    struct http_url url = {.is_tls = strncasecmp(text, "https://", 8) == 0};
    if (!url.is_tls && strncasecmp(text, "http://", 7) != 0)
        return bad(text, "the URL begins neither with http:// nor with https://", err);
    const char *at = text + (url.is_tls ? 8 : 7);
    const char *end = at + strcspn(at, "/?#");
    size_t n_path = strlen(end);
    if (!is_plain(text))
        return bad(text, "the URL has a character that URLs do not have", err);
    if (memchr(at, '@', (size_t)(end - at)))
        return bad(text, "the URL has a user or a password; give a key with --api-key-file", err);
    if (end[strcspn(end, "?#")])
        return bad(text, "the URL has a query or a fragment", err);
    const char *port = read_host(at, end, &url);
    if (!port)
        return bad(text, "the URL has no valid host", err);
    if (!read_port(port, end, &url))
        return bad(text, "the port is no number from 1 to 65535", err);
    while (n_path && end[n_path - 1] == '/')
        n_path--;
    if (n_path >= sizeof(url.base))
        return bad(text, "the path is too long", err);
    snprintf(url.base, sizeof(url.base), "%.*s", (int)n_path, end);
    if (n_path == 0)
        snprintf(url.base, sizeof(url.base), "/v1");
    bool is_six = strchr(url.host, ':') != NULL;
    snprintf(url.authority, sizeof(url.authority), "%s%s%s%s%s", is_six ? "[" : "", url.host,
             is_six ? "]" : "", port == end ? "" : ":", port == end ? "" : url.port);
    *out = url;
    return 0;
}

bool http_url_is_local(const struct http_url *url)
{
    struct in_addr four;
    struct in6_addr six;
    if (strcasecmp(url->host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, url->host, &four) == 1)
        return (ntohl(four.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, url->host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}
