/* format.h: figures as a person reads them. Any thread. */
#pragma once

#include <stdint.h>

/* "94.1 MiB", "999 ms", "1.2 s" into out, and of what was measured, to three digits, "4.25 ms",
 * "1.99 s"; return out. */
const char *format_bytes(uint64_t n_bytes, char out[32]);
const char *format_ms(uint64_t ms, char out[32]);
const char *format_latency(double ms, char out[32]);
