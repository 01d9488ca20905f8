/* support_amx_model.h: the kernel set "amx" from the product's own source over a model of the tile
 * instructions (support_tiles_model.h). Needs AVX-512. Takes any number of rows, so that shapes are
 * tried that the product leaves to avx512. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct op_table;
struct linear_job;
struct linear_share;
struct weight_cpu;

#define AMX_MODEL "amx model"

const struct op_table *amx_model_ops(void);

/* The set's computation of a BF16 weight with few rows, and with many. */
void amx_model_dense_by_fma(const struct linear_job *job, const struct linear_share *share);
void amx_model_dense_by_tiles(const struct linear_job *job, const struct linear_share *share);

/* The check of the tiles that the product makes before it takes AMX, of the model. */
bool amx_model_checks(void);

/* Returns true if the product gives a share of so many rows of an integer weight to the tiles. */
bool amx_model_takes(const struct weight_cpu *w, uint32_t n_rows);

/* Scratch that the integer linear lays out for a weight of k_pad columns. */
size_t amx_model_scratch_bytes(uint32_t k_pad);
/* Returns the bytes of act.tiles for 32 rows. */
size_t amx_model_pair_bytes(uint32_t k_pad);
