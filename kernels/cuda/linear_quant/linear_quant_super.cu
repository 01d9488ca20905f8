/* Linears of forms with super-blocks: Q5_K, Q2_K, Q3_K, Q6_K. */
#include "kernels/cuda/linear_quant/linear_quant.h"

int cuda_launch_quant_super(void *stream, const struct quant_linear *args,
                            const struct quant_plan *plan)
{
    switch (args->layout.form) {
    case QUANT_Q5_K:
        return quant_launch<QUANT_Q5_K>(stream, args, plan);
    case QUANT_Q2_K:
        return quant_launch<QUANT_Q2_K>(stream, args, plan);
    case QUANT_Q3_K:
        return quant_launch<QUANT_Q3_K>(stream, args, plan);
    default:
        return quant_launch<QUANT_Q6_K>(stream, args, plan);
    }
}

int cuda_allow_quant_super(uint32_t max_shared)
{
    int code = quant_allow<QUANT_Q5_K>(max_shared);
    if (code == 0)
        code = quant_allow<QUANT_Q2_K>(max_shared);
    if (code == 0)
        code = quant_allow<QUANT_Q3_K>(max_shared);
    return code != 0 ? code : quant_allow<QUANT_Q6_K>(max_shared);
}
