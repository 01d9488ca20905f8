/* tiles_amx.h: AMX tile instructions. Kernels (*_amx_impl.h) are written in these names only, so
 * that tests/unit/kernels can put a plain model of the instructions in their place and hold the
 * same source to the reference on processors without AMX.
 *
 * Tiles are numbered by literals 0..7, all of TILE_ROWS rows of TILE_ROW_BYTES. Multiplications
 * read a (rows of activations) and b (four or two columns of K per dword, an output per dword).
 * The state belongs to the thread: configure before, release after, nothing in between that could
 * run other tile code. Inline assembly, because the compiler's own macros do not say that a load
 * reads memory, and gcc 12's loadconfig says that it reads 8 of its 64 bytes. */
#pragma once

#include <stdint.h>

enum {
    TILE_ROWS = 16,
    TILE_ROW_BYTES = 64,
    TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES,
    N_TILES = 8,
};

/* What ldtilecfg reads. */
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

/* Gives the tiles back: a thread that holds none has less to save at a switch. */
static inline void tile_release(void)
{
    __asm__ volatile("tilerelease");
}

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::)

/* TILE_ROWS rows from p on, each `stride` bytes after the one before. */
#define tile_load(t, p, stride)                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define tile_store(t, p, stride)                                                                   \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride))          \
                     : "memory")

/* c += a·b, four signed bytes of a by four unsigned bytes of b per dword; wraps at 32 bits. */
#define tile_dot_s8_u8(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* c += a·b in bf16 pairs: a chain of FMAs from 0 over the first of each pair, one over the second,
 * their sum added to c; to nearest even, subnormal operands and results are 0. */
#define tile_dot_bf16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif
