/* pages.h: populates memory pages before they are written. */
#pragma once

#include <stddef.h>

/* Asks the kernel to populate the whole pages of [base, base + n_bytes) in one call. A page fault
 * for each page would cost several times as much. Best effort: if the kernel (before 5.14) or a
 * limit refuses, pages are populated on first touch. Contents stay unchanged. Any thread. */
void pages_touch(void *base, size_t n_bytes);
