/* support_attention_tiles.h: attention over a bf16 cache in plain C, in the order that tiles add
 * (kernels/cpu/attention/attention_bf16_amx_impl.h). */
#pragma once

#include "tests/unit/kernels/support/support_attention_world.h"

/* [token][head][v_dim]; the caller's to free. */
float *attend_in_tile_order(const struct world *w);
