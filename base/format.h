/* format.h: amounts as text for people. Any thread. */
#pragma once

#include <stdint.h>

/* Write a text into `out` and return `out`. format_bytes: "94.1 MiB". format_ms: "999 ms", "1.2 s".
 * format_latency: three digits, for measurements: "4.25 ms", "1.99 s". */
const char *format_bytes(uint64_t n_bytes, char out[32]);
const char *format_ms(uint64_t ms, char out[32]);
const char *format_latency(double ms, char out[32]);
