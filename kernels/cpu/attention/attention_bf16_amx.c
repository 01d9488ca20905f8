/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/linear/tiles_amx.h"
#include "kernels/cpu/vec/vec_avx512.h"
#include "kernels/cpu/linear/linear_amx.h"

static uint32_t tiles_min_queries(void);

#include "kernels/cpu/attention/attention_bf16_amx_impl.h"
/* clang-format on */

/* If tiles do not add as documented, FMAs are used: only speed is lost. */
static uint32_t tiles_min_queries(void)
{
    return linear_amx_bf16_checks() ? AMX_ATTENTION_MIN_BF16_QUERIES : UINT32_MAX;
}

bool attention_bf16_amx(const struct attention_tile *t, void *scratch)
{
    if (!bf16_attention_takes(t))
        return false;
    bf16_attention(t, scratch);
    return true;
}
