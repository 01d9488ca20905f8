/* The causal convolution. A thread takes a column through the rows of a run, and has the latest
 * inputs in registers. So y may overwrite x. The inputs of the next rows are loaded before the
 * present rows are computed. Bytes: 8·m·n_cols and the states; bound: memory.
 *
 *     ptxas: conv.cu conv_runs registers 160 */
#include "kernels/cuda/recurrent/recurrent_launch.h"
#include "kernels/cuda/recurrent/recurrent_run.h"
#include "kernels/maths.h"

enum { CONV_THREADS = 64, CONV_BATCH = 8 /* rows that are loaded at once */ };

struct conv_batch {
    float x[CONV_BATCH];
    uint32_t writes[CONV_BATCH];
};

/* Loads the inputs of rows [row, row + CONV_BATCH), as far as they are before `end`. */
CUDA_DEVICE void conv_load(const struct recurrent_conv *job, struct conv_batch *batch, uint32_t row,
                           uint32_t end, uint32_t column)
{
    CUDA_UNROLL
    for (uint32_t b = 0; b < CONV_BATCH; b++) {
        uint32_t r = recurrent_row(row, b);
        batch->x[b] = r < end ? job->x[cuda_element(r, job->x_stride, column)] : 0.0f;
        batch->writes[b] = r < end ? job->slots.writes[r] : RECURRENT_NONE;
    }
}

/* A column's inputs and taps, oldest first. The first `skip` of WIDTH are not used. */
template <uint32_t WIDTH> struct conv_window {
    static constexpr uint32_t NEWEST = WIDTH - 1;
    float x[WIDTH], w[WIDTH];
    uint32_t skip;
};

template <uint32_t WIDTH>
CUDA_DEVICE void conv_open(const struct recurrent_conv *job, struct conv_window<WIDTH> *window,
                           uint32_t row, uint32_t column)
{
    const float *from = recurrent_slot(&job->slots, job->slots.reads[row]),
                *w = job->w + cuda_row(column, job->width);
    uint32_t skip = WIDTH - job->width;
    window->skip = skip;
    CUDA_UNROLL
    for (uint32_t t = 0; t < WIDTH; t++) {
        window->w[t] = t >= skip ? w[recurrent_tap(t, skip)] : 0.0f;
        window->x[t] = from && t >= skip && t + 1 < WIDTH
                           ? from[cuda_element(recurrent_tap(t, skip), job->n_cols, column)]
                           : 0.0f;
    }
}

/* Returns the sum over the window, with the newest input x. */
template <uint32_t WIDTH>
CUDA_DEVICE float conv_sum(struct conv_window<WIDTH> *window, float x, float bias)
{
    float sum = bias;
    window->x[conv_window<WIDTH>::NEWEST] = x;
    CUDA_UNROLL
    for (uint32_t t = 0; t < WIDTH; t++)
        if (t >= window->skip)
            sum = fmaf(window->w[t], window->x[t], sum);
    return sum;
}

/* Drops the oldest input, and stores the others if `slot` is not NULL. */
template <uint32_t WIDTH>
CUDA_DEVICE void conv_shift(const struct recurrent_conv *job, struct conv_window<WIDTH> *window,
                            float *slot, uint32_t column)
{
    CUDA_UNROLL
    for (uint32_t t = 0; t + 1 < WIDTH; t++) {
        window->x[t] = window->x[recurrent_newer(t)];
        if (slot && t >= window->skip)
            slot[cuda_element(recurrent_tap(t, window->skip), job->n_cols, column)] = window->x[t];
    }
}

template <uint32_t WIDTH>
CUDA_DEVICE void conv_run(const struct recurrent_conv *job, uint32_t row, uint32_t end,
                          uint32_t column)
{
    struct conv_window<WIDTH> window;
    struct conv_batch next;
    float bias = job->bias ? job->bias[column] : 0.0f;
    conv_open(job, &window, row, column);
    conv_load(job, &next, row, end, column);
    for (uint32_t at = row; at < end; at += CONV_BATCH) {
        struct conv_batch now = next;
        conv_load(job, &next, at + CONV_BATCH, end, column);
        CUDA_UNROLL
        for (uint32_t b = 0; b < CONV_BATCH; b++) {
            if (at + b >= end)
                break;
            float sum = conv_sum(&window, now.x[b], bias);
            conv_shift(job, &window, recurrent_slot(&job->slots, now.writes[b]), column);
            job->y[cuda_element(at + b, job->y_stride, column)] =
                job->silu ? maths_activate(sum, ACTIVATION_SILU) : sum;
        }
    }
}

template <uint32_t WIDTH> static __global__ void conv_runs(struct recurrent_conv job)
{
    cuda_op_begin();
    uint32_t column = cuda_item(blockIdx.x, CONV_THREADS, threadIdx.x), end;
    for (uint32_t row = blockIdx.y; row < job.slots.n_rows; row += gridDim.y)
        if (recurrent_run_at(&job.slots, row, &end) && column < job.n_cols)
            conv_run<WIDTH>(&job, row, end, column);
}

int cuda_launch_conv(void *stream, const struct recurrent_conv *job)
{
    dim3 grid(cuda_n_blocks(job->n_cols, CONV_THREADS, UINT32_MAX),
              cuda_n_blocks(job->slots.n_rows, 1, RECURRENT_RUN_BLOCKS));
    if (job->width == 4)
        return CUDA_LAUNCH(conv_runs<4>, grid, CONV_THREADS, 0, stream, *job);
    if (job->width == 3)
        return CUDA_LAUNCH(conv_runs<3>, grid, CONV_THREADS, 0, stream, *job);
    return CUDA_LAUNCH(conv_runs<RECURRENT_MAX_WIDTH>, grid, CONV_THREADS, 0, stream, *job);
}
