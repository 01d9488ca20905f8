/* support_gpu.h: the GPU of a test program, real or emulated: a stream and its memory. Failures end
 * the test through cmocka. */
#pragma once

#include "kernels/backend.h"
#include "tests/unit/kernels/support/support_kernels.h"

struct gpu {
    struct backend_module module;
    struct device *device;
    struct stream *stream;
};

extern struct gpu gpu;

/* Group setup and teardown. */
int gpu_open(void **state);
int gpu_close(void **state);

void gpu_sync(void);
/* Returns device memory with a copy of `host` (NULL: full of NaN). */
void *gpu_upload(const void *host, size_t n_bytes);
void gpu_write(void *data, const void *host, size_t n_bytes);
void gpu_fetch(void *host, const void *data, size_t n_bytes);
void gpu_drop(void *data, size_t n_bytes);
