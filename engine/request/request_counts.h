/* request_counts.h: how often each token occurs in one sequence, as the sampler's penalties want
 * it: a dense list of the tokens that occur, found again through a hash index. Sized at create for
 * all tokens there can be, so counting never allocates. One thread. */
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

/* For at most `capacity` different tokens. False without memory. */
bool request_counts_init(struct request_counts *counts, uint32_t capacity);
void request_counts_fini(struct request_counts *counts);
void request_counts_add(struct request_counts *counts, uint32_t id, bool generated);
