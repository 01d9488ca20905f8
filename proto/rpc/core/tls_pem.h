/* tls_pem.h: reads and checks PEM files. Private to proto/rpc. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

/* What tells that a file has changed. */
struct rpc_pem_mark {
    uint64_t device, inode, size;
    int64_t modified_ns, changed_ns;
};
/* Zero for a file that is not there. */
void rpc_pem_mark(const char *path, struct rpc_pem_mark *out_mark);

/* The whole file, NUL-terminated; *out_text is owned (free()). INVALID_ARGUMENT, naming the path,
 * where it cannot be read, is no regular file, is too large or has a NUL; PERMISSION_DENIED where
 * it is `secret` and others than its owner and group may read it. */
int rpc_pem_read(const char *path, bool secret, char **out_text, struct error *err);

/* What OpenSSL's and BoringSSL's clients take of a peer's certificates. */
enum { RPC_PEM_MAX_CHAIN_BYTES = 100 << 10 };

/* INVALID_ARGUMENT, naming the paths, where there is no certificate or key, the key wants a
 * passphrase, the certificate is another key's, one of those that follow it is damaged, or they are
 * more than clients take. *out_expired: its time is over or not yet come.
 */
int rpc_pem_check_pair(const char *cert_path, const char *cert, const char *key_path,
                       const char *key, bool *out_expired, struct error *err);
/* At least one certificate, all of them whole. */
int rpc_pem_check_ca(const char *path, const char *text, struct error *err);
