#include "proto/rpc/core/tls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "base/error.h"
#include "proto/rpc/core/tls_internal.h"
#include "proto/rpc/core/tls_pem.h"

static const char system_ca[] = "/etc/ssl/certs/ca-certificates.crt";

enum { FILE_CERT, FILE_KEY, FILE_CA, N_FILES };

/* A listener, for the callback fetch(). `generation`: generation of the texts that gRPC has for
 * this listener. */
struct listener {
    struct rpc_tls *tls;
    struct listener *next;
    uint64_t generation;
};

struct rpc_tls {
    char *paths[N_FILES]; /* the CA's path may be NULL */
    bool require_client_cert;

    pthread_mutex_t lock;
    struct rpc_pem_mark seen[N_FILES]; /* state of the files at the last check */
    char *texts[N_FILES];              /* texts in use */
    uint64_t generation;               /* generation of the texts, from 1 */
    struct listener *listeners;
};

static void free_texts(char *texts[N_FILES])
{
    if (texts[FILE_KEY] != NULL)
        explicit_bzero(texts[FILE_KEY], strlen(texts[FILE_KEY]));
    for (int i = 0; i < N_FILES; i++)
        free(texts[i]);
}

static int load(const struct rpc_tls *tls, char *out_texts[N_FILES], char out_warning[256],
                struct error *err)
{
    char *texts[N_FILES] = {NULL};
    bool expired = false;
    int rc = 0;
    for (int i = 0; i < N_FILES && rc == 0; i++)
        if (tls->paths[i] != NULL)
            rc = rpc_pem_read(tls->paths[i], i == FILE_KEY, &texts[i], err);
    if (rc == 0)
        rc = rpc_pem_check_pair(tls->paths[FILE_CERT], texts[FILE_CERT], tls->paths[FILE_KEY],
                                texts[FILE_KEY], &expired, err);
    if (rc == 0 && texts[FILE_CA] != NULL)
        rc = rpc_pem_check_ca(tls->paths[FILE_CA], texts[FILE_CA], err);
    if (rc != 0) {
        free_texts(texts);
        return rc;
    }
    memcpy(out_texts, texts, sizeof(texts));
    snprintf(out_warning, 256, expired ? "%.200s: not valid at this time" : "%.0s",
             tls->paths[FILE_CERT]);
    return 0;
}

static void mark_files(const struct rpc_tls *tls, struct rpc_pem_mark marks[N_FILES])
{
    memset(marks, 0, N_FILES * sizeof(*marks));
    for (int i = 0; i < N_FILES; i++)
        if (tls->paths[i] != NULL)
            rpc_pem_mark(tls->paths[i], &marks[i]);
}

int rpc_tls_create(const struct rpc_tls_config *config, struct rpc_tls **out_tls,
                   char out_warning[256], struct error *err)
{
    struct rpc_tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for TLS");
    bool has_ca = config->client_ca != NULL && config->client_ca[0] != '\0';
    pthread_mutex_init(&tls->lock, NULL);
    tls->require_client_cert = config->require_client_cert;
    tls->paths[FILE_CERT] = strdup(config->cert);
    tls->paths[FILE_KEY] = strdup(config->key);
    tls->paths[FILE_CA] = has_ca ? strdup(config->client_ca) : NULL;
    int rc = 0;
    if (tls->paths[FILE_CERT] == NULL || tls->paths[FILE_KEY] == NULL ||
        (has_ca && tls->paths[FILE_CA] == NULL))
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for TLS");
    if (rc == 0) {
        mark_files(tls,
                   tls->seen); /* before reading: a change in between is found at the next check */
        rc = load(tls, tls->texts, out_warning, err);
    }
    if (rc != 0) {
        rpc_tls_destroy(tls);
        return rc;
    }
    tls->generation = 1;
    *out_tls = tls;
    return 0;
}

void rpc_tls_destroy(struct rpc_tls *tls)
{
    if (tls == NULL)
        return;
    while (tls->listeners != NULL) {
        struct listener *listener = tls->listeners;
        tls->listeners = listener->next;
        free(listener);
    }
    free_texts(tls->texts);
    for (int i = 0; i < N_FILES; i++)
        free(tls->paths[i]);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

int rpc_tls_reload(struct rpc_tls *tls, bool always, char out_warning[256], struct error *err)
{
    struct rpc_pem_mark marks[N_FILES];
    char *texts[N_FILES];
    mark_files(tls, marks);
    pthread_mutex_lock(&tls->lock);
    bool changed = memcmp(marks, tls->seen, sizeof(marks)) != 0;
    memcpy(tls->seen, marks, sizeof(marks));
    pthread_mutex_unlock(&tls->lock);
    if (!changed && !always)
        return 0;
    int rc = load(tls, texts, out_warning, err);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&tls->lock);
    free_texts(tls->texts);
    memcpy(tls->texts, texts, sizeof(texts));
    tls->generation++;
    pthread_mutex_unlock(&tls->lock);
    return 1;
}

