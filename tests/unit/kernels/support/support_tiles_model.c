#include "tests/unit/kernels/support/support_tiles_model.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tile {
    uint8_t bytes[TILE_ROWS][TILE_ROW_BYTES];
    uint32_t rows, row_bytes; /* 0: not configured */
};

static _Thread_local struct tile tiles[N_TILES];

static void must(bool held, const char *what)
{
    if (held)
        return;
    fprintf(stderr, "tiles: %s\n", what);
    abort();
}

static struct tile *tile_at(int t)
{
    must(t >= 0 && t < N_TILES, "no such tile");
    must(tiles[t].rows > 0 && tiles[t].row_bytes > 0, "a tile that is not configured");
    return &tiles[t];
}

void tile_configure(const struct tile_config *config)
{
    static const uint8_t none[14];
    must(config->palette == 1 && config->start_row == 0, "a palette or first row not used here");
    must(memcmp(config->reserved, none, sizeof(none)) == 0, "reserved bytes are not zero");
    memset(tiles, 0, sizeof(tiles));
    for (int t = 0; t < 16; t++) {
        uint32_t rows = config->rows[t], row_bytes = config->row_bytes[t];
        must(t < N_TILES || (rows == 0 && row_bytes == 0), "more than eight tiles");
        must(rows <= TILE_ROWS && row_bytes <= TILE_ROW_BYTES, "a tile too large");
        must((rows == 0) == (row_bytes == 0), "a tile without rows or columns");
        if (t < N_TILES) {
            tiles[t].rows = rows;
            tiles[t].row_bytes = row_bytes;
        }
    }
}

void tile_release(void)
{
    memset(tiles, 0, sizeof(tiles));
}

void tile_zero(int t)
{
    memset(tile_at(t)->bytes, 0, TILE_BYTES);
}

void tile_load(int t, const void *p, int64_t stride)
{
    struct tile *tile = tile_at(t);
    must(tile->row_bytes % 4 == 0, "rows of no whole dwords");
    memset(tile->bytes, 0, TILE_BYTES);
    for (uint32_t r = 0; r < tile->rows; r++)
        memcpy(tile->bytes[r], (const uint8_t *)p + (int64_t)r * stride, tile->row_bytes);
}

void tile_store(int t, void *p, int64_t stride)
{
    const struct tile *tile = tile_at(t);
    for (uint32_t r = 0; r < tile->rows; r++)
        memcpy((uint8_t *)p + (int64_t)r * stride, tile->bytes[r], tile->row_bytes);
}

/* c[m × n] of dwords += a[m × k] · b[k × n]. */
struct product {
    struct tile *c;
    const struct tile *a, *b;
    uint32_t m, n, k;
};

static struct product product_of(int c, int a, int b)
{
    must(c != a && c != b && a != b, "the same tile twice");
    struct product p = {.c = tile_at(c), .a = tile_at(a), .b = tile_at(b)};
    p.m = p.a->rows;
    p.n = p.c->row_bytes / 4;
    p.k = p.b->rows;
    must(p.c->rows == p.m && p.b->row_bytes == p.c->row_bytes && p.a->row_bytes == p.k * 4,
         "sizes that do not fit each other");
    return p;
}

void tile_dot_s8_u8(int c, int a, int b)
{
    struct product p = product_of(c, a, b);
    for (uint32_t m = 0; m < p.m; m++)
        for (uint32_t n = 0; n < p.n; n++) {
            uint32_t sum;
            memcpy(&sum, &p.c->bytes[m][n * 4], 4);
            for (uint32_t k = 0; k < p.k; k++)
                for (uint32_t i = 0; i < 4; i++)
                    sum += (uint32_t)((int8_t)p.a->bytes[m][k * 4 + i] *
                                      (int)p.b->bytes[k][n * 4 + i]);
            memcpy(&p.c->bytes[m][n * 4], &sum, 4);
        }
}

/* DAZ and FTZ: a subnormal is a zero of its sign. */
static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static float bf16_at(const uint8_t *p)
{
    uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return flushed(x);
}

void tile_dot_bf16(int c, int a, int b)
{
    struct product p = product_of(c, a, b);
    for (uint32_t m = 0; m < p.m; m++)
        for (uint32_t n = 0; n < p.n; n++) {
            float chain[2] = {0.0f, 0.0f}, sum;
            for (uint32_t k = 0; k < p.k; k++)
                for (uint32_t i = 0; i < 2; i++)
                    chain[i] = flushed(fmaf(bf16_at(&p.a->bytes[m][k * 4 + i * 2]),
                                            bf16_at(&p.b->bytes[k][n * 4 + i * 2]), chain[i]));
            memcpy(&sum, &p.c->bytes[m][n * 4], 4);
            sum = flushed(flushed(sum) + flushed(chain[0] + chain[1]));
            memcpy(&p.c->bytes[m][n * 4], &sum, 4);
        }
}
