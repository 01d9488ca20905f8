/* probe.h: kernels that ask how fast a card reads, and which bits its matrix instructions compute.
 *
 * The library libgpu_probe.so has the kernels. libgpu_probe_simt.so has those that the emulated GPU
 * knows. A program opens the library at run time (support_probe.h), as Sluice opens its backend.
 * All functions use device 0, wait for their kernels, and return 0, a cudaError_t, or PROBE_ABSENT.
 * Outputs are then undefined. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PROBE_ABSENT = -1 }; /* the device, the build or the emulator lacks the instruction */

enum { PROBE_ROWS = 64 }; /* rows of A, and of a result */

enum probe_type { PROBE_BF16, PROBE_F16, PROBE_E4M3, N_PROBE_TYPES };

enum probe_form {
    PROBE_MMA,      /* mma.sync m16n8k16, for E4M3 m16n8k32 */
    PROBE_WGMMA_SS, /* wgmma m64nNk16, k32: A and B in shared memory */
    PROBE_WGMMA_RS, /* A in registers; 16-bit types and n of 8, 64, 256 */
    N_PROBE_FORMS
};

/* y[block][PROBE_ROWS][n] = A[PROBE_ROWS][k] · B[n][k]ᵀ: one chain of multiplications along k,
 * front to back. */
struct probe_product {
    enum probe_type type;
    enum probe_form form;
    uint32_t n;        /* 8, 16, 32, 64, 128 or 256 */
    uint32_t k;        /* a multiple of 128 */
    uint32_t promote;  /* columns after which f32 registers take over the sums; 0: never. E4M3 by
                          wgmma alone: 32, 64 or 128, and n of 64 */
    uint32_t n_blocks; /* blocks that compute the same at the same time */
    const void *a, *b; /* on the host, as y */
    float *y;
};

struct gpu_probe {
    /* Seconds of each of n_samples readings of n_bytes by blocks_per_sm · n_threads threads an SM.
     * Each thread reads 16 bytes at a time. */
    int (*read_stream)(size_t n_bytes, uint32_t blocks_per_sm, uint32_t n_threads,
                       uint32_t n_samples, double *out_seconds);
    int (*product)(const struct probe_product *p);
    /* Widens every 4-bit code with integer scales and offsets to f16 and counts wrong results. */
    int (*widen)(uint64_t *out_n_checked, uint64_t *out_n_wrong);
    const char *(*message)(int code);
};

typedef const struct gpu_probe *gpu_probe_fn(void);
const struct gpu_probe *gpu_probe_table(void);

#ifdef __cplusplus
}
#endif
