/* Registers of a thread and KiB of shared memory of a block of 256, by nvcc 13.0 for sm_90a (sm_80
 * and sm_89 the same within ten; there codes of 256 spill 8 bytes, else nothing spills); one block
 * per SM.
 *
 *   head_dim up to    16-bit      8-bit
 *        64           225  48     207  42
 *       128           255  96     254  74
 *       192           255  96     255  98
 *       256           255  96     255  98 */
#include "kernels/cuda/attention_prefill_kernel.h"
#include "kernels/cuda/launch.h"

template <typename Kv> static int launch_type(void *stream, const struct attention_cuda *a)
{
    switch (prefill_padded_dim(a->kv.head_dim)) {
    case 64:
        return prefill_launch<Kv, 64>(stream, a);
    case 128:
        return prefill_launch<Kv, 128>(stream, a);
    case 192:
        return prefill_launch<Kv, 192>(stream, a);
    default:
        return prefill_launch<Kv, 256>(stream, a);
    }
}

int cuda_launch_attention_prefill(void *stream, const struct attention_cuda *a)
{
    switch (a->kv.dtype) {
    case DTYPE_BF16:
        return launch_type<kv_bf16>(stream, a);
    case DTYPE_F16:
        return launch_type<kv_f16>(stream, a);
    default:
        return launch_type<kv_coded>(stream, a);
    }
}
