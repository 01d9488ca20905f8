#include "base/cpu.h"

#include <cpuid.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQ_XCOMP_PERM_CODE = 0x1023, XFEATURE_XTILEDATA_BIT = 18 };

static struct cpu_features features;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static void read_brand(char out[64])
{
    unsigned regs[12] = {0};
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &regs[i * 4], &regs[i * 4 + 1], &regs[i * 4 + 2],
                    &regs[i * 4 + 3]);
    memcpy(out, regs, sizeof(regs));
    out[sizeof(regs)] = '\0';
}

static void detect(void)
{
    unsigned a, b, c, d;
    read_brand(features.brand);
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return;
    bool fma = (c & bit_FMA) && (c & bit_F16C) && (c & bit_AVX);
    uint64_t xcr0 = read_xcr0();
    bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xE6) == 0xE6,
         tiles = (xcr0 & 0x60000) == 0x60000;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    features.avx2 = ymm && fma && (b & bit_AVX2);
    features.avx512 = features.avx2 && zmm && (b & bit_AVX512F) && (b & bit_AVX512BW) &&
                      (b & bit_AVX512VL) && (b & bit_AVX512DQ);
    features.avx512_vnni = features.avx512 && (c & bit_AVX512VNNI);
    if (tiles && features.avx512 && (d & (1u << 24)) &&
        syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_CODE, XFEATURE_XTILEDATA_BIT) == 0) {
        features.amx_int8 = (d & (1u << 25)) != 0;
        features.amx_bf16 = (d & (1u << 22)) != 0;
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        features.avx512_bf16 = features.avx512 && (a & (1u << 5));
}

const struct cpu_features *cpu_features(void)
{
    pthread_once(&once, detect);
    return &features;
}

int cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
