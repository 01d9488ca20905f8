/* http_tls.h: TLS for http_server, from the files of an rpc_tls. Private to proto/http. */
#pragma once

#include <stddef.h>

struct http_tls;
struct rpc_tls;
struct error;
struct ssl_st;

/* *out_tls is owned. `files` is borrowed until destroy. */
int http_tls_create(struct rpc_tls *files, struct http_tls **out_tls, struct error *err);
void http_tls_destroy(struct http_tls *tls); /* NULL is accepted */

/* Returns a new SSL for an accepted socket, with the files as they are now. NULL if memory is
 * exhausted. Threads must take turns. */
struct ssl_st *http_tls_accept(struct http_tls *tls, int fd);

/* See http_exchange_certificate_name(). */
int http_tls_peer_name(const struct ssl_st *ssl, char *out_name, size_t n_out);
