/* activation(gate) · up as activations of f8 weights: E4M3 with a scale per row. The bits are those
 * of act_mul and then act_f8. A block has a row, whose products wait in shared memory until the
 * largest is known. Bytes: 9·m·n, in place of 12 + 5. Bound: memory; at about 60 instructions an
 * element the arithmetic takes half as long.
 *
 *    ptxas: gate_act.cu gate_f8 registers 64 shared 4096
 */
#include "kernels/cuda/block.h"
#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/four.h"
#include "kernels/cuda/fragment.h"

enum { MAX_ROW_BLOCKS = 65535, BLOCKS_OF_SM = 4, BATCH = 2 };

/* Returns four products; zeros from column n on. */
CUDA_DEVICE float4 gate_four(float4 gate, float4 up, uint32_t kind, uint32_t n)
{
    float4 y = {n > 0 ? dense_gated(gate.x, up.x, kind) : 0.0f,
                n > 1 ? dense_gated(gate.y, up.y, kind) : 0.0f,
                n > 2 ? dense_gated(gate.z, up.z, kind) : 0.0f,
                n > 3 ? dense_gated(gate.w, up.w, kind) : 0.0f};
    return y;
}

/* Writes a row's products to `stage`; returns the thread's largest magnitude. */
CUDA_DEVICE float gate_stage(const struct block *b, float *stage, const struct gate_rows &job,
                             uint32_t row, uint32_t n_columns)
{
    const float *gate = job.gate + cuda_row(row, job.gate_stride);
    const float *up = job.up + cuda_row(row, job.up_stride);
    float largest = 0.0f;
#pragma unroll 1
    for (uint32_t i = gate_column(b->tid); i < n_columns;
         i = gate_batch_column(i, BATCH, b->n_threads)) {
        float4 g[BATCH], u[BATCH];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            uint32_t column = gate_batch_column(i, j, b->n_threads);
            uint32_t n = four_below(column, job.n);
            g[j] = four_load(gate + column, n);
            u[j] = four_load(up + column, n);
        }
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            uint32_t column = gate_batch_column(i, j, b->n_threads);
            float4 y = gate_four(g[j], u[j], job.kind, four_below(column, job.n));
            if (column >= n_columns)
                continue;
            *(float4 *)(stage + column) = y;
            largest = four_largest(largest, y);
        }
    }
    return largest;
}

static __global__ void __launch_bounds__(BLOCK_MAX_THREADS, BLOCKS_OF_SM)
    gate_f8(struct gate_rows job, uint8_t *dst, float *scale)
{
    CUDA_SHARED(shared_bytes);
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = {&shared, threadIdx.x, blockDim.x, nullptr, nullptr};
    float *stage = (float *)shared_bytes;
    size_t stride = dense_act_stride(job.n);
    for (uint32_t row = blockIdx.x; row < job.n_rows; row += gridDim.x) {
        float largest = gate_stage(&b, stage, job, row, (uint32_t)stride);
        float top = fmaxf(block_max(&b, largest), ACT_TINY), inverse = act_f8_inverse(top);
        for (uint32_t i = gate_column(b.tid); i < stride;
             i = gate_batch_column(i, 1, b.n_threads)) {
            float4 y = *(const float4 *)(stage + i);
            *(uint32_t *)(dst + cuda_element(row, stride, i)) =
                fragment_four(act_f8_code(y.x, inverse), act_f8_code(y.y, inverse),
                              act_f8_code(y.z, inverse), act_f8_code(y.w, inverse));
        }
        if (b.tid == 0)
            scale[row] = act_f8_unit(top);
    }
}

int cuda_dense_allow_gate(uint32_t max_shared)
{
    return CUDA_ALLOW_SHARED(gate_f8, (int)gate_max_bytes(max_shared));
}

int cuda_launch_gate_f8(void *stream, uint8_t *dst, float *scale, const struct gate_rows *job)
{
    return CUDA_LAUNCH(gate_f8, cuda_n_blocks(job->n_rows, 1, MAX_ROW_BLOCKS), BLOCK_MAX_THREADS,
                       gate_bytes(job->n), stream, *job, dst, scale);
}
