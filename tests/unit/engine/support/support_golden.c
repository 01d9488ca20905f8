#include "tests/unit/engine/support/support_golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *golden_source_dir(void)
{
    const char *moved = getenv("SLUICE_TEST_SOURCE_DIR");
    return moved && moved[0] ? moved : SLUICE_SOURCE_DIR;
}

void golden_open(struct golden *g, const char *name, const char *magic)
{
    char path[512];
    *g = (struct golden){0};
    snprintf(path, sizeof(path), "%s/tests/golden/%s", golden_source_dir(), name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    g->bytes = malloc((size_t)size);
    assert_non_null(g->bytes);
    g->n_bytes = fread(g->bytes, 1, (size_t)size, file);
    fclose(file);
    if (memcmp(golden_take(g, strlen(magic)), magic, strlen(magic)) != 0)
        fail_msg("%s does not begin with %s", path, magic);
}

void golden_close(struct golden *g)
{
    free(g->bytes);
    *g = (struct golden){0};
}

const unsigned char *golden_take(struct golden *g, size_t n_bytes)
{
    if (n_bytes > g->n_bytes - g->at)
        fail_msg("golden file ends at %zu, %zu more bytes expected at %zu", g->n_bytes, n_bytes,
                 g->at);
    const unsigned char *at = g->bytes + g->at;
    g->at += n_bytes;
    return at;
}

uint32_t golden_u32(struct golden *g)
{
    uint32_t value;
    memcpy(&value, golden_take(g, 4), 4);
    return value;
}

float golden_f32(struct golden *g)
{
    float value;
    memcpy(&value, golden_take(g, 4), 4);
    return value;
}

void *golden_copy(struct golden *g, size_t n)
{
    void *copy = malloc(n * 4);
    assert_non_null(copy);
    memcpy(copy, golden_take(g, n * 4), n * 4);
    return copy;
}

float *golden_row(struct golden *g, size_t n)
{
    return golden_numbers(g, golden_f32(g), n);
}

float *golden_numbers(struct golden *g, float scale, size_t n)
{
    double unit = (double)scale / ((1 << 19) - 1);
    float *row = malloc(n * sizeof(float));
    assert_non_null(row);
    for (size_t i = 0; i < n; i += 2) {
        uint64_t pair = 0;
        memcpy(&pair, golden_take(g, 5), 5);
        for (size_t k = 0; k < 2 && i + k < n; k++) {
            int32_t code = (int32_t)(pair >> 20 * k & 0xFFFFF);
            row[i + k] = (float)((code < 1 << 19 ? code : code - (1 << 20)) * unit);
        }
    }
    return row;
}
