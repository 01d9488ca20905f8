/* tiles_check_impl.h: whether tiles multiply as the kernels rely on, on numbers that tell operands,
 * signs and the order of sums apart. Written in the names of tiles_amx.h. */
#pragma once

#include <stdbool.h>
#include <string.h>

struct tiles {
    _Alignas(64) uint8_t a[TILE_ROWS][TILE_ROW_BYTES];
    _Alignas(64) uint8_t b[TILE_ROWS][TILE_ROW_BYTES];
    _Alignas(64) uint8_t c[TILE_ROWS][TILE_ROW_BYTES];
};

/* Bytes of both signs that differ between rows and columns, and between a and b. */
static bool check_tiles_int8(void)
{
    struct tiles t = {0};
    struct tile_config config = tile_config_whole();
    for (uint32_t r = 0; r < TILE_ROWS; r++)
        for (uint32_t i = 0; i < TILE_ROW_BYTES; i++) {
            t.a[r][i] = (uint8_t)(37 * r + 101 * i + 128);
            t.b[r][i] = (uint8_t)(91 * r + 59 * i + 3);
        }
    tile_configure(&config);
    tile_zero(0);
    tile_load(1, t.a, TILE_ROW_BYTES);
    tile_load(2, t.b, TILE_ROW_BYTES);
    tile_dot_s8_u8(0, 1, 2);
    tile_store(0, t.c, TILE_ROW_BYTES);
    tile_release();
    for (uint32_t m = 0; m < TILE_ROWS; m++)
        for (uint32_t n = 0; n < TILE_ROWS; n++) {
            int32_t want = 0, got;
            for (uint32_t k = 0; k < TILE_ROW_BYTES; k++)
                want += (int8_t)t.a[m][k] * (int)t.b[k / 4][n * 4 + k % 4];
            memcpy(&got, &t.c[m][n * 4], sizeof(got));
            if (got != want)
                return false;
        }
    return true;
}
