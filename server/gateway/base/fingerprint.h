/* fingerprint.h: a short name for the arithmetic behind an answer: weights and numerics id. Plain
 * function; any thread. */
#pragma once

enum { FINGERPRINT_BYTES = 20 }; /* "fp_", 16 hexadecimal digits, NUL */

/* Equal arguments give equal names. Writes "" where memory is missing. */
void fingerprint_make(const char *weights_digest, const char *numerics_id,
                      char out[FINGERPRINT_BYTES]);
