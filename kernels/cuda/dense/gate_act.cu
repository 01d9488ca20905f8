/* activation(gate) · up as activations with a scale per row: E4M3 for f8 weights, f16 for widened
 * weights. The bits are those of act_mul, and then act_f8 or act_f16. A block has a row, whose
 * products wait in shared memory until the largest is known. Bytes: 9·m·n or 10·m·n, in place of
 * 12 + 5 or 12 + 6. Bound: memory; at about 60 instructions an element the arithmetic takes half as
 * long.
 *
 *    ptxas: gate_act.cu gate_scaled registers 64 shared 4096
 */
#include "kernels/cuda/block.h"
#include "kernels/cuda/dense/act_scaled.h"
#include "kernels/cuda/dense_job.h"

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

template <enum dense_form FORM>
static __global__ void __launch_bounds__(BLOCK_MAX_THREADS, BLOCKS_OF_SM)
    gate_scaled(struct gate_rows job, void *dst, float *scale)
{
    CUDA_SHARED(shared_bytes);
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = {&shared, threadIdx.x, blockDim.x, nullptr, nullptr};
    float *stage = (float *)shared_bytes;
    size_t stride = dense_act_stride(job.n);
    for (uint32_t row = blockIdx.x; row < job.n_rows; row += gridDim.x) {
        float largest = gate_stage(&b, stage, job, row, (uint32_t)stride);
        struct act_top top = act_top_of<FORM>(block_max(&b, largest));
        for (uint32_t i = gate_column(b.tid); i < stride;
             i = gate_batch_column(i, 1, b.n_threads)) {
            float4 y = *(const float4 *)(stage + i);
            act_put_scaled<FORM>(dst, cuda_element(row, stride, i), y, top);
        }
        if (b.tid == 0)
            scale[row] = act_top_unit<FORM>(top);
    }
}

int cuda_dense_allow_gate(uint32_t max_shared)
{
    int code = CUDA_ALLOW_SHARED(gate_scaled<DENSE_F8>, (int)gate_max_bytes(max_shared));
    return code != 0 ? code
                     : CUDA_ALLOW_SHARED(gate_scaled<DENSE_F16>, (int)gate_max_bytes(max_shared));
}

int cuda_launch_gate_scaled(void *stream, void *dst, float *scale, const struct gate_rows *job,
                            enum dense_form form)
{
    uint32_t n_blocks = cuda_n_blocks(job->n_rows, 1, MAX_ROW_BLOCKS);
    if (form == DENSE_F8)
        return CUDA_LAUNCH(gate_scaled<DENSE_F8>, n_blocks, BLOCK_MAX_THREADS, gate_bytes(job->n),
                           stream, *job, dst, scale);
    return CUDA_LAUNCH(gate_scaled<DENSE_F16>, n_blocks, BLOCK_MAX_THREADS, gate_bytes(job->n),
                       stream, *job, dst, scale);
}
