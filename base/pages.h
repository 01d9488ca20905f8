/* pages.h: pages of memory that is about to be written. */
#pragma once

#include <stddef.h>

/* Asks the kernel for the whole pages of [base, base + n_bytes) at once, where a fault for each
 * would cost several times as much. A wish: where the kernel (before 5.14) or a limit refuses, they
 * come as they are touched. What lies there stays. Any thread. */
void pages_touch(void *base, size_t n_bytes);
