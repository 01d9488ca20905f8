#include "kernels/cuda/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/table_cuda.h"

struct event {
    cudaEvent_t handle;
};

struct graph {
    cudaGraphExec_t exec;
};

int cuda_check(struct error *err, uint32_t index, const char *what, int code)
{
    if (code == cudaSuccess)
        return 0;
    return error_set(
        err, code == cudaErrorMemoryAllocation ? STATUS_RESOURCE_EXHAUSTED : STATUS_INTERNAL,
        "cuda:%u: %s: %s (%d)", index, what, cudaGetErrorString((cudaError_t)code), code);
}

int stream_check(struct stream_cuda *s, const char *what, int code)
{
    if (code == cudaSuccess)
        return 0;
    struct error now = {0};
    int status = cuda_check(&now, s->base.device->index, what, code);
    if (s->sticky.status == 0)
        s->sticky = now;
    return status;
}

int stream_fail(struct stream_cuda *s, int status, const char *what)
{
    if (s->sticky.status == 0)
        error_set(&s->sticky, status, "cuda:%u: %s", s->base.device->index, what);
    return status;
}

int stream_enter(struct stream_cuda *s)
{
    return stream_check(s, "choosing the device", cudaSetDevice((int)s->base.device->index));
}

int stream_grow(struct stream_cuda *s, struct grown *buffer, size_t n_bytes, const char *what)
{
    if (n_bytes <= buffer->n_bytes)
        return 0;
    if (s->capturing)
        return stream_fail(s, STATUS_FAILED_PRECONDITION,
                           "a step is captured before it was run once at this size");
    size_t wanted = buffer->n_bytes * STREAM_MAX_GROWTH;
    wanted = wanted > n_bytes ? wanted : n_bytes;
    void *data = NULL;
    int rc = stream_check(s, what, cudaMallocAsync(&data, wanted, s->handle));
    if (rc != 0)
        return rc;
    if (buffer->data != NULL)
        rc = stream_check(s, what, cudaFreeAsync(buffer->data, s->handle));
    buffer->data = data;
    buffer->n_bytes = wanted;
    return rc;
}

int device_count_cuda(uint32_t *out_n_devices, struct error *err)
{
    int n_devices = 0, driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(&n_devices);
    if (code == cudaSuccess && n_devices > 0) {
        *out_n_devices = (uint32_t)n_devices;
        return 0;
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (code == cudaErrorInsufficientDriver && driver == 0)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "no CUDA driver on this machine (libcuda.so.1 was not found)");
    if (code == cudaErrorInsufficientDriver)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "CUDA driver too old: it speaks CUDA %d.%d, %d.%d is needed",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (code == cudaSuccess || code == cudaErrorNoDevice)
        return error_set(err, STATUS_NOT_FOUND, "no CUDA device on this machine");
    return error_set(err, STATUS_FAILED_PRECONDITION, "CUDA does not start: %s (%d)",
                     cudaGetErrorString(code), (int)code);
}

static int open_device(uint32_t index, struct device **out_device, struct error *err)
{
    uint32_t n_devices = 0;
    int rc = device_count_cuda(&n_devices, err);
    if (rc != 0)
        return rc;
    if (index >= n_devices)
        return error_set(err, STATUS_NOT_FOUND, "cuda:%u: there are %u CUDA devices", index,
                         n_devices);
    rc = cuda_check(err, index, "opening the device", cudaSetDevice((int)index));
    if (rc != 0)
        return rc;
    struct device_cuda *device = calloc(1, sizeof(*device));
    if (device == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", index);
    device->base.ops = &device_ops_cuda;
    device->base.index = index;
    rc = cublaslt_create(&device->lt, err);
    if (rc != 0) {
        free(device);
        return rc;
    }
    *out_device = &device->base;
    return 0;
}

static void close_device(struct device *device)
{
    if (device == NULL)
        return;
    cudaSetDevice((int)device->index);
    cublaslt_destroy(device_cuda(device)->lt);
    free(device);
}

static int memory(struct device *device, struct device_memory *out_memory, struct error *err)
{
    size_t n_free = 0, n_total = 0;
    int rc = cuda_check(err, device->index, "memory figures", cudaSetDevice((int)device->index));
    if (rc == 0)
        rc = cuda_check(err, device->index, "memory figures", cudaMemGetInfo(&n_free, &n_total));
    if (rc == 0)
        *out_memory = (struct device_memory){.total_bytes = n_total, .free_bytes = n_free};
    return rc;
}

static int alloc(struct device *device, size_t n_bytes, void **out_data, struct error *err)
{
    struct device_memory now = {0};
    void *data = NULL;
    int rc = cuda_check(err, device->index, "allocation", cudaSetDevice((int)device->index));
    if (rc != 0)
        return rc;
    cudaError_t code = cudaMalloc(&data, n_bytes > 0 ? n_bytes : 1); /* 256-byte aligned */
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        rc = memory(device, &now, err);
        return rc != 0 ? rc
                       : error_set(err, STATUS_RESOURCE_EXHAUSTED,
                                   "cuda:%u: %zu bytes needed, %llu bytes free", device->index,
                                   n_bytes, (unsigned long long)now.free_bytes);
    }
    rc = cuda_check(err, device->index, "allocation", (int)code);
    if (rc == 0)
        *out_data = data;
    return rc;
}

static void free_memory(struct device *device, void *data, size_t n_bytes)
{
    (void)n_bytes;
    cudaSetDevice((int)device->index);
    cudaFree(data);
}

