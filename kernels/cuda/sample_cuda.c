/* The sampler's host side: one upload of all parameters, one kernel, one download of the results.
 * Not part of a captured step, whose graph ends with the logits: parameters change every step. */
#include "base/status.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sample_layout.h"
#include "kernels/cuda/table_cuda.h"

static int grow_host(struct stream_cuda *s, size_t n_bytes)
{
    /* the last upload may still read the pinned memory */
    int rc = stream_check(s, "sampler upload", cudaEventSynchronize(s->sample_uploaded));
    if (rc != 0 || n_bytes <= s->sample_host_bytes)
        return rc;
    void *host = NULL;
    rc = stream_check(s, "pinned memory", cudaMallocHost(&host, n_bytes * STREAM_MAX_GROWTH));
    if (rc != 0)
        return rc;
    cudaFreeHost(s->sample_host);
    s->sample_host = host;
    s->sample_host_bytes = n_bytes * STREAM_MAX_GROWTH;
    return 0;
}

static int launch(struct stream_cuda *s, const struct tensor *logits,
                  const struct sample_layout *layout, struct sample_result *results)
{
    uint8_t *device = s->sample_device.data;
    size_t scratch = (size_t)logits->n_rows * logits->n_cols * sizeof(float);
    int rc = stream_grow(s, &s->sample_scratch, scratch, "sampler scratch");
    if (rc == 0)
        rc = stream_check(s, "sampler upload",
                          cudaMemcpyAsync(device, s->sample_host, layout->results,
                                          cudaMemcpyHostToDevice, s->handle));
    if (rc == 0)
        rc = stream_check(s, "sampler upload", cudaEventRecord(s->sample_uploaded, s->handle));
    if (rc == 0)
        rc = stream_check(
            s, "sample",
            cuda_launch_sample(s->handle, logits->data, logits->row_stride, logits->n_rows,
                               logits->n_cols, (const struct sample_params *)(const void *)device,
                               s->sample_scratch.data,
                               (struct sample_result *)(void *)(device + layout->results)));
    if (rc == 0)
        rc = stream_check(s, "sampler download",
                          cudaMemcpyAsync(results, device + layout->results,
                                          logits->n_rows * sizeof(*results), cudaMemcpyDeviceToHost,
                                          s->handle));
    return rc;
}

int sample_cuda(struct stream *stream, const struct tensor *logits,
                const struct sample_params *params, struct sample_result *results)
{
    struct stream_cuda *s = stream_cuda(stream);
    if (logits->dtype != DTYPE_F32 || logits->n_cols == 0)
        return stream_fail(s, STATUS_INTERNAL, "sample: logits are not f32 rows");
    if (s->capturing)
        return stream_fail(s, STATUS_FAILED_PRECONDITION, "sample: not within a captured step");
    if (logits->n_rows == 0)
        return 0;
    struct sample_layout layout = sample_layout_of(params, logits->n_rows, logits->n_cols);
    int rc = stream_enter(s);
    if (rc == 0)
        rc = stream_grow(s, &s->sample_device, layout.n_bytes, "sampler parameters");
    if (rc == 0)
        rc = grow_host(s, layout.n_bytes);
    if (rc != 0)
        return rc;
    sample_layout_fill(&layout, params, logits->n_rows, logits->n_cols, s->sample_host,
                       s->sample_device.data);
    return launch(s, logits, &layout, results);
}
