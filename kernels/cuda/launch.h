/* launch.h: the CUDA kernels as C functions. Each queues on `stream` (a cudaStream_t) of the
 * current device and returns a cudaError_t (0: queued). Pointers are the device's. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sample_params;
struct sample_result;

/* y[m, n] = x / rms(x) · w, one block per row. y may be x. Bytes: 8·m·n + 4·n, the bound is memory.
 */
int cuda_launch_rms_norm(void *stream, float *y, size_t y_stride, const float *x, size_t x_stride,
                         const float *w, uint32_t n_rows, uint32_t n_cols, float eps);

/* dst[m, n] (dense) = x in bf16 or f16, to nearest even; f16 saturates at ±65504. Bytes: 6·m·n. */
int cuda_launch_to_bf16(void *stream, uint16_t *dst, const float *x, size_t x_stride,
                        uint32_t n_rows, uint32_t n_cols);
int cuda_launch_to_f16(void *stream, uint16_t *dst, const float *x, size_t x_stride,
                       uint32_t n_rows, uint32_t n_cols);

/* y[m, n] = the contract's tree over `count` dense planes of [m, n], plane_stride elements apart;
 * bit p of `present` tells that plane p holds a part. Bytes: 4·m·n·(planes + 1). */
int cuda_launch_tree_sum(void *stream, float *y, size_t y_stride, const float *planes,
                         size_t plane_stride, uint32_t present, uint32_t count, uint32_t n_rows,
                         uint32_t n_cols);

/* One block per row of logits[m, vocab]; scratch[m, vocab]. `params` and `results` are device
 * memory, as are the arrays that params points to. Reads the row some 40 to 120 times out of the
 * cache, by what the chain asks. */
int cuda_launch_sample(void *stream, const float *logits, size_t row_stride, uint32_t n_rows,
                       uint32_t vocab, const struct sample_params *params, float *scratch,
                       struct sample_result *results);

#ifdef __cplusplus
}
#endif
