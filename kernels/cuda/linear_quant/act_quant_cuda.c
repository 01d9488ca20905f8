#include "kernels/cuda/act_quant_cuda.h"

#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_quant/act_quant_heads.h"
#include "kernels/cuda/linear_quant/launch_quant.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/ops.h"
#include "kernels/segments.h"
#include "kernels/tensor.h"

size_t act_quant_bytes(uint32_t max_rows, uint32_t max_k)
{
    return quant_act_layout_of(max_rows, max_k).total;
}

static int allow_shared(uint32_t max_shared)
{
    int code = cuda_allow_quant_4bit(max_shared);
    if (code == 0)
        code = cuda_allow_quant_8bit(max_shared);
    if (code == 0)
        code = cuda_allow_quant_super(max_shared);
    if (code == 0)
        code = cuda_allow_quant_table(max_shared);
    return code;
}

int act_quant_create(struct act_quant *q, struct device *device, uint32_t max_rows, uint32_t max_k,
                     struct error *err)
{
    int n_sms = 0, max_shared = 0, index = (int)device->index;
    *q = (struct act_quant){.device = device, .n_bytes = act_quant_bytes(max_rows, max_k)};
    int code = cudaSetDevice(index);
    if (code == 0)
        code = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, index);
    if (code == 0)
        code = cudaDeviceGetAttribute(&max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    if (code == 0)
        code = allow_shared((uint32_t)max_shared);
    int rc = cuda_check(err, device->index, "linear kernels", code);
    if (rc == 0)
        rc = device->ops->alloc(device, q->n_bytes, &q->data, err);
    q->n_sms = (uint32_t)n_sms;
    q->max_shared = (uint32_t)max_shared;
    return rc;
}

void act_quant_destroy(struct act_quant *q)
{
    if (q->data != NULL)
        q->device->ops->free(q->device, q->data, q->n_bytes);
    q->data = NULL;
}

static struct quant_rows rows_of(struct act_quant *q, const struct tensor *x,
                                 const struct segments *seg)
{
    struct quant_act_layout at = quant_act_layout_of(x->n_rows, x->n_cols);
    uint8_t *data = q->data;
    q->split = data + at.split;
    q->planes = (struct quant_planes){.lo = data + at.lo,
                                      .hi = data + at.hi,
                                      .sums = data + at.sums,
                                      .hi_sums = data + at.hi_sums,
                                      .digits = data + at.digits,
                                      .scale = (float *)(void *)(data + at.scale)};
    struct quant_rows rows = {.to = q->planes,
                              .x = x->data,
                              .x_stride = x->row_stride,
                              .n_rows = x->n_rows,
                              .k = x->n_cols,
                              .k_total = x->n_cols,
                              .n_parts = 1,
                              .bounds = {0, x->n_cols},
                              .n_ranks = 1,
                              .stats = (float *)(void *)(data + at.stats),
                              .all_stats = (float *)(void *)(data + at.all_stats)};
    if (seg != NULL) {
        rows.k_total = seg->bounds[N_SEGMENTS];
        rows.n_parts = seg->count;
        for (uint32_t s = 0; s <= seg->count; s++)
            rows.bounds[s] = seg->bounds[seg->first + s] - segments_begin(seg);
    }
    return rows;
}

int act_quant_prepare(struct stream *stream, struct act_quant *q, const struct tensor *x,
                      uint32_t row_begin, const struct segments *segments, struct comm *comm)
{
    struct stream_cuda *s = stream_cuda(stream);
    struct quant_rows rows = rows_of(q, x, segments);
    bool alone = segments == NULL || comm == NULL || comm->size == 1;
    int rc = device_stream_enter(s);
    q->row_begin = row_begin;
    q->n_rows = x->n_rows;
    if (rc != 0 || x->n_rows == 0)
        return rc;
    rc =
        device_stream_check(s, "act_prepare", cuda_launch_act_quant(s->handle, &rows, true, alone));
    if (rc != 0 || alone)
        return rc;
    rows.n_ranks = comm->size;
    rc = comm_all_gather(comm, stream, (void *)(uintptr_t)rows.all_stats, rows.stats,
                         (size_t)x->n_rows * 2 * sizeof(float));
    if (rc != 0)
        return rc;
    return device_stream_check(s, "act_prepare",
                               cuda_launch_act_quant(s->handle, &rows, false, true));
}

bool act_quant_takes_heads(const struct act_quant *q, uint32_t n_rows, uint32_t n_heads, uint32_t k)
{
    return quant_act_layout_of(n_heads * quant_padded_rows(n_rows), k).total <= q->n_bytes;
}

int act_quant_heads(struct stream *stream, struct act_quant *q, const struct tensor *x,
                    uint32_t n_heads, uint32_t k)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct tensor planes = {x->data, DTYPE_F32, n_heads * quant_padded_rows(x->n_rows), k,
                                  x->row_stride};
    const struct quant_head_rows heads = {rows_of(q, &planes, NULL), x->n_rows};
    q->row_begin = 0;
    q->n_rows = 0; /* no linear but the heads' reads these rows */
    return device_stream_check(s, "heads_linear", cuda_launch_act_quant_heads(s->handle, &heads));
}

int act_quant_norm(struct stream *stream, struct act_quant *q, struct tensor *y,
                   const struct tensor *x, uint32_t row_begin, const struct norm_params *p)
{
    struct stream_cuda *s = stream_cuda(stream);
    struct quant_rows rows = rows_of(q, y, NULL);
    q->row_begin = row_begin;
    q->n_rows = x->n_rows;
    struct norm_rows norm = {.y = y->data,
                             .x = x->data,
                             .w = p->w,
                             .bias = p->is_centred ? p->bias : NULL,
                             .y_stride = y->row_stride,
                             .x_stride = x->row_stride,
                             .n_rows = x->n_rows,
                             .n = x->n_cols,
                             .eps = p->eps,
                             .centred = p->is_centred};
    int rc = device_stream_enter(s);
    return rc != 0 ? rc
                   : device_stream_check(s, "norm_prepare",
                                         cuda_launch_norm_quant(s->handle, &norm, &rows));
}
