#include "kernels/cpu/act_cpu.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/stream_cpu.h"

/* A job of fewer elements than this runs on the calling thread alone, because waking a member costs
 * more. */
enum { ALIGN = 64, MIN_PARALLEL = 4096 };

/* s = max(3.5 · √(π/2) · mean|x| / 127, max|x| / 32000, 1e-30): docs/house/numerics.md. */
static const float MEAN_FACTOR = 0.034539763f, MAX_DIVISOR = 32000.0f, MIN_SCALE = 1e-30f;

static size_t padded(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

struct act_layout {
    size_t lo, sums, shorts, outliers, dense, tiles,
        words; /* words: of one 4-byte element per row */
    size_t total;
};

static struct act_layout lay_out(uint32_t max_rows, uint32_t max_k, bool tiles)
{
    size_t rows = max_rows, k_pad = ((size_t)max_k + ACT_RUN - 1) / ACT_RUN * ACT_RUN;
    size_t whole_tiles = (rows + ACT_TILE_ROWS - 1) / ACT_TILE_ROWS * ACT_TILE_ROWS;
    struct act_layout layout = {
        .lo = padded(rows * k_pad),
        .sums = padded(rows * (k_pad / ACT_RUN) * sizeof(struct act_sums)),
        .shorts = padded(rows * act_short_stride((uint32_t)k_pad) * sizeof(int16_t)),
        .outliers = padded(rows * (k_pad / ACT_GROUP) * sizeof(struct act_outlier)),
        .dense = padded(whole_tiles * k_pad * sizeof(uint32_t)),
        .tiles = tiles ? act_tiles_bytes(max_rows, (uint32_t)k_pad) : 0,
        .words = padded(rows * 4),
    };
    layout.total = padded(sizeof(struct act_cpu)) + layout.lo + layout.sums + 2 * layout.shorts +
                   layout.outliers + 2 * layout.dense + layout.tiles + 20 * layout.words;
    return layout;
}

size_t act_bytes_cpu(uint32_t max_rows, uint32_t max_k)
{
    return lay_out(max_rows, max_k, false).total;
}

size_t act_bytes_amx(uint32_t max_rows, uint32_t max_k)
{
    return lay_out(max_rows, max_k, true).total;
}

static int create(uint32_t max_rows, uint32_t max_k, bool tiles, struct act **out_act,
                  struct error *err)
{
    if (max_rows == 0 || max_k == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "activations: %u rows of %u elements",
                         max_rows, max_k);
    struct act_layout size = lay_out(max_rows, max_k, tiles);
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGN, size.total) != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "activations: %zu bytes needed",
                         size.total);
    struct act_cpu *act = memory;
    memset(act, 0, sizeof(*act));
    uint8_t *at = (uint8_t *)memory + padded(sizeof(*act));
    act->base.max_rows = max_rows;
    act->base.max_k = max_k;
    act->lo = (int8_t *)at;
    act->sums = (struct act_sums *)(void *)(at += size.lo);
    act->sums32 = (int16_t *)(void *)(at += size.sums);
    act->sums16 = (int16_t *)(void *)(at += size.shorts);
    act->outliers = (struct act_outlier *)(void *)(at += size.shorts);
    act->f32 = (uint32_t *)(void *)(at += size.outliers);
    act->bf16 = (uint32_t *)(void *)(at += size.dense);
    act->tiles = at += size.dense;
    act->scale = (float *)(void *)(at += size.tiles);
    act->n_outliers = (uint32_t *)(void *)(at += size.words);
    act->stats = (float *)(void *)(at += size.words);
    act->all_stats = (float *)(void *)(at + 2 * size.words);
    *out_act = &act->base;
    return 0;
}

int act_create_cpu(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                   struct error *err)
{
    (void)device;
    return create(max_rows, max_k, false, out_act, err);
}

int act_create_amx(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                   struct error *err)
{
    (void)device;
    return create(max_rows, max_k, true, out_act, err);
}

void act_destroy_cpu(struct act *act)
{
    free(act);
}

struct prepare_job {
    struct act_cpu *act;
    const struct tensor *x;
    const struct segments *segments;
    const struct cpu_inner *inner;
    uint32_t n_ranks;
};

