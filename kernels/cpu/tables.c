#include <string.h>

#include "base/cpu.h"
#include "base/error.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/sample_cpu.h"
#include "kernels/cpu/weight_cpu.h"

/* Slots that are the same in every set. */
#define SHARED_OPS                                                                                 \
    .weight_pack_rows = weight_pack_rows_cpu, .act_bytes = act_bytes_cpu,                          \
    .scratch_bytes = scratch_bytes_cpu, .act_create = act_create_cpu,                              \
    .act_destroy = act_destroy_cpu, .embed = embed_cpu, .rms_norm = rms_norm_cpu,                  \
    .layer_norm = layer_norm_cpu, .add = add_cpu, .add_bias = add_bias_cpu,                        \
    .act_mul = act_mul_cpu, .act_prepare = act_prepare_cpu, .linear = linear_cpu,                  \
    .linear_partial = linear_partial_cpu, .linear_finish = linear_finish_cpu, .rope = rope_cpu,    \
    .kv_write = kv_write_cpu, .attention = attention_cpu, .gather_rows = gather_rows_cpu,          \
    .sample = sample_rows_cpu

#define INTEGER_WEIGHTS .weight_bytes = weight_bytes_cpu, .weight_init = weight_init_cpu
#define FLOAT_WEIGHTS   .weight_bytes = weight_bytes_f32, .weight_init = weight_init_f32

/* ref, avx2 and avx512 are one numerics: the same expressions, lane for lane (tests/unit/kernels).
 */
static const struct cpu_set
    ref = {{.name = "ref", .numerics = "cpu-b1", INTEGER_WEIGHTS, SHARED_OPS}, &cpu_inner_ref},
    avx2 = {{.name = "avx2", .numerics = "cpu-b1", INTEGER_WEIGHTS, SHARED_OPS}, &cpu_inner_avx2},
    avx512 = {{.name = "avx512", .numerics = "cpu-b1", INTEGER_WEIGHTS, SHARED_OPS},
              &cpu_inner_avx512},
    f32_ref = {{.name = "f32", .numerics = "cpu-f32", FLOAT_WEIGHTS, SHARED_OPS}, &cpu_inner_ref},
    f32_avx2 = {{.name = "f32", .numerics = "cpu-f32", FLOAT_WEIGHTS, SHARED_OPS}, &cpu_inner_avx2},
    f32_avx512 = {{.name = "f32", .numerics = "cpu-f32", FLOAT_WEIGHTS, SHARED_OPS},
                  &cpu_inner_avx512};

int op_table_cpu(const char *name, const struct op_table **out_ops, struct error *err)
{
    const struct cpu_features *cpu = cpu_features();
    bool has_avx512 = cpu->avx512 && cpu->avx512_vnni, is_auto = strcmp(name, "auto") == 0;
    const struct cpu_set *set = NULL;
    if (strcmp(name, "ref") == 0)
        set = &ref;
    else if (strcmp(name, "f32") == 0)
        set = has_avx512 ? &f32_avx512 : cpu->avx2 ? &f32_avx2 : &f32_ref;
    else if (strcmp(name, "avx512") == 0 || (is_auto && has_avx512))
        set = has_avx512 ? &avx512 : NULL;
    else if (strcmp(name, "avx2") == 0 || (is_auto && cpu->avx2))
        set = cpu->avx2 ? &avx2 : NULL;
    else if (is_auto)
        set = &ref;
    else
        return error_set(err, STATUS_NOT_FOUND,
                         "kernels: no set '%.32s'; there are auto, ref, f32, avx2, avx512", name);
    if (set == NULL)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "kernels: '%s' needs %s, which this processor or its kernel lacks", name,
                         strcmp(name, "avx2") == 0 ? "AVX2, FMA and F16C"
                                                   : "AVX-512 F, BW, VL, DQ and VNNI");
    *out_ops = &set->ops;
    return 0;
}
