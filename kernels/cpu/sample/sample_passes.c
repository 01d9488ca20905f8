#define PASSES sample_passes_base
#include "kernels/cpu/sample/sample_passes.h"

#include "base/system/cpu.h"
#include "kernels/cpu/sample/sample_passes_impl.h"

const struct sample_passes *sample_passes(void)
{
    const struct cpu_features *cpu = cpu_features();
    if (cpu->avx512_vnni)
        return &sample_passes_avx512;
    return cpu->avx2 ? &sample_passes_avx2 : &sample_passes_base;
}

void sample_segments_init(struct sample_segments *seg, uint32_t vocab)
{
    uint64_t units = ((uint64_t)vocab + SAMPLE_UNIT - 1) / SAMPLE_UNIT;
    for (uint32_t s = 0; s <= SAMPLE_SEGMENTS; s++) {
        uint64_t bound = units * s / SAMPLE_SEGMENTS * SAMPLE_UNIT;
        seg->bounds[s] = bound < vocab ? (uint32_t)bound : vocab;
    }
}

float sample_tree(const float sums[SAMPLE_SEGMENTS])
{
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}
