/* act_header.h: the first fields of every backend's prepared activations, which the shape checks of
 * ops.c read. Backends embed it first in their own struct. */
#pragma once

#include <stdint.h>

struct act {
    uint32_t max_rows, max_k; /* capacity */
    uint32_t n_rows, k;       /* what is prepared now */
    uint32_t kinds;           /* bits of enum act_kind prepared now */
};
