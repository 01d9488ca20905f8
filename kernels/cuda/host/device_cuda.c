#include "kernels/cuda/host/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/index.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/device_fault.h"

enum { OLDEST_GENERATION = 8 };

struct event {
    uint32_t index;
    cudaEvent_t handle;
};

struct graph {
    uint32_t index;
    cudaGraphExec_t exec;
    size_t n_ops;
};

int device_stream_check(struct stream_cuda *s, const char *what, int code)
{
    if (code == cudaSuccess)
        return 0;
    struct error now = {0};
    int status = cuda_check(&now, s->base.device->index, what, code);
    /* An error that ends the context replaces an earlier, less severe error. */
    if (s->sticky.status == 0 || (device_fault_is_final(device_fault_of_error(&now)) &&
                                  !device_fault_is_final(device_fault_of_error(&s->sticky))))
        s->sticky = now;
    return status;
}

int device_stream_fail(struct stream_cuda *s, int status, const char *what)
{
    if (s->sticky.status == 0)
        error_set(&s->sticky, status, "cuda:%u: %s", s->base.device->index, what);
    return status;
}

int device_stream_enter(struct stream_cuda *s)
{
    uint32_t index = s->base.device->index;
    if (cuda_is_lost(index))
        return device_stream_check(s, "an earlier failure", cuda_lost(index));
    overlap_set_thread(device_cuda(s->base.device)->overlap);
    return device_stream_check(s, "choosing the device", cudaSetDevice((int)index));
}

int device_stream_grow(struct stream_cuda *s, struct grown *buffer, size_t n_bytes,
                       const char *what)
{
    if (n_bytes <= buffer->n_bytes)
        return 0;
    if (s->capturing)
        return device_stream_fail(s, STATUS_FAILED_PRECONDITION,
                                  "a step is captured before it was run once at this size");
    size_t wanted = buffer->n_bytes * STREAM_MAX_GROWTH;
    wanted = wanted > n_bytes ? wanted : n_bytes;
    void *data = NULL;
    int rc = device_stream_check(s, what, cudaMallocAsync(&data, wanted, s->handle));
    if (rc != 0)
        return rc;
    if (buffer->data != NULL && !buffer->reserved)
        rc = device_stream_check(s, what, cudaFreeAsync(buffer->data, s->handle));
    buffer->data = data;
    buffer->reserved = false;
    buffer->n_bytes = wanted;
    return rc;
}

