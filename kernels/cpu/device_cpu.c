#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "base/system/memory_limit.h"
#include "kernels/backend.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/device.h"
#include "kernels/ops.h"

enum { ALIGNMENT = 256, HUGE_PAGE_BYTES = 2 << 20 };

static int open_device(uint32_t index, struct device **out_device, struct error *err)
{
    if (index != 0)
        return error_set(err, STATUS_NOT_FOUND, "cpu:%u: the CPU is one device, cpu:0", index);
    struct device *device = calloc(1, sizeof(*device));
    if (device == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cpu: out of memory");
    device->ops = backend_cpu();
    device->index = index;
    *out_device = device;
    return 0;
}

static void close_device(struct device *device)
{
    free(device);
}

int backend_cpu_memory(struct device_memory *out_memory, struct error *err)
{
    struct memory_limit limit;
    if (!memory_limit_read("", 0, &limit))
        return error_errno(err, errno, "cpu: cannot read the system's memory sizes");
    out_memory->total_bytes = limit.total_bytes;
    out_memory->free_bytes = limit.free_bytes;
    return 0;
}

static int memory(struct device *device, struct device_memory *out_memory, struct error *err)
{
    (void)device;
    return backend_cpu_memory(out_memory, err);
}

static int alloc(struct device *device, size_t n_bytes, void **out_data, struct error *err)
{
    struct memory_limit limit;
    char text[MEMORY_LIMIT_TEXT];
    (void)device;
    if (!memory_limit_read("", 0, &limit))
        return error_errno(err, errno, "cpu: cannot read the system's memory sizes");
    size_t align = n_bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : ALIGNMENT;
    void *data = NULL;
    if (n_bytes > limit.free_bytes ||
        posix_memalign(&data, align, n_bytes > 0 ? n_bytes : ALIGNMENT) != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cpu: %zu bytes needed, %s", n_bytes,
                         memory_limit_text(&limit, text));
    if (align == HUGE_PAGE_BYTES)
        madvise(data, n_bytes,
                MADV_HUGEPAGE); /* best effort: without huge pages only speed is lost */
    *out_data = data;
    return 0;
}

static void free_memory(struct device *device, void *data, size_t n_bytes)
{
    (void)device;
    (void)n_bytes;
    free(data);
}

static void stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    struct stream_cpu *cpu = stream_cpu(stream);
    thread_pool_destroy(cpu->pool);
    if (cpu->scratch != NULL)
        munmap(cpu->scratch, cpu->scratch_bytes);
    free(cpu);
}

static int stream_create(struct device *device, uint32_t n_threads, struct stream **out_stream,
                         struct error *err)
{
    if (n_threads == 0)
        n_threads = (uint32_t)cpu_count();
    struct stream_cpu *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cpu: out of memory");
    cpu->base.device = device;
    int rc = op_table_cpu("auto", &cpu->base.ops, err);
    if (rc == 0)
        rc = thread_pool_create(n_threads, &cpu->pool, err);
    if (rc == 0) {
        cpu->scratch_bytes = (size_t)n_threads * STREAM_SCRATCH_BYTES;
        void *scratch = mmap(NULL, cpu->scratch_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (scratch == MAP_FAILED)
            rc =
                error_errno(err, errno, "cpu: cannot map scratch of %zu bytes", cpu->scratch_bytes);
        else
            cpu->scratch = scratch;
    }
    if (rc != 0) {
        stream_destroy(&cpu->base);
        return rc;
    }
    *out_stream = &cpu->base;
    return 0;
}

static int stream_confine(struct stream *stream, const struct cpus *cpus, struct error *err)
{
    return thread_pool_confine(stream_cpu(stream)->pool, cpus, err);
}

static int stream_sync(struct stream *stream, struct error *err)
{
    (void)stream; /* every op is done when it returns, and its return value is its status */
    (void)err;
    return 0;
}

static int copy(struct stream *stream, void *dst, const void *src, size_t n_bytes)
{
    (void)stream;
    if (n_bytes > 0)
        memcpy(dst, src, n_bytes);
    return 0;
}

static const struct device_ops ops = {
    .name = "cpu",
    .open = open_device,
    .close = close_device,
    .memory = memory,
    .alloc = alloc,
    .free = free_memory,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_confine = stream_confine,
    .stream_sync = stream_sync,
    .upload = copy,
    .download = copy,
    .copy = copy,
};

const struct device_ops *backend_cpu(void)
{
    return &ops;
}
