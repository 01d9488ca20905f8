/* The instructions come first, then the loops written in them. */
/* clang-format off */
#include "tests/unit/kernels/support/support_attention_model.h"
#include "tests/unit/kernels/support/support_tiles_model.h"
#include "kernels/cpu/vec/vec_avx512.h"

static uint32_t tiles_min_queries(void);

#include "kernels/cpu/attention/attention_bf16_amx_impl.h"
/* clang-format on */

#include <stdatomic.h>

static _Atomic uint32_t min_queries = AMX_ATTENTION_MIN_BF16_QUERIES;

static uint32_t tiles_min_queries(void)
{
    return atomic_load(&min_queries);
}

void attention_model_tiles_from(uint32_t n_queries)
{
    atomic_store(&min_queries, n_queries > 0 ? n_queries : AMX_ATTENTION_MIN_BF16_QUERIES);
}

bool attention_bf16_model(const struct attention_tile *t, void *scratch)
{
    if (!bf16_attention_takes(t))
        return false;
    bf16_attention(t, scratch);
    return true;
}
