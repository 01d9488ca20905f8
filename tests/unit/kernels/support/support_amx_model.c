/* The instructions come first, then the loops written in them. */
/* clang-format off */
#include "tests/unit/kernels/support/support_amx_model.h"
#include "tests/unit/kernels/support/support_tiles_model.h"
#include "kernels/cpu/vec/vec_avx512.h"
#include "kernels/cpu/linear/linear_int_amx_impl.h"
#include "kernels/cpu/linear/linear_dense_amx_impl.h"
#include "kernels/cpu/linear/tiles_check_impl.h"
/* clang-format on */

#include <pthread.h>

#include "base/error.h"
#include "kernels/cpu/ops_cpu.h"
#include "tests/unit/kernels/support/support_attention_model.h"

static struct cpu_inner inner;
static struct cpu_set set;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void arrange_model(struct act_cpu *act, uint32_t begin, uint32_t end)
{
    amx_arrange(act, begin, end);
}

static void linear_int_model(const struct linear_job *job, const struct linear_share *share)
{
    if (amx_knows(job->w))
        amx_linear_int(job, share);
    else
        linear_int_avx512(job, share);
}

void amx_model_dense_by_fma(const struct linear_job *job, const struct linear_share *share)
{
    dense_by_fma(job, share);
}

void amx_model_dense_by_tiles(const struct linear_job *job, const struct linear_share *share)
{
    dense_by_tiles(job, share);
}

/* As linear_dense_amx(). */
static void linear_dense_model(const struct linear_job *job, const struct linear_share *share)
{
    if (job->w->format != PACK_BF16)
        dense_linear_avx512(job, share);
    else if (share->row_end - share->row_begin >= AMX_DENSE_MIN_ROWS)
        dense_by_tiles(job, share);
    else
        dense_by_fma(job, share);
}

static void make_set(void)
{
    const struct op_table *avx512 = NULL;
    struct error err = {0};
    if (op_table_cpu("avx512", &avx512, &err) != 0)
        return;
    inner = cpu_inner_amx;
    inner.name = AMX_MODEL;
    inner.arrange = arrange_model;
    inner.arrange_min_rows = 1;
    inner.linear_int = linear_int_model;
    inner.linear_dense = linear_dense_model;
    inner.attention = attention_amx_model;
    set.ops = *avx512;
    set.ops.name = AMX_MODEL;
    set.ops.scratch_bytes = NULL;
    set.ops.act_bytes = act_bytes_amx;
    set.ops.act_create = act_create_amx;
    set.ops.numerics = AMX_NUMERICS;
    set.inner = &inner;
}

const struct op_table *amx_model_ops(void)
{
    pthread_once(&once, make_set);
    return set.inner != NULL ? &set.ops : NULL;
}

bool amx_model_checks(void)
{
    return check_tiles_int8() && check_tiles_bf16();
}

bool amx_model_takes(const struct weight_cpu *w, uint32_t n_rows)
{
    return amx_takes(w, n_rows);
}

size_t amx_model_scratch_bytes(uint32_t k_pad)
{
    struct amx_block b = {.n_chunks = (k_pad + CHUNK_K - 1) / CHUNK_K};
    return amx_lay_out(&b, NULL);
}

size_t amx_model_pair_bytes(uint32_t k_pad)
{
    struct amx_pair pair;
    return amx_lay_out_pair(&pair, (k_pad + CHUNK_K - 1) / CHUNK_K, NULL);
}
