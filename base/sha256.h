/* sha256.h: SHA-256 (FIPS 180-4) of a byte stream, computed by libcrypto. Each context belongs to
 * one thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_HEX_BYTES = 65 };

struct error;
struct sha256;

/* *out_ctx is owned: sha256_final destroys it, sha256_destroy abandons it (NULL allowed). */
int sha256_create(struct sha256 **out_ctx, struct error *err);
void sha256_update(struct sha256 *ctx, const void *bytes, size_t n_bytes);
void sha256_final(struct sha256 *ctx, uint8_t out_digest[SHA256_BYTES]);
void sha256_destroy(struct sha256 *ctx);

/* Lower-case hex with a terminator. */
void sha256_hex(const uint8_t digest[SHA256_BYTES], char out_hex[SHA256_HEX_BYTES]);
