/* request_counts.h: counts the tokens of one sequence for the sampler's penalties. A dense list of
 * the tokens that occur, with a hash index. Created for the largest number of tokens, so counting
 * never allocates. Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/sample.h"

struct request_counts {
    struct sample_count *counts; /* [n] in order of first occurrence */
    uint32_t n, capacity;
    uint32_t *index; /* [index_mask + 1] position in counts + 1, or 0 */
    uint32_t index_mask;
};

/* `capacity`: most different tokens. Returns false without memory. */
bool request_counts_init(struct request_counts *counts, uint32_t capacity);
void request_counts_fini(struct request_counts *counts);
void request_counts_add(struct request_counts *counts, uint32_t id, bool generated);