/* Σ|x| and max|x| of the part of each row that this rank holds: sums per segment, added by the
 * tree. */
static void stats_of_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    struct prepare_job *job = arg;
    const struct segments *seg = job->segments;
    uint32_t begin, end, k = job->x->n_cols;
    const uint32_t whole[2] = {0, k};
    const uint32_t *bounds = seg != NULL ? seg->bounds + seg->first : whole;
    uint32_t n_parts = seg != NULL ? seg->count : 1;
    thread_pool_share(job->x->n_rows, 1, index, n_threads, &begin, &end);
    for (uint32_t row = begin; row < end; row++) {
        const float *x = tensor_row_f32(job->x, row);
        float sums[N_SEGMENTS] = {0}, max = 0.0f;
        for (uint32_t p = 0; p < n_parts; p++) {
            float part_max = 0.0f;
            uint32_t n = bounds[p + 1] - bounds[p];
            if (n > 0)
                job->inner->abs_stats(x + (bounds[p] - bounds[0]), n, &sums[p], &part_max);
            max = part_max > max ? part_max : max;
        }
        job->act->stats[2 * row] = tree_sum(sums, bounds, n_parts);
        job->act->stats[2 * row + 1] = max;
    }
}

/* Combines the sums and maxima of all ranks into those of the whole row. */
static void combine_stats(const struct prepare_job *job, uint32_t row, float *out_sum,
                          float *out_max)
{
    const struct act_cpu *act = job->act;
    float sums[N_SEGMENTS], max = 0.0f;
    if (job->n_ranks == 1) {
        *out_sum = act->stats[2 * row];
        *out_max = act->stats[2 * row + 1];
        return;
    }
    assert(job->n_ranks > 1);
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        const float *stats = act->all_stats + 2 * ((size_t)r * job->x->n_rows + row);
        sums[r] = stats[0];
        max = stats[1] > max ? stats[1] : max;
    }
    *out_sum = tree_sum_present(sums, (1U << job->n_ranks) - 1, job->n_ranks);
    *out_max = max;
}

static void quantize_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    struct prepare_job *job = arg;
    struct act_cpu *act = job->act;
    uint32_t begin, end, k = job->x->n_cols;
    uint32_t k_total = job->segments != NULL ? job->segments->bounds[N_SEGMENTS] : k;
    thread_pool_share(job->x->n_rows, 1, index, n_threads, &begin, &end);
    for (uint32_t row = begin; row < end; row++) {
        float sum, max;
        combine_stats(job, row, &sum, &max);
        float by_mean = sum / (float)k_total * MEAN_FACTOR, by_max = max / MAX_DIVISOR;
        float scale = by_mean > by_max ? by_mean : by_max;
        scale = scale > MIN_SCALE ? scale : MIN_SCALE;
        /* A row that is not finite gets a = 0 and s = NaN. Its results are then NaN, as in float
         * arithmetic. */
        bool finite = isfinite(sum);
        act->scale[row] = finite ? scale : NAN;
        job->inner->quantize(act, row, finite ? tensor_row_f32(job->x, row) : NULL, k,
                             1.0f / scale);
    }
}

/* Writes columns [k, k + ACT_RUN) of one row to every `step`th dword from dst on; zeros beyond
 * n_cols. */
static void write_run(const struct prepare_job *job, bool round, const float *x, uint32_t k,
                      uint32_t *dst, uint32_t step)
{
    uint32_t n_cols = job->x->n_cols, dwords[ACT_RUN], n = ACT_RUN;
    float padded_run[ACT_RUN] = {0};
    const float *run = x + k;
    if (k + ACT_RUN > n_cols) {
        memcpy(padded_run, run, (n_cols - k) * sizeof(float));
        run = padded_run;
    }
    const uint32_t *src = dwords;
    if (round) {
        job->inner->round_bf16(dwords, run);
        n /= job->inner->bf16_columns;
    } else {
        memcpy(dwords, run, sizeof(dwords));
    }
    for (uint32_t i = 0; i < n; i++)
        dst[(size_t)i * step] = src[i];
}

