/* Checks wgmma's attention of prompts on a device. No compiler checks that code: layouts in shared
 * memory, fences, products in flight. So a device uses it with "auto" if two things hold. The
 * results equal mma's within the operands' rounding, and a row's bits do not depend on its place.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_maths.h"
#include "kernels/cuda/attention/attention_wgmma_index.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/table_cuda.h"

enum {
    POSITIONS = 300, /* three partitions, the last with a tail */
    FIRST = 230,     /* position of the first row, in the second partition */
    ROWS = POSITIONS - FIRST,
    HEADS = 3, /* with one KV head, so tiles of 42 rows */
    MAX_DIM = 128,
    BLOCK = 16,
    N_BLOCKS = (POSITIONS + BLOCK - 1) / BLOCK,
    MAX_COLS = HEADS * MAX_DIM,
    SLICE = 57 /* rows of a second launch, which begins elsewhere in its tile */
};

/* Weights and queries are rounded to 8 bits (bf16), values are below 1. Misplaced elements differ
 * by tenths. */
static const float MOST_APART = 2e-2f;

/* The device memory of a check, and its data on the host. */
struct check {
    float *q, *k, *v, *y;
    uint8_t *pool_k, *pool_v;
    uint32_t *numbers; /* positions, sequences, block table, slots */
    float host[POSITIONS * MAX_COLS], mma[ROWS * MAX_COLS], wgmma[ROWS * MAX_COLS],
        part[SLICE * MAX_COLS];
    uint32_t host_numbers[2 * ROWS + N_BLOCKS + POSITIONS];
};

/* The caches that are checked: each kind of code once. */
static const struct {
    enum dtype dtype;
    uint32_t dim;
} kinds[] = {{DTYPE_BF16, 128}, {DTYPE_F16, 64}, {DTYPE_I8, 128}, {DTYPE_F8_E4M3, 64}};

static int allocate(struct check *c)
{
    const size_t pool = (size_t)N_BLOCKS * BLOCK * (MAX_DIM * 2 + sizeof(float));
    const size_t rows = (size_t)ROWS * MAX_COLS * sizeof(float);
    const size_t vectors = (size_t)POSITIONS * MAX_DIM * sizeof(float);
    struct {
        void **data;
        size_t n_bytes;
    } const all[] = {{(void **)&c->q, rows},
                     {(void **)&c->y, rows},
                     {(void **)&c->k, vectors},
                     {(void **)&c->v, vectors},
                     {(void **)&c->pool_k, pool},
                     {(void **)&c->pool_v, pool},
                     {(void **)&c->numbers, sizeof(c->host_numbers)}};
    int code = 0;
    for (size_t i = 0; code == 0 && i < sizeof(all) / sizeof(all[0]); i++)
        code = (int)cudaMalloc(all[i].data, all[i].n_bytes);
    return code;
}

static int upload_random(struct check *c, float *to, uint32_t n, float scale, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        c->host[i] = scale * ((float)(seed >> 8) / (float)(1 << 23) - 1.0f);
    }
    return (int)cudaMemcpy(to, c->host, n * sizeof(float), cudaMemcpyHostToDevice);
}

/* Uploads positions, the sequence 0, a block table in reverse order, and the slots of all
 * positions. */
static int upload_numbers(struct check *c)
{
    uint32_t *seqs = c->host_numbers + ROWS, *table = seqs + ROWS, *slots = table + N_BLOCKS;
    for (uint32_t r = 0; r < ROWS; r++) {
        c->host_numbers[r] = FIRST + r;
        seqs[r] = 0;
    }
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        table[b] = N_BLOCKS - 1 - b;
    for (uint32_t p = 0; p < POSITIONS; p++)
        slots[p] = table[p / BLOCK] * BLOCK + p % BLOCK;
    return (int)cudaMemcpy(c->numbers, c->host_numbers, sizeof(c->host_numbers),
                           cudaMemcpyHostToDevice);
}

