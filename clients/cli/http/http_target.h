/* http_target.h: a server that HTTP connections go to: its URL, addresses, TLS settings and key.
 * No proxy is ever used. Immutable after its creation; any thread. */
#pragma once

#include "clients/cli/http/http_url.h"

struct addrinfo;
struct error;
struct ssl_ctx_st;

enum { HTTP_TARGET_KEY_BYTES = 4096 };

struct http_target_config {
    struct http_url url;
    const char *ca;          /* file of trusted CAs (PEM); empty: those of the system */
    const char *client_cert; /* files (PEM); empty: none */
    const char *client_key;
    const char *server_name; /* name to expect in the certificate; empty: the URL's host */
    const char *key;         /* API key; empty: none */
};

struct http_target {
    struct http_url url;
    struct addrinfo *addresses; /* owned */
    struct ssl_ctx_st *tls;     /* owned; NULL: plain text */
    char server_name[HTTP_URL_HOST_BYTES];
    char key[HTTP_TARGET_KEY_BYTES];
};

/* Resolves the host, and reads the files. Blocks. UNAVAILABLE if the host has no address;
 * INVALID_ARGUMENT for files that TLS cannot use. *out_target is owned. */
int http_target_create(const struct http_target_config *config, struct http_target **out_target,
                       struct error *err);
void http_target_destroy(struct http_target *target); /* NULL is accepted */
