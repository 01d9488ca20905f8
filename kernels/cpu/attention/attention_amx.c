/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/linear/tiles_amx.h"
#include "kernels/cpu/vec/vec_avx512.h"
#include "kernels/cpu/attention/attention_amx_impl.h"
/* clang-format on */

void attention_amx(const struct attention_tile *t, void *scratch)
{
    if (attention_bf16_amx(t, scratch))
        return;
    if (amx_attention_takes(t, AMX_ATTENTION_MIN_QUERIES))
        amx_attention(t, scratch);
    else
        cpu_inner_avx512.attention(t, scratch);
}
