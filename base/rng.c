#include "base/rng.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

void rng_bytes(void *out, size_t n_bytes)
{
    unsigned char *p = out;
    while (n_bytes) {
        ssize_t n = getrandom(p, n_bytes, 0); /* blocks only at early boot, then never fails */
        if (n < 0)
            continue;
        p += n;
        n_bytes -= (size_t)n;
    }
}

uint64_t rng_u64(void)
{
    uint64_t value;
    rng_bytes(&value, sizeof(value));
    return value;
}

void rng_uuid(char out_uuid[UUID_BYTES])
{
    uint8_t b[16];
    rng_bytes(b, sizeof(b));
    b[6] = (uint8_t)((b[6] & 0x0F) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3F) | 0x80);
    snprintf(out_uuid, UUID_BYTES,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}
