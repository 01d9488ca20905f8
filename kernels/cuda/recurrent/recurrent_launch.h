/* recurrent_launch.h: the kernels of recurrent.h as C functions, like those of launch.h. A step's
 * `reads` and `writes` are on the device. A slot beyond the pool is RECURRENT_NONE. Each op is a
 * single launch. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct recurrent_conv;
struct recurrent_span;

/* Bytes: 8·m·n_cols and the states; bound: memory. */
int cuda_launch_conv(void *stream, const struct recurrent_conv *job);
/* recurrent_span_kernel.h has bytes and bounds. n_columns of the job is not used. */
int cuda_launch_delta_net(void *stream, const struct recurrent_span *job);
int cuda_launch_ssm(void *stream, const struct recurrent_span *job);

#ifdef __cplusplus
}
#endif
