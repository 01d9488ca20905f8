/* The sampler's host side: an upload of parameters, a launch per phase of the rows
 * (sample_state.h), a download of results. Not part of a captured step: its graph ends with the
 * logits, because parameters change every step. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/status.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sample/sample_layout.h"
#include "kernels/cuda/table_cuda.h"

int sample_open_cuda(struct device_cuda *device, struct error *err)
{
    const char *wanted = getenv("SLUICE_CUDA_GREEDY");
    device->greedy_at_once = wanted == NULL || wanted[0] == '\0' || strcmp(wanted, "once") == 0;
    if (!device->greedy_at_once && strcmp(wanted, "phases") != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "SLUICE_CUDA_GREEDY: \"%s\" is invalid; give once or phases", wanted);
    return 0;
}

static int grow_host(struct stream_cuda *s, size_t n_bytes)
{
    /* the last upload may still read the pinned memory */
    int rc = device_stream_check(s, "sampler upload", cudaEventSynchronize(s->sample_uploaded));
    if (rc != 0 || n_bytes <= s->sample_host_bytes)
        return rc;
    void *host = NULL;
    rc =
        device_stream_check(s, "pinned memory", cudaMallocHost(&host, n_bytes * STREAM_MAX_GROWTH));
    if (rc != 0)
        return rc;
    cuda_note(s->base.device->index, cudaFreeHost(s->sample_host));
    s->sample_host = host;
    s->sample_host_bytes = n_bytes * STREAM_MAX_GROWTH;
    return 0;
}

/* Grows the scratch for n_rows, with the tickets in its last bytes. */
static int grow_scratch(struct stream_cuda *s, uint32_t n_rows, uint32_t vocab)
{
    const size_t n_tickets = SAMPLE_TICKETS * sizeof(uint32_t);
    return device_stream_grow(s, &s->sample_scratch,
                              n_rows * sample_scratch_of(vocab).n_bytes + n_tickets,
                              "sampler scratch");
}

static int launch_phases(struct stream_cuda *s, const struct tensor *logits,
                         const struct sample_layout *layout, uint32_t n_launches)
{
    uint8_t *device = s->sample_device.data;
    uint32_t n_parts = sample_n_parts(logits->n_rows, logits->n_cols);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n_launches; i++)
        rc = device_stream_check(
            s, "sample",
            cuda_launch_sample(
                s->handle, logits->data, logits->row_stride, logits->n_rows, logits->n_cols,
                n_parts, (const struct sample_params *)(const void *)device,
                (struct sample_state *)(void *)(device + layout->states), s->sample_scratch.data,
                (struct sample_result *)(void *)(device + layout->results)));
    return rc;
}

static int launch(struct stream_cuda *s, const struct tensor *logits,
                  const struct sample_layout *layout, uint32_t n_launches,
                  struct sample_result *results)
{
    uint8_t *device = s->sample_device.data;
    int rc = grow_scratch(s, logits->n_rows, logits->n_cols);
    if (rc == 0)
        rc = device_stream_check(s, "sampler upload",
                                 cudaMemcpyAsync(device, s->sample_host, layout->results,
                                                 cudaMemcpyHostToDevice, s->handle));
    if (rc == 0)
        rc = device_stream_check(s, "sampler upload",
                                 cudaEventRecord(s->sample_uploaded, s->handle));
    if (rc == 0)
        rc = launch_phases(s, logits, layout, n_launches);
    if (rc == 0)
        rc = device_stream_check(s, "sampler download",
                                 cudaMemcpyAsync(results, device + layout->results,
                                                 logits->n_rows * sizeof(*results),
                                                 cudaMemcpyDeviceToHost, s->handle));
    return rc;
}

int device_stream_reserve_host(struct stream_cuda *s, size_t n_bytes)
{
    return grow_host(s, n_bytes / STREAM_MAX_GROWTH);
}

/* Returns how many of the first n rows have parameters that fit the present buffer; at least
 * one. */
