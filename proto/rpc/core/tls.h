/* tls.h: certificates, keys and CAs from PEM files, for servers, which reload changed files
 * without a restart. OpenSSL checks the files here, so that errors are reported before gRPC sees
 * the files. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct rpc_tls;

enum { RPC_TLS_MAX_FILE_BYTES = 1 << 20 };

struct rpc_tls_config {
    const char *cert;         /* the server's certificate, then its chain */
    const char *key;          /* private key without a passphrase */
    const char *client_ca;    /* CA of the clients' certificates; empty: none are requested */
    bool require_client_cert; /* false: a client may have no certificate; a certificate that is
                               * sent must be valid */
};

/* Loads and checks the files: readable, not too large, key not readable by others, PEM,
 * certificate for the key. INVALID_ARGUMENT or PERMISSION_DENIED with the file. An expired
 * certificate is accepted with a text in out_warning (may be empty), because a new one can
 * replace it at run time. *out_tls is owned; the strings are copied. */
int rpc_tls_create(const struct rpc_tls_config *config, struct rpc_tls **out_tls,
                   char out_warning[256], struct error *err);
/* Call it after the servers that use the object are destroyed. NULL is accepted. */
void rpc_tls_destroy(struct rpc_tls *tls);

/* Reloads changed files for new connections. Returns 1 after a reload, 0 if nothing has changed
 * since the last check. With `always`, unchanged files are loaded too. Negative if the new files
 * are bad: the old ones stay in use. */
int rpc_tls_reload(struct rpc_tls *tls, bool always, char out_warning[256], struct error *err);

struct ssl_ctx_st;

/* For servers beside gRPC (proto/http). The first returns the generation of the files in use; a
 * reload raises it. The second sets the files in an SSL_CTX, and whether clients need a
 * certificate; false if OpenSSL refuses. */
uint64_t rpc_tls_generation(struct rpc_tls *tls);
bool rpc_tls_use(struct rpc_tls *tls, struct ssl_ctx_st *context);
