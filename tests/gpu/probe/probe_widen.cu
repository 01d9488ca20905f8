/* probe_widen.cu: 4-bit codes widened to f16, as prompts of quantized weights do. The code is put
 * into the last bits of 1024. Then 1024 + zero is subtracted, and one fma applies an integer scale
 * and an integer offset. Results up to 2048 in magnitude are exact if the card rounds once. */
#include "kernels/cuda/ptx.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernel.h"

#ifdef __CUDACC__

enum { SCALES = 511, OFFSETS = 2 * 2037 + 1, ZERO = 8, MOST = 2048, THREADS = 256 };

/* A thread has one scale and one offset, and widens all 16 codes, two at a time. */
static __global__ void widen(unsigned long long *counts)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= SCALES * OFFSETS)
        return;
    int scale = (int)(i % SCALES) - SCALES / 2, offset = (int)(i / SCALES) - OFFSETS / 2;
    const float s = (float)scale, o = (float)offset, z = 1024.0f + ZERO;
    uint32_t scales = pack_f16x2(s, s), offsets = pack_f16x2(o, o), zeros = pack_f16x2(z, z);
    uint32_t n_checked = 0, n_wrong = 0;
    for (uint32_t q = 0; q < 16; q += 2) {
        uint32_t codes = q | (q + 1) << 16, pair;
        float values[2];
        /* (codes & 0x000F000F) | 0x64006400: 1024 + code */
        asm("lop3.b32 %0, %1, 0x000F000F, 0x64006400, 0xEA;" : "=r"(pair) : "r"(codes));
        pair = sub_f16x2(pair, zeros);
        asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(scales), "r"(offsets));
        unpack_f16x2(values, pair);
        for (uint32_t j = 0; j < 2; j++) {
            int exact = ((int)(q + j) - ZERO) * scale + offset;
            if (exact > MOST || exact < -MOST)
                continue;
            n_checked++;
            n_wrong += values[j] != (float)exact;
        }
    }
    atomicAdd(counts, n_checked);
    if (n_wrong)
        atomicAdd(counts + 1, n_wrong);
}

int probe_widen(uint64_t *out_n_checked, uint64_t *out_n_wrong)
{
    unsigned long long *counts = NULL, host[2] = {0, 0};
    int code = 0;
    PROBE_TRY(code, cudaMalloc((void **)&counts, sizeof(host)));
    PROBE_TRY(code, cudaMemset(counts, 0, sizeof(host)));
    PROBE_TRY(code,
              PROBE_LAUNCH(widen, (SCALES * OFFSETS + THREADS - 1) / THREADS, THREADS, 0, counts));
    PROBE_TRY(code, cudaMemcpy(host, counts, sizeof(host), cudaMemcpyDeviceToHost));
    (void)cudaFree(counts);
    *out_n_checked = host[0];
    *out_n_wrong = host[1];
    return code;
}

#else

int probe_widen(uint64_t *out_n_checked, uint64_t *out_n_wrong)
{
    *out_n_checked = *out_n_wrong = 0;
    return PROBE_ABSENT; /* the emulator knows neither lop3 nor fma of pairs */
}

#endif
