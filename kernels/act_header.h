/* act_header.h: the first fields of every backend's prepared activations, for the shape checks of
 * ops.c. A backend puts this struct first in its own struct. */
#pragma once

#include <stdint.h>

struct act {
    uint32_t max_rows, max_k; /* capacity */
    uint32_t n_rows, k;       /* size of the activations that are prepared now */
    uint32_t kinds;           /* bits of enum act_kind that are prepared now */
};
