/* The 16-lane loops in AVX-512 registers. */
/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/vec/vec_avx512.h"

/* Tile sizes that fit the register file. */
#define ATTENTION_NQ 6
#define ATTENTION_NV 4

#include "kernels/cpu/vec/vector_impl.h"
#include "kernels/cpu/attention/attention_dot_avx512.h"
#include "kernels/cpu/attention/attention_impl.h"
#include "kernels/cpu/vec/rope_impl.h"
#include "kernels/cpu/vec/router_impl.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/recurrent/recurrent_span.h"
#include "kernels/cpu/attention/attention_amx.h"
#include "kernels/cpu/linear/linear_amx.h"
/* clang-format on */

/* All loops except the linears and attention. */
#define AVX512_LOOPS                                                                               \
    .abs_stats = abs_stats, .quantize = quantize, .rms_norm = rms_norm, .layer_norm = layer_norm,  \
    .add = add, .act_mul = act_mul, .scale = scale, .router_scores = router_scores,                \
    .add_weighted = add_weighted, .rope = rope_row, .kv_store = kv_store,                          \
    .kv_quantize = kv_quantize, .attention_fold = attention_fold,                                  \
    .conv_taps = recurrent_taps_avx512, .conv_row = recurrent_conv_avx512,                         \
    .l2_norm = recurrent_norm_avx512, .span_gates = recurrent_gates_avx512,                        \
    .delta_span = recurrent_delta_avx512, .ssm_span = recurrent_ssm_avx512

const struct cpu_inner cpu_inner_avx512 = {
    .name = "avx512",
    .row_block_bytes = 384 * 1024,
    AVX512_LOOPS,
    .attention = attention,
    .linear_int = linear_int_avx512,
    .bf16_columns = 1,
    .round_bf16 = round_bf16_f32,
    .linear_dense = dense_linear_avx512,
};

const struct cpu_inner cpu_inner_avx512_bf16 = {
    .name = "avx512_bf16",
    .row_block_bytes = 384 * 1024,
    AVX512_LOOPS,
    .attention = attention,
    .linear_int = linear_int_avx512,
    .bf16_columns = 2,
    .round_bf16 = round_bf16_pairs,
    .linear_dense = dense_linear_bf16_avx512,
};

const struct cpu_inner cpu_inner_amx = {
    .name = "amx",
    .row_block_bytes = AMX_BLOCK_BYTES,
    AVX512_LOOPS,
    .arrange = act_arrange_amx,
    .arrange_min_rows = AMX_MIN_ROWS,
    .attention = attention_amx,
    .linear_int = linear_int_amx,
    .bf16_columns = 2,
    .bf16_tile_rows = AMX_DENSE_ROWS,
    .round_bf16 = round_bf16_pairs,
    .linear_dense = linear_dense_amx,
};
