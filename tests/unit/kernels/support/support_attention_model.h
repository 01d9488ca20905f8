/* support_attention_model.h: attention of the kernel set "amx" from the product's own source, over
 * a model of the tile instructions (support_tiles_model.h). Needs AVX-512. Over an int8 cache the
 * model takes any number of queries; the product leaves few queries to avx512. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct attention_tile;

void attention_amx_model(const struct attention_tile *tile, void *scratch);

/* Over a bf16 cache; false: not taken. */
bool attention_bf16_model(const struct attention_tile *tile, void *scratch);
/* Least number of a group's queries for which the model uses tiles. 0: the kernels' own number,
 * UINT32_MAX: no tiles. */
void attention_model_tiles_from(uint32_t n_queries);
