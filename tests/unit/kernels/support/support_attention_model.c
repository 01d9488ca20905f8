/* The instructions come first, then the loops written in them. */
/* clang-format off */
#include "tests/unit/kernels/support/support_attention_model.h"
#include "tests/unit/kernels/support/support_tiles_model.h"
#include "kernels/cpu/vec/vec_avx512.h"
#include "kernels/cpu/attention/attention_amx_impl.h"
/* clang-format on */

void attention_amx_model(const struct attention_tile *t, void *scratch)
{
    if (attention_bf16_model(t, scratch))
        return;
    if (amx_attention_takes(t, 1))
        amx_attention(t, scratch);
    else
        cpu_inner_avx512.attention(t, scratch);
}
