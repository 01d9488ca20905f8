/* tls_pem.h: reads and checks PEM files. Private to proto/rpc. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

/* Identifies the state of a file, to detect changes. */
struct rpc_pem_mark {
    uint64_t device, inode, size;
    int64_t modified_ns, changed_ns;
};
/* Zero for a missing file. */
void rpc_pem_mark(const char *path, struct rpc_pem_mark *out_mark);

/* Reads a whole file, NUL-terminated; *out_text is owned (free()). INVALID_ARGUMENT, with the
 * path, if the file is unreadable, not a regular file, too large or contains a NUL.
 * PERMISSION_DENIED if it is `secret` and readable by others than owner and group. */
int rpc_pem_read(const char *path, bool secret, char **out_text, struct error *err);

/* Limit of OpenSSL's and BoringSSL's clients for a peer's certificates. */
enum { RPC_PEM_MAX_CHAIN_BYTES = 100 << 10 };

/* INVALID_ARGUMENT, with the paths, if certificate or key is missing, or the key has a
 * passphrase. Also if the certificate is for another key, or its chain is damaged or too long
 * for clients. *out_expired: the certificate is not valid at this time. */
int rpc_pem_check_pair(const char *cert_path, const char *cert, const char *key_path,
                       const char *key, bool *out_expired, struct error *err);
/* Checks that there is at least one certificate and that all are intact. */
int rpc_pem_check_ca(const char *path, const char *text, struct error *err);