/* Sets the limits and choices that linears and attention have on the current device. */
static int open_ops(struct device_cuda *device, struct error *err)
{
    int max_shared = 0, n_multiprocessors = 0;
    uint32_t index = device->base.index;
    int rc = cuda_check(
        err, index, "shared memory",
        cudaDeviceGetAttribute(&max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)index));
    if (rc == 0)
        rc = cuda_check(
            err, index, "multiprocessors",
            cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, (int)index));
    device->max_shared = (uint32_t)max_shared;
    device->n_multiprocessors = (uint32_t)n_multiprocessors;
    if (rc == 0)
        rc = cuda_check(err, index, "shared memory", cuda_dense_allow_decode(device->max_shared));
    if (rc == 0)
        rc = cuda_check(err, index, "shared memory", cuda_dense_allow_prompt(device->max_shared));
    if (rc == 0)
        rc = cuda_check(err, index, "shared memory", cuda_dense_allow_gate(device->max_shared));
    if (rc == 0)
        rc = cuda_check(err, index, "shared memory", experts_open_cuda(device->max_shared));
    if (rc == 0)
        rc = prompts_open_cuda(device, err);
    if (rc == 0)
        rc = attention_open_cuda(device, err);
    if (rc == 0)
        rc = sample_open_cuda(device, err);
    return rc == 0 ? linear_cublaslt_create(&device->lt, err) : rc;
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
    int major = 0;
    rc = cuda_check(err, index, "its generation",
                    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)index));
    if (rc != 0)
        return rc;
    if (major < OLDEST_GENERATION)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "cuda:%u: compute capability %d.x: kernels are built for %d.0 and newer",
                         index, major, OLDEST_GENERATION);
    struct device_cuda *device = calloc(1, sizeof(*device));
    if (device == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", index);
    device->base.ops = &device_ops_cuda;
    device->base.index = index;
    device->major = major;
    rc = device_overlap_check(major, &device->why_no_overlap, err);
    if (rc == 0)
        rc = open_ops(device, err);
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
    cuda_note(device->index, cuda_is_lost(device->index) ? 0 : cudaSetDevice((int)device->index));
    if (!cuda_is_lost(device->index)) {
        linear_cublaslt_destroy(device_cuda(device)->lt);
        cuda_note(device->index, cudaFree(device_cuda(device)->arena.base));
    }
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

static int describe(struct device *device, struct device_description *out, struct error *err)
{
    struct cudaDeviceProp props;
    uint32_t index = device->index;
    int rc = cuda_check(err, index, "properties", cudaGetDeviceProperties(&props, (int)index));
    if (rc != 0)
        return rc;
    const unsigned char *u = (const unsigned char *)props.uuid.bytes;
    snprintf(out->name, sizeof(out->name), "%.95s", props.name);
    snprintf(out->compute_capability, sizeof(out->compute_capability), "%d.%d", props.major,
             props.minor);
    snprintf(out->uuid, sizeof(out->uuid),
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    snprintf(out->pci_bus_id, sizeof(out->pci_bus_id), "%08X:%02X:%02X.0", props.pciDomainID,
             props.pciBusID, props.pciDeviceID);
    return 0;
}

/* Appends a reason in parentheses, unless the reader has seen the same reason before. */
static void add_reason(char *text, size_t n_bytes, const char *reason, const char *seen)
{
    size_t n = strlen(text);
    if (reason != NULL && reason != seen)
        snprintf(text + n, n_bytes - n, " (%s)", reason);
}

void device_describe_cuda(const struct device *device, char *out, size_t n_bytes)
{
    const struct device_cuda *d = (const struct device_cuda *)device;
    static const char untested[] = "wgmma if a check passes as a model is loaded";
    const char *later = d->is_tried ? "" : " if a check passes as a model is loaded";
    const char *prompts = d->prompts == CUDA_PROMPTS_AUTO ? untested : d->why_no_wgmma;
    const char *fp8 = d->fp8 == CUDA_FP8_AUTO ? untested : d->why_no_fp8;
    const char *attention = d->attention == CUDA_ATTENTION_AUTO ? untested : d->why_no_attention;
    char products[160], f8[160], attends[160];
    snprintf(products, sizeof(products), "prompts by %s%s",
             d->prompts == CUDA_PROMPTS_AUTO ? "own" : cuda_prompts_name(d->prompts),
             d->prompts == CUDA_PROMPTS_WGMMA && d->fetch == CUDA_FETCH_ENGINE
                 ? " with the copy engine"
                 : "");
    add_reason(products, sizeof(products), prompts, NULL);
    snprintf(f8, sizeof(f8), "%s",
             d->fp8 == CUDA_FP8_WGMMA ? ", of fp8 by wgmma"
             : fp8 != NULL            ? ", of fp8 by own"
                                      : "");
    add_reason(f8, sizeof(f8), fp8, prompts);
    snprintf(attends, sizeof(attends), "%s",
             d->attention == CUDA_ATTENTION_WGMMA ? ", attention by wgmma"
             : attention != NULL                  ? ", attention by mma"
                                                  : "");
    add_reason(attends, sizeof(attends), attention, prompts);
    snprintf(out, n_bytes, "%s%s%s, %s%s", products, f8, attends,
             d->why_no_overlap != NULL ? "no ops overlap: " : "ops overlap",
             d->why_no_overlap != NULL ? d->why_no_overlap : later);
}

/* Runs the test kernels that decide how the device's other kernels run. Once, before the device's
 * first memory and stream, so that a program that only lists devices launches no kernel. */
static int device_try(struct device_cuda *d, struct error *err)
{
    uint32_t index = d->base.index;
    if (d->is_tried)
        return 0;
    int rc = cuda_check(err, index, "opening the device", cudaSetDevice((int)index));
    if (rc == 0)
        rc = overlap_open(index, d->major, &d->overlap, &d->why_no_overlap, err);
    if (rc == 0)
        rc = prompts_try_cuda(d, err);
    d->is_tried = rc == 0;
    return rc;
}

static int arena_alloc(struct device_cuda *d, size_t n_bytes, void **out_data, struct error *err)
{
    void *data = arena_take(&d->arena, n_bytes);
    if (data == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "cuda:%u: %zu bytes needed, %zu of the %zu planned are left",
                         d->base.index, n_bytes, arena_left(&d->arena), d->arena.n_bytes);
    *out_data = data;
    return 0;
}

static int driver_alloc(struct device *device, size_t n_bytes, void **out_data, struct error *err)
{
    struct device_memory now = {0};
    void *data = NULL;
    int rc = cuda_check(err, device->index, "allocation", cudaSetDevice((int)device->index));
    if (rc != 0)
        return rc;
    cudaError_t code = cudaMalloc(&data, n_bytes > 0 ? n_bytes : 1); /* 256-byte aligned */
    if (code == cudaErrorMemoryAllocation) {
        cuda_note(device->index, (int)code);
        rc = memory(device, &now, err);
        if (rc != 0)
            return rc;
        error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: %zu bytes needed, %llu bytes free",
                  device->index, n_bytes, (unsigned long long)now.free_bytes);
        return error_reason(err, device_fault_reason(DEVICE_FAULT_MEMORY));
    }
    rc = cuda_check(err, device->index, "allocation", (int)code);
    if (rc == 0)
        *out_data = data;
    return rc;
}

static int alloc(struct device *device, size_t n_bytes, void **out_data, struct error *err)
{
    struct device_cuda *d = device_cuda(device);
    return d->arena.base != NULL ? arena_alloc(d, n_bytes, out_data, err)
                                 : driver_alloc(device, n_bytes, out_data, err);
}

static void free_memory(struct device *device, void *data, size_t n_bytes)
{
    if (arena_give(&device_cuda(device)->arena, data, n_bytes))
        return;
    if (!cuda_is_lost(device->index))
        cuda_note(device->index, cudaSetDevice((int)device->index));
    if (!cuda_is_lost(device->index))
        cuda_note(device->index, cudaFree(data));
}

static int reserve(struct device *device, size_t n_bytes, struct error *err)
{
    struct device_cuda *d = device_cuda(device);
    void *arena = NULL;
    if (d->arena.base != NULL)
        return error_set(err, STATUS_INTERNAL, "cuda:%u: memory is reserved twice", device->index);
    int rc = device_try(d, err);
    if (rc == 0)
        rc = driver_alloc(device, n_bytes, &arena, err);
    if (rc != 0)
        return rc;
    d->arena = (struct arena){.base = arena, .n_bytes = n_bytes};
    return 0;
}

static int alloc_host(struct device *device, size_t n_bytes, void **out_data, struct error *err)
{
    void *data = NULL;
    int rc = cuda_check(err, device->index, "pinned memory", cudaSetDevice((int)device->index));
    if (rc == 0)
        rc = cuda_check(err, device->index, "pinned memory",
                        cudaMallocHost(&data, n_bytes > 0 ? n_bytes : 1));
    if (rc == 0)
        *out_data = data;
    return rc;
}

static void free_host(struct device *device, void *data, size_t n_bytes)
{
    (void)n_bytes;
    if (!cuda_is_lost(device->index))
        cuda_note(device->index, cudaSetDevice((int)device->index));
    if (!cuda_is_lost(device->index))
        cuda_note(device->index, cudaFreeHost(data));
}

static void free_stream_parts(struct stream_cuda *s)
{
    uint32_t index = s->base.device->index;
    cuda_note(index, cudaSetDevice((int)index));
    if (s->handle != NULL)
        cuda_note(index, cudaStreamSynchronize(s->handle));
    if (cuda_is_lost(index)) /* lost by the work queued last */
        return;
    device_stream_release(s);
    cuda_note(index, cudaFreeHost(s->sample_host));
    if (s->sample_uploaded != NULL)
        cuda_note(index, cudaEventDestroy(s->sample_uploaded));
    if (s->handle != NULL)
        cuda_note(index, cudaStreamDestroy(s->handle));
}

static void stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    if (!cuda_is_lost(stream->device->index))
        free_stream_parts(stream_cuda(stream));
    free(stream_cuda(stream));
}