static uint32_t rows_that_fit(const struct stream_cuda *s, const struct sample_params *params,
                              uint32_t n, uint32_t vocab)
{
    while (n > 1 && s->sample_device.n_bytes > 0 &&
           sample_layout_of(params, n, vocab).n_bytes > s->sample_device.n_bytes)
        n = (n + 1) / 2;
    return n;
}

static int sample_pass(struct stream_cuda *s, const struct tensor *logits,
                       const struct sample_params *params, struct sample_result *results)
{
    struct sample_layout layout = sample_layout_of(params, logits->n_rows, logits->n_cols);
    int rc = device_stream_grow(s, &s->sample_device, layout.n_bytes, "sampler parameters");
    if (rc == 0)
        rc = grow_host(s, layout.n_bytes);
    if (rc != 0)
        return rc;
    sample_layout_fill(&layout, params, logits->n_rows, logits->n_cols, s->sample_host,
                       s->sample_device.data);
    return launch(s, logits, &layout, sample_most_launches(params, logits->n_rows, logits->n_cols),
                  results);
}

/* Zeroes the tickets of a new scratch. Each launch leaves them zero. */
static int clear_tickets(struct stream_cuda *s)
{
    const size_t n_tickets = SAMPLE_TICKETS * sizeof(uint32_t);
    uint8_t *end = (uint8_t *)s->sample_scratch.data + s->sample_scratch.n_bytes;
    uint32_t *tickets = (uint32_t *)(void *)(end - n_tickets);
    if (s->sample_tickets == tickets)
        return 0;
    s->sample_tickets = tickets;
    return device_stream_check(s, "sampler tickets",
                               cudaMemsetAsync(tickets, 0, n_tickets, s->handle));
}

static bool all_plain(const struct sample_params *params, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!sample_is_plain(&params[i]))
            return false;
    return true;
}

/* The rows of a call that are all greedy: one launch and no parameters. */
static int sample_at_once(struct stream_cuda *s, const struct tensor *logits,
                          const struct sample_params *params, struct sample_result *results)
{
    uint32_t n = logits->n_rows, vocab = logits->n_cols;
    int rc = grow_scratch(s, n, vocab);
    if (rc == 0)
        rc = device_stream_grow(s, &s->sample_device, n * sizeof(*results), "sampler results");
    if (rc == 0)
        rc = clear_tickets(s);
    if (rc == 0)
        rc = device_stream_check(
            s, "sample",
            cuda_launch_sample_plain(s->handle, logits->data, logits->row_stride, n, vocab,
                                     sample_n_parts(n, vocab), params, s->sample_tickets,
                                     s->sample_scratch.data, s->sample_device.data));
    return rc != 0 ? rc
                   : device_stream_check(s, "sampler download",
                                         cudaMemcpyAsync(results, s->sample_device.data,
                                                         n * sizeof(*results),
                                                         cudaMemcpyDeviceToHost, s->handle));
}

int sample_cuda(struct stream *stream, const struct tensor *logits,
                const struct sample_params *params, struct sample_result *results)
{
    struct stream_cuda *s = stream_cuda(stream);
    if (logits->dtype != DTYPE_F32 || logits->n_cols == 0 || logits->n_cols > SAMPLE_CUDA_MAX_VOCAB)
        return device_stream_fail(s, STATUS_INTERNAL,
                                  "sample: logits are not f32 rows of a vocabulary");
    if (s->capturing)
        return device_stream_fail(s, STATUS_FAILED_PRECONDITION,
                                  "sample: cannot run within a captured step");
    int rc = device_stream_enter(s);
    if (rc == 0 && device_cuda(stream->device)->greedy_at_once &&
        logits->n_rows <= SAMPLE_TICKETS && all_plain(params, logits->n_rows))
        return sample_at_once(s, logits, params, results);
    for (uint32_t done = 0, n; rc == 0 && done < logits->n_rows; done += n) {
        struct tensor some = *logits;
        n = rows_that_fit(s, params + done, logits->n_rows - done, logits->n_cols);
        some.data = tensor_row_f32(logits, done);
        some.n_rows = n;
        rc = sample_pass(s, &some, params + done, results + done);
    }
    return rc;
}
