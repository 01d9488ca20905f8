#include "server/gateway/base/fingerprint.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"

void fingerprint_make(const char *weights_digest, const char *numerics_id,
                      char out[FINGERPRINT_BYTES])
{
    struct sha256 *sha;
    struct error err;
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    out[0] = '\0';
    if (sha256_create(&sha, &err) != 0)
        return;
    sha256_update(sha, weights_digest, strlen(weights_digest) + 1); /* the NUL separates the two */
    sha256_update(sha, numerics_id, strlen(numerics_id));
    sha256_final(sha, digest);
    sha256_hex(digest, hex);
    snprintf(out, FINGERPRINT_BYTES, "fp_%.16s", hex);
}