static int stream_create(struct device *device, uint32_t n_threads, struct stream **out_stream,
                         struct error *err)
{
    (void)n_threads;
    int rc = device_try(device_cuda(device), err);
    if (rc != 0)
        return rc;
    struct stream_cuda *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", device->index);
    s->base.device = device;
    s->base.ops = op_table_cuda();
    rc = cuda_check(err, device->index, "new stream", cudaSetDevice((int)device->index));
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
    int rc = device_stream_enter(s);
    if (rc == 0)
        rc = device_stream_check(s, "queued work", cudaStreamSynchronize(s->handle));
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
    int rc = device_stream_enter(s);
    if (rc != 0 || n_bytes == 0)
        return rc;
    return device_stream_check(s, what, cudaMemcpyAsync(dst, src, n_bytes, kind, s->handle));
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
    event->index = device->index;
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
    if (!cuda_is_lost(event->index))
        cuda_note(event->index, cudaEventDestroy(event->handle));
    free(event);
}

static int event_record(struct stream *stream, struct event *event)
{
    struct stream_cuda *s = stream_cuda(stream);
    return device_stream_check(s, "event", cudaEventRecord(event->handle, s->handle));
}

static int event_wait(struct event *event, struct error *err)
{
    return cuda_check(err, event->index, "event", cudaEventSynchronize(event->handle));
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
        rc = cuda_check(err, index, "graph", cudaGraphGetNodes(captured, NULL, &graph->n_ops));
    if (rc == 0)
        rc = cuda_check(err, index, "graph", cudaGraphInstantiate(&graph->exec, captured, 0));
    if (captured != NULL && !cuda_is_lost(index))
        cuda_note(index, cudaGraphDestroy(captured));
    if (rc != 0) {
        free(graph);
        return rc;
    }
    graph->index = index;
    *out_graph = graph;
    return 0;
}

static int graph_launch(struct stream *stream, struct graph *graph)
{
    struct stream_cuda *s = stream_cuda(stream);
    int rc = device_stream_enter(s);
    return rc != 0 ? rc : device_stream_check(s, "graph", cudaGraphLaunch(graph->exec, s->handle));
}

static void graph_destroy(struct graph *graph)
{
    if (graph == NULL)
        return;
    if (!cuda_is_lost(graph->index))
        cuda_note(graph->index, cudaGraphExecDestroy(graph->exec));
    free(graph);
}

static size_t graph_n_ops(const struct graph *graph)
{
    return graph->n_ops;
}

const struct device_ops device_ops_cuda = {
    .name = "cuda",
    .open = open_device,
    .close = close_device,
    .memory = memory,
    .describe = describe,
    .alloc = alloc,
    .free = free_memory,
    .reserve = reserve,
    .alloc_host = alloc_host,
    .free_host = free_host,
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
    .graph_n_ops = graph_n_ops,
};
