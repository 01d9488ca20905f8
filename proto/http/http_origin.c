#include "proto/http/http_origin.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "proto/http/http_head.h"

enum { MAX_HOST = 256 };

/* Splits "HOST:PORT" or "[HOST]:PORT". False for a text of another form. */
static bool split_host(const char *text, char host[MAX_HOST])
{
    bool bracketed = text[0] == '[';
    const char *begin = text + bracketed;
    size_t n = strcspn(begin, bracketed ? "]" : ":");
    const char *rest = begin + n + (bracketed && begin[n] == ']');
    if (n == 0 || n >= MAX_HOST || (bracketed && begin[n] != ']'))
        return false;
    if (*rest != '\0' &&
        (*rest != ':' || !rest[1] || rest[1 + strspn(rest + 1, "0123456789")] != '\0'))
        return false;
    memcpy(host, begin, n);
    host[n] = '\0';
    return true;
}

static bool is_this_machine(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "::1", "0.0.0.0"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcasecmp(host, names[i]) == 0)
            return true;
    return false;
}

/* Returns the length of "http://" or "https://"; 0: another text. */
static size_t scheme_bytes(const char *origin)
{
    if (strncasecmp(origin, "http://", 7) == 0)
        return 7;
    return strncasecmp(origin, "https://", 8) == 0 ? 8 : 0;
}

bool http_origin_is_local(const char *origin)
{
    static const char *const apps[] = {"app://", "file://", "tauri://", "vscode-webview://"};
    char host[MAX_HOST];
    for (size_t i = 0; i < sizeof(apps) / sizeof(apps[0]); i++)
        if (strncasecmp(origin, apps[i], strlen(apps[i])) == 0)
            return true;
    size_t n_scheme = scheme_bytes(origin);
    return n_scheme && split_host(origin + n_scheme, host) && is_this_machine(host);
}

bool http_origin_is_listed(const char *origin, const char *list)
{
    return http_head_list_has(list, "*") || http_head_list_has(list, origin);
}

bool http_origin_is_of_host(const char *origin, const char *host)
{
    size_t n_scheme = scheme_bytes(origin);
    return n_scheme && *host && strcasecmp(origin + n_scheme, host) == 0;
}

bool http_origin_host_is_local(const char *host)
{
    static const char suffix[] = ".localhost";
    char name[MAX_HOST];
    struct in6_addr address;
    if (!split_host(host, name))
        return false;
    size_t n = strlen(name), n_suffix = sizeof(suffix) - 1;
    return strcasecmp(name, "localhost") == 0 ||
           (n > n_suffix && strcasecmp(name + n - n_suffix, suffix) == 0) ||
           inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
}
