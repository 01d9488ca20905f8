/* Products of quantized experts, forms with a 16-bit scale per run: Q8_0, Q5_0, Q5_1. */
#include "kernels/cuda/experts/experts_quant.h"

int cuda_launch_experts_8bit(void *stream, const struct experts_tiles *tiles,
                             const struct quant_linear *args, const struct experts_strides *by,
                             const struct quant_plan *plan)
{
    switch (args->layout.form) {
    case QUANT_INT8:
        return experts_launch<QUANT_INT8>(stream, tiles, args, by, plan);
    case QUANT_Q5_0:
        return experts_launch<QUANT_Q5_0>(stream, tiles, args, by, plan);
    default:
        return experts_launch<QUANT_Q5_1>(stream, tiles, args, by, plan);
    }
}

int cuda_allow_experts_8bit(uint32_t max_shared)
{
    int code = experts_allow<QUANT_INT8>(max_shared);
    if (code == 0)
        code = experts_allow<QUANT_Q5_0>(max_shared);
    return code != 0 ? code : experts_allow<QUANT_Q5_1>(max_shared);
}
