/* http_url.h: reads the address of a server that speaks OpenAI's API over HTTP. Plain functions;
 * any thread. */
#pragma once

#include <stdbool.h>

struct error;

enum { HTTP_URL_HOST_BYTES = 256, HTTP_URL_PATH_BYTES = 512 };

struct http_url {
    bool is_tls;
    char host[HTTP_URL_HOST_BYTES]; /* name or address; without brackets for IPv6 */
    char port[6];
    char authority[HTTP_URL_HOST_BYTES + 10]; /* value of the header Host */
    char base[HTTP_URL_PATH_BYTES];           /* path of the API, "/v1"; no slash at its end */
};

/* Reads "http://HOST[:PORT][/PATH]" or https. An empty path stands for /v1. INVALID_ARGUMENT for
 * another scheme, a user, a query, a fragment, and bytes that no URL has. */
int http_url_parse(const char *text, struct http_url *out, struct error *err);

/* True if the host is this machine: localhost, 127.0.0.0/8 or ::1. */
bool http_url_is_local(const struct http_url *url);
