/* Mamba-2 (recurrent_span_kernel.h).
 *
 *     ptxas: ssm.cu span_runs registers 255
 *     ptxas: ssm.cu span_runs on sm_90a registers 208 */
#include "kernels/cuda/recurrent/recurrent_launch.h"
#include "kernels/cuda/recurrent/recurrent_span_kernel.h"

int cuda_launch_ssm(void *stream, const struct recurrent_span *job)
{
    return span_launch_any<false>(stream, job);
}
