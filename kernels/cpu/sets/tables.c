#include <string.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/linear/linear_amx.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/sample/sample_cpu.h"
#include "kernels/cpu/weight_cpu.h"

/* Slots that are the same in every set. */
#define SHARED_OPS                                                                                 \
    .kv_dtypes = CPU_KV_DTYPES, .kv_v_in_k = true, .weight_pack_rows = weight_pack_rows_cpu,       \
    .act_destroy = act_destroy_cpu, .embed = embed_cpu, .rms_norm = rms_norm_cpu,                  \
    .layer_norm = layer_norm_cpu, .add = add_cpu, .add_bias = add_bias_cpu, .scale = scale_cpu,    \
    .act_mul = act_mul_cpu, .act_prepare = act_prepare_cpu, .linear = linear_cpu,                  \
    .linear_parts = linear_parts_cpu, .linear_gated = linear_gated_cpu,                            \
    .will_read = will_read_cpu, .linear_partial = linear_partial_cpu,                              \
    .linear_finish = linear_finish_cpu, .router_topk = router_topk_cpu, .experts = experts_cpu,    \
    .has_expert_scale = true, .rope = rope_cpu, .kv_write = kv_write_cpu,                          \
    .attention = attention_cpu, .conv = conv_cpu, .delta_net = delta_net_cpu, .ssm = ssm_cpu,      \
    .copy_heads = copy_heads_cpu, .heads_linear = heads_linear_cpu,                                \
    .gather_rows = gather_rows_cpu, .sample = sample_rows_cpu

#define CPU_KV_DTYPES (1u << DTYPE_F32 | 1u << DTYPE_F16 | 1u << DTYPE_BF16 | 1u << DTYPE_I8)

#define INTEGER_WEIGHTS .weight_bytes = weight_bytes_cpu, .weight_init = weight_init_cpu
#define FLOAT_WEIGHTS   .weight_bytes = weight_bytes_f32, .weight_init = weight_init_f32
#define CPU_MEMORY                                                                                 \
    .scratch_bytes = scratch_bytes_cpu, .act_bytes = act_bytes_cpu, .act_create = act_create_cpu
#define AMX_MEMORY                                                                                 \
    .scratch_bytes = scratch_bytes_amx, .act_bytes = act_bytes_amx, .act_create = act_create_amx

static size_t scratch_bytes_amx(uint32_t vocab_size, uint32_t head_dim)
{
    size_t others = scratch_bytes_cpu(vocab_size, head_dim);
    return others > AMX_SCRATCH_BYTES ? others : AMX_SCRATCH_BYTES;
}

/* The sets ref, avx2, avx512 and avx512_bf16 have the same numerics: equal expressions in each lane
 * (tests/unit/kernels). The set amx differs for BF16 weights and caches in the order of sums. */
static const struct cpu_set
    ref = {{.name = "ref", .numerics = "cpu-b4", INTEGER_WEIGHTS, CPU_MEMORY, SHARED_OPS},
           &cpu_inner_ref},
    avx2 = {{.name = "avx2", .numerics = "cpu-b4", INTEGER_WEIGHTS, CPU_MEMORY, SHARED_OPS},
            &cpu_inner_avx2},
    avx512 = {{.name = "avx512", .numerics = "cpu-b4", INTEGER_WEIGHTS, CPU_MEMORY, SHARED_OPS},
              &cpu_inner_avx512},
    avx512_bf16 =
        {{.name = "avx512_bf16", .numerics = "cpu-b4", INTEGER_WEIGHTS, CPU_MEMORY, SHARED_OPS},
         &cpu_inner_avx512_bf16},
    amx = {{.name = "amx", .numerics = AMX_NUMERICS, INTEGER_WEIGHTS, AMX_MEMORY, SHARED_OPS},
           &cpu_inner_amx},
    f32_ref = {{.name = "f32", .numerics = "cpu-f32-2", FLOAT_WEIGHTS, CPU_MEMORY, SHARED_OPS},
               &cpu_inner_ref},
    f32_avx2 = {{.name = "f32", .numerics = "cpu-f32-2", FLOAT_WEIGHTS, CPU_MEMORY, SHARED_OPS},
                &cpu_inner_avx2},
    f32_avx512 = {{.name = "f32", .numerics = "cpu-f32-2", FLOAT_WEIGHTS, CPU_MEMORY, SHARED_OPS},
                  &cpu_inner_avx512};

/* Requirements of a set; `met` is true if the processor meets them. */
struct need {
    const char *name, *what;
    const struct cpu_set *set;
    bool met;
};

const char *ops_why_no_amx(void)
{
    if (!cpu_features()->amx_int8)
        return cpu_features()->amx_missing;
    return linear_amx_int8_checks() ? "" : "the processor's tiles do not multiply as documented";
}

int op_table_cpu(const char *name, const struct op_table **out_ops, struct error *err)
{
    const struct cpu_features *cpu = cpu_features();
    bool has_avx512 = cpu->avx512 && cpu->avx512_vnni;
    const struct need best_first[] = {
        {"amx", ops_why_no_amx(), &amx, ops_why_no_amx()[0] == '\0'},
        {"avx512_bf16", "AVX-512 F, BW, VL, DQ, VNNI and a BF16 that adds as documented",
         &avx512_bf16, has_avx512 && cpu->avx512_bf16 && dense_dot_bf16_checks()},
        {"avx512", "AVX-512 F, BW, VL, DQ and VNNI", &avx512, has_avx512},
        {"avx2", "AVX2, FMA and F16C", &avx2, cpu->avx2},
        {"ref", "", &ref, true},
    };
    if (strcmp(name, "f32") == 0) {
        *out_ops = has_avx512 ? &f32_avx512.ops : cpu->avx2 ? &f32_avx2.ops : &f32_ref.ops;
        return 0;
    }
    bool is_auto = strcmp(name, "auto") == 0;
    for (size_t i = 0; i < sizeof(best_first) / sizeof(best_first[0]); i++) {
        const struct need *need = &best_first[i];
        if (!is_auto && strcmp(name, need->name) != 0)
            continue;
        if (need->met) {
            *out_ops = &need->set->ops;
            return 0;
        }
        if (strcmp(name, "amx") == 0)
            return error_set(err, STATUS_FAILED_PRECONDITION, "kernels: no 'amx': %s", need->what);
        if (!is_auto)
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "kernels: '%s' needs %s, which this processor or its kernel lacks",
                             name, need->what);
    }
    return error_set(err, STATUS_NOT_FOUND,
                     "kernels: no set '%.32s'; choose auto, ref, f32, avx2, avx512, "
                     "avx512_bf16, amx",
                     name);
}
