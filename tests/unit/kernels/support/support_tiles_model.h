/* support_tiles_model.h: the AMX instructions of tiles_amx.h as plain C, after Intel's Software
 * Developer's Manual (TILELOADD, TDPBSUD, TDPBF16PS and the others: "Operation"). Each thread has
 * its own tiles. Cases of #UD
 * or #GP end the program: an unconfigured tile, sizes that do not fit, the same tile twice. */
#pragma once

#define SLUICE_TILE_MODEL
#include "kernels/cpu/linear/tiles_amx.h"

void tile_configure(const struct tile_config *config);
void tile_release(void);
void tile_zero(int t);
void tile_load(int t, const void *p, int64_t stride);
void tile_store(int t, void *p, int64_t stride);
void tile_dot_s8_u8(int c, int a, int b);
void tile_dot_bf16(int c, int a, int b);
