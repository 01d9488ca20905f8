/* rng.h: unpredictable bytes and ids from the kernel. Any thread. (Sampling uses Philox in engine/,
 * never this.) */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { UUID_BYTES = 37 };

void rng_bytes(void *out, size_t n_bytes);
uint64_t rng_u64(void);
/* A random (version 4) UUID, lower case, with a terminator. */
void rng_uuid(char out_uuid[UUID_BYTES]);
