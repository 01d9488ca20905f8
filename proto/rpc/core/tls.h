/* tls.h: certificates, keys and CAs from PEM files, for servers, which take up changed files
 * without a restart. Files are read and checked here with OpenSSL, so that what is wrong with them
 * is said before gRPC sees them. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct rpc_tls;

enum { RPC_TLS_MAX_FILE_BYTES = 1 << 20 };

struct rpc_tls_config {
    const char *cert;         /* the server's certificate, then its chain */
    const char *key;          /* its private key, without a passphrase */
    const char *client_ca;    /* who signs clients' certificates; empty: none are asked for */
    bool require_client_cert; /* else it may be absent; one that is shown must be good */
};

/* Loads and checks the files: readable, not too large, the key not readable by others, PEM, the
 * certificate made for the key. INVALID_ARGUMENT or PERMISSION_DENIED naming the file. An expired
 * certificate is taken, with a text in out_warning (may be empty): a new one can replace it while
 * the server runs. *out_tls is owned; the strings are copied. */
int rpc_tls_create(const struct rpc_tls_config *config, struct rpc_tls **out_tls,
                   char out_warning[256], struct error *err);
/* After the servers that use it. NULL is accepted. */
void rpc_tls_destroy(struct rpc_tls *tls);

/* Takes up changed files for connections from now on: 1 where it did, 0 where nothing has changed
 * since it last looked (unless `always`), negative where the new files are bad: the old ones stay.
 */
int rpc_tls_reload(struct rpc_tls *tls, bool always, char out_warning[256], struct error *err);
