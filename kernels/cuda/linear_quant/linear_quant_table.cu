/* Linears of forms with a table: IQ4_NL, MXFP4, IQ4_XS. */
#include "kernels/cuda/linear_quant/linear_quant.h"

int cuda_launch_quant_table(void *stream, const struct quant_linear *args,
                            const struct quant_plan *plan)
{
    switch (args->layout.form) {
    case QUANT_IQ4_NL:
        return quant_launch<QUANT_IQ4_NL>(stream, args, plan);
    case QUANT_MXFP4:
        return quant_launch<QUANT_MXFP4>(stream, args, plan);
    default:
        return quant_launch<QUANT_IQ4_XS>(stream, args, plan);
    }
}

int cuda_allow_quant_table(uint32_t max_shared)
{
    int code = quant_allow<QUANT_IQ4_NL>(max_shared);
    if (code == 0)
        code = quant_allow<QUANT_MXFP4>(max_shared);
    return code != 0 ? code : quant_allow<QUANT_IQ4_XS>(max_shared);
}