static void stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    struct stream_cuda *s = stream_cuda(stream);
    cudaSetDevice((int)stream->device->index);
    if (s->handle != NULL)
        cudaStreamSynchronize(s->handle);
    cudaFree(s->workspace.data);
    cudaFree(s->planes.data);
    cudaFree(s->sample_scratch.data);
    cudaFree(s->sample_device.data);
    cudaFreeHost(s->sample_host);
    if (s->sample_uploaded != NULL)
        cudaEventDestroy(s->sample_uploaded);
    if (s->handle != NULL)
        cudaStreamDestroy(s->handle);
    free(s);
}

static int stream_create(struct device *device, uint32_t n_threads, struct stream **out_stream,
                         struct error *err)
{
    (void)n_threads;
    struct stream_cuda *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", device->index);
    s->base.device = device;
    s->base.ops = &op_table_cuda_set;
    int rc = cuda_check(err, device->index, "new stream", cudaSetDevice((int)device->index));
    if (rc == 0)
        rc = cuda_check(err, device->index, "new stream",
                        cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking));
    if (rc == 0)
        rc = cuda_check(err, device->index, "new stream",
                        cudaEventCreateWithFlags(&s->sample_uploaded, cudaEventDisableTiming));
    if (rc != 0) {
        stream_destroy(&s->base);
        return rc;
    }
    *out_stream = &s->base;
    return 0;
}

static int stream_sync(struct stream *stream, struct error *err)
{
    struct stream_cuda *s = stream_cuda(stream);
    int rc = stream_enter(s);
    if (rc == 0)
        rc = stream_check(s, "queued work", cudaStreamSynchronize(s->handle));
    if (s->sticky.status != 0) {
        *err = s->sticky;
        return s->sticky.status;
    }
    return rc;
}

static int transfer(struct stream *stream, void *dst, const void *src, size_t n_bytes,
                    enum cudaMemcpyKind kind, const char *what)
{
    struct stream_cuda *s = stream_cuda(stream);
    int rc = stream_enter(s);
    if (rc != 0 || n_bytes == 0)
        return rc;
    return stream_check(s, what, cudaMemcpyAsync(dst, src, n_bytes, kind, s->handle));
}

static int upload(struct stream *stream, void *dst, const void *src, size_t n_bytes)
{
    return transfer(stream, dst, src, n_bytes, cudaMemcpyHostToDevice, "upload");
}

static int download(struct stream *stream, void *dst, const void *src, size_t n_bytes)
{
    return transfer(stream, dst, src, n_bytes, cudaMemcpyDeviceToHost, "download");
}

static int copy(struct stream *stream, void *dst, const void *src, size_t n_bytes)
{
    return transfer(stream, dst, src, n_bytes, cudaMemcpyDeviceToDevice, "copy");
}

static int event_create(struct device *device, struct event **out_event, struct error *err)
{
    struct event *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", device->index);
    int rc = cuda_check(err, device->index, "new event", cudaSetDevice((int)device->index));
    if (rc == 0)
        rc = cuda_check(err, device->index, "new event",
                        cudaEventCreateWithFlags(&event->handle, cudaEventDisableTiming));
    if (rc != 0)
        free(event);
    else
        *out_event = event;
    return rc;
}

static void event_destroy(struct event *event)
{
    if (event == NULL)
        return;
    cudaEventDestroy(event->handle);
    free(event);
}

static int event_record(struct stream *stream, struct event *event)
{
    struct stream_cuda *s = stream_cuda(stream);
    return stream_check(s, "event", cudaEventRecord(event->handle, s->handle));
}

static int event_wait(struct event *event, struct error *err)
{
    cudaError_t code = cudaEventSynchronize(event->handle);
    if (code == cudaSuccess)
        return 0;
    return error_set(err, STATUS_INTERNAL, "cuda: event: %s (%d)", cudaGetErrorString(code),
                     (int)code);
}

static int capture_begin(struct stream *stream, struct error *err)
{
    struct stream_cuda *s = stream_cuda(stream);
    uint32_t index = stream->device->index;
    int rc = cuda_check(err, index, "capture", cudaSetDevice((int)index));
    if (rc == 0)
        rc = cuda_check(err, index, "capture",
                        cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal));
    s->capturing = rc == 0;
    return rc;
}

static int capture_end(struct stream *stream, struct graph **out_graph, struct error *err)
{
    struct stream_cuda *s = stream_cuda(stream);
    uint32_t index = stream->device->index;
    cudaGraph_t captured = NULL;
    s->capturing = false;
    int rc = cuda_check(err, index, "capture", cudaStreamEndCapture(s->handle, &captured));
    struct graph *graph = rc == 0 ? calloc(1, sizeof(*graph)) : NULL;
    if (rc == 0 && graph == NULL)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", index);
    if (rc == 0)
        rc = cuda_check(err, index, "graph", cudaGraphInstantiate(&graph->exec, captured, 0));
    if (captured != NULL)
        cudaGraphDestroy(captured);
    if (rc != 0)
        free(graph);
    else
        *out_graph = graph;
    return rc;
}

static int graph_launch(struct stream *stream, struct graph *graph)
{
    struct stream_cuda *s = stream_cuda(stream);
    int rc = stream_enter(s);
    return rc != 0 ? rc : stream_check(s, "graph", cudaGraphLaunch(graph->exec, s->handle));
}

static void graph_destroy(struct graph *graph)
{
    if (graph == NULL)
        return;
    cudaGraphExecDestroy(graph->exec);
    free(graph);
}

const struct device_ops device_ops_cuda = {
    .name = "cuda",
    .open = open_device,
    .close = close_device,
    .memory = memory,
    .alloc = alloc,
    .free = free_memory,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_sync = stream_sync,
    .upload = upload,
    .download = download,
    .copy = copy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};
