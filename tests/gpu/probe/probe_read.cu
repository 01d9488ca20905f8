/* probe_read.cu: how fast a card reads memory and writes nothing. Loads are coalesced, of 16 bytes,
 * and read each byte once, far more than the second cache holds. */
#include <chrono>

#include "kernels/cuda/ptx.h"
#include "tests/gpu/probe/probe_kernel.h"

enum { LOADS = 8, PASSES = 8 }; /* loads in flight per thread; passes per sample */

/* Fills memory with numbers that do not repeat. */
static __global__ void fill(uint4 *data, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint32_t x = (uint32_t)i * 2654435761u;
        data[i] = make_uint4(x, x ^ 0x9E3779B9u, x * 747796405u, x * 2891336453u);
    }
}

/* Loads all data. The result depends on every word, so the compiler keeps every load. */
static __global__ void __launch_bounds__(1024) read_all(const uint4 *data, size_t n, uint32_t *out)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (; i + (LOADS - 1) * step < n; i += LOADS * step) {
        uint4 v[LOADS];
#pragma unroll
        for (uint32_t j = 0; j < LOADS; j++)
            v[j] = load_once_16(data + i + j * step);
#pragma unroll
        for (uint32_t j = 0; j < LOADS; j++)
            sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += step) {
        uint4 v = load_once_16(data + i);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0xC0FFEE11u) /* as good as never */
        *out = sum;
}

static double now(void)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

static int read_samples(const uint4 *data, size_t n, uint32_t n_blocks, uint32_t n_threads,
                        uint32_t n_samples, uint32_t *out, double *out_seconds)
{
    int code = 0;
    for (uint32_t s = 0; s <= n_samples; s++) { /* the first is a warm-up */
        double begin = now();
        for (uint32_t pass = 0; pass < PASSES; pass++)
            PROBE_TRY(code, PROBE_LAUNCH(read_all, n_blocks, n_threads, 0, data, n, out));
        PROBE_TRY(code, cudaDeviceSynchronize());
        if (s > 0)
            out_seconds[s - 1] = (now() - begin) / PASSES;
    }
    return code;
}

int probe_read_stream(size_t n_bytes, uint32_t blocks_per_sm, uint32_t n_threads,
                      uint32_t n_samples, double *out_seconds)
{
    size_t n = n_bytes / sizeof(uint4);
    uint4 *data = NULL;
    uint32_t *out = NULL;
    int n_sms = 0, code = 0;
    PROBE_TRY(code, cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0));
    PROBE_TRY(code, cudaMalloc((void **)&data, n * sizeof(*data)));
    PROBE_TRY(code, cudaMalloc((void **)&out, sizeof(*out)));
    uint32_t n_blocks = (uint32_t)n_sms * blocks_per_sm;
    PROBE_TRY(code, PROBE_LAUNCH(fill, n_blocks, n_threads, 0, data, n));
    PROBE_TRY(code, read_samples(data, n, n_blocks, n_threads, n_samples, out, out_seconds));
    (void)cudaFree(out);
    (void)cudaFree(data);
    return code;
}
