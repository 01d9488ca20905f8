/* support_attention_model.h: attention of the kernel set "amx" from the product's own source over a
 * model of the tile instructions (support_tiles_model.h). Needs AVX-512. Takes any number of
 * queries, so that few are tried too, which the product leaves to avx512. */
#pragma once

struct attention_tile;

void attention_amx_model(const struct attention_tile *tile, void *scratch);
