/* probe_kernel.h: launches and memory of the probes' kernels, for nvcc and for the emulator. */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/thread.h"
#include "tests/gpu/probe/probe.h"

#ifdef __CUDACC__
#define PROBE_LAUNCH(kernel, grid, n_threads, shared_bytes, ...)                                   \
    (kernel<<<(grid), (n_threads), (shared_bytes)>>>(__VA_ARGS__), (int)cudaGetLastError())
#else
#define PROBE_LAUNCH(kernel, grid, n_threads, shared_bytes, ...)                                   \
    SIMT_LAUNCH(kernel, SIMT_PLAIN, dim3(grid), (n_threads), (shared_bytes), NULL, __VA_ARGS__)
#endif

/* Runs `call` if no call before it failed. */
#define PROBE_TRY(code, call)                                                                      \
    do {                                                                                           \
        if ((code) == 0)                                                                           \
            (code) = (int)(call);                                                                  \
    } while (0)

int probe_read_stream(size_t n_bytes, uint32_t blocks_per_sm, uint32_t n_threads,
                      uint32_t n_samples, double *out_seconds);
int probe_widen(uint64_t *out_n_checked, uint64_t *out_n_wrong);
int probe_product_run(const struct probe_product *p);
