/* Products of quantized experts, forms with a table: IQ4_NL, MXFP4, IQ4_XS. */
#include "kernels/cuda/experts/experts_quant.h"

int cuda_launch_experts_table(void *stream, const struct experts_tiles *tiles,
                              const struct quant_linear *args, const struct experts_strides *by,
                              const struct quant_plan *plan)
{
    switch (args->layout.form) {
    case QUANT_IQ4_NL:
        return experts_launch<QUANT_IQ4_NL>(stream, tiles, args, by, plan);
    case QUANT_MXFP4:
        return experts_launch<QUANT_MXFP4>(stream, tiles, args, by, plan);
    default:
        return experts_launch<QUANT_IQ4_XS>(stream, tiles, args, by, plan);
    }
}

int cuda_allow_experts_table(uint32_t max_shared)
{
    int code = experts_allow<QUANT_IQ4_NL>(max_shared);
    if (code == 0)
        code = experts_allow<QUANT_MXFP4>(max_shared);
    return code != 0 ? code : experts_allow<QUANT_IQ4_XS>(max_shared);
}
