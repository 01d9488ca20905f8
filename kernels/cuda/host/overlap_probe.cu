/* ptxas: overlap_probe.cu overlap_probe registers 16 */
#include "kernels/cuda/thread.h"

enum { THREADS = 256, MAX_BLOCKS = 65535 };

static __global__ void overlap_probe(uint32_t *words, uint32_t n, uint32_t add)
{
    cuda_op_begin();
    for (uint32_t i = cuda_item(blockIdx.x, THREADS, threadIdx.x); i < n;
         i += cuda_grid_items(gridDim.x, THREADS))
        words[i] = overlap_probe_next(words[i], add);
}

int cuda_launch_overlap_probe(void *stream, uint32_t *words, uint32_t n, uint32_t add)
{
    return CUDA_LAUNCH(overlap_probe, cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, stream,
                       words, n, add);
}
