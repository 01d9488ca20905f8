/* tiles_check_impl.h: checks that tiles multiply as the kernels expect. The test numbers
 * distinguish operands, signs and the order of sums. Written in the names of tiles_amx.h. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/dtype.h"

struct tiles {
    _Alignas(64) uint8_t a[TILE_ROWS][TILE_ROW_BYTES];
    _Alignas(64) uint8_t b[TILE_ROWS][TILE_ROW_BYTES];
    _Alignas(64) uint8_t c[TILE_ROWS][TILE_ROW_BYTES];
};

/* Uses bytes of both signs that differ between rows and columns, and between a and b. */
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

/* Fills a row with values from 2^-20 to 2^20 of both signs, so that each order of the sums rounds
 * differently. */
static void put_check_bf16(uint8_t row[TILE_ROW_BYTES], uint32_t seed)
{
    for (uint32_t i = 0; i < TILE_ROW_BYTES / 2; i++) {
        uint32_t hash = (seed * 64 + i) * 2654435761u;
        uint16_t half =
            (uint16_t)((hash & 0x8000) | (107 + (hash >> 16) % 41) << 7 | (hash >> 25 & 0x7F));
        memcpy(row + i * 2, &half, sizeof(half));
    }
}

static float check_bf16_at(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof(half));
    return dtype_bf16_to_f32(half);
}

static bool check_tiles_bf16(void)
{
    struct tiles t = {0};
    struct tile_config config = tile_config_whole();
    float start[TILE_ROWS][TILE_ROWS];
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        put_check_bf16(t.a[r], r);
        put_check_bf16(t.b[r], 32 + r);
        for (uint32_t n = 0; n < TILE_ROWS; n++)
            start[r][n] = 1000.1f * (float)r - 77.7f * (float)n;
    }
    tile_configure(&config);
    tile_load(0, start, TILE_ROW_BYTES);
    tile_load(1, t.a, TILE_ROW_BYTES);
    tile_load(2, t.b, TILE_ROW_BYTES);
    tile_dot_bf16(0, 1, 2);
    tile_store(0, t.c, TILE_ROW_BYTES);
    tile_release();
    for (uint32_t m = 0; m < TILE_ROWS; m++)
        for (uint32_t n = 0; n < TILE_ROWS; n++) {
            float chain[2] = {0.0f, 0.0f}, got;
            for (uint32_t k = 0; k < TILE_ROW_BYTES / 2; k++)
                chain[k % 2] = fmaf(check_bf16_at(&t.a[m][k * 2]),
                                    check_bf16_at(&t.b[k / 2][n * 4 + k % 2 * 2]), chain[k % 2]);
            memcpy(&got, &t.c[m][n * 4], sizeof(got));
            if (got != start[m][n] + (chain[0] + chain[1]))
                return false;
        }
    return true;
}
