/* simt_word.h: kernels/cuda/ptx_word.h for g++ (simt_ptx.cc). */
#pragma once

void cp_async_4(void *shared, const void *global);
