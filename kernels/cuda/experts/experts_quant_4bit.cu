/* Products of quantized experts, the 4-bit forms. */
#include "kernels/cuda/experts/experts_quant.h"

int cuda_launch_experts_4bit(void *stream, const struct experts_tiles *tiles,
                             const struct quant_linear *args, const struct experts_strides *by,
                             const struct quant_plan *plan)
{
    switch (args->layout.form) {
    case QUANT_INT4:
        return experts_launch<QUANT_INT4>(stream, tiles, args, by, plan);
    default:
        return experts_launch<QUANT_INT4_PLAIN>(stream, tiles, args, by, plan);
    }
}

int cuda_allow_experts_4bit(uint32_t max_shared)
{
    int code = experts_allow<QUANT_INT4>(max_shared);
    return code != 0 ? code : experts_allow<QUANT_INT4_PLAIN>(max_shared);
}
