/* Registers of a thread, KiB of shared memory of a block of 128, blocks per SM of an H100. Compiled
 * by nvcc 13.0 for sm_90a (sm_80 the same within six), no spills. Tiles of 8 heads | of 16:
 *
 *   head_dim up to   16-bit                        8-bit
 *        64           99  67  3 | 107  83  2       as 128
 *       128          152  67  3 | 158  83  2       135  71  3 | 162  87  2
 *       192          178  67  2 | 184  83  2       as 256
 *       256          204  83  2 | 212  99  2       204  71  2 | 247  87  2
 *
 * The rings take 48 of the 67 KiB: 3 · 4 warps have 96 KiB of loads in flight on an SM. That is
 * more than twice the bytes that an SM's share of 25 B/ns (an H100's 3.35 TB/s over 132 SMs)
 * delivers in a latency of 1 µs. */
#include "kernels/cuda/attention/attention_decode_launch.h"

int cuda_launch_attention_decode(void *stream, const struct attention_cuda *a,
                                 const struct decode_plan *plan)
{
    return a->slopes != nullptr ? cuda_launch_attention_decode_alibi(stream, a, plan)
                                : decode_launch_type<false>(stream, a, plan);
}