/* Writes groups of rows in the layout that dense weights read. */
static void regroup(const struct prepare_job *job, bool round, uint32_t begin, uint32_t end)
{
    struct act_cpu *act = job->act;
    uint32_t *dense = round ? act->bf16 : act->f32;
    uint32_t columns = round ? job->inner->bf16_columns : 1, n_dwords = act->k_pad / columns;
    for (uint32_t row = begin; row < end; row++) {
        uint32_t step = act_group_rows(act, row);
        uint32_t *dst = dense + (act_dense_row(dense, row, n_dwords) - dense);
        for (uint32_t k = 0; k < job->x->n_cols; k += ACT_RUN)
            write_run(job, round, tensor_row_f32(job->x, row), k, dst + (size_t)k / columns * step,
                      step);
    }
}

static void tile_rows(const struct prepare_job *job, uint32_t begin, uint32_t end)
{
    for (uint32_t row = begin; row < end; row++)
        for (uint32_t k = 0; k < job->x->n_cols; k += ACT_RUN)
            write_run(job, true, tensor_row_f32(job->x, row), k,
                      act_tile_row(job->act, row, k / ACT_RUN), 1);
}

static void regroup_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct prepare_job *job = arg;
    uint32_t begin, end;
    thread_pool_share(job->x->n_rows, ACT_GROUP_ROWS, index, n_threads, &begin, &end);
    if (job->act->base.kinds & ACT_F32)
        regroup(job, false, begin, end);
    if (!(job->act->base.kinds & ACT_BF16))
        return;
    if (job->inner->bf16_tile_rows > 0)
        tile_rows(job, begin, end);
    else
        regroup(job, true, begin, end);
}

/* Does both stages, if no other rank's part is needed between them. */
static void prepare_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    stats_of_rows(arg, index, n_threads);
    quantize_rows(arg, index, n_threads);
}

static void arrange_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct prepare_job *job = arg;
    uint32_t begin, end;
    thread_pool_share(job->x->n_rows, ACT_PAIR_ROWS, index, n_threads, &begin, &end);
    if (begin < end)
        job->inner->arrange(job->act, begin, end);
}

/* Computes the rows' sums and maxima (combined over ranks), the integers, and the layout that the
 * kernel set's linears read. */
static int prepare_int8(struct stream *s, struct prepare_job *job, struct comm *comm, bool parallel)
{
    struct act_cpu *act = job->act;
    if (job->segments == NULL || comm == NULL || comm->size == 1) {
        ops_run_job(s, prepare_rows, job, parallel);
    } else {
        ops_run_job(s, stats_of_rows, job, parallel);
        job->n_ranks = comm->size;
        int rc = comm_all_gather(comm, s, act->all_stats, act->stats,
                                 (size_t)job->x->n_rows * 2 * sizeof(float));
        if (rc != 0)
            return rc;
        ops_run_job(s, quantize_rows, job, parallel);
    }
    if (job->inner->arrange != NULL && act->base.n_rows >= job->inner->arrange_min_rows)
        ops_run_job(s, arrange_rows, job, parallel);
    return 0;
}

int act_prepare_cpu(struct stream *s, struct act *base, const struct tensor *x, uint32_t kinds,
                    const struct segments *segments, struct comm *comm)
{
    struct act_cpu *act = (struct act_cpu *)base;
    if ((kinds & ~(uint32_t)(ACT_F32 | ACT_BF16 | ACT_INT8)) != 0)
        return STATUS_INTERNAL;
    act->base.n_rows = x->n_rows;
    act->base.k = x->n_cols;
    act->base.kinds = kinds;
    act->k_pad = (x->n_cols + ACT_RUN - 1) / ACT_RUN * ACT_RUN;
    struct prepare_job job = {act, x, segments, inner_of(s->ops), 1};
    bool parallel = x->n_rows > 1 && (uint64_t)x->n_rows * x->n_cols >= MIN_PARALLEL;
    if (kinds & (ACT_F32 | ACT_BF16))
        ops_run_job(s, regroup_rows, &job, parallel);
    if (!(kinds & ACT_INT8))
        return 0;
    return prepare_int8(s, &job, comm, parallel);
}