static struct attention_cuda job_of(const struct check *c, enum dtype dtype, uint32_t dim)
{
    struct attention_cuda a = {
        .kv = {c->pool_k, c->pool_v, dtype, N_BLOCKS, BLOCK, 1, dim, dim},
        .block_shift = attention_shift_of(BLOCK),
        .q = c->q,
        .y = c->y,
        .q_stride = (size_t)HEADS * dim,
        .y_stride = (size_t)HEADS * dim,
        .positions = c->numbers,
        .seq_of_row = c->numbers + ROWS,
        .block_tables = c->numbers + 2 * (size_t)ROWS,
        .table_stride = N_BLOCKS,
        .n_seqs = 1,
        .n_rows = ROWS,
        .n_heads = HEADS,
        .heads_per_kv = HEADS,
        .factor = ATTENTION_LOG2E / sqrtf((float)dim),
    };
    a.k = a.v = attention_plane_of(&a.kv, dim);
    return a;
}

/* Fills the caches and q. Queries are large, so that few positions have most of the weight. */
static int fill(struct check *c, const struct attention_cuda *a)
{
    const uint32_t dim = a->kv.head_dim, *slots = c->numbers + 2 * (size_t)ROWS + N_BLOCKS;
    int code = upload_random(c, c->q, ROWS * HEADS * dim, 4.0f, 1);
    if (code == 0)
        code = upload_random(c, c->k, POSITIONS * dim, 1.0f, 2);
    if (code == 0)
        code = upload_random(c, c->v, POSITIONS * dim, 1.0f, 3);
    return code != 0 ? code
                     : cuda_launch_kv_write(NULL, &a->kv, c->k, dim, c->v, dim, slots, POSITIONS);
}

typedef int launch_fn(void *stream, const struct attention_cuda *a);

/* out[n_rows, HEADS · dim]; NaN where the kernel wrote nothing. */
static int attend(const struct check *c, launch_fn *launch, struct attention_cuda a, uint32_t begin,
                  uint32_t n_rows, float *out)
{
    const size_t n_bytes = (size_t)n_rows * a.y_stride * sizeof(float);
    a.row_begin = begin;
    a.n_rows = n_rows;
    int code = (int)cudaMemset(c->y, 0xFF, (size_t)ROWS * a.y_stride * sizeof(float));
    if (code == 0)
        code = launch(NULL, &a);
    return code != 0
               ? code
               : (int)cudaMemcpy(out, c->y + begin * a.y_stride, n_bytes, cudaMemcpyDeviceToHost);
}

static int check_kind(struct check *c, enum dtype dtype, uint32_t dim, const char **out_why_not)
{
    struct attention_cuda a = job_of(c, dtype, dim);
    const uint32_t cols = HEADS * dim, begin = ROWS - SLICE;
    int code = fill(c, &a);
    if (code == 0)
        code = attend(c, cuda_launch_attention_prefill, a, 0, ROWS, c->mma);
    if (code == 0)
        code = attend(c, cuda_launch_attention_wgmma, a, 0, ROWS, c->wgmma);
    if (code == 0)
        code = attend(c, cuda_launch_attention_wgmma, a, begin, SLICE, c->part);
    for (uint32_t i = 0; code == 0 && i < ROWS * cols; i++)
        if (!(fabsf(c->wgmma[i] - c->mma[i]) <= MOST_APART))
            *out_why_not = "wgmma's attention differs from mma's";
    if (code == 0 && *out_why_not == NULL &&
        memcmp(c->part, c->wgmma + (size_t)begin * cols, (size_t)SLICE * cols * sizeof(float)) != 0)
        *out_why_not = "the bits of wgmma's attention depend on a row's place";
    return code;
}

static int run_check(struct check *c, const char **out_why_not)
{
    int code = allocate(c);
    if (code == 0)
        code = upload_numbers(c);
    for (size_t i = 0; code == 0 && *out_why_not == NULL && i < sizeof(kinds) / sizeof(kinds[0]);
         i++)
        code = check_kind(c, kinds[i].dtype, kinds[i].dim, out_why_not);
    return code;
}

int attention_check_cuda(uint32_t index, const char **out_why_not, struct error *err)
{
    struct check *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", index);
    int code = run_check(c, out_why_not);
    void *const memory[] = {c->q, c->k, c->v, c->y, c->pool_k, c->pool_v, c->numbers};
    free(c);
    return prompts_end_check_cuda(index, code, memory, sizeof(memory) / sizeof(memory[0]),
                                  "the check of attention by wgmma could not be run", out_why_not,
                                  err);
}
