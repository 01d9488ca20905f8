/* support_block.h: a block of CUDA threads as a few threads of the CPU, which meet at a barrier. */
#pragma once

#include "kernels/cuda/block.h"

/* Runs `work` on all threads of a block of n_threads (a power of two, at most 16). */
void run_block(uint32_t n_threads, void (*work)(const struct block *block, void *job), void *job);
