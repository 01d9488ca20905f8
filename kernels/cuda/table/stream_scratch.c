/* The memory in which a stream's ops work: planned and reserved once for the largest step. Larger
 * requests (a sampler with long lists) grow outside of the reserve. */
#include "base/error.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/index.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/linear_quant/linear_widen_cuda.h"
#include "kernels/cuda/sample/sample_state.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/sample.h"

enum {
    ALIGN = 256,
    LIST_BYTES = 4096, /* a row's counts, biases and mask, for most requests */
    MOST_BIAS_BYTES = 1 << 20,
};

/* Bytes of each buffer of struct stream_cuda. */
struct scratch {
    size_t planes, attention, sample_scratch, sample_device, widened;
};

static size_t rounded(size_t n_bytes)
{
    return cuda_round_up(n_bytes, ALIGN);
}

static struct scratch scratch_of(const struct op_needs *needs)
{
    bool lt = needs->has_dense && table_cuda_prompts() == CUDA_PROMPTS_LT;
    struct scratch n = {
        .attention = rounded(attention_scratch_bytes_cuda(needs->max_rows, needs->n_heads,
                                                          needs->head_dim, needs->max_positions)),
        .sample_scratch = needs->max_logits * sample_scratch_of(needs->vocab_size).n_bytes +
                          SAMPLE_TICKETS * sizeof(uint32_t),
        .sample_device = rounded((size_t)needs->max_logits *
                                 (sizeof(struct sample_params) + sizeof(struct sample_state) +
                                  sizeof(struct sample_result) + LIST_BYTES)),
    };
    /* A row with all lists at their longest. Several of these are sampled in passes. */
    size_t one = rounded(MOST_BIAS_BYTES + needs->vocab_size / 8 + ALIGN +
                         (size_t)needs->max_positions * sizeof(struct sample_count));
    n.sample_device = one > n.sample_device ? one : n.sample_device;
    if (needs->widened_n > 0)
        n.widened =
            rounded(linear_widen_scratch_bytes(needs->widened_n, needs->widened_k, needs->max_n));
    if (lt)
        n.planes =
            rounded(linear_cublaslt_planes_bytes(needs->max_rows, needs->max_n, needs->max_row_n));
    return n;
}

size_t stream_bytes_cuda(const struct op_needs *needs)
{
    struct scratch n = scratch_of(needs);
    return n.planes + n.attention + n.sample_scratch + n.sample_device + n.widened;
}

static int reserve(struct stream_cuda *s, struct grown *buffer, size_t n_bytes, struct error *err)
{
    struct device *device = s->base.device;
    void *data = NULL;
    if (n_bytes <= buffer->n_bytes) /* reserved for another model on the same stream */
        return 0;
    int rc = device->ops->alloc(device, n_bytes, &data, err);
    if (rc != 0)
        return error_prefix(err, "cannot reserve the workspace of operations");
    *buffer = (struct grown){.data = data, .n_bytes = n_bytes, .reserved = true};
    return 0;
}

int stream_reserve_cuda(struct stream *stream, const struct op_needs *needs, struct error *err)
{
    struct stream_cuda *s = stream_cuda(stream);
    struct scratch n = scratch_of(needs);
    int rc = reserve(s, &s->planes, n.planes, err);
    if (rc == 0)
        rc = reserve(s, &s->attention, n.attention, err);
    if (rc == 0)
        rc = reserve(s, &s->sample_scratch, n.sample_scratch, err);
    if (rc == 0)
        rc = reserve(s, &s->sample_device, n.sample_device, err);
    if (rc == 0)
        rc = reserve(s, &s->widened, n.widened, err);
    if (rc == 0 && device_stream_reserve_host(s, n.sample_device) != 0) {
        *err = s->sticky;
        rc = err->status;
    }
    return rc;
}

static void release(struct stream_cuda *s, struct grown *buffer)
{
    struct device *device = s->base.device;
    if (buffer->reserved)
        device->ops->free(device, buffer->data, buffer->n_bytes);
    else
        cuda_note(device->index, cudaFree(buffer->data));
    *buffer = (struct grown){.data = NULL};
}

void device_stream_release(struct stream_cuda *s)
{
    release(s, &s->widened);
    release(s, &s->sample_device);
    release(s, &s->sample_scratch);
    release(s, &s->attention);
    release(s, &s->planes);
}
