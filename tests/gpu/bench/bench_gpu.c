#include "tests/gpu/bench/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "kernels/weight.h"

void bench_die(const struct error *err)
{
    fprintf(stderr, "bench_cuda: %s\n", err->message);
    exit(1);
}

void *bench_allocate(struct bench *b, size_t n_bytes)
{
    struct error err = {0};
    void *data = NULL;
    if (b->module.device_ops->alloc(b->device, n_bytes, &data, &err) != 0)
        bench_die(&err);
    return data;
}

void bench_drop(struct bench *b, void *data, size_t n_bytes)
{
    b->module.device_ops->free(b->device, data, n_bytes);
}

void bench_sync(struct bench *b)
{
    struct error err = {0};
    if (b->module.device_ops->stream_sync(b->stream, &err) != 0)
        bench_die(&err);
}

void bench_upload(struct bench *b, void *dst, const void *src, size_t n_bytes)
{
    if (b->module.device_ops->upload(b->stream, dst, src, n_bytes) != 0)
        bench_sync(b);
    bench_sync(b);
}

void bench_reserve(struct bench *b, const struct op_needs *needs)
{
    struct error err = {0};
    if (b->module.op_table->stream_reserve &&
        b->module.op_table->stream_reserve(b->stream, needs, &err) != 0)
        bench_die(&err);
}

uint8_t *bench_rows(enum dtype type, uint32_t n_rows, uint32_t k)
{
    struct random random = {5};
    size_t row_bytes = dtype_row_bytes(type, k), n_bytes = row_bytes * n_rows;
    uint32_t n_first = n_rows < WEIGHT_PACK_ROWS ? n_rows : WEIGHT_PACK_ROWS;
    uint8_t *first = random_rows(&random, type, n_first, k), *rows = malloc(n_bytes);
    if (rows == NULL) {
        const struct error err = {.message = "out of memory"};
        bench_die(&err);
    }
    for (size_t at = 0; at < n_bytes; at += row_bytes * n_first)
        memcpy(rows + at, first,
               n_bytes - at < row_bytes * n_first ? n_bytes - at : row_bytes * n_first);
    free(first);
    return rows;
}

bool bench_lists(const char *list, const char *name)
{
    size_t n = strlen(name);
    if (!*list)
        return true;
    for (const char *item = list; item; item = strchr(item, ',')) {
        item += *item == ',';
        if (strncasecmp(item, name, n) == 0 && (item[n] == 0 || item[n] == ','))
            return true;
    }
    return false;
}
