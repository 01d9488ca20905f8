#include "tests/gpu/support/support_gpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct gpu gpu;

int gpu_open(void **state)
{
    (void)state;
    struct error err = {0};
    int rc = backend_cuda(&gpu.module, &err);
    if (rc == 0)
        rc = gpu.module.device_ops->open(0, &gpu.device, &err);
    if (rc == 0)
        rc = gpu.module.device_ops->stream_create(gpu.device, 0, &gpu.stream, &err);
    if (rc != 0)
        print_error("%s\n", err.message);
    return rc;
}

int gpu_close(void **state)
{
    (void)state;
    if (!gpu.module.device_ops)
        return 0;
    gpu.module.device_ops->stream_destroy(gpu.stream);
    gpu.module.device_ops->close(gpu.device);
    return 0;
}

void gpu_sync(void)
{
    struct error err = {0};
    if (gpu.module.device_ops->stream_sync(gpu.stream, &err) != 0)
        fail_msg("%s", err.message);
}

void gpu_write(void *data, const void *host, size_t n_bytes)
{
    assert_int_equal(gpu.module.device_ops->upload(gpu.stream, data, host, n_bytes), 0);
    gpu_sync();
}

void *gpu_upload(const void *host, size_t n_bytes)
{
    struct error err = {0};
    void *data = NULL, *poison = NULL;
    if (gpu.module.device_ops->alloc(gpu.device, n_bytes, &data, &err) != 0)
        fail_msg("%s", err.message);
    if (!host) {
        poison = malloc(n_bytes);
        assert_non_null(poison);
        memset(poison, 0xFF, n_bytes);
    }
    gpu_write(data, host ? host : poison, n_bytes);
    free(poison);
    return data;
}

void gpu_fetch(void *host, const void *data, size_t n_bytes)
{
    assert_int_equal(gpu.module.device_ops->download(gpu.stream, host, data, n_bytes), 0);
    gpu_sync();
}

void gpu_drop(void *data, size_t n_bytes)
{
    gpu.module.device_ops->free(gpu.device, data, n_bytes);
}
