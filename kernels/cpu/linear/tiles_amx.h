/* tiles_amx.h: AMX tile instructions. Kernels (*_amx_impl.h) use only the names of this file. So
 * tests/unit/kernels can replace the instructions by a plain model, and can test the same source
 * without AMX.
 * Tiles have the literal numbers 0..7; each has TILE_ROWS rows of TILE_ROW_BYTES. Multiplications
 * read a (rows of activations) and b (four or two columns of K per dword, an output per dword). The
 * tile state belongs to the thread. Configure before and release after, and run no other tile code
 * in between. Inline assembly, because the compiler's macros do not declare that a load reads
 * memory. Also gcc 12's loadconfig declares only 8 of the 64 bytes that it reads. */
#pragma once

#include <stdint.h>

enum {
    TILE_ROWS = 16,
    TILE_ROW_BYTES = 64,
    TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES,
    N_TILES = 8,
};

/* The operand of ldtilecfg. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline struct tile_config tile_config_whole(void)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < N_TILES; i++) {
        config.row_bytes[i] = TILE_ROW_BYTES;
        config.rows[i] = TILE_ROWS;
    }
    return config;
}

#ifndef SLUICE_TILE_MODEL

static inline void tile_configure(const struct tile_config *config)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*config));
}

/* Releases the tiles, so that a thread switch has less state to save. */
static inline void tile_release(void)
{
    __asm__ volatile("tilerelease");
}

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::)

/* Loads or stores TILE_ROWS rows from p on, `stride` bytes apart. */
#define tile_load(t, p, stride)                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define tile_store(t, p, stride)                                                                   \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride))          \
                     : "memory")

/* c += a·b, four signed bytes of a times four unsigned bytes of b per dword; wraps at 32 bits. */
#define tile_dot_s8_u8(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* c += a·b in bf16 pairs. There is a chain of FMAs from 0 over the first elements of the pairs, and
 * another over the second. Their sum is added to c. Rounds to nearest even; subnormal operands and
 * results are 0. */
#define tile_dot_bf16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif
