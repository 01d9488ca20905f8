#include "proto/http/http_tls.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

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

/* Makes a new context if the files were reloaded. The old context stays if that fails. */
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
    /* A read returns after each record. With this mode, a client that sends new keys without end
     * would hold its loop. */
    SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    /* Without this id OpenSSL refuses to resume a session that has a client certificate. */
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

/* Returns the first alternative name of a kind (GEN_URI, GEN_DNS), or NULL. */
static const ASN1_STRING *find_name(const GENERAL_NAMES *names, int kind)
{
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == kind)
            return kind == GEN_URI ? name->d.uniformResourceIdentifier : name->d.dNSName;
    }
    return NULL;
}

static int copy_name(const ASN1_STRING *name, char *out_name, size_t n_out)
{
    size_t n = (size_t)ASN1_STRING_length(name);
    const unsigned char *bytes = ASN1_STRING_get0_data(name);
    if (n == 0 || n >= n_out)
        return STATUS_INVALID_ARGUMENT;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] <= ' ' || bytes[i] > '~')
            return STATUS_INVALID_ARGUMENT;
    memcpy(out_name, bytes, n);
    out_name[n] = '\0';
    return 0;
}

int http_tls_peer_name(const SSL *ssl, char *out_name, size_t n_out)
{
    X509 *cert = ssl ? SSL_get1_peer_certificate(ssl) : NULL;
    if (!cert || SSL_get_verify_result(ssl) != X509_V_OK) {
        X509_free(cert);
        return STATUS_NOT_FOUND;
    }
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    const ASN1_STRING *found = find_name(names, GEN_URI);
    if (!found)
        found = find_name(names, GEN_DNS);
    X509_NAME *subject = X509_get_subject_name(cert);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (!found && at >= 0)
        found = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    int rc = found ? copy_name(found, out_name, n_out) : STATUS_NOT_FOUND;
    GENERAL_NAMES_free(names);
    X509_free(cert);
    return rc;
}