/* gRPC calls this before each handshake. */
static grpc_ssl_certificate_config_reload_status
fetch(void *user_data, grpc_ssl_server_certificate_config **out_config)
{
    struct listener *listener = user_data;
    struct rpc_tls *tls = listener->tls;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    pthread_mutex_lock(&tls->lock);
    if (listener->generation != tls->generation) {
        grpc_ssl_pem_key_cert_pair pair = {tls->texts[FILE_KEY], tls->texts[FILE_CERT]};
        /* Without a CA, gRPC 1.51 aborts, even if no client certificate is requested. The
         * certificate in its place is read and never used. */
        const char *ca = tls->texts[FILE_CA] != NULL ? tls->texts[FILE_CA] : tls->texts[FILE_CERT];
        *out_config = grpc_ssl_server_certificate_config_create(ca, &pair, 1);
        listener->generation = tls->generation;
        status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    }
    pthread_mutex_unlock(&tls->lock);
    return status;
}

grpc_server_credentials *rpc_tls_server_credentials(struct rpc_tls *tls)
{
    struct listener *listener = calloc(1, sizeof(*listener));
    if (listener == NULL)
        return NULL;
    grpc_ssl_client_certificate_request_type request = GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    if (tls->paths[FILE_CA] != NULL)
        request = tls->require_client_cert
                      ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    listener->tls = tls;
    pthread_mutex_lock(&tls->lock);
    listener->next = tls->listeners;
    tls->listeners = listener;
    pthread_mutex_unlock(&tls->lock);
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, fetch, listener));
}

uint64_t rpc_tls_generation(struct rpc_tls *tls)
{
    pthread_mutex_lock(&tls->lock);
    uint64_t generation = tls->generation;
    pthread_mutex_unlock(&tls->lock);
    return generation;
}

static bool use_chain(SSL_CTX *context, const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *certificate = bio != NULL ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    bool good = certificate != NULL && SSL_CTX_use_certificate(context, certificate) == 1;
    while (certificate != NULL && good) {
        X509_free(certificate);
        certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL);
        good = certificate == NULL || SSL_CTX_add1_chain_cert(context, certificate) == 1;
    }
    X509_free(certificate);
    BIO_free(bio);
    return good;
}

static bool use_key(SSL_CTX *context, const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key = bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;
    bool good = key != NULL && SSL_CTX_use_PrivateKey(context, key) == 1;
    EVP_PKEY_free(key);
    BIO_free(bio);
    return good;
}

static bool use_client_ca(SSL_CTX *context, const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    X509 *certificate;
    bool good = bio != NULL && store != NULL;
    while (good && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) {
        good = X509_STORE_add_cert(store, certificate) == 1 &&
               SSL_CTX_add_client_CA(context, certificate) == 1;
        X509_free(certificate);
    }
    BIO_free(bio);
    return good;
}

bool rpc_tls_use(struct rpc_tls *tls, SSL_CTX *context)
{
    pthread_mutex_lock(&tls->lock);
    bool good = use_chain(context, tls->texts[FILE_CERT]) && use_key(context, tls->texts[FILE_KEY]);
    if (good && tls->texts[FILE_CA] != NULL) {
        good = use_client_ca(context, tls->texts[FILE_CA]);
        SSL_CTX_set_verify(context,
                           SSL_VERIFY_PEER |
                               (tls->require_client_cert ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                           NULL);
    }
    pthread_mutex_unlock(&tls->lock);
    return good;
}

int rpc_tls_channel_credentials(const char *ca, const char *cert, const char *key,
                                grpc_channel_credentials **out_credentials, struct error *err)
{
    char *texts[N_FILES] = {NULL};
    const char *ca_path = ca != NULL && ca[0] != '\0' ? ca : system_ca;
    bool has_cert = cert != NULL && cert[0] != '\0', has_key = key != NULL && key[0] != '\0';
    bool expired = false;
    if (has_cert != has_key)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a client certificate needs its key and vice versa: the %s is missing",
                         has_cert ? "key" : "certificate");
    int rc = rpc_pem_read(ca_path, false, &texts[FILE_CA], err);
    if (rc == 0)
        rc = rpc_pem_check_ca(ca_path, texts[FILE_CA], err);
    if (rc == 0 && has_cert)
        rc = rpc_pem_read(cert, false, &texts[FILE_CERT], err);
    if (rc == 0 && has_cert)
        rc = rpc_pem_read(key, true, &texts[FILE_KEY], err);
    if (rc == 0 && has_cert)
        rc = rpc_pem_check_pair(cert, texts[FILE_CERT], key, texts[FILE_KEY], &expired, err);
    if (rc == 0) {
        grpc_ssl_pem_key_cert_pair pair = {texts[FILE_KEY], texts[FILE_CERT]};
        *out_credentials =
            grpc_ssl_credentials_create(texts[FILE_CA], has_cert ? &pair : NULL, NULL, NULL);
        if (*out_credentials == NULL)
            rc = error_set(err, STATUS_INVALID_ARGUMENT, "TLS: these files cannot be used");
    }
    free_texts(texts);
    return rc;
}
