#include "proto/rpc/core/tls_pem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/core/tls.h"

void rpc_pem_mark(const char *path, struct rpc_pem_mark *out_mark)
{
    struct stat info;
    *out_mark = (struct rpc_pem_mark){0};
    if (stat(path, &info) != 0)
        return;
    out_mark->device = info.st_dev;
    out_mark->inode = info.st_ino;
    out_mark->size = (uint64_t)info.st_size;
    out_mark->modified_ns = info.st_mtim.tv_sec * NS_PER_S + info.st_mtim.tv_nsec;
    out_mark->changed_ns = info.st_ctim.tv_sec * NS_PER_S + info.st_ctim.tv_nsec;
}

static int read_text(int fd, const char *path, bool secret, char **out_text, struct error *err)
{
    struct stat info;
    size_t n = 0;
    if (fstat(fd, &info) != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: not a regular file", path);
    if (secret && (info.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)))
        return error_set(err, STATUS_PERMISSION_DENIED,
                         "%s: mode %04o lets others read or write the private key; set 0640 or "
                         "less",
                         path, (unsigned)(info.st_mode & 07777));
    if (info.st_size > RPC_TLS_MAX_FILE_BYTES)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %lld bytes exceed the limit of %d",
                         path, (long long)info.st_size, RPC_TLS_MAX_FILE_BYTES);
    size_t n_file = (size_t)info.st_size;
    char *text = malloc(n_file + 1);
    if (text == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    while (n < n_file) {
        ssize_t got = read(fd, text + n, n_file - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    text[n] = '\0';
    if (n != n_file || strlen(text) != n) {
        free(text);
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s", path,
                         n != n_file ? "cannot be read completely"
                                     : "contains a NUL, so it is not PEM");
    }
    *out_text = text;
    return 0;
}

int rpc_pem_read(const char *path, bool secret, char **out_text, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
    int rc = read_text(fd, path, secret, out_text, err);
    close(fd);
    return rc;
}

/* Never prompts on the terminal: a key with a passphrase is an error. */
static int no_passphrase(char *buffer, int size, int writing, void *arg)
{
    if (size > 0)
        buffer[0] = '\0';
    (void)writing;
    *(bool *)arg = true;
    return -1;
}

static X509 *read_certificate(const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *certificate = bio != NULL ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    return certificate;
}

static EVP_PKEY *read_key(const char *text, bool *out_locked)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key =
        bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, out_locked) : NULL;
    BIO_free(bio);
    return key;
}

/* Checks that there is a certificate and that all are intact; *out_n_bytes: their size on the
 * wire. */
static int check_certificates(const char *path, const char *text, size_t *out_n_bytes,
                              struct error *err)
{
    size_t n = 0, n_bytes = 0;
    BIO *bio = BIO_new_mem_buf(text, -1);
    for (X509 *certificate;
         bio != NULL && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL; n++) {
        int n_der = i2d_X509(certificate, NULL);
        n_bytes += n_der > 0 ? (size_t)n_der : 0;
        X509_free(certificate);
    }
    /* OpenSSL reports "no start line" at the end of the file. Any other error means a damaged
     * certificate. */
    unsigned long last = ERR_peek_last_error();
    bool whole = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
    BIO_free(bio);
    ERR_clear_error();
    if (n == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: no certificate in PEM form", path);
    if (!whole)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: certificate %zu is damaged", path,
                         n + 1);
    *out_n_bytes = n_bytes;
    return 0;
}

int rpc_pem_check_ca(const char *path, const char *text, struct error *err)
{
    size_t n_bytes;
    return check_certificates(path, text, &n_bytes, err);
}

/* gRPC would drop certificates after a damaged one, and clients would not find their CA. A chain
 * that is too long (a bundle of CAs) ends the clients' handshake. */
static int check_chain(const char *path, const char *text, struct error *err)
{
    size_t n_bytes = 0;
    int rc = check_certificates(path, text, &n_bytes, err);
    if (rc == 0 && n_bytes > RPC_PEM_MAX_CHAIN_BYTES)
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "%s: certificates of %zu bytes exceed the %d that clients accept: keep only "
                       "the server's and "
                       "those between it and its CA",
                       path, n_bytes, RPC_PEM_MAX_CHAIN_BYTES);
    return rc;
}

int rpc_pem_check_pair(const char *cert_path, const char *cert, const char *key_path,
                       const char *key_text, bool *out_expired, struct error *err)
{
    bool locked = false, expired = false;
    int rc = 0;
    X509 *certificate = read_certificate(cert);
    EVP_PKEY *key = read_key(key_text, &locked);
    if (certificate == NULL)
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "%s: no certificate in PEM form", cert_path);
    else if (key == NULL && locked)
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "%s: the key has a passphrase", key_path);
    else if (key == NULL)
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "%s: no private key in PEM form", key_path);
    else if (X509_check_private_key(certificate, key) != 1)
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "%s: the certificate is not for the key "
                       "in %s",
                       cert_path, key_path);
    else
        expired = X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0 ||
                  X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0;
    if (rc == 0)
        rc = check_chain(cert_path, cert, err);
    X509_free(certificate);
    EVP_PKEY_free(key);
    ERR_clear_error();
    if (rc == 0)
        *out_expired = expired;
    return rc;
}
