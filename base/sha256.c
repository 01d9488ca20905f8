#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

/* struct sha256 is libcrypto's context under another name; nothing dereferences it here. */
static EVP_MD_CTX *inner(struct sha256 *ctx)
{
    return (EVP_MD_CTX *)ctx;
}

int sha256_create(struct sha256 **out_ctx, struct error *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "SHA-256: out of memory");
    }
    *out_ctx = (struct sha256 *)ctx;
    return 0;
}

void sha256_update(struct sha256 *ctx, const void *bytes, size_t n_bytes)
{
    EVP_DigestUpdate(inner(ctx), bytes, n_bytes);
}

void sha256_final(struct sha256 *ctx, uint8_t out_digest[SHA256_BYTES])
{
    EVP_DigestFinal_ex(inner(ctx), out_digest, NULL);
    EVP_MD_CTX_free(inner(ctx));
}

void sha256_destroy(struct sha256 *ctx)
{
    EVP_MD_CTX_free(inner(ctx));
}

void sha256_hex(const uint8_t digest[SHA256_BYTES], char out_hex[SHA256_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < SHA256_BYTES; i++) {
        out_hex[2 * i] = digits[digest[i] >> 4];
        out_hex[2 * i + 1] = digits[digest[i] & 15];
    }
    out_hex[SHA256_HEX_BYTES - 1] = '\0';
}
