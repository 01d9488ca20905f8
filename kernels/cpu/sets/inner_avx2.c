/* The 16-lane loops in pairs of AVX2 registers, with the bits of inner_avx512.c. */
/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/vec/vec_avx2.h"

/* Tile sizes that fit the register file. */
#define ATTENTION_NQ 3
#define ATTENTION_NV 2

#include "kernels/cpu/vec/vector_impl.h"
#include "kernels/cpu/attention/attention_dot_avx2.h"
#include "kernels/cpu/attention/attention_impl.h"
#include "kernels/cpu/vec/rope_impl.h"
#include "kernels/cpu/vec/router_impl.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/recurrent/recurrent_span.h"
/* clang-format on */

const struct cpu_inner cpu_inner_avx2 = {
    .name = "avx2",
    .row_block_bytes = 384 * 1024,
    .abs_stats = abs_stats,
    .quantize = quantize,
    .linear_int = linear_int_avx2,
    .bf16_columns = 1,
    .round_bf16 = round_bf16_f32,
    .linear_dense = dense_linear_avx2,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .add = add,
    .act_mul = act_mul,
    .scale = scale,
    .router_scores = router_scores,
    .add_weighted = add_weighted,
    .rope = rope_row,
    .kv_store = kv_store,
    .kv_quantize = kv_quantize,
    .attention = attention,
    .attention_fold = attention_fold,
    .conv_taps = recurrent_taps_avx2,
    .conv_row = recurrent_conv_avx2,
    .l2_norm = recurrent_norm_avx2,
    .span_gates = recurrent_gates_avx2,
    .delta_span = recurrent_delta_avx2,
    .ssm_span = recurrent_ssm_avx2,
};
