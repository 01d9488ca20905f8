/* Products of quantized experts, forms with super-blocks: Q5_K, Q2_K, Q3_K, Q6_K. */
#include "kernels/cuda/experts/experts_quant.h"

int cuda_launch_experts_super(void *stream, const struct experts_tiles *tiles,
                              const struct quant_linear *args, const struct experts_strides *by,
                              const struct quant_plan *plan)
{
    switch (args->layout.form) {
    case QUANT_Q5_K:
        return experts_launch<QUANT_Q5_K>(stream, tiles, args, by, plan);
    case QUANT_Q2_K:
        return experts_launch<QUANT_Q2_K>(stream, tiles, args, by, plan);
    case QUANT_Q3_K:
        return experts_launch<QUANT_Q3_K>(stream, tiles, args, by, plan);
    default:
        return experts_launch<QUANT_Q6_K>(stream, tiles, args, by, plan);
    }
}

int cuda_allow_experts_super(uint32_t max_shared)
{
    int code = experts_allow<QUANT_Q5_K>(max_shared);
    if (code == 0)
        code = experts_allow<QUANT_Q2_K>(max_shared);
    if (code == 0)
        code = experts_allow<QUANT_Q3_K>(max_shared);
    return code != 0 ? code : experts_allow<QUANT_Q6_K>(max_shared);
}
