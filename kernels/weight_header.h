/* weight_header.h: the first bytes of every packed weight, of any backend. A backend puts this
 * struct first in its own header; other code sees only weight.h. Plain data, position
 * independent. */
#pragma once

#include <stdint.h>

enum { WEIGHT_MAGIC = 0x5754474C };

struct weight {
    uint32_t magic;  /* WEIGHT_MAGIC */
    uint32_t role;   /* enum weight_role */
    uint32_t source; /* enum dtype of the raw rows */
    uint32_t
        act_kind; /* bit of enum act_kind that its linear reads; 0 for embeddings and vectors */
    uint32_t n_rows, k_total;
    uint32_t n_partial_planes; /* planes of linear_partial: 1, or 2 if sums exceed 32 bits; 0 = no
                                  linear */
    uint32_t k_begin,
        k_local;           /* this weight holds columns [k_begin, k_begin + k_local) of the whole */
    int64_t vector_offset; /* WEIGHT_VECTOR: f32 data, in bytes from this struct */
};
