#include "proto/http/http_tls.h"

#include <stdbool.h>
#include <stdlib.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/error.h"
#include "proto/rpc/core/tls.h"

struct http_tls {
    struct rpc_tls *files;
    SSL_CTX *context;
    uint64_t generation; /* generation of the files in `context` */
};

static const unsigned char http_1_1[] = "\x08http/1.1";

/* A client that offers protocols must offer this one. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                           const unsigned char *offered, unsigned n_offered, void *arg)
{
    unsigned char *chosen;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, n_out, http_1_1, sizeof(http_1_1) - 1, offered, n_offered) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Makes the context again if the files were reloaded. The old one stays if that fails. */
static bool refresh(struct http_tls *tls)
{
    uint64_t generation = rpc_tls_generation(tls->files);
    if (tls->context && tls->generation == generation)
        return true;
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    bool good = context && SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
                rpc_tls_use(tls->files, context);
    ERR_clear_error();
    if (!good) {
        SSL_CTX_free(context);
        return tls->context != NULL;
    }
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    /* Without it OpenSSL refuses to resume a session that has a client certificate. */
    (void)SSL_CTX_set_session_id_context(context, http_1_1, sizeof(http_1_1) - 1);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    SSL_CTX_free(tls->context);
    tls->context = context;
    tls->generation = generation;
    return true;
}

int http_tls_create(struct rpc_tls *files, struct http_tls **out_tls, struct error *err)
{
    struct http_tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return error_no_memory(err);
    tls->files = files;
    if (!refresh(tls)) {
        http_tls_destroy(tls);
        return error_set(err, STATUS_INVALID_ARGUMENT, "TLS: these files cannot be used for HTTP");
    }
    *out_tls = tls;
    return 0;
}

void http_tls_destroy(struct http_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

SSL *http_tls_accept(struct http_tls *tls, int fd)
{
    SSL *ssl = refresh(tls) ? SSL_new(tls->context) : NULL;
    if (ssl && SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        return NULL;
    }
    if (ssl)
        SSL_set_accept_state(ssl);
    return ssl;
}
