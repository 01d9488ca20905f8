/* Linears of forms with a 16-bit scale per run and 64-bit sums: Q8_0, Q5_0, Q5_1. */
#include "kernels/cuda/linear_quant/linear_quant.h"

int cuda_launch_quant_8bit(void *stream, const struct quant_linear *args,
                           const struct quant_plan *plan)
{
    switch (args->layout.form) {
    case QUANT_INT8:
        return quant_launch<QUANT_INT8>(stream, args, plan);
    case QUANT_Q5_0:
        return quant_launch<QUANT_Q5_0>(stream, args, plan);
    default:
        return quant_launch<QUANT_Q5_1>(stream, args, plan);
    }
}

int cuda_allow_quant_8bit(uint32_t max_shared)
{
    int code = quant_allow<QUANT_INT8>(max_shared);
    if (code == 0)
        code = quant_allow<QUANT_Q5_0>(max_shared);
    return code != 0 ? code : quant_allow<QUANT_Q5_1>(max_shared);
}
