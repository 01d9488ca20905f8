/* Registers of a thread and KiB of shared memory of a block of 256, by nvcc 13.0 for sm_90a. The
 * numbers for sm_80 and sm_89 are the same within ten, but codes of 256 spill 8 bytes there.
 * Nothing else spills. An SM has a single block.
 *
 *   head_dim up to    16-bit      8-bit
 *        64           225  48     234  42
 *       128           255  96     254  74
 *       192           255  96     255  98
 *       256           255  96     255  98 */
#include "kernels/cuda/attention/attention_prefill_launch.h"

int cuda_launch_attention_prefill(void *stream, const struct attention_cuda *a)
{
    return a->slopes != nullptr ? cuda_launch_attention_prefill_alibi(stream, a)
                                : prefill_launch_type<false>(stream, a);
}
