#include "clients/cli/http/http_target.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/error.h"

static int refuse(const char *what, const char *path, struct error *err)
{
    ERR_clear_error();
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %.300s cannot be used", what, path);
}

static int use_files(SSL_CTX *context, const struct http_target_config *c, struct error *err)
{
    if (c->ca[0] ? SSL_CTX_load_verify_locations(context, c->ca, NULL) != 1
                 : SSL_CTX_set_default_verify_paths(context) != 1)
        return refuse("--tls-ca", c->ca[0] ? c->ca : "the system's list of CAs", err);
    if (c->client_cert[0] && SSL_CTX_use_certificate_chain_file(context, c->client_cert) != 1)
        return refuse("--tls-client-cert", c->client_cert, err);
    if (c->client_key[0] &&
        SSL_CTX_use_PrivateKey_file(context, c->client_key, SSL_FILETYPE_PEM) != 1)
        return refuse("--tls-client-key", c->client_key, err);
    if (c->client_cert[0] && SSL_CTX_check_private_key(context) != 1)
        return refuse("--tls-client-key", c->client_key, err);
    return 0;
}

static int make_tls(const struct http_target_config *c, SSL_CTX **out, struct error *err)
{
    static const unsigned char http_1_1[] = "\x08http/1.1";
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_alpn_protos(context, http_1_1, sizeof(http_1_1) - 1) != 0) {
        SSL_CTX_free(context);
        return error_no_memory(err);
    }
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    int rc = use_files(context, c, err);
    if (rc)
        SSL_CTX_free(context);
    else
        *out = context;
    return rc;
}

static int resolve(const struct http_url *url, struct addrinfo **out, struct error *err)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int code = getaddrinfo(url->host, url->port, &hints, out);
    if (code == 0)
        return 0;
    *out = NULL;
    return error_set(err, STATUS_UNAVAILABLE, "the host %.200s has no address: %s", url->host,
                     gai_strerror(code));
}

int http_target_create(const struct http_target_config *config, struct http_target **out_target,
                       struct error *err)
{
    struct http_target *target = calloc(1, sizeof(*target));
    if (!target)
        return error_no_memory(err);
    target->url = config->url;
    snprintf(target->server_name, sizeof(target->server_name), "%s",
             config->server_name[0] ? config->server_name : config->url.host);
    int rc = 0;
    if (strlen(config->key) >= sizeof(target->key) || strpbrk(config->key, "\r\n"))
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "--api-key: the key fits into no header");
    else
        snprintf(target->key, sizeof(target->key), "%s", config->key);
    if (!rc && target->url.is_tls)
        rc = make_tls(config, &target->tls, err);
    if (!rc)
        rc = resolve(&target->url, &target->addresses, err);
    if (rc)
        http_target_destroy(target);
    else
        *out_target = target;
    return rc;
}

void http_target_destroy(struct http_target *target)
{
    if (!target)
        return;
    if (target->addresses)
        freeaddrinfo(target->addresses);
    SSL_CTX_free(target->tls);
    explicit_bzero(target->key, sizeof(target->key));
    free(target);
}
